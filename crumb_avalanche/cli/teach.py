"""``crumb teach``: teach a learner what images show."""

import os
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from benchmarks_toybox_ilab.tables.folders import is_video
from benchmarks_toybox_ilab.tables.progress import progress_bar
from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.cli.settings import ConnectSettings, ServeSettings, TeachSettings
from crumb_avalanche.images.clips import (
    Clip,
    check_class_folders,
    label_of,
    only_class_folder,
)
from crumb_avalanche.images.looks import Looks
from crumb_avalanche.images.sources import clips_of
from crumb_avalanche.learner.file import holds_weights, refuse_folder
from crumb_avalanche.learner.learner import LOOKS, Learner
from crumb_avalanche.models.backbone_names import full_name
from crumb_avalanche.system.folder_lock import locked_file
from crumb_avalanche.system.process import keep_freed_memory
from crumb_avalanche.system.words import counted


def main(settings: TeachSettings) -> None:
    """Learn the source and write the learner's file; print what was learned."""
    if [settings.sources or None, settings.camera, settings.nothing].count(None) != 2:
        raise ValueError(
            "give a source (crumb teach MODEL SOURCE) or a camera (--camera 0 --label NAME), or show an empty scene "
            "(--nothing SOURCE)"
        )
    if settings.nothing is not None and settings.label is not None:
        raise ValueError("an empty scene has no class: leave --label out")
    if settings.nothing is not None:
        check_source(settings.nothing, "nothing", True)
    source: Any = [
        list(some) for _, some in groupby(settings.sources, os.path.dirname)
    ]  # a clip of each folder
    if len(settings.sources) == 1:
        source = settings.sources[0]
    if settings.sources:
        check_source(source, settings.label, settings.new_class)
        if settings.label is None:
            tell_level(source)
    keep_freed_memory()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    path = Path(settings.model)
    refuse_folder(path)
    with locked_file(path):
        learner = opened(settings, path)
        lean = settings.without_weights
        if lean is None:
            lean = path.exists() and not holds_weights(path)
        start_runtime(
            learner, settings.runtime, *(settings.sources or (settings.nothing,))
        )
        learner.keep_pictures = settings.keep_pictures
        with progress_bar(None, "learning", show=settings.progress) as bar:
            plain: dict[str, Any] = {
                "on_bad": settings.on_bad_frame,
                "progress": bar.update,
            }
            if settings.nothing is not None:
                lesson = learner.teach_nothing(settings.nothing, **plain)
            else:
                if settings.camera is not None:
                    from crumb_avalanche.images.camera import camera_clip

                    source = camera_clip(settings.camera, settings.seconds)
                lesson = learner.teach(
                    source, settings.label, new_class=settings.new_class, **plain
                )
        learner.save(path, weights=not lean, pictures=True, locked=True)
    for name, count in lesson.images.items():
        print(f"learned {name}: {counted(count, 'image')}")
    if lesson.nothing:
        print(f"learned that {counted(lesson.nothing, 'image')} show nothing")
    for bad in lesson.unread:
        print(f"could not read {bad}")
    for note in lesson.notes:
        print(f"budget of {learner.budget_bytes:,} bytes is full: {note}")
    if lesson.answered:
        share = 100 * lesson.right / lesson.answered
        print(
            f"of {counted(lesson.answered, 'clip')} asked before learning, {lesson.right} right ({share:.0f} %)"
        )
    for doubt in lesson.doubts:
        print(
            printable(
                f"{doubt.text} If not: crumb learner move {path} {doubt.label} RIGHT --lesson {lesson.number}"
            )
        )
    if learner.clips_missing:
        second = "" if len(learner.classes) > 1 else "a second class, and then "
        print(
            f"a usual threshold separates known from unknown until {second}clips of "
            f"{counted(learner.clips_missing, 'more object')} of these classes are learned"
            + ("" if learner.nothing else "; show it the empty scene with --nothing")
        )
    size = path.stat().st_size
    print(
        f"{path}: {counted(len(learner.classes), 'class')}, {learner.bytes:,} bytes learned, file of {size:,} bytes"
    )


def check_source(source: Any, label: str | None, new_class: bool) -> None:
    """Raise what ``Learner.teach`` would for a source that cannot be taught, before the network is loaded."""
    if label is None and not new_class:
        check_class_folders(source)
    label_of(next(clips_of(source, label, on_bad="skip", report=lambda bad: None)))


def tell_level(source: Any) -> None:
    """Say on stderr what is taken as the class if the classes may be the folders one level below."""
    if (found := only_class_folder(source)) is not None:
        folder, inner = found
        some = ", ".join(inner[:3]) + (", ..." if len(inner) > 3 else "")
        print(
            printable(
                f"all of {source} is taken as one class, {folder.name}; if {some} are the classes, give {folder}"
            ),
            file=sys.stderr,
        )


def start_runtime(learner: Learner, name: str, *sources: str | Clip | None) -> None:
    """Let a runtime run a learner's network, and say on stderr which one if it was asked for and is not torch.

    ``auto`` is torch for a single photo among ``sources``, which is answered before
    another runtime is loaded.
    """
    file = Path(str(sources[0])) if len(sources) == 1 else None
    photo = file is not None and file.is_file() and not is_video(file)
    runtime = learner.runtime if name == "auto" and photo else learner.use_runtime(name)
    if name != "auto" and runtime.name != "torch":
        print(runtime.described, file=sys.stderr)


def opened(
    settings: ConnectSettings | ServeSettings | TeachSettings, path: Path
) -> Learner:
    """Load the learner, or make one if there is no file."""
    if path.exists():
        learner = Learner.load(path, settings.weights)
        learner.check_teachable()
        check_same(settings, learner)
        return learner
    weights = None if settings.weights == "none" else settings.weights or "torchvision"
    network = (
        settings.backbone,
        weights,
        settings.image_size,
        settings.budget_bytes,
        settings.cut_layer,
    )
    learner = Learner(
        settings.method,
        *network,
        LOOKS if settings.looks is None else looks_of(settings.looks),
    )
    print(
        f"new learner with {learner.network.backbone}, {learner.network.source}",
        file=sys.stderr,
    )
    return learner


def looks_of(text: str) -> tuple[float, ...]:
    """Return the shares of a text such as ``0.75,0.5``."""
    try:
        return Looks(tuple(map(float, text.split(",")))).shares
    except ValueError as error:
        raise ValueError(
            f"--looks is {text!r}; give one to three shares of the image's side, such as 0.75,0.5"
        ) from error


def text_of(looks: tuple[float, ...]) -> str:
    """Return the text that ``looks_of`` reads."""
    return ",".join(map(str, looks))


def check_same(
    settings: ConnectSettings | ServeSettings | TeachSettings, learner: Learner
) -> None:
    """Raise ValueError for a setting of a new learner that this one was not made with."""
    network = learner.network
    kept: list[tuple[str, Any, tuple]] = [
        ("method", settings.method, (learner.method,)),
        (
            "backbone",
            settings.backbone and full_name(settings.backbone),
            (network.backbone,),
        ),
        ("cut_layer", settings.cut_layer, network.cuts),
        ("image_size", settings.image_size, (network.image_size,)),
        ("budget_bytes", settings.budget_bytes, (learner.budget_bytes,)),
        (
            "looks",
            settings.looks and text_of(looks_of(settings.looks)),
            (text_of(learner.looks),),
        ),
    ]
    for name, given, made in kept:
        if given not in (getattr(type(settings), name), *made):
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{settings.model} was made with {flag} {made[0]} and keeps it: leave {flag} {given} out, or name "
                "a new file"
            )
