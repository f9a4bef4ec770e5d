"""What a learner file may hold, as data: every value has a type, a range and sizes that agree with the others.

``check_header`` and ``check_state`` are called on what was read, before anything is built of it, and on
what is about to be written.
"""

import math
from collections import Counter
from typing import Any, Literal

import torch

from benchmarks_toybox_ilab.tables.names import LONGEST_NAME, check_name
from crumb_avalanche.images.looks import MOST, Looks, LookWeights
from crumb_avalanche.learner.classifier import CLOSED_FORMS, form_of
from crumb_avalanche.learner.confidence import RIVALS, Confidence, Records
from crumb_avalanche.learner.nothing import DRAWN, MOST_SHOWN, NOTHING
from crumb_avalanche.methods.run_file import (
    IMAGES,
    MOST_CLASSES,
    MOST_IMAGES,
    NETWORK,
    SHA256,
    VERSIONS,
)
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

LARGEST_PICTURE = 2**16  # bytes
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
    **dict.fromkeys(("clips", "answered", "right", "nothing"), IMAGES),
    when=text(40),
    unread=each(str, 0),
    notes=each(text(1000), most=10**5),
    doubts=each(
        record(label=NAME, frames=IMAGES, as_label=IMAGES, other=NAME, as_other=IMAGES)
    ),
    runtime=text(),
    number=whole(1),
    source=text(),
    id=whole(),
)
# The features of a lesson.
KEPT = record(
    labels=each(Literal[NOTHING] | NAME),
    pieces=each(each(whole(1, MOST_IMAGES))),
    features=array(torch.float32, None, None),
)
FEATURES = record(
    **dict.fromkeys(("maps", "deviations", "equal_lengths"), bool),
    power=real(1e-3, 1),
    cells=whole(1, 8),
    inner=real(0.1, 1),
    window=real(0, 1),
)
NAMES = each(
    maybe(NAME), most=MOST_CLASSES
)  # of the classes by number; nothing where one was forgotten
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
    "nothing": maybe(array(torch.float32, None, None)),
}
BEFORE = record(names=NAMES, **KNOWN)
STATE = record(
    **KNOWN,
    network=maybe(table(text(), array((*FLOATS, torch.int64, torch.bool), ...))),
    pictures=each(maybe(array(torch.uint8, None))),
    history=record(before=maybe(BEFORE), kept=each(maybe(KEPT))),
)


def check_header(header: dict[str, Any]) -> None:
    """Raise ``StateError`` if plain values are not those of a learner; names the place, what is there and the rule."""
    check(HEADER, header)
    names, lessons = (
        [name for name in header["names"] if name is not None],
        header["lessons"],
    )
    _require(len(set(names)) == len(names), "names", "different ones")
    numbers = [lesson["number"] for lesson in lessons]
    _require(numbers == sorted(set(numbers)), "lessons", "with increasing numbers")
    for index, lesson in enumerate(lessons):
        counts = [lesson[name] for name in ("right", "answered", "clips")]
        _require(
            counts == sorted(counts), f"lessons[{index}]", "right <= answered <= clips"
        )
    _require(len(header["looks"]) > 0, "looks", "at least one")


def check_state(header: dict[str, Any], state: dict[str, Any]) -> None:
    """Raise if a learner is not one that ``Learner`` writes.

    Args:
        header: plain values that ``check_header`` took.
        state: what else ``write_learner`` stores.

    Raises:
        StateError: names the first place with another value, what it is, and the rule.
    """
    lessons, included = header["lessons"], header["network"]["included"]
    check(STATE, state)
    _check_known(
        {"names": header["names"], **{name: state[name] for name in KNOWN}},
        header,
        lessons,
        "",
    )
    _require(
        len(state["pictures"]) == len(lessons),
        "pictures",
        "one or none for each lesson",
    )
    largest = max(
        (len(picture) for picture in state["pictures"] if picture is not None),
        default=0,
    )
    _require(
        largest <= LARGEST_PICTURE, "pictures", f"of at most {LARGEST_PICTURE:,} bytes"
    )
    before, kept = state["history"]["before"], state["history"]["kept"]
    _require(
        (before is None) == (not kept), "history.before", "there if lessons are kept"
    )
    _require(len(kept) <= len(lessons), "history.kept", "of no more than the lessons")
    _require(
        len(kept) < 2 or all(one is not None for one in kept),
        "history.kept",
        "with features, if there are several",
    )
    if before is not None:
        _check_known(
            before, header, lessons[: len(lessons) - len(kept)], "history.before."
        )
    for place, (one, lesson) in enumerate(
        zip(kept, lessons[len(lessons) - len(kept) :])
    ):
        if one is not None:
            _check_kept(
                one,
                lesson,
                header,
                before["statistics"]["settings"]["length"],
                f"history.kept[{place}]",
            )
    _require(
        (state["network"] is not None) == included,
        "network.included",
        "true if weights are there",
    )


def _check_known(
    known: dict[str, Any],
    header: dict[str, Any],
    lessons: list[dict[str, Any]],
    place: str,
) -> None:
    """Check the names, statistics and confidence of a learner that had some lessons; ``place`` ends with a point."""
    names, statistics, nothing = known["names"], known["statistics"], known["nothing"]
    settings = statistics.get("settings")
    check(NAMED, settings, f"{place}statistics.settings")
    kinds = {
        name: COUNTS if name.endswith("counts") else NUMBERS
        for name in (*statistics, "counts")
    }
    kinds["settings"] = record(
        **{
            name: SETTINGS.get(name, PLAIN)
            for name in ("n_classes", "length", *settings)
        }
    )
    check(record(**kinds), statistics, f"{place}statistics")
    images: Counter[str] = Counter()
    for lesson in lessons:
        images.update(lesson["images"])
    _require((+images).keys() <= set(names), f"{place}names", "those of the lessons")
    _require(
        settings["n_classes"] == len(names),
        f"{place}statistics.settings.n_classes",
        "the number of names",
    )
    views = Looks(tuple(header["looks"])).views
    counts = [views * images[name] for name in names]
    _require(
        statistics["counts"].tolist() == counts,
        f"{place}statistics.counts",
        "what the lessons add up to",
    )
    weightings = len(LookWeights(views).losses)
    _require(
        len(known["look_losses"]) == weightings,
        f"{place}look_losses",
        f"{weightings} values",
    )
    held = Records.of_state(known["confidence"])
    fits = len(held.labels) <= Confidence().capacity and bool(
        (held.labels < len(names)).all()
    )
    _require(
        fits and bool((held.rivals < len(names)).all()),
        f"{place}confidence",
        "records of the classes",
    )
    latest = max(held.lessons.tolist(), default=-1)
    _require(
        latest < known["confidence"]["next"],
        f"{place}confidence.next",
        "above all lessons",
    )
    if nothing is not None:
        most, length = DRAWN + MOST_SHOWN, settings["length"]
        fits = DRAWN <= len(nothing) <= most and nothing.shape[1] == length
        _require(
            fits, f"{place}nothing", f"of {DRAWN} to {most} rows of {length} features"
        )


def _check_kept(
    kept: Any, lesson: dict[str, Any], header: dict[str, Any], length: int, place: str
) -> None:
    """Check the features of a lesson, of which each view has ``length`` or more."""
    _require(
        len(kept["labels"]) == len(kept["pieces"]), place, "of as many labels as pieces"
    )
    counts: Counter[str] = Counter()
    for label, pieces in zip(kept["labels"], kept["pieces"]):
        counts[label] += sum(pieces)
    images = lesson["images"] | (
        {NOTHING: lesson["nothing"]} if lesson["nothing"] else {}
    )
    _require(counts == images, place, "what its lesson says")
    (rows, columns), views = kept["features"].shape, Looks(tuple(header["looks"])).views
    _require(rows == sum(counts.values()), f"{place}.features", "one per image")
    fits = not rows or (columns % views == 0 and columns >= views * length)
    _require(
        fits,
        f"{place}.features",
        f"of {length} columns or more for each of {views} views",
    )


def _require(holds: bool, place: str, rule: str) -> None:
    if not holds:
        raise StateError(f"{place} does not agree with the rest, but has to be {rule}")
