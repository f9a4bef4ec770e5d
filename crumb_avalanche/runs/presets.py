"""Values of the settings that are left at ``None``: the family's, else the preset's, else the default."""

from dataclasses import replace

from crumb_avalanche.baselines.families import paper_settings

DEFAULTS = dict(
    strategy="crumb",
    codebook_init="matched",
    weights="torchvision",
    backbone="squeezenet1_0",
    image_size=224,
    first_epochs=10,
    learning_rate=1e-3,
    momentum=0.9,
    weight_decay=1e-4,
)

PAPER = dict(replay_weight=1.0, storing_rule="every_jth", clamp_gradients=0.0, relu_logits=False, head_kernel=1)
# What the reference code does on top of the paper (see the README's table of deviations), and what serves a user best
# (see its table of the recommended preset).
PRESETS: dict[str, dict] = {
    "paper": PAPER,
    "reference": dict(
        replay_weight=5.0, storing_rule="reference", clamp_gradients=10.0, relu_logits=True, head_kernel=3
    ),
    "recommended": {**PAPER, "strategy": "rda", "codebook_init": "kmeans"},
}


def decided(settings):
    """``RunSettings`` with every ``None`` filled in that a family, a preset or a default decides.

    In the family *fair* the learning rate stays ``None``, for the run tunes it on its first experience.

    Raises:
        ValueError: a strategy that the family knows nothing of.
    """
    values = {**DEFAULTS, **PRESETS[settings.preset]}
    if settings.family == "paper":
        row = paper_settings(settings.strategy or values["strategy"], settings.benchmark)
        values.update({name: value for name, value in row.items() if value is not None})
    elif settings.family == "fair":
        del values["learning_rate"]
    return replace(settings, **{name: value for name, value in values.items() if getattr(settings, name) is None})
