"""The readable header of a learner file: what it may hold; read without torch.

Every value has a type and a range, names exist, and counts agree with the others.
"""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.tables.names import LONGEST_NAME, check_name
from crumb_avalanche.methods.look_shares import MOST_LOOKS
from crumb_avalanche.methods.run_header import (
    DAMAGED,
    FORMAT_OF_RUNS,
    IMAGES,
    LEARNER,
    MOST_CLASSES,
    NETWORK,
    SHA256,
    VERSIONS,
    LearnerError,
    LearnerHeader,
    check_format,
    read_run_header,
)
from crumb_avalanche.system.file_metadata import (
    TensorFileError,
    format_of,
    loaded_json,
    read_metadata,
    tensor_names,
)
from crumb_avalanche.system.setting_ranges import LEAST_STRICT, MOST_STRICT
from crumb_avalanche.system.value_types import (
    StateError,
    check,
    each,
    maybe,
    real,
    record,
    table,
    text,
    whole,
)
from crumb_avalanche.system.words import counted

FORMAT = "crumb-learner-1"
MOST_FEATURES = 10**6  # more make every answer slower
# Closed forms that are tested as learners; ``recommended`` is the first.
CLOSED_FORMS = ("rda", "slda", "ncm", "ranpac")


def _stored_name(name: str) -> None:
    """Raise ValueError for a name that ``check_name`` refuses or would change."""
    if check_name(name) != name:
        raise ValueError("it is not as check_name returns it")


NAME = text(LONGEST_NAME, _stored_name)
LESSON = record(
    images=table(NAME, IMAGES),
    **dict.fromkeys(
        ("clips", "repeated", "answered", "right", "unknown", "nothing"), IMAGES
    ),
    when=text(40),
    unread=each(str, 0),
    notes=each(text(1000), most=10**5),
    doubts=each(
        record(
            label=NAME,
            other=NAME,
            **dict.fromkeys(("frames", "as_label", "as_other", "unknown"), IMAGES),
        )
    ),
    runtime=text(),
    number=whole(1),
    source=text(),
    pictured=each(IMAGES, most=4),
    id=whole(),
)
FEATURES = record(
    maps=bool,
    deviations=bool,
    equal_lengths=bool,
    power=real(1e-3, 1),
    cells=whole(1, 8),
    inner=real(0.1, 1),
    window=real(0, 1),
)
# Of the classes by number; nothing where one was forgotten.
NAMES = each(maybe(NAME), most=MOST_CLASSES)
# The plain values of a learner.
HEADER = record(
    method=text(),
    budget_bytes=whole(0, 10**15),
    features=FEATURES,
    looks=each(real(0.1, 1), most=MOST_LOOKS),
    strict=real(LEAST_STRICT, MOST_STRICT),
    # What it errs by, as far as it knows; nothing where nothing was taught.
    rates=maybe(record(refused=real(0, 1), named=real(0, 1), named_alike=real(0, 1))),
    # Of known classes that it has yet to be asked, before it tells unknown things.
    missing_clips=maybe(IMAGES),
    names=NAMES,
    lessons=each(LESSON),
    undoable=IMAGES,
    head_length=whole(1, MOST_FEATURES),
    network=record(
        arguments=record(**NETWORK),
        source=text(2000),
        weights_sha256=SHA256,
        included=bool,
    ),
    versions=VERSIONS,
    written=text(40),
)


# Reading


def file_of(path: str | os.PathLike) -> Path:
    """Return the learner file of a path, which may be the folder of a run.

    Raises:
        LearnerError: the path is another folder, such as that of several runs.
    """
    path = Path(path)
    file = path / LEARNER
    if not path.is_dir():
        return path
    if file.exists():
        return file
    files_of_runs = sorted(path.glob(f"*/{LEARNER}"))
    if files_of_runs:
        raise LearnerError(
            f"{path} is a folder of {counted(len(files_of_runs), 'run')} and has no "
            f"{LEARNER} of its own; give the folder of a run, such as "
            f"{files_of_runs[0].parent}"
        )
    raise LearnerError(
        f"{path} is a folder without a learner: give a learner file, such as "
        "mine.safetensors, or the folder of a run"
    )


def read_header(path: str | os.PathLike) -> LearnerHeader | dict[str, Any]:
    """Read the header of a learner file without its tensors.

    Returns:
        Plain values, see ``schema.HEADER``; a ``LearnerHeader`` for that of a run.

    Raises:
        LearnerError: the file is absent, damaged, of another kind or of a newer
            version.
    """
    try:
        return header_of(path, read_metadata(path))
    except TensorFileError as error:
        raise LearnerError(str(error)) from error


def header_of(
    path: str | os.PathLike, metadata: dict[str, str]
) -> LearnerHeader | dict[str, Any]:
    """Return the checked header in the metadata of a file; see ``read_header``."""
    check_format(path, metadata, [FORMAT, FORMAT_OF_RUNS])
    if metadata["format"] == FORMAT_OF_RUNS:
        return read_run_header(path, metadata)
    try:
        header = loaded_json(metadata.get("learner", ""))
        check_header(header)
    except StateError as error:
        raise LearnerError(f"{path} {DAMAGED} ({error})") from error
    return header


def is_learner(path: str | os.PathLike) -> bool:
    """Whether a file says that it is a learner, also that of a run."""
    return format_of(path) in (FORMAT, FORMAT_OF_RUNS)


def holds_weights(path: str | os.PathLike) -> bool:
    """Whether a learner file holds the network's weights; that of a run always does.

    Raises:
        LearnerError: see ``read_header``.
    """
    header = read_header(path)
    return isinstance(header, LearnerHeader) or header["network"]["included"]


def count_pictures(path: str | os.PathLike) -> int:
    """Return of how many lessons a learner file holds a picture.

    Raises:
        LearnerError: the file is absent or damaged.
    """
    try:
        names = tensor_names(path)
    except TensorFileError as error:
        raise LearnerError(str(error)) from error
    return sum(name.startswith("pictures.") for name in names)


def refuse_folder(
    path: Path, cure: str = "give the file of a learner, such as mine.safetensors"
) -> None:
    """Raise ValueError for a folder: that of a run, which is not to be changed, or any.

    Args:
        path: where the file of a learner belongs.
        cure: what to do if it is a folder without a learner.
    """
    if not path.is_dir():
        return
    if (path / LEARNER).exists():
        raise ValueError(
            f"{path} is a folder, which can be asked but not changed: copy "
            f"{path / LEARNER} to a file of your own, and give that"
        )
    raise ValueError(f"{path} is a folder without a learner: {cure}")


def cannot_be_taught(header: LearnerHeader) -> str:
    """Return why a run's learner can only be asked; empty if it can be taught on."""
    if header.strategy in CLOSED_FORMS:
        return ""
    return (
        f"was learned by {header.strategy}; only {', '.join(CLOSED_FORMS)} can be "
        "taught on"
    )


# Checking


def check_header(header: dict[str, Any]) -> None:
    """Raise ``StateError`` if the header of a learner file is not one that is written.

    The error names the path, what is there, and the rule.
    """
    check(HEADER, header)  # types and ranges of all values
    # `require` raises StateError unless its first argument is true.
    require(len(header["looks"]) > 0, "looks", "at least one")
    names = [name for name in header["names"] if name is not None]
    require(_differ(names), "names", "different ones")
    lessons = header["lessons"]
    numbers = [lesson["number"] for lesson in lessons]
    are_increasing = numbers == sorted(set(numbers))
    require(are_increasing, "lessons", "with increasing numbers")
    # A lesson of which one of two merged learners forgot all images is there twice.
    with_images = [
        lesson for lesson in lessons if lesson["images"] or lesson["nothing"]
    ]
    ids = [lesson["id"] for lesson in with_images if lesson["id"]]  # 0 is not known
    require(_differ(ids), "lessons", "each with an id of its own")
    for index, lesson in enumerate(lessons):
        _check_lesson(lesson, names, f"lessons[{index}]")


def _check_lesson(lesson: dict[str, Any], names: list[str], path: str) -> None:
    """Check the counts and the doubts of a lesson."""
    told_apart = lesson["right"] + lesson["unknown"]
    asked = lesson["answered"]
    counts = [told_apart, asked, asked + lesson["repeated"], lesson["clips"]]
    rule = "right + unknown <= answered <= clips - repeated"
    require(counts == sorted(counts), path, rule)
    doubts = lesson["doubts"]
    labels = [doubt["label"] for doubt in doubts]
    require(_differ(labels), f"{path}.doubts", "at most one for each class")
    for index, doubt in enumerate(doubts):
        _check_doubt(doubt, lesson["images"], names, f"{path}.doubts[{index}]")


def _check_doubt(
    doubt: dict[str, Any], images: dict[str, int], names: list[str], path: str
) -> None:
    """Raise StateError unless a doubt is of images of its lesson and existing classes.

    Args:
        doubt: from the header: ``label``, ``other`` (the class that its images look
            like), and numbers of images.
        images: number of images of each class in the lesson.
        names: of all classes.
        path: where the doubt stands, for the error.
    """
    label = doubt["label"]
    nearest = doubt["other"]
    require(label in images, path, "of a class that the lesson shows")
    are_other_classes = nearest in names and nearest != label
    require(are_other_classes, path, "between two classes that exist")
    is_allowed = doubt["frames"] <= images.get(label, 0)
    require(is_allowed, path, "of images that the lesson shows")
    looked_like = doubt["as_label"] + doubt["as_other"] + doubt["unknown"]
    rule = "as_label + as_other + unknown <= frames"
    require(looked_like <= doubt["frames"], path, rule)
    require(doubt["as_label"] < doubt["as_other"], path, "as_label < as_other")


def _differ(values: Iterable[Any]) -> bool:
    """Whether no value comes twice."""
    return max(Counter(values).values(), default=1) == 1


def require(holds: bool, path: str, rule: str) -> None:
    """Raise StateError unless a rule holds for what stands at a path."""
    if not holds:
        raise StateError(f"{path} does not agree with the rest, but has to be {rule}")
