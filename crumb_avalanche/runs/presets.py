"""Values of the settings that are left at ``None``: the family's, else the preset's, else the default."""

from crumb_avalanche.baselines.method_settings import LearningSettings
from crumb_avalanche.training.replay_settings import ReplaySettings

CLIPS = "clip_folder"  # the benchmark whose images are the user's own

DEFAULTS = dict(
    strategy="crumb",
    codebook_init="matched",
    weights="torchvision",
    backbone="squeezenet1_0",
    image_size=224,
    first_epochs=LearningSettings.first_epochs,
    learning_rate=LearningSettings.learning_rate,
    momentum=LearningSettings.momentum,
    weight_decay=LearningSettings.weight_decay,
    replay_weight=ReplaySettings.replay_weight,
    selection_rule=ReplaySettings.selection_rule,
    clamp_gradients=0.0,
    relu_logits=False,
    head_kernel=1,
)

# What the reference code does in addition to the paper (see the README's table of deviations), and what is most
# accurate at the same bytes (see its table of the recommended preset).
PRESETS: dict[str, dict] = {
    "paper": {},
    "reference": dict(
        replay_weight=5.0, selection_rule="reference", clamp_gradients=10.0, relu_logits=True, head_kernel=3
    ),
    "recommended": dict(strategy="rda", codebook_init="kmeans"),
}


def preset_for(benchmark: str, family: str | None) -> str:
    """The preset of a run that names none: a family compares methods as the paper does."""
    return "recommended" if benchmark == CLIPS and family is None else "paper"
