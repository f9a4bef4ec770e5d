"""What a learner file may hold, as data.

Every value has a type and a range, names exist, and counts and sizes agree with the
others. ``check_header`` and ``check_state`` are called on what was read, before
anything is built of it, and on what is about to be written.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks_toybox_ilab.tables.names import LONGEST_NAME, check_name
from crumb_avalanche.images.looks import MOST, Looks, LookWeights
from crumb_avalanche.learner.classifier import CLOSED_FORMS, form_of
from crumb_avalanche.learner.confidence import RIVALS, Confidence, Records
from crumb_avalanche.learner.nothing import DRAWN, MOST_SHOWN, NOTHING
from crumb_avalanche.learner.picture_strip import LARGEST_PICTURE, check_jpeg
from crumb_avalanche.methods.run_file import (
    IMAGES,
    MOST_CLASSES,
    MOST_IMAGES,
    NETWORK,
    SHA256,
    VERSIONS,
)
from crumb_avalanche.models.extraction import LARGEST_FEATURE
from crumb_avalanche.system.tensor_file import StateError
from crumb_avalanche.system.value_types import (
    array,
    check,
    each,
    maybe,
    real,
    record,
    table,
    text,
    whole,
)

MOST_FEATURES = 10**6  # more make every answer slower
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _known_method(name: str) -> None:
    """Raise ValueError for a name that is none of a method that a learner may have."""
    if form_of(name) is None:
        raise ValueError(f"known are {', '.join(CLOSED_FORMS)}")


def _stored_name(name: str) -> None:
    """Raise ValueError for a name that ``check_name`` refuses or would change."""
    if check_name(name) != name:
        raise ValueError("it is not as check_name returns it")


NAME = text(LONGEST_NAME, _stored_name)
LESSON = record(
    images=table(NAME, IMAGES),
    **dict.fromkeys(("clips", "answered", "right", "unknown", "nothing"), IMAGES),
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
    id=whole(),
)
VALUES = array(torch.float32, None, None, low=-LARGEST_FEATURE, high=LARGEST_FEATURE)
# The features of a lesson.
KEPT = record(
    labels=each(Literal[NOTHING] | NAME),
    pieces=each(each(whole(1, MOST_IMAGES))),
    features=VALUES,
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
    method=text(rule=_known_method),
    budget_bytes=whole(0, 10**15),
    features=FEATURES,
    looks=each(real(0.1, 1), most=MOST),
    names=NAMES,
    lessons=each(LESSON),
    network=record(
        arguments=record(**NETWORK),
        source=text(2000),
        weights_sha256=SHA256,
        included=bool,
    ),
    versions=VERSIONS,
    written=text(40),
)
# Settings of a closed form, by name; others are any plain values that are not large.
SETTINGS = {
    "n_classes": whole(0, MOST_CLASSES),
    "length": whole(1, MOST_FEATURES),
    "own": real(0, 1),
    "own_images": real(0, 1e9),
    "head_share": real(0, 1),
    "projection": whole(1, 50_000),
    "ridge": real(0, 1e9),
    "seed": whole(0, 2**32 - 1),
    "shrinkage": real(0, 1e9),
    "total_directions": maybe(whole(0, 10**12)),
}
PLAIN = maybe(bool | text(40) | whole(0, 10**6) | real(-1e9, 1e9))
NUMBERS = array((*FLOATS, torch.int32, torch.int8), ...)
COUNTS = array(torch.int32, ..., low=0)
# Tensors of statistics that have a rule, by name; others are any numbers.
STATISTICS = {
    "counts": COUNTS,
    "direction_counts": COUNTS,
    "direction_scales": array(FLOATS, ..., low=0),
    "outside": array(torch.float32, None, low=0),
}
SCATTERS = ("covariance", "gram")  # whose diagonals are sums of squares
CONFIDENCE = record(
    **{
        name: array(torch.int64, None, low=0)
        for name in ("lessons", "images", "classes", "labels")
    },
    next=whole(0, 10**9),
    typicality=array(torch.float32, None, 3),
    rivals=array(torch.int64, None, RIVALS, low=-1),
    gaps=array(torch.float32, None, RIVALS, but=-math.inf),
)
NAMED = table(text(), Any, most=100)
# What was learned, also before the last lessons.
KNOWN = {
    "statistics": NAMED,
    "confidence": CONFIDENCE,
    "look_losses": array(torch.float64, None, low=0),
    "nothing": maybe(VALUES),
}
BEFORE = record(names=NAMES, **KNOWN)
STATE = record(
    **KNOWN,
    network=maybe(table(text(), array((*FLOATS, torch.int64, torch.bool), ...))),
    pictures=each(maybe(array(torch.uint8, None))),
    history=record(before=maybe(BEFORE), kept=each(maybe(KEPT))),
)


def check_header(header: dict[str, Any]) -> None:
    """Raise ``StateError`` if plain values are not those of a learner.

    The error names the path, what is there, and the rule.
    """
    check(HEADER, header)
    _require(len(header["looks"]) > 0, "looks", "at least one")
    names = [name for name in header["names"] if name is not None]
    _require(_differ(names), "names", "different ones")
    lessons = header["lessons"]
    numbers = [lesson["number"] for lesson in lessons]
    increasing = numbers == sorted(set(numbers))
    _require(increasing, "lessons", "with increasing numbers")
    # A lesson of which one of two merged learners forgot all images is there twice.
    with_images = [
        lesson for lesson in lessons if lesson["images"] or lesson["nothing"]
    ]
    ids = [lesson["id"] for lesson in with_images if lesson["id"]]  # 0 is not known
    _require(_differ(ids), "lessons", "each with an id of its own")
    for index, lesson in enumerate(lessons):
        _check_lesson(lesson, names, f"lessons[{index}]")


def _check_lesson(lesson: dict[str, Any], names: list[str], path: str) -> None:
    """Check the counts and the doubts of a lesson."""
    told_apart = lesson["right"] + lesson["unknown"]
    counts = [told_apart, lesson["answered"], lesson["clips"]]
    rule = "right + unknown <= answered <= clips"
    _require(counts == sorted(counts), path, rule)
    doubts = lesson["doubts"]
    labels = [doubt["label"] for doubt in doubts]
    _require(_differ(labels), f"{path}.doubts", "at most one for each class")
    for index, doubt in enumerate(doubts):
        _check_doubt(doubt, lesson["images"], names, f"{path}.doubts[{index}]")


def _check_doubt(
    doubt: dict[str, Any], images: dict[str, int], names: list[str], path: str
) -> None:
    """Check that a doubt is of images of the lesson, and of classes that exist."""
    label = doubt["label"]
    nearest = doubt["other"]
    _require(label in images, path, "of a class that the lesson shows")
    exists = nearest in names and nearest != label
    _require(exists, path, "between two classes that exist")
    fits = doubt["frames"] <= images.get(label, 0)
    _require(fits, path, "of images that the lesson shows")
    looked_like = doubt["as_label"] + doubt["as_other"] + doubt["unknown"]
    rule = "as_label + as_other + unknown <= frames"
    _require(looked_like <= doubt["frames"], path, rule)
    _require(doubt["as_label"] < doubt["as_other"], path, "as_label < as_other")


def check_state(header: dict[str, Any], state: dict[str, Any]) -> None:
    """Raise if a learner is not one that ``Learner`` writes.

    Args:
        header: plain values that ``check_header`` took.
        state: what else ``write_learner`` stores.

    Raises:
        StateError: names the first path with another value, what it is, and the rule.
    """
    check(STATE, state)
    learned = {name: state[name] for name in KNOWN}
    learned["names"] = header["names"]
    _check_learned(learned, header, header["lessons"], "")
    _check_pictures(state["pictures"], len(header["lessons"]))
    _check_history(state["history"], header)
    included = header["network"]["included"]
    agrees = (state["network"] is not None) == included
    _require(agrees, "network.included", "true if weights are there")


def _check_pictures(pictures: list[Tensor | None], lessons: int) -> None:
    """Check the pictures of so many lessons."""
    _require(len(pictures) == lessons, "pictures", "one or none for each lesson")
    for index, picture in enumerate(pictures):
        if picture is None:
            continue
        fits = len(picture) <= LARGEST_PICTURE
        _require(fits, "pictures", f"of at most {LARGEST_PICTURE:,} bytes")
        try:
            check_jpeg(picture.numpy().tobytes())
        except ValueError as error:
            raise StateError(f"pictures[{index}] has to be {error}") from error


def _check_history(history: dict[str, Any], header: dict[str, Any]) -> None:
    """Check what is kept of the last lessons, and what was learned before them."""
    before = history["before"]
    recent = history["kept"]  # features of the last lessons
    lessons = header["lessons"]
    path = "history.kept"
    agrees = (before is None) == (not recent)
    _require(agrees, "history.before", "there if lessons are kept")
    _require(len(recent) <= len(lessons), path, "of no more than the lessons")
    complete = len(recent) < 2 or all(features is not None for features in recent)
    _require(complete, path, "with features, if there are several")
    if before is None:
        return
    first = len(lessons) - len(recent)
    _check_learned(before, header, lessons[:first], "history.before.")
    length = before["statistics"]["settings"]["length"]
    views = Looks(tuple(header["looks"])).views
    for index, features in enumerate(recent):
        if features is not None:
            lesson = lessons[first + index]
            _check_features(features, lesson, views, length, f"{path}[{index}]")


def _check_features(
    stored: dict[str, Any], lesson: dict[str, Any], views: int, length: int, path: str
) -> None:
    """Check the features of a lesson, of which each view has ``length`` or more."""
    labels = stored["labels"]
    pieces = stored["pieces"]
    _require(len(labels) == len(pieces), path, "of as many labels as pieces")
    counts: Counter[str] = Counter()
    for label, lengths in zip(labels, pieces, strict=True):
        counts[label] += sum(lengths)
    images = dict(lesson["images"])
    if lesson["nothing"]:
        images[NOTHING] = lesson["nothing"]
    _require(counts == images, path, "what its lesson says")
    rows, columns = stored["features"].shape
    agrees = rows == sum(counts.values())
    _require(agrees, f"{path}.features", "one per image")
    fits = not rows or (columns % views == 0 and columns >= views * length)
    rule = f"of {length} columns or more for each of {views} views"
    _require(fits, f"{path}.features", rule)


# What was learned


def _check_learned(
    learned: dict[str, Any],
    header: dict[str, Any],
    lessons: list[dict[str, Any]],
    path: str,
) -> None:
    """Check the names, statistics and confidence of a learner that had some lessons.

    Args:
        learned: see ``KNOWN``, with the names.
        header: of the learner.
        lessons: those that it had.
        path: where it stands, for errors; ends with a point.
    """
    names = learned["names"]
    views = Looks(tuple(header["looks"])).views
    images: Counter[str] = Counter()
    for lesson in lessons:
        images.update(lesson["images"])
    exist = (+images).keys() <= set(names)
    _require(exist, f"{path}names", "those of the lessons")
    _check_settings(learned["statistics"], len(names), f"{path}statistics")
    counts = [views * images[name] for name in names]
    _check_statistics(learned["statistics"], counts, f"{path}statistics")
    weightings = len(LookWeights(views).losses)
    fits = len(learned["look_losses"]) == weightings
    _require(fits, f"{path}look_losses", f"{weightings} values")
    _check_confidence(learned["confidence"], names, f"{path}confidence")
    length = learned["statistics"]["settings"]["length"]
    _check_nothing(learned["nothing"], length, f"{path}nothing")


def _check_settings(statistics: dict[str, Any], classes: int, path: str) -> None:
    """Check the settings of statistics, and the types of their tensors."""
    settings: Any = statistics.get("settings")
    check(NAMED, settings, f"{path}.settings")
    names = ("n_classes", "length", *settings)
    kinds = {name: STATISTICS.get(name, NUMBERS) for name in (*statistics, "counts")}
    kinds["settings"] = record(**{name: SETTINGS.get(name, PLAIN) for name in names})
    check(record(**kinds), statistics, path)
    agrees = settings["n_classes"] == classes
    _require(agrees, f"{path}.settings.n_classes", "the number of names")


def _check_statistics(statistics: dict[str, Any], counts: list[int], path: str) -> None:
    """Check that statistics are of so many images of each class."""
    agrees = statistics["counts"].tolist() == counts
    _require(agrees, f"{path}.counts", "what the lessons add up to")
    directions = statistics.get("direction_counts")
    if directions is not None:
        fits = directions.shape == statistics["counts"].shape
        fits = fits and bool((directions <= statistics["counts"]).all())
        rule = "at most the images of each class"
        _require(fits, f"{path}.direction_counts", rule)
    for name in SCATTERS:
        scatter = statistics.get(name)
        if scatter is not None and scatter.dim() == 2:
            fits = bool((scatter.diagonal() >= 0).all())
            _require(fits, f"{path}.{name}", "of a diagonal that is not negative")


def _check_confidence(
    confidence: dict[str, Any], names: list[str | None], path: str
) -> None:
    """Check that records of answers are of classes that exist."""
    records = Records.of_state(confidence)
    fits = len(records.labels) <= Confidence().capacity
    # By number of the class; the last one is for the number -1, which stands for none.
    exists = torch.tensor([name is not None for name in names] + [True])
    for numbers in (records.labels, records.rivals):
        fits = fits and bool((numbers < len(names)).all())
        fits = fits and bool(exists[numbers].all())
    fits = fits and not bool((records.rivals == records.labels[:, None]).any())
    _require(fits, path, "records of the classes")
    absent = records.rivals < 0
    agrees = torch.equal(absent, records.gaps == -math.inf)
    _require(agrees, f"{path}.gaps", "-inf where there is no rival")
    latest = max(records.lessons.tolist(), default=-1)
    _require(latest < confidence["next"], f"{path}.next", "above all lessons")


def _check_nothing(nothing: Tensor | None, length: int, path: str) -> None:
    """Check the features of images that show nothing."""
    if nothing is None:
        return
    limit = DRAWN + MOST_SHOWN
    fits = DRAWN <= len(nothing) <= limit and nothing.shape[1] == length
    _require(fits, path, f"of {DRAWN} to {limit} rows of {length} features")


def _differ(values: Iterable[Any]) -> bool:
    """Whether no value comes twice."""
    return max(Counter(values).values(), default=1) == 1


def _require(holds: bool, path: str, rule: str) -> None:
    """Raise StateError unless a rule holds for what stands at a path."""
    if not holds:
        raise StateError(f"{path} does not agree with the rest, but has to be {rule}")
