"""The range of every numeric setting, by its name: the same for all commands and methods."""

import math
from dataclasses import fields
from numbers import Integral
from typing import Any

NEVER = 10**9  # a count that is never reached
_ABOVE_ZERO = "batch_size classes_per_experience codebook_dim codebook_size epochs evaluate_every first_epochs"
_ABOVE_ZERO += " head_kernel image_size n_classes train_mb_size"
_NOT_NEGATIVE = "budget_bytes budget_images checkpoint_every clamp_gradients codebook_weight cut_layer direct_weight"
_NOT_NEGATIVE += " images_per_class learning_rate mem_size momentum port replay_steps replay_weight run seconds seed"
_NOT_NEGATIVE += " threads weight_decay workers"
LOWEST = dict.fromkeys(_ABOVE_ZERO.split(), 1) | dict.fromkeys(_NOT_NEGATIVE.split(), 0)
# Beyond these a run cannot end, fit into memory, or be computed in float32.
HIGHEST = {
    "budget": 10**15,  # bytes of the most images of the largest size
    "budget_bytes": 10**12,
    "budget_images": 10**7,
    "capacity": 10**7,
    "checkpoint_every": NEVER,
    "codebook_size": 2**15,
    "epochs": 10**5,
    "evaluate_every": NEVER,
    "first_epochs": 10**5,
    "fit_vectors": NEVER,
    "fps": 1000,
    "image_size": 4096,
    "images_per_class": NEVER,
    "learning_rate": 10**6,
    "mem_size": 10**7,
    "port": 2**16 - 1,
    "projection": 50_000,
    "rate_images": NEVER,
    "rate_step": NEVER,
    "replay_compute": 1000,
    "replay_steps": 10**4,
    "run": 2**32 - 1,  # NumPy's largest seed
    "seconds": 24 * 3600,
    "seed": 2**32 - 1,
    "threads": 1024,
    "weight_decay": 1000,
    "workers": 256,
}
HIGHEST_INT, HIGHEST_FLOAT = 10**6, 1e9  # of all others
COUNTED = {"evaluate_every": "experiences", "checkpoint_every": "steps", "batch_size": "images", "cut_layer": "layers"}


def check_range(name: str, value: Any) -> None:
    """Raise if a setting is a number out of the range of its name.

    Raises:
        ValueError: names the setting, the rule and the accepted values.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}; give a finite number")
    counted = f"it counts {COUNTED[name]}: " if name in COUNTED else ""
    if name in LOWEST and value < LOWEST[name]:
        raise ValueError(f"{name} is {value}; {counted}give {LOWEST[name]} or more")
    if name == "momentum" and value >= 1:
        raise ValueError(f"{name} is {value}; give 0 or more, but less than 1")
    highest = HIGHEST.get(name, HIGHEST_INT if isinstance(value, int) else HIGHEST_FLOAT)
    if abs(value) > highest:
        raise ValueError(f"{name} is {value}; {counted}give {highest:,} or less")


def check_count(name: str, value: Any) -> None:
    """Raise if a setting is not a whole number in the range of its name.

    Raises:
        TypeError: it is not a whole number.
        ValueError: see ``check_range``.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; give a whole number")
    check_range(name, int(value))


def check_ranges(settings: Any) -> None:
    """Call ``check_range`` for each field of a dataclass."""
    for item in fields(settings):
        check_range(item.name, getattr(settings, item.name))


class InRange:
    """Base of dataclasses whose numbers are checked when they are made."""

    def __post_init__(self) -> None:
        check_ranges(self)
