"""Presets and defaults of the settings that are ``None``."""

from crumb_avalanche.methods.registry import LearningSettings
from crumb_avalanche.training.replay_settings import ReplaySettings

CLIPS = "clip_folder"  # the benchmark of a user's own images

DEFAULTS = dict(
    strategy="crumb",
    codebook_init="matched",
    codebook_dim=16,
    weights="torchvision",
    backbone="squeezenet1_0",
    image_size=224,
    first_epochs=LearningSettings.first_epochs,
    learning_rate=LearningSettings.learning_rate,
    momentum=LearningSettings.momentum,
    weight_decay=LearningSettings.weight_decay,
    selection_rule=ReplaySettings.selection_rule,
    clamp_gradients=0.0,
    relu_logits=False,
    head_kernel=1,
    evaluate_quantized=False,
)

# "reference" adds what the paper's code does beyond its text (see docs/deviations.md). "tuned" is CRUMB
# trained as well as three times the seconds of a step without replay allow, and answers from its memories.
# "recommended" is the most accurate at the same bytes (see docs/recommended.md).
PRESETS: dict[str, dict] = {
    "paper": {},
    "reference": dict(selection_rule="reference", clamp_gradients=10.0, relu_logits=True, head_kernel=3),
    "tuned": dict(codebook_dim=64, codebook_init="spherical", replay_compute=1.4),
    "recommended": dict(strategy="rda", codebook_init="kmeans"),
}
# Settings of a method (``method.*``) by preset and strategy.
PRESET_METHODS: dict[str, dict[str, dict]] = {"tuned": {"crumb": dict(readout="closed_form")}}


def preset_for(benchmark: str, family: str | None) -> str:
    """Return the default preset: ``recommended`` for own clips without a family, else ``paper``."""
    return "recommended" if benchmark == CLIPS and family is None else "paper"
