"""What a learner file may hold, as data: every value has a type, a range and sizes that agree with the others.

``check_learner`` is called on what was read, before anything is built of it, and on what is about to be written.
"""

import math
import re
from collections import Counter
from typing import Any

import torch
from PIL import Image

from benchmarks_toybox_ilab.tables.names import LONGEST_NAME, check_name
from crumb_avalanche.learner.calibration import RIVALS, Confidence
from crumb_avalanche.learner.classifier import CLOSED_FORMS, form_of
from crumb_avalanche.learner.looks import MOST, Looks, LookWeights
from crumb_avalanche.learner.nothing import DRAWN, MOST_SHOWN, NOTHING
from crumb_avalanche.system.schema import AnyOf, Array, Each, Plain, Real, Table, Text, Whole, check, maybe
from crumb_avalanche.system.tensor_file import StateError

MOST_IMAGES = 2**31 - 1  # of a class: its count is int32
LARGEST_PICTURE = 2**16  # bytes
# Sizes whose growth makes every answer slower, or takes memory that no tensor in the file takes.
LIMITS = {"classes": 10**5, "length": 10**6, "records": Confidence().capacity}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _known_method(name: str) -> None:
    """Raise ValueError for a name that is none of a method that a learner may have."""
    if form_of(name) is None:
        raise ValueError(f"known are {', '.join(CLOSED_FORMS)}")


def _stored_name(name: str) -> None:
    """Raise ValueError for a name that ``check_name`` refuses or would change."""
    if check_name(name) != name:
        raise ValueError("it is not as check_name returns it")


def _sha256(text: str) -> None:
    """Raise ValueError for a text that is no SHA-256."""
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError("a SHA-256 has 64 hexadecimal digits")


IMAGES = Whole(0, MOST_IMAGES)
SHA256 = Text(64, rule=_sha256)
FILTER = Text(among=tuple(one.name.lower() for one in Image.Resampling))
NAME = Text(LONGEST_NAME, rule=_stored_name)
THREE = Each(Real(-100, 100), 3)
NETWORK = {
    "name": Text(),
    "image_size": Whole(1, 4096),
    "cut_layer?": AnyOf((None, Text(), Whole(0, 1000))),
    "relu_logits?": bool,
    "head_kernel?": Whole(1, 3),
    "preprocessing?": {"size": Whole(1, 4096), "interpolation": FILTER, "mean": THREE, "std": THREE},
}
VERSIONS = Table(Text(), Text(), most=100)
LESSON = {
    "images": Table(NAME, IMAGES),
    **dict.fromkeys(("clips", "answered", "right", "nothing"), IMAGES),
    "when": Text(40),
    "unread": Each(Text(), 0),
    "notes": Each(Text(1000), most=10**5),
    "doubts": Each(
        {**dict.fromkeys(("label", "other"), NAME), **dict.fromkeys(("frames", "as_label", "as_other"), IMAGES)}
    ),
    "runtime": Text(),
    "number": Whole(1),
    "source": Text(),
    "id": Whole(),
}
# The features of a lesson.
KEPT = {
    "labels": Each(AnyOf((Text(among=(NOTHING,)), NAME)), "clips"),
    "pieces": Each(Each(Whole(1, MOST_IMAGES)), "clips"),
    "features": Array(torch.float32, "rows", "columns"),
}
FEATURES = {
    **dict.fromkeys(("maps", "deviations", "equal_lengths"), bool),
    "power": Real(1e-3, 1),
    "cells": Whole(1, 8),
    "inner": Real(0.1, 1),
    "window": Real(0, 1),
}
# The plain values of a learner.
HEADER = {
    "method": Text(rule=_known_method),
    "budget_bytes": Whole(0, 10**15),
    "features": FEATURES,
    "looks": Each(Real(0.1, 1), most=MOST),
    "names": Each(maybe(NAME), "classes"),  # of the classes by number; nothing where one was forgotten
    "lessons": Each(LESSON),
    "network": {"arguments": NETWORK, "source": Text(2000), "weights_sha256": SHA256, "included": bool},
    "versions": VERSIONS,
    "written": Text(40),
}
PLAIN_VALUES = Table(Text(), Plain())
# The header of a run's learner file; the method checks its settings itself, and the strategy its state.
RUN = {
    "strategy": Text(),
    **dict.fromkeys(("method", "learning"), PLAIN_VALUES),
    "budget_bytes": maybe(Whole(0, 10**15)),
    "mem_size": Whole(0, 10**7),
    "seed": Whole(0, 2**32 - 1),
    "network": {**NETWORK, "n_classes": Whole(1, LIMITS["classes"])},
    "codebook": maybe(Each(Whole(1, 2**15), 2)),
    "precision": Text(among=("fp32", "bf16")),
    "evaluate_quantized": bool,
    "transform": {"size?": Whole(1, 4096), "interpolation?": FILTER, "mean?": THREE, "std?": THREE},
    "classes": Each({"label": Whole(0, LIMITS["classes"] - 1), "name": Text(), "images": IMAGES}),
    "weights_sha256": SHA256,
    "versions": VERSIONS,
    "written": Text(40),
}
# Settings of a closed form, by name; others are any plain values that are not large.
SETTINGS = {
    "n_classes": Whole(0, size="classes"),
    "length": Whole(1, size="length"),
    "own": Real(0, 1),
    "own_images": Real(0, 1e9),
    "head_share": Real(0, 1),
    "projection": Whole(1, 50_000),
    "ridge": Real(0, 1e9),
    "seed": Whole(0, 2**32 - 1),
    "shrinkage": Real(0, 1e9),
    "total_directions": maybe(Whole(0, 10**12)),
}
PLAIN = AnyOf((None, bool, Text(40), Whole(0, 10**6), Real(-1e9, 1e9)))
NUMBERS = Array((*FLOATS, torch.int32, torch.int8), ...)
COUNTS = Array(torch.int32, ..., low=0)
CONFIDENCE = {
    **{name: Array(torch.int64, "records", low=0) for name in ("lessons", "images", "classes")},
    "next": Whole(0, 10**9),
    "labels": Array(torch.int64, "records", low=0, high="classes"),
    "typicality": Array(torch.float32, "records", 3),
    "rivals": Array(torch.int64, "records", RIVALS, low=-1, high="classes"),
    "gaps": Array(torch.float32, "records", RIVALS, but=-math.inf),
}
WEIGHTS = Table(Text(), Array((*FLOATS, torch.int64, torch.bool), ...))
# Of what was learned, also before the last lessons.
STATISTICS = ("statistics", "confidence", "look_losses", "nothing")
PICTURE = Array(torch.uint8, "bytes")


def check_header(header: dict[str, Any]) -> None:
    """Raise ``StateError`` if plain values are not those of a learner; names the place, what is there and the rule."""
    check(HEADER, header, LIMITS)
    names, lessons = [name for name in header["names"] if name is not None], header["lessons"]
    _require(len(set(names)) == len(names), "names", "different ones")
    numbers = [lesson["number"] for lesson in lessons]
    _require(numbers == sorted(set(numbers)), "lessons", "with increasing numbers")
    for index, lesson in enumerate(lessons):
        counts = [lesson[name] for name in ("right", "answered", "clips")]
        _require(counts == sorted(counts), f"lessons[{index}]", "right <= answered <= clips")
    _require(len(header["looks"]) > 0, "looks", "at least one")


def check_run_header(header: Any) -> None:
    """Raise ``StateError`` if plain values are not those of a run's learner; see ``check_header``."""
    check(RUN, header)
    for key in ("label", "name"):
        values = [one[key] for one in header["classes"]]
        _require(len(set(values)) == len(values), "classes", f"each with a {key} of its own")
    labels = [one["label"] for one in header["classes"]]
    _require(max(labels, default=0) < header["network"]["n_classes"], "classes", "labels below network.n_classes")


def check_learner(header: dict[str, Any], state: dict[str, Any]) -> None:
    """Raise if a learner is not one that ``Learner`` writes.

    Args:
        header: plain values, see ``HEADER``.
        state: what else ``write_learner`` stores.

    Raises:
        StateError: names the first place with another value, what it is, and the rule.
    """
    check_header(header)
    lessons, included = header["lessons"], header["network"]["included"]
    rest = {
        "network": maybe(WEIGHTS),
        "pictures": Each(maybe(torch.Tensor)),
        "history": {"before": object, "kept": Each(object, most=len(lessons))},
    }
    check(dict.fromkeys(STATISTICS, object) | rest, state)
    known = {name: state[name] for name in STATISTICS}
    _check_known({"names": header["names"], **known}, header, lessons, "")
    _require(len(state["pictures"]) == len(lessons), "pictures", "one or none for each lesson")
    for picture in state["pictures"]:
        check({"pictures": maybe(PICTURE)}, {"pictures": picture}, {"bytes": LARGEST_PICTURE})
    before, kept = state["history"]["before"], state["history"]["kept"]
    _require((before is None) == (not kept), "history.before", "there if lessons are kept")
    _require(
        len(kept) < 2 or all(one is not None for one in kept), "history.kept", "with features, if there are several"
    )
    if before is not None:
        _check_known(before, header, lessons[: len(lessons) - len(kept)], "history.before.")
    for place, (one, lesson) in enumerate(zip(kept, lessons[len(lessons) - len(kept) :])):
        if one is not None:
            _check_kept(one, lesson, f"history.kept[{place}]")
    _require((state["network"] is not None) == included, "network.included", "true if weights are there")


def _check_known(value: Any, header: dict[str, Any], lessons: list[dict[str, Any]], place: str) -> None:
    """Check the names, statistics and confidence of a learner that had some lessons."""
    statistics: Any = value.get("statistics") if isinstance(value, dict) else None
    settings: Any = statistics.get("settings") if isinstance(statistics, dict) else None
    if not isinstance(settings, dict):
        raise StateError(f"{place}statistics has no settings")
    named = {str(name): COUNTS if str(name).endswith("counts") else NUMBERS for name in (*statistics, "counts")}
    views = Looks(tuple(header["looks"])).views
    schema = {
        "names": Each(maybe(NAME), "classes"),
        "statistics": {
            **named,
            "settings": {str(name): SETTINGS.get(str(name), PLAIN) for name in ("n_classes", "length", *settings)},
        },
        "confidence": CONFIDENCE,
        "look_losses": Array(torch.float64, len(LookWeights(views).losses), low=0),
        "nothing": maybe(Array(torch.float32, "nothing", "length")),
    }
    images: Counter[str] = Counter()
    for lesson in lessons:
        images.update(lesson["images"])
    try:
        check(schema, value, LIMITS)
        names = value["names"]
        _require((+images).keys() <= set(names), "names", "those of the lessons")
        counts = [views * images[name] for name in names]
        _require(statistics["counts"].tolist() == counts, "statistics.counts", "what the lessons add up to")
        numbers, nothing = value["confidence"]["lessons"], value["nothing"]
        following = value["confidence"]["next"]
        _require(not len(numbers) or int(numbers.max()) < following, "confidence.next", "above all lessons")
        most = DRAWN + MOST_SHOWN
        _require(nothing is None or DRAWN <= len(nothing) <= most, "nothing", f"of {DRAWN} to {most} rows")
    except StateError as error:
        raise StateError(f"{place}{error}") from error


def _check_kept(kept: Any, lesson: dict[str, Any], place: str) -> None:
    """Check the features of a lesson."""
    check({place: KEPT}, {place: kept})
    counts: Counter[str] = Counter()
    for label, pieces in zip(kept["labels"], kept["pieces"]):
        counts[label] += sum(pieces)
    images = lesson["images"] | ({NOTHING: lesson["nothing"]} if lesson["nothing"] else {})
    _require(counts == images, place, "what its lesson says")
    _require(len(kept["features"]) == sum(counts.values()), f"{place}.features", "one per image")


def _require(holds: bool, place: str, rule: str) -> None:
    if not holds:
        raise StateError(f"{place} does not agree with the rest, but has to be {rule}")
