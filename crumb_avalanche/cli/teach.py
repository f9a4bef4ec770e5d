"""``crumb teach``: teach a learner what images show."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks_toybox_ilab.tables.progress import progress_bar
from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.cli.open_learner import open_or_make_learner, start_runtime
from crumb_avalanche.cli.settings import TeachSettings
from crumb_avalanche.images.clips import (
    Clip,
    check_class_folders,
    label_of,
    only_class_folder,
)
from crumb_avalanche.images.sources import check_exists, clips_of
from crumb_avalanche.learner.header import holds_weights, refuse_folder
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.lesson_record import Lesson
from crumb_avalanche.learner.nothing import NOTHING
from crumb_avalanche.runs.engine_settings import EngineSettings, engine_settings
from crumb_avalanche.system.folder_lock import locked_file
from crumb_avalanche.system.process import keep_freed_memory
from crumb_avalanche.system.words import counted, error_rates

if TYPE_CHECKING:
    from crumb_avalanche.learner.shards import ShardedLesson

MOST_NAMES = 3  # of folders, in what is said about them
WORK_OF_SHARDS = "crumb_avalanche.learner.shards"
SHARDS_ON_A_CLUSTER = 16
# What to do where a folder of photos stands in the place of the learner's file.
FILE_FIRST = (
    "the first argument is the learner's file, which is made if there is none, and "
    "what it learns comes after it, as in: crumb teach mine.safetensors clips"
)


def main(settings: TeachSettings) -> None:
    """Learn the source and write the learner's file; print what was learned.

    Without a source, ``strict`` of an existing learner is changed.
    """
    check_settings(settings)  # raises for those that do not go together
    if not given_sources(settings):
        change_strict(settings)
        return
    path = Path(settings.model)
    refuse_folder(path, FILE_FIRST)  # before the sources, which may be the file
    engine = engine_of_settings(settings)
    check_sources(settings)  # raises before the network is loaded, which takes a while
    keep_freed_memory()  # for the next batch of maps, which is faster
    if settings.threads:
        torch.set_num_threads(settings.threads)
    with locked_file(path):
        learner = open_or_make_learner(settings, path)
        weights = includes_weights(settings, path)
        start_runtime(
            learner, settings.runtime, *(settings.sources or (settings.nothing,))
        )
        learner.keep_pictures = settings.keep_pictures
        plan = None
        if engine is None:
            lesson = teach_here(learner, settings)
        else:
            plan = plan_of_shards(learner, settings, engine)
            lesson = teach_in_shards(learner, plan, settings, engine)
        learner.save(path, weights=weights, pictures=True, locked=True)
        if plan is not None:
            plan.remove_features()  # not needed once the lesson is saved
    print_lesson(lesson, learner, path)
    print_learner(learner, path)


def check_settings(settings: TeachSettings) -> None:
    """Raise ValueError for settings that do not go together."""
    n_sources = len(given_sources(settings))
    changes_strict = settings.strict is not None and settings.label is None
    is_allowed = n_sources == 1 or (n_sources == 0 and changes_strict)
    if not is_allowed:
        raise ValueError(
            "give a source (crumb teach MODEL SOURCE) or a camera (--camera 0 --label "
            "NAME), or show an empty scene (--nothing SOURCE); --strict alone changes "
            "the setting of MODEL"
        )
    if settings.nothing is not None and settings.label is not None:
        raise ValueError("an empty scene has no class: leave --label out")


def given_sources(settings: TeachSettings) -> list[Any]:
    """Return what the settings name to learn from: sources, a camera, ``--nothing``."""
    sources = [settings.sources, settings.camera, settings.nothing]
    return [source for source in sources if source not in (None, [])]


def change_strict(settings: TeachSettings) -> None:
    """Change the confidence from which on the learner of a file names a class.

    Raises:
        FileNotFoundError: there is no file.
    """
    path = Path(settings.model)
    refuse_folder(path, FILE_FIRST)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no learner {path} whose --strict could be changed; check the "
            "path, or give a source to teach a new one"
        )
    with locked_file(path):
        learner = open_or_make_learner(settings, path)  # with the new ``strict``
        weights = includes_weights(settings, path)
        learner.save(path, weights=weights, pictures=True, locked=True)
    print(f"strict is {learner.strict:g}: a class is named from this confidence on")
    print_learner(learner, path)


class ShardsFailedError(RuntimeError):
    """Some shards of a lesson failed."""


def engine_of_settings(settings: TeachSettings) -> EngineSettings | None:
    """Return the engine that computes features; ``None`` for this process.

    Raises:
        ValueError: settings do not go together.
    """
    engine = engine_settings(settings.engine, settings.processes, settings.resources)
    if engine.engine == "processes" and engine.processes < 2:
        return None
    if settings.camera is not None:
        raise ValueError(
            "a camera is watched by this process: leave --engine and --processes out"
        )
    if settings.keep_pictures:
        raise ValueError(
            "pictures are kept by this process: leave --keep-pictures out, or --engine "
            "and --processes"
        )
    return engine


def shards_folder(settings: TeachSettings) -> Path:
    """Return the folder of the features of a lesson, beside the learner's file."""
    path = Path(settings.model)
    return path.with_name(f"{path.name}.shards")


def shards_by_default(engine: EngineSettings) -> int:
    """Return the number of shards; a process loads the network for each of its own."""
    if engine.engine == "processes":
        return engine.processes
    return SHARDS_ON_A_CLUSTER


def plan_of_shards(
    learner: Learner, settings: TeachSettings, engine: EngineSettings
) -> "ShardedLesson":
    """Divide the images of a lesson into shards.

    Args:
        learner: learns the source.
        settings: of the command: source, label and number of shards.
        engine: whose workers compute the features, each those of a shard.
    """
    from crumb_avalanche.learner.shards import LessonSource, ShardedLesson

    source = settings.nothing
    label: str | None = NOTHING
    if settings.nothing is None:
        source = source_of(settings)
        label = settings.label
    learner.use_runtime(settings.runtime)
    return ShardedLesson.plan(
        learner,
        LessonSource.of(source, label, settings.on_bad_frame),
        settings.shards or shards_by_default(engine),
        shards_folder(settings).resolve(),
        new_class=settings.new_class,
        threads=settings.threads or engine.cpus,
    )


def teach_in_shards(
    learner: Learner,
    plan: "ShardedLesson",
    settings: TeachSettings,
    engine: EngineSettings,
) -> Lesson:
    """Teach a learner with features that workers compute, as one lesson.

    Args:
        learner: learns the source of the plan.
        plan: of the lesson.
        settings: of the command.
        engine: whose workers compute the features of the shards.

    Returns:
        The lesson.

    Raises:
        ShardsFailedError: some failed; the learner is as it was.
    """
    from crumb_avalanche.runs.engines import do_all, engine_of
    from crumb_avalanche.runs.work import WorkUnit

    units = [
        WorkUnit(shard.folder, shard.compute, shard.is_done) for shard in plan.shards
    ]
    failed = do_all(
        units,
        engine_of(engine, plan.folder, preload=WORK_OF_SHARDS),
        plural="shards",
        progress=settings.progress,
    )
    if failed:
        folder_of_first, message = next(iter(failed.items()))
        raise ShardsFailedError(
            f"{len(failed)} of {len(units)} shards failed, such as {folder_of_first}: "
            f"{message}; the learner is as it was, and the same command does "
            "them again"
        )
    with progress_bar(None, "learning", show=settings.progress) as bar:
        return plan.teach(learner, bar.update)


def check_sources(settings: TeachSettings) -> None:
    """Raise what ``Learner.teach`` would, before the network is loaded."""
    if settings.nothing is not None:
        next(clips_to_learn(settings.nothing, "nothing"))
    if settings.sources:
        for path in settings.sources:
            check_exists(path)
        source = source_of(settings)
        check_source(source, settings.label, settings.new_class)
        if settings.label is None:
            print_level(source)


def source_of(settings: TeachSettings) -> Any:
    """Return the sources as ``Learner.teach`` takes them: a clip of each folder."""
    if len(settings.sources) == 1:
        return settings.sources[0]
    return [list(paths) for _, paths in groupby(settings.sources, os.path.dirname)]


def check_source(source: Any, label: str | None, new_class: bool) -> None:
    """Raise what ``Learner.teach`` would for a source that cannot be taught."""
    if label is None and not new_class:
        check_class_folders(source)
    clip = next(clips_to_learn(source, label))
    is_photo_of_list = isinstance(source, list) and not clip.files
    if is_photo_of_list:
        clip = replace(clip, path=source[0][0])  # for the error, instead of source[0]
    label_of(clip)


def clips_to_learn(source: Any, label: str | None) -> Iterator[Clip]:
    """Return the clips of a source, of which nothing is read yet."""
    return clips_of(source, label, on_bad="skip", report=lambda bad: None)


def print_level(source: Any) -> None:
    """Say on stderr which folder is taken as the class, where others may be meant.

    If the only folder of a source holds several folders, these may be the classes.

    Args:
        source: path of a folder; nothing is said of any other source.
    """
    class_and_inner = only_class_folder(source)
    if class_and_inner is None:
        return
    folder, inner_names = class_and_inner
    names = ", ".join(inner_names[:MOST_NAMES])
    if len(inner_names) > MOST_NAMES:
        names += ", ..."
    text = (
        f"all of {source} is taken as one class, {folder.name}; if {names} are the "
        f"classes, give {folder}"
    )
    print(printable(text), file=sys.stderr)


def includes_weights(settings: TeachSettings, path: Path) -> bool:
    """Whether the file is to hold the network's weights; as it is, unless said."""
    if settings.without_weights is not None:
        return not settings.without_weights
    return not path.exists() or holds_weights(path)


def teach_here(learner: Learner, settings: TeachSettings) -> Lesson:
    """Teach a learner what the settings name, in this process; return the lesson.

    That is a source, a camera, or ``--nothing``: images of the empty scene.
    """
    with progress_bar(None, "learning", show=settings.progress) as bar:
        if settings.nothing is not None:
            return learner.teach_nothing(
                settings.nothing,
                on_bad=settings.on_bad_frame,
                progress=bar.update,
            )
        if settings.camera is None:
            source = source_of(settings)
        else:
            from crumb_avalanche.images.camera import camera_clip

            source = camera_clip(settings.camera, settings.seconds)
        return learner.teach(
            source,
            settings.label,
            new_class=settings.new_class,
            on_bad=settings.on_bad_frame,
            progress=bar.update,
        )


def print_lesson(lesson: Lesson, learner: Learner, path: Path) -> None:
    """Print what was learned in a lesson, and what speaks against a label.

    Args:
        lesson: with numbers of images by class, notes and doubts.
        learner: that learned it.
        path: of the learner's file, for the command that corrects a label.
    """
    for name, count in lesson.images.items():
        print(f"learned {name}: {counted(count, 'image')}")
    if lesson.nothing:
        print(f"learned that {counted(lesson.nothing, 'image')} show nothing")
    for bad in lesson.unread:
        print(f"could not read {bad}")
    for note in lesson.notes:
        print(f"budget of {learner.budget_bytes:,} bytes is full: {note}")
    if lesson.repeated:
        print(lesson.repeated_note)
    if lesson.answered:
        clips = counted(lesson.answered, "clip")
        percent = f"{100 * lesson.right / lesson.answered:.0f} %"
        text = f"of {clips} asked before learning, {lesson.right} recognised"
        print(f"{text} ({percent}), {lesson.unknown} unknown")
    for doubt in lesson.doubts:
        command = f"crumb learner move {path} {doubt.label} RIGHT"
        print(printable(f"{doubt.text} If not: {command} --lesson {lesson.number}"))


def print_learner(learner: Learner, path: Path) -> None:
    """Print how the learner errs, what "unknown" still needs, and the bytes."""
    if learner.note:
        print(learner.note)
    if learner.rates is not None:
        print(error_rates(*learner.rates))
    classes = counted(len(learner.classes), "class")
    size = path.stat().st_size
    print(f"{path}: {classes}, {learner.bytes:,} bytes learned, file of {size:,} bytes")
