"""The learner that a command names: load it or make it, and start its runtime."""

import sys
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.tables.folders import is_video
from crumb_avalanche.cli.settings import NewLearnerSettings
from crumb_avalanche.images.clips import Clip
from crumb_avalanche.learner.learner import LOOKS, Learner
from crumb_avalanche.learner.network import cuts_of
from crumb_avalanche.learner.record_fit import STRICT
from crumb_avalanche.methods.look_shares import shares_of, text_of
from crumb_avalanche.models.backbone_names import full_name


def open_or_make_learner(settings: NewLearnerSettings, path: Path) -> Learner:
    """Load the learner of a file, or make one if there is no file.

    Args:
        settings: of new learners: method, backbone, weights, budget and others.
        path: of the file.

    Raises:
        ValueError: the learner was made with other settings.
    """
    if path.exists():
        # The weights are those in the file; only a file without weights needs others.
        learner = Learner.load(path, settings.weights)
        learner.check_teachable()  # raises if it can only be asked
        check_made_with(settings, learner, path)
        # The least confidence from which on a class is named.
        if settings.strict is not None:
            learner.set_strict(settings.strict)
        return learner
    weights: str | None = settings.weights or "torchvision"
    if weights == "none":
        weights = None  # random weights
    looks: tuple[float, ...] = LOOKS
    if settings.looks is not None:
        looks = looks_of(settings.looks)
    learner = Learner(
        method=settings.method,
        backbone=settings.backbone,
        weights=weights,
        image_size=settings.image_size,
        budget_bytes=settings.budget_bytes,
        cut_layer=settings.cut_layer,
        looks=looks,
        strict=STRICT if settings.strict is None else settings.strict,
    )
    network = learner.network
    print(f"new learner with {network.backbone}, {network.source}", file=sys.stderr)
    return learner


def looks_of(text: str) -> tuple[float, ...]:
    """Return the looks in the text of ``--looks``: sides of squares, from 0.1 to 1.

    ValueError names the flag.
    """
    try:
        return shares_of(text)
    except ValueError as error:
        raise ValueError(f"--{error}") from error


def check_made_with(settings: NewLearnerSettings, learner: Learner, path: Path) -> None:
    """Raise ValueError if a command asks for another learner than the one in a file.

    Settings of new learners that have their default were not written: they agree with
    any learner.

    Args:
        settings: of the command.
        learner: of the file.
        path: of the file.
    """
    network = learner.network
    # Values that agree with the learner; the message names the first.
    accepted_values: dict[str, tuple[Any, ...]] = {
        "method": (learner.method,),
        "backbone": (network.backbone,),
        "cut_layer": cuts_of(network),
        "image_size": (network.image_size,),
        "budget_bytes": (learner.budget_bytes,),
        "looks": (text_of(learner.looks),),
    }
    for name, accepted in accepted_values.items():
        asked_value = getattr(settings, name)
        default = getattr(type(settings), name)
        if asked_value == default:
            continue
        if name == "backbone":
            asked_value = full_name(asked_value)
        elif name == "looks":
            asked_value = text_of(looks_of(asked_value))
        if asked_value not in accepted:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{path} was made with {flag} {accepted[0]} and keeps it: leave {flag} "
                f"{asked_value} out, or name a new file"
            )


def start_runtime(learner: Learner, name: str, *sources: str | Clip | None) -> None:
    """Let a runtime run a learner's network.

    Which one is said on stderr if it was asked for and is not torch.

    Args:
        learner: its network is run.
        name: of the runtime. ``auto`` is torch for a single photo, which is answered
            before another runtime is loaded.
        sources: what is asked about or learned.
    """
    if name == "auto" and len(sources) == 1 and _is_photo(sources[0]):
        return
    runtime = learner.use_runtime(name)
    if name != "auto" and runtime.name != "torch":
        print(runtime.described, file=sys.stderr)


def _is_photo(source: str | Clip | None) -> bool:
    """Whether a source of a command is the file of a single image."""
    file = Path(str(source))
    return file.is_file() and not is_video(file)
