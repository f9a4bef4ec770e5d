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
from crumb_avalanche.learner.replay import REPLAY
from crumb_avalanche.system.schema import (
    AnyOf,
    Array,
    Each,
    Plain,
    Real,
    Table,
    Text,
    Whole,
    check,
    maybe,
)
from crumb_avalanche.system.tensor_file import StateError

MOST_IMAGES = 2**31 - 1  # of a class: its count is int32
LARGEST_PICTURE = 2**16  # bytes
# Sizes whose growth makes every answer slower, or takes memory that no tensor in the file takes.
LIMITS = {"classes": 10**5, "length": 10**6, "records": Confidence().capacity, "slots": 10**7}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _known_method(name: str) -> None:
    """Raise ValueError for a name that is none of a method that a learner may have."""
    if name not in REPLAY and form_of(name) is None:
        raise ValueError(f"known are {', '.join([*CLOSED_FORMS, *REPLAY])}")


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
        {**dict.fromkeys(("label", "other"), NAME), **dict.fromkeys(("frames", "as_label", "as_other"), IMAGES)},
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
    "features": maybe(FEATURES),
    "looks": Each(Real(0.1, 1), most=MOST),
    "classes": Each(maybe({"name": NAME, "images": IMAGES}), "classes"),  # by number; nothing where one was forgotten
    "lessons": Each(LESSON),
    "stored": Each(Text(), most=10),
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
LABEL, SLOT = Whole(0, "classes"), Whole(0, "slots")
BY_CLASS = Table(LABEL, Whole(0, 10**12))
WEIGHTS = Table(Text(), Array((*FLOATS, torch.int64, torch.bool), ...))
REPLAYED = {
    "pieces": Whole(0, 10**9),
    "model": WEIGHTS,
    "memories": {
        "labels": Array((torch.int16, torch.int32), "slots", low=-1, high="classes"),
        "rows": maybe(Array((torch.uint8, torch.float16), "slots", ...)),
        "free": Each(SLOT),
        "by_class": Table(LABEL, Each(SLOT)),
        "random": {
            "bit_generator": Text(among=("PCG64",)),
            "state": {"state": Whole(0, 2**128 - 1), "inc": Whole(0, 2**128 - 1)},
            "has_uint32": Whole(0, 1),
            "uinteger": Whole(0, 2**32 - 1),
        },
        "rule": AnyOf(
            (
                {"seen": BY_CLASS, "full": Each(LABEL)},
                {"coming": BY_CLASS, "offered": BY_CLASS, "past": BY_CLASS, "quota": Whole(0, 10**12)},
            )
        ),
    },
}
# Of what was learned, also before the last lessons.
STATISTICS = ("statistics", "confidence", "look_losses", "nothing", "replay")
PICTURE = Array(torch.uint8, "bytes")


def check_header(header: dict[str, Any]) -> None:
    """Raise ``StateError`` if plain values are not those of a learner; names the place, what is there and the rule."""
    check(HEADER, header, LIMITS)
    classes = [one for one in header["classes"] if one is not None]
    names = [one["name"] for one in classes]
    _require(len(set(names)) == len(names), "classes", "of different names")
    taught: Counter[str] = Counter()
    numbers = [lesson["number"] for lesson in header["lessons"]]
    _require(numbers == sorted(set(numbers)), "lessons", "with increasing numbers")
    for index, lesson in enumerate(header["lessons"]):
        counts = [lesson[name] for name in ("right", "answered", "clips")]
        _require(counts == sorted(counts), f"lessons[{index}]", "right <= answered <= clips")
        taught.update(lesson["images"])
    _require(
        +taught == +Counter({one["name"]: one["images"] for one in classes}), "classes", "what the lessons add up to"
    )
    closed = header["method"] not in REPLAY
    _require((header["features"] is not None) == closed, "features", "there for a closed form, and only for it")
    looks = header["looks"]
    _require(len(looks) > 0 and (closed or looks == [1]), "looks", "at least one, and the whole image for replay")


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
    rest = {
        "network": maybe(WEIGHTS),
        "pictures": Each(maybe(torch.Tensor)),
        "history": {"before": object, "kept": Each(object, most=len(header["lessons"]))},
    }
    check(dict.fromkeys((*STATISTICS[:-1], "replay?"), object) | rest, state)
    method = header["method"]
    names = [one and one["name"] for one in header["classes"]]
    images = [one["images"] if one else 0 for one in header["classes"]]
    known = {name: state[name] for name in STATISTICS if name in state}
    views = Looks(tuple(header["looks"])).views
    _check_known({"names": names, "images": images, **known}, method, views, "")
    _require(len(state["pictures"]) == len(header["lessons"]), "pictures", "one or none for each lesson")
    for picture in state["pictures"]:
        check({"pictures": maybe(PICTURE)}, {"pictures": picture}, {"bytes": LARGEST_PICTURE})
    _check_history(state["history"], header, views)
    included = header["network"]["included"]
    _require((state["network"] is not None) == included, "network.included", "true if weights are there")


def _check_known(value: Any, method: str, views: int, place: str) -> None:
    """Check the names, statistics and confidence of a learner, and what replay keeps."""
    statistics: Any = value.get("statistics") if isinstance(value, dict) else None
    settings: Any = statistics.get("settings") if isinstance(statistics, dict) else None
    if not isinstance(settings, dict):
        raise StateError(f"{place}statistics has no settings")
    named = {str(name): COUNTS if str(name).endswith("counts") else NUMBERS for name in (*statistics, "counts")}
    schema = {
        "names": Each(maybe(NAME), "classes"),
        "images": Each(IMAGES, "classes"),
        "statistics": {
            **named,
            "settings": {str(name): SETTINGS.get(str(name), PLAIN) for name in ("n_classes", "length", *settings)},
        },
        "confidence": CONFIDENCE,
        "look_losses": Array(torch.float64, len(LookWeights(views).losses), low=0),
        "nothing": maybe(Array(torch.float32, "nothing", "length")),
        **({"replay": REPLAYED} if method in REPLAY else {}),
    }
    try:
        check(schema, value, LIMITS)
        names, confidence = [name for name in value["names"] if name is not None], value["confidence"]
        _require(len(set(names)) == len(names), "names", "different names")
        wrong = [count for name, count in zip(value["names"], value["images"]) if name is None and count]
        _require(not wrong, "images", "0 where a class was forgotten")
        _require(
            statistics["counts"].tolist() == [views * count for count in value["images"]],
            "statistics.counts",
            "images times views",
        )
        lessons = confidence["lessons"]
        _require(not len(lessons) or int(lessons.max()) < confidence["next"], "confidence.next", "above all lessons")
        nothing = value["nothing"]
        _require(
            nothing is None or DRAWN <= len(nothing) <= DRAWN + MOST_SHOWN,
            "nothing",
            f"of {DRAWN} to {DRAWN + MOST_SHOWN} rows",
        )
        if method in REPLAY:
            _check_memories(value["replay"]["memories"])
    except StateError as error:
        raise StateError(f"{place}{error}") from error


def _check_history(history: Any, header: dict[str, Any], views: int) -> None:
    """Check what is kept of the last lessons, and what was learned before them."""
    before, kept, lessons = history["before"], history["kept"], header["lessons"]
    _require((before is None) == (not kept), "history.before", "there if lessons are kept")
    _require(
        len(kept) < 2 or all(one is not None for one in kept), "history.kept", "with features, if there are several"
    )
    if before is None:
        return
    _check_known(before, header["method"], views, "history.before.")
    earlier: Counter[str] = Counter()
    for lesson in lessons[: len(lessons) - len(kept)]:
        earlier.update(lesson["images"])
    names, images = (before[name] for name in ("names", "images"))
    _require(+Counter(dict(zip(names, images))) == +earlier, "history.before", "what the earlier lessons add up to")
    for place, (one, lesson) in enumerate(zip(kept, lessons[len(lessons) - len(kept) :])):
        if one is not None:
            check({f"history.kept[{place}]": KEPT}, {f"history.kept[{place}]": one})
            counts: Counter[str] = Counter()
            for label, pieces in zip(one["labels"], one["pieces"]):
                counts[label] += sum(pieces)
            images = lesson["images"] | ({NOTHING: lesson["nothing"]} if lesson["nothing"] else {})
            _require(counts == images, f"history.kept[{place}]", "what its lesson says")
            _require(len(one["features"]) == sum(counts.values()), f"history.kept[{place}].features", "one per image")


def _check_memories(memories: dict[str, Any]) -> None:
    """Check that each slot is free or of the class that its label says."""
    labels = memories["labels"].tolist()
    held = {slot: label for label, slots in memories["by_class"].items() for slot in slots}
    _require(
        sorted([*memories["free"], *(slot for slots in memories["by_class"].values() for slot in slots)])
        == list(range(len(labels)))
        and all(label == held.get(slot, -1) for slot, label in enumerate(labels)),
        "replay.memories.by_class",
        "each slot once, or free, as labels says",
    )
    _require(memories["rows"] is not None or not held, "replay.memories.rows", "there where a slot is taken")


def _require(holds: bool, place: str, rule: str) -> None:
    if not holds:
        raise StateError(f"{place} does not agree with the rest, but has to be {rule}")
