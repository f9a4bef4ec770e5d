"""``crumb learner``: show a learner, or change what it knows; ``crumb export``: convert it for other programs."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.cli.settings import ExportSettings, LearnerSettings
from crumb_avalanche.learner.file import (
    file_of,
    holds_weights,
    is_learner,
    read_header,
    refuse_folder,
)
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.run_answers import cannot_be_taught
from crumb_avalanche.methods.run_file import LearnerHeader
from crumb_avalanche.system.folder_lock import locked_file, output_file
from crumb_avalanche.system.words import counted

NEEDED = {
    "show": 0,
    "lessons": 0,
    "undo": 0,
    "move": 2,
    "forget": 1,
    "rename": 2,
    "merge": 1,
}


def main(settings: LearnerSettings) -> None:
    """Do what is asked and print it."""
    action, path, names = settings.action, Path(settings.model), settings.names
    if len(names) != NEEDED[action]:
        usages = {
            "forget": " NAME",
            "rename": " OLD NEW",
            "move": " WRONG RIGHT",
            "merge": " OTHER --output FILE",
        }
        usage = usages.get(action, "")
        raise ValueError(
            f"{action} needs MODEL{usage}; got {counted(1 + len(names), 'name')}"
        )
    if (action == "merge") != (settings.output is not None):
        raise ValueError("merge needs --output FILE, and only merge has one")
    if settings.lesson is not None and action not in ("undo", "move"):
        raise ValueError("only undo and move have --lesson")
    if settings.pictures is not None and action != "lessons":
        raise ValueError("only lessons has --pictures")
    if action == "show":
        return show(path)
    if action == "lessons":
        return show_lessons(Learner.load(path, settings.weights), settings.pictures)
    merges = action == "merge"
    output = Path(str(settings.output)) if merges else path
    if merges and Path(names[0]).resolve() == path.resolve():
        raise ValueError(
            f"{path} cannot be merged with itself; give two learners that were taught apart"
        )
    refuse_folder(output)
    with output_file(output, "a learner", is_learner) if merges else locked_file(path):
        learner = Learner.load(path, settings.weights)
        learner.check_teachable()
        if merges:
            learner.merge(Learner.load(names[0], settings.weights), settings.new_class)
            done = f"{output}: {counted(len(learner.classes), 'class')}, {learner.bytes:,} bytes learned"
        else:
            done = changed(learner, settings)
        lean = not merges and not holds_weights(path)
        learner.save(output, weights=not lean, pictures=not merges, locked=True)
    print(done)


def changed(learner: Learner, settings: LearnerSettings) -> str:
    """Change a learner and return what was done."""
    action, names = settings.action, settings.names
    if action == "rename":
        learner.rename(names[0], names[1], settings.new_class)
        return f"renamed {names[0]} to {names[1]}"
    if action == "move":
        learner.move(names[0], names[1], settings.lesson, settings.new_class)
        which = "" if settings.lesson is None else f" of lesson {settings.lesson}"
        return f"moved the images of {names[0]}{which} to {names[1]}"
    if action == "undo":
        lesson = learner.undo(settings.lesson)
        return f"took back lesson {lesson.number}: {shown_images(lesson.images, lesson.nothing)}"
    remains = learner.forget(names[0])
    return f"forgot {names[0]}" + (
        f"; what remains: {remains}" if remains else "; nothing of it remains"
    )


def shown_images(images: Mapping[str, int], nothing: int) -> str:
    """Return what a lesson showed, in words: images by class, and how many showed nothing."""
    parts = [f"{name} ({counted(count, 'image')})" for name, count in images.items()]
    parts += [f"nothing ({counted(nothing, 'image')})"] if nothing else []
    return ", ".join(parts) or "classes that were forgotten"


def show_lessons(learner: Learner, folder: str | None) -> None:
    """Print the lessons of a learner, with what speaks against a label; write their pictures to a folder."""
    undoable = learner.undoable
    for lesson in learner.lessons:
        source = f", {lesson.source}" if lesson.source else ""
        fixed = "" if lesson.number in undoable else "; cannot be taken back"
        print_line(
            f"lesson {lesson.number}  {lesson.when}  {shown_images(lesson.images, lesson.nothing)}{source}{fixed}"
        )
        for doubt in lesson.doubts:
            print_line(f"  {doubt.text}")
    if folder is None:
        return
    pictures = {
        f"lesson-{one.number}.jpg": one.picture
        for one in learner.lessons
        if one.picture
    }
    if not pictures:
        raise ValueError(
            "no lesson has a picture: crumb teach --keep-pictures keeps one of each lesson"
        )
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        with atomic_write(Path(folder) / name) as file:
            file.write(picture)
    print_line(f"{folder}: {counted(len(pictures), 'picture')}")


def show(path: Path) -> None:
    """Print all that a file holds, which ``crumb teach`` or a run wrote."""
    header = read_header(file_of(path))
    for line in (
        _of_run(header) if isinstance(header, LearnerHeader) else _of_learner(header)
    ):
        print_line(line)


def _of_learner(header: dict[str, Any]) -> Iterator[str]:
    network, arguments = header["network"], header["network"]["arguments"]
    included = "in the file" if network["included"] else "not in the file"
    yield f"method    {header['method']}"
    yield f"network   {arguments['name']} at {arguments['image_size']} pixels, {network['source']}"
    yield f"weights   {included}, SHA-256 {network['weights_sha256']}"
    yield f"budget    {header['budget_bytes']:,} bytes"
    images: Counter[str] = Counter(
        {name: 0 for name in header["names"] if name is not None}
    )
    for lesson in header["lessons"]:
        images.update(lesson["images"])
    yield from _written(header["written"], header["versions"], images)
    yield "lessons"
    for lesson in header["lessons"]:
        what = shown_images(lesson["images"], lesson["nothing"])
        by = (
            "" if lesson["runtime"].startswith("torch") else f", by {lesson['runtime']}"
        )
        yield f"  {lesson['number']}  {lesson['when']}  {what}{by}"
    yield "It holds no images and no paths of images."


def _of_run(header: LearnerHeader) -> Iterator[str]:
    yield f"method    {header.strategy}, of a run"
    yield f"network   {header.network['name']} at {header.transform['size']} pixels"
    yield f"weights   in the file, SHA-256 of the frozen layers {header.weights_sha256}"
    yield f"memories  {header.mem_size} at most; left out of the file"
    yield from _written(
        header.written,
        header.versions,
        {one["name"]: one["images"] for one in header.classes},
    )
    yield "It holds what the method answers with, no replay memories, and no paths of images."
    yield f"It can be asked; it {cannot_be_taught(header) or 'can be taught on, in a copy'}."


def _written(
    when: str, versions: Mapping[str, str], images: Mapping[str, int]
) -> Iterator[str]:
    yield f"written   {when} by " + ", ".join(
        f"{name} {version}" for name, version in versions.items()
    )
    yield "classes"
    for name, count in images.items():
        yield f"  {name}: {counted(count, 'image')}"


def print_line(text: str) -> None:
    """Print what stands in a file as one line, whatever it holds."""
    print(printable(text))


def export(settings: ExportSettings) -> None:
    """Write the learner in another format and print how well the result agrees with it."""
    from crumb_avalanche.learner.export import export_onnx, is_export

    if settings.threads:
        torch.set_num_threads(settings.threads)
    learner = Learner.load(settings.model, settings.weights)
    learner.check_teachable()
    path = Path(settings.output or Path(settings.model).with_suffix(f".{settings.to}"))
    with output_file(path, "an ONNX file of crumb export", is_export):
        parity = export_onnx(learner, path, settings.images)
    print(f"compared with the learner on {parity}")
    print(
        f"{path}: {counted(len(learner.classes), 'class')}, file of {path.stat().st_size:,} bytes"
    )
