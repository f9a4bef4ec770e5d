"""``crumb learner`` shows or changes a learner; ``crumb export`` converts it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.cli.settings import ExportSettings, LearnerSettings
from crumb_avalanche.learner.header import (
    cannot_be_taught,
    count_pictures,
    file_of,
    holds_weights,
    is_learner,
    read_header,
    refuse_folder,
)
from crumb_avalanche.learner.lesson_record import Lesson
from crumb_avalanche.methods.run_header import LearnerHeader
from crumb_avalanche.system.folder_lock import locked_file, output_file
from crumb_avalanche.system.words import counted, error_rates, unknown_needs

if TYPE_CHECKING:
    from crumb_avalanche.learner.learner import Learner


@dataclass(frozen=True)
class Usage:
    """The arguments of an action of ``crumb learner``.

    Attributes:
        n_names: number of arguments after the learner's file.
        text: these arguments as a message shows them, with a space before each.
    """

    n_names: int = 0
    text: str = ""


USAGES = {
    "show": Usage(),
    "lessons": Usage(),
    "undo": Usage(),
    "move": Usage(2, " WRONG RIGHT"),
    "forget": Usage(1, " NAME"),
    "rename": Usage(2, " OLD NEW"),
    "merge": Usage(1, " OTHER --output FILE"),
}


def main(settings: LearnerSettings) -> None:
    """Do an action of ``crumb learner`` and print what was done."""
    check_settings(settings)
    path = Path(settings.model)
    if settings.action == "show":
        show(path)
    elif settings.action == "lessons":
        show_lessons(settings)
    elif settings.action == "merge":
        print(merge(settings))
    else:
        print(change(settings))


def check_settings(settings: LearnerSettings) -> None:
    """Raise ValueError for settings of ``crumb learner`` that do not go together."""
    action = settings.action
    usage = USAGES[action]
    if len(settings.names) != usage.n_names:
        given_names = counted(1 + len(settings.names), "name")
        raise ValueError(f"{action} needs MODEL{usage.text}; got {given_names}")
    if (action == "merge") != (settings.output is not None):
        raise ValueError("merge needs --output FILE, and only merge has one")
    if settings.lesson is not None and action not in ("undo", "move"):
        raise ValueError("only undo and move have --lesson")
    if settings.pictures is not None and action != "lessons":
        raise ValueError("only lessons has --pictures")


def merge(settings: LearnerSettings) -> str:
    """Write what two learners know as a new file; return what was done, in words.

    Args:
        settings: ``model`` and the only entry of ``names`` are the files of the two
            learners, ``output`` is the new file.

    Raises:
        ValueError: both are one file, or they do not go together.
        FileExistsError: the new file exists and is no learner.
    """
    path = Path(settings.model)
    other_path = Path(settings.names[0])
    if other_path.resolve() == path.resolve():
        raise ValueError(
            f"{path} cannot be merged with itself; give two learners that were taught "
            "apart"
        )
    output = Path(str(settings.output))
    refuse_folder(output)
    from crumb_avalanche.learner.learner import Learner

    with output_file(output, "a learner", is_learner):
        learner = Learner.load(path, settings.weights)
        learner.check_teachable()  # raises if it can only be asked
        other = Learner.load(other_path, settings.weights)
        common_names = names_in_both(learner, other)
        learner.merge(other, new_class=settings.new_class)
        # The block holds the lock. The file has the pictures of both learners.
        learner.save(output, pictures=True, locked=True, overwrite=True)
    lines = [f"{name} is in both and became one class" for name in common_names]
    classes = counted(len(learner.classes), "class")
    lines.append(f"{output}: {classes}, {learner.bytes:,} bytes learned")
    return "\n".join(lines)


def names_in_both(learner: "Learner", other: "Learner") -> list[str]:
    """Return the names of the classes that two learners have, in order."""
    names_of_other = {info.name for info in other.classes}
    names = [info.name for info in learner.classes]
    return [name for name in names if name in names_of_other]


def change(settings: LearnerSettings) -> str:
    """Change the learner of a file as an action asks; return what was done, in words.

    The network is not built: what was learned changes alone.

    Args:
        settings: ``model`` is the file, ``action`` what to do.
    """
    from crumb_avalanche.learner.learner import Learner

    path = Path(settings.model)
    refuse_folder(path)
    with locked_file(path):
        learner = Learner.load(path, settings.weights, network=False)
        learner.check_teachable()  # raises if it can only be asked
        text = apply_change(learner, settings)
        # The file keeps what it holds: weights of the network, pictures of lessons.
        learner.save(path, weights=holds_weights(path), pictures=True, locked=True)
    return text


def apply_change(learner: "Learner", settings: LearnerSettings) -> str:
    """Change a learner in place as an action asks; return what was done, in words.

    Args:
        learner: is changed.
        settings: ``action`` is rename, move, undo or forget; ``names`` are the class
            names that it needs, and ``lesson`` the number of a lesson.
    """
    action = settings.action
    names = settings.names
    if action == "rename":
        old, new = names
        learner.rename(old, new, new_class=settings.new_class)
        return f"renamed {old} to {new}"
    if action == "move":
        old, new = names
        learner.move(old, new, lesson=settings.lesson, new_class=settings.new_class)
        lesson_text = ""
        if settings.lesson is not None:
            lesson_text = f" of lesson {settings.lesson}"
        return f"moved the images of {old}{lesson_text} to {new}"
    if action == "undo":
        lesson = learner.undo(settings.lesson)
        if not lesson.has_images:
            return f"took back lesson {lesson.number}, whose classes were forgotten"
        images = shown_images(lesson.images, lesson.nothing)
        return f"took back lesson {lesson.number}: {images}"
    (name,) = names
    remains = learner.forget(name)
    if remains:
        return f"forgot {name}; what remains: {remains}"
    return f"forgot {name}; nothing of it remains"


def shown_images(images: Mapping[str, int], nothing: int) -> str:
    """Return what a lesson showed, in words.

    Args:
        images: number of images by class.
        nothing: number of images that showed nothing.
    """
    texts = [f"{name} ({counted(count, 'image')})" for name, count in images.items()]
    if nothing:
        texts.append(f"nothing ({counted(nothing, 'image')})")
    return ", ".join(texts) or "classes that were forgotten"


def show_lessons(settings: LearnerSettings) -> None:
    """Print the lessons of a learner, with what speaks against a label.

    Their pictures are written where the settings name a folder for them.
    """
    lessons, undoable = read_lessons(settings)
    for lesson in lessons:
        line = f"lesson {lesson.number}  {lesson.when}  "
        line += shown_images(lesson.images, lesson.nothing)
        if lesson.source:
            line += f", {lesson.source}"
        if lesson.number not in undoable:
            line += "; cannot be taken back"
        print_line(line)
        for doubt in lesson.doubts:
            print_line(f"  {doubt.text}")
    if settings.pictures is not None:
        write_pictures(lessons, Path(settings.pictures))


def read_lessons(settings: LearnerSettings) -> tuple[list[Lesson], list[int]]:
    """Return the lessons of a learner, and the numbers of those to be taken back.

    The header of the file says both; the file is read whole for pictures, or if a run
    left it.

    Args:
        settings: ``model`` is the file; ``pictures`` is a folder if they are asked for.
    """
    header = read_header(file_of(settings.model))
    if settings.pictures is None and not isinstance(header, LearnerHeader):
        lessons = [Lesson.of_state(lesson, None) for lesson in header["lessons"]]
        numbers = [lesson.number for lesson in lessons]
        # The last lessons can be taken back; the header has their number.
        first_undoable = len(numbers) - header["undoable"]
        return lessons, numbers[first_undoable:]
    from crumb_avalanche.learner.learner import Learner

    learner = Learner.load(settings.model, settings.weights, network=False)
    return learner.lessons, learner.undoable


def write_pictures(lessons: list[Lesson], folder: Path) -> None:
    """Write the pictures of lessons to a folder, and print how many there are.

    Args:
        lessons: each with ``picture``, the bytes of a JPEG file, or none.
        folder: is created if missing.

    Raises:
        ValueError: no lesson has a picture.
    """
    pictures = {}  # JPEG files by name
    for lesson in lessons:
        if lesson.picture:
            pictures[f"lesson-{lesson.number}.jpg"] = lesson.picture
    if not pictures:
        raise ValueError(
            "no lesson has a picture: crumb teach --keep-pictures keeps one of each "
            "lesson"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        with atomic_write(folder / name) as file:
            file.write(picture)
    print_line(f"{folder}: {counted(len(pictures), 'picture')}")


def show(path: Path) -> None:
    """Print all that a file holds, which ``crumb teach`` or a run wrote."""
    file = file_of(path)
    header = read_header(file)
    if isinstance(header, LearnerHeader):
        lines = _lines_of_run(header)
    else:
        lines = _lines_of_learner(header, count_pictures(file))
    for line in lines:
        print_line(line)


def _lines_of_learner(header: dict[str, Any], n_pictures: int) -> Iterator[str]:
    """Yield lines that describe a learner which ``crumb teach`` wrote.

    Args:
        header: that of its file, JSON: method, network, budget, names and lessons.
        n_pictures: number of lessons of which the file holds a picture.
    """
    network = header["network"]
    arguments = network["arguments"]
    included = "in the file" if network["included"] else "not in the file"
    size = arguments["image_size"]
    yield f"method    {header['method']}"
    yield f"network   {arguments['name']} at {size} pixels, {network['source']}"
    yield f"weights   {included}, SHA-256 {network['weights_sha256']}"
    yield f"budget    {header['budget_bytes']:,} bytes"
    yield f"strict    {header['strict']:g}: a class is named from this confidence on"
    if header["missing_clips"]:
        yield f"unknown   {unknown_needs(header['missing_clips'])}"
    if header["rates"] is not None:
        yield f"errors    {error_rates(**header['rates'])}"
    names = [name for name in header["names"] if name is not None]
    image_counts: Counter[str] = Counter(dict.fromkeys(names, 0))
    for lesson in header["lessons"]:
        image_counts.update(lesson["images"])
    yield from _lines_of_origin(header["written"], header["versions"], image_counts)
    yield "lessons"
    for lesson in header["lessons"]:
        images_text = shown_images(lesson["images"], lesson["nothing"])
        line = f"  {lesson['number']}  {lesson['when']}  {images_text}"
        if not lesson["runtime"].startswith("torch"):
            line += f", by {lesson['runtime']}"
        yield line
    undoable = counted(header["undoable"], "lesson")
    yield f"It holds features of the last {undoable}, to take them back."
    if n_pictures:
        yield f"It holds small pictures of {counted(n_pictures, 'lesson')}."
    else:
        yield "It holds no images."
    sources = [lesson["source"] for lesson in header["lessons"] if lesson["source"]]
    if sources:
        yield (
            "It holds no paths of images, but the names of what was shown, such as "
            f"{sources[0]}."
        )
    else:
        yield "It holds no paths of images."


def _lines_of_run(header: LearnerHeader) -> Iterator[str]:
    """Yield lines that describe a learner which ``crumb run`` left."""
    size = header.transform["size"]
    yield f"method    {header.strategy}, of a run"
    yield f"network   {header.network['name']} at {size} pixels"
    yield f"weights   in the file, SHA-256 of the frozen layers {header.weights_sha256}"
    yield f"memories  {header.mem_size} at most; left out of the file"
    image_counts = {info["name"]: info["images"] for info in header.classes}
    yield from _lines_of_origin(header.written, header.versions, image_counts)
    yield (
        "It holds what the method answers with, no replay memories, and no paths of "
        "images."
    )
    teaching = cannot_be_taught(header) or "can be taught on, in a copy"
    yield f"It can predict; it {teaching}."


def _lines_of_origin(
    when: str, versions: Mapping[str, str], image_counts: Mapping[str, int]
) -> Iterator[str]:
    """Yield when a learner file was written and by what, and the images of each class.

    Args:
        when: date and time.
        versions: of the programs that wrote it, by name.
        image_counts: number of images by class.
    """
    programs = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield f"written   {when} by {programs}"
    yield "classes"
    for name, count in image_counts.items():
        yield f"  {name}: {counted(count, 'image')}"


def print_line(text: str) -> None:
    """Print what stands in a file as one line, whatever it holds."""
    print(printable(text))


def export(settings: ExportSettings) -> None:
    """Write a learner as a file of ONNX, which other programs run.

    Prints how well the result agrees with the learner on ``settings.images``.
    """
    import torch

    from crumb_avalanche.learner.export import export_onnx, is_export
    from crumb_avalanche.learner.learner import Learner

    if settings.threads:
        torch.set_num_threads(settings.threads)
    learner = Learner.load(settings.model, settings.weights)
    learner.check_teachable()  # raises if it can only be asked
    usual_path = Path(settings.model).with_suffix(f".{settings.to}")
    path = Path(settings.output or usual_path)
    with output_file(path, "an ONNX file of crumb export", is_export):
        parity = export_onnx(learner, path, settings.images)
    print(f"compared with the learner on {parity}")
    classes = counted(len(learner.classes), "class")
    print(f"{path}: {classes}, file of {path.stat().st_size:,} bytes")
