"""What a learner file may hold besides its header, as data.

Every value has a type and a range, and counts and sizes agree with the others.
``check_header`` and ``check_state`` are called on what was read, before anything is
built of it, and on what is about to be written.
"""

import math
from collections import Counter
from typing import Any, Literal

import torch
from torch import Tensor

from crumb_avalanche.learner.classifier import form_of
from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.evidence import MOST_CLIPS
from crumb_avalanche.learner.header import (
    CLOSED_FORMS,
    MOST_FEATURES,
    NAME,
    NAMES,
    require,
)
from crumb_avalanche.learner.nothing import DRAWN, MOST_SHOWN, NOTHING
from crumb_avalanche.learner.picture_strip import LARGEST_PICTURE, check_jpeg
from crumb_avalanche.learner.records import PER_CLIP, RIVALS, Records
from crumb_avalanche.methods.look_shares import MOST_LOOKS
from crumb_avalanche.methods.look_weights import LookWeights
from crumb_avalanche.methods.looks import Looks
from crumb_avalanche.methods.run_header import (
    IMAGES,
    MOST_CLASSES,
    MOST_IMAGES,
)
from crumb_avalanche.models.extraction import LARGEST_FEATURE
from crumb_avalanche.system.value_types import (
    StateError,
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

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _known_method(name: str) -> None:
    """Raise ValueError for a name that is none of a method that a learner may have."""
    if form_of(name) is None:
        raise ValueError(f"known are {', '.join(CLOSED_FORMS)}")


VALUES = array(torch.float32, None, None, low=-LARGEST_FEATURE, high=LARGEST_FEATURE)
# The features of a lesson.
KEPT = record(
    labels=each(Literal[NOTHING] | NAME),
    pieces=each(each(whole(1, MOST_IMAGES))),
    features=VALUES,
    observed=bool,
    repeated=array(torch.bool, None),
    records=each(whole(0, PER_CLIP)),
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
RECORDS = {
    **{
        name: array(torch.int64, None, low=0)
        for name in ("clip_numbers", "images", "classes", "labels")
    },
    "mean_log_clips": array(
        torch.float32, None, low=0, high=math.log(MOST_CLIPS) + 1e-6
    ),
    "shortage": array(torch.float32, None, low=0, high=1),
    "typicality": array(torch.float32, None, 3),
    "left_out": array(torch.float32, None, 3),
    "rivals": array(torch.int64, None, RIVALS, low=-1),
    "gaps": array(torch.float32, None, RIVALS, but=-math.inf),
}
CONFIDENCE = record(next=whole(0, 10**9), **RECORDS)
# What was observed of the last lessons.
OBSERVATIONS = record(losses=array(torch.float64, None, None, low=0), **RECORDS)
NAMED = table(text(), Any, most=100)
# What was learned, also before the last lessons.
KNOWN = {
    "statistics": each(NAMED, most=MOST_LOOKS),  # of each look that is used
    "confidence": CONFIDENCE,
    "images": each(IMAGES),
    "clips": each(IMAGES),
    "look_weights": record(
        losses=array(torch.float64, None, low=0),
        squares=array(torch.float64, None, low=0),
        clips=IMAGES,
        used=each(whole(0, MOST_LOOKS - 1), most=MOST_LOOKS),
    ),
    "nothing": each(VALUES, most=MOST_LOOKS),  # of each look, or of none
}
BEFORE = record(names=NAMES, **KNOWN)
STATE = record(
    **KNOWN,
    network=maybe(table(text(), array((*FLOATS, torch.int64, torch.bool), ...))),
    pictures=each(maybe(array(torch.uint8, None))),
    history=record(
        before=maybe(BEFORE), kept=each(maybe(KEPT)), observations=OBSERVATIONS
    ),
)


def check_state(header: dict[str, Any], state: dict[str, Any]) -> None:
    """Raise unless the state of a learner file is one that ``Learner`` writes.

    Args:
        header: plain values of the file that ``check_header`` took.
        state: what else the file holds: statistics, confidence, history of lessons,
            pictures, and weights of the network or ``None``.

    Raises:
        StateError: names the first path with another value, what it is, and the rule.
    """
    check(text(rule=_known_method), header["method"], "method")
    check(STATE, state)
    learned = {name: state[name] for name in KNOWN}
    learned["names"] = header["names"]
    _check_learned(learned, header, header["lessons"], "")
    _check_pictures(state["pictures"], header["lessons"])
    _check_history(state["history"], header)
    included = header["network"]["included"]
    is_right = (state["network"] is not None) == included
    require(is_right, "network.included", "true if weights are there")


def _check_pictures(
    pictures: list[Tensor | None], lessons: list[dict[str, Any]]
) -> None:
    """Raise StateError unless pictures are JPEG files, one or none for each lesson.

    Args:
        pictures: bytes of each file, ``(n,)`` uint8.
        lessons: from the header; ``pictured`` are numbers of the images in a picture.
    """
    require(len(pictures) == len(lessons), "pictures", "one or none for each lesson")
    for index, picture in enumerate(pictures):
        if picture is None:
            continue
        is_allowed = len(picture) <= LARGEST_PICTURE
        require(is_allowed, "pictures", f"of at most {LARGEST_PICTURE:,} bytes")
        try:
            check_jpeg(picture.numpy().tobytes())
        except ValueError as error:
            raise StateError(f"pictures[{index}] has to be {error}") from error
        shows = lessons[index]["pictured"]
        is_right = len(set(shows)) == len(shows) > 0
        require(is_right, f"lessons[{index}].pictured", "the images of its picture")


def _check_history(history: dict[str, Any], header: dict[str, Any]) -> None:
    """Raise StateError unless what takes lessons back agrees with the lessons.

    Args:
        history: what ``History.state_dict`` returned: features of the last lessons, and
            what was learned before them.
        header: of the learner.
    """
    before = history["before"]  # what was learned before the last lessons
    recent = history["kept"]  # features of the last lessons
    lessons = header["lessons"]
    path = "history.kept"
    # `require` raises unless its first argument is true.
    is_right = (before is None) == (not recent)
    require(is_right, "history.before", "there if lessons are kept")
    require(len(recent) <= len(lessons), path, "of no more than the lessons")
    is_right = header["undoable"] == len(recent)
    require(is_right, "undoable", "the number of lessons that are kept")
    is_complete = len(recent) < 2 or all(features is not None for features in recent)
    require(is_complete, path, "with features, if there are several")
    _check_observations(history, header)
    if before is None:
        return
    n_earlier = len(lessons) - len(recent)
    _check_learned(before, header, lessons[:n_earlier], "history.before.")
    length = before["statistics"][0]["settings"]["length"]
    n_views = Looks(tuple(header["looks"])).n_views
    for index, features in enumerate(recent):
        if features is not None:
            lesson = lessons[n_earlier + index]
            _check_features(features, lesson, n_views, length, f"{path}[{index}]")


def _check_observations(history: dict[str, Any], header: dict[str, Any]) -> None:
    """Raise StateError unless observations are of the clips of the last lessons.

    They say how images of a clip were answered before it was learned.

    Args:
        history: what ``History.state_dict`` returned; ``observations`` holds columns of
            records, and losses of each clip that was predicted.
        header: of the learner.
    """
    observations = history["observations"]
    path = "history.observations"
    records_of_clips: list[int] = []  # number of records of each clip with some
    for features in history["kept"]:
        if features is not None:
            is_right = len(features["records"]) == len(features["labels"])
            require(is_right, "history.kept", "of as many labels as records")
            records_of_clips += filter(None, features["records"])
    records = Records.of_state(observations)
    is_right = len(records.labels) == sum(records_of_clips)
    require(is_right, path, "as many as the lessons have")
    losses = observations["losses"]
    n_weightings = len(LookWeights(Looks(tuple(header["looks"]))).losses)
    shape = (len(records_of_clips), n_weightings)
    is_right = not records_of_clips or losses.shape == shape
    require(is_right, f"{path}.losses", f"{n_weightings} of each clip")
    n_classes = len(header["names"])
    for numbers in (records.labels, records.rivals):
        are_known = bool((numbers < n_classes).all())
        require(are_known, path, "records of the classes")
    _check_rivals(records, path)


def _check_rivals(records: Records, path: str) -> None:
    """Check that no class is a rival of itself, and that rivals alone have gaps."""
    is_own_class = records.rivals == records.labels[:, None]
    require(not bool(is_own_class.any()), path, "records of the classes")
    has_no_rival = records.rivals < 0
    is_right = torch.equal(has_no_rival, records.gaps == -math.inf)
    require(is_right, f"{path}.gaps", "-inf where there is no rival")


def _check_features(
    features: dict[str, Any],
    lesson: dict[str, Any],
    n_views: int,
    length: int,
    path: str,
) -> None:
    """Raise StateError unless features are those of the images of a lesson.

    Args:
        features: what ``LessonFeatures.state_dict`` returned.
        lesson: what ``Lesson.state_dict`` returned.
        n_views: number of views of an image: the whole, and middle parts of it.
        length: fewest features of a view.
        path: where it stands, for errors.
    """
    labels = features["labels"]
    pieces = features["pieces"]
    require(len(labels) == len(pieces), path, "of as many labels as pieces")
    counts: Counter[str] = Counter()
    for label, frames_of_pieces in zip(labels, pieces, strict=True):
        counts[label] += sum(frames_of_pieces)
    images = dict(lesson["images"])
    if lesson["nothing"]:
        images[NOTHING] = lesson["nothing"]
    require(counts == images, path, "what its lesson says")
    n_rows, n_columns = features["features"].shape
    is_right = n_rows == sum(counts.values())
    require(is_right, f"{path}.features", "one per image")
    require(len(features["repeated"]) == n_rows, f"{path}.repeated", "one per image")
    is_allowed = not n_rows or (
        n_columns % n_views == 0 and n_columns >= n_views * length
    )
    rule = f"of {length} columns or more for each of {n_views} views"
    require(is_allowed, f"{path}.features", rule)


# What was learned


def _check_learned(
    learned: dict[str, Any],
    header: dict[str, Any],
    lessons: list[dict[str, Any]],
    path: str,
) -> None:
    """Raise StateError unless what was learned agrees with the lessons.

    Args:
        learned: names, images, clips, statistics, confidence, weights of looks, and
            features of what shows nothing.
        header: of the learner.
        lessons: those that it had.
        path: where it stands, for errors; ends with a point.
    """
    names = learned["names"]
    looks = Looks(tuple(header["looks"]))
    images: Counter[str] = Counter()
    for lesson in lessons:
        images.update(lesson["images"])
    are_known = (+images).keys() <= set(names)  # `+` leaves out classes without images
    require(are_known, f"{path}names", "those of the lessons")
    _check_look_weights(learned["look_weights"], looks, f"{path}look_weights")
    statistics_of_looks = learned["statistics"]
    used = learned["look_weights"]["used"]
    has_used_looks = len(statistics_of_looks) == len(used)
    require(has_used_looks, f"{path}statistics", "one for each look that is used")
    for index, statistics in enumerate(statistics_of_looks):
        statistics_path = f"{path}statistics[{index}]"
        _check_settings(statistics, len(names), statistics_path)
        has_same_settings = _same_settings(statistics, statistics_of_looks[0])
        rule = "those of the first look"
        require(has_same_settings, f"{statistics_path}.settings", rule)
    counts = [images[name] for name in names]
    has_lesson_images = learned["images"] == counts
    require(has_lesson_images, f"{path}images", "what the lessons add up to")
    has_clips = _may_be_clips(learned["clips"], counts)
    require(has_clips, f"{path}clips", "one to all images of each class")
    for index, look in enumerate(used):
        n_views = len(looks.views_of([look]))
        statistics_path = f"{path}statistics[{index}]"
        _check_statistics(statistics_of_looks[index], counts, n_views, statistics_path)
    _check_confidence(learned["confidence"], names, f"{path}confidence")
    length = statistics_of_looks[0]["settings"]["length"]
    nothing_of_looks = learned["nothing"]
    has_all_or_none = len(nothing_of_looks) in (0, len(used))
    require(has_all_or_none, f"{path}nothing", "of each look that is used, or of none")
    are_shown = {len(nothing) > DRAWN for nothing in nothing_of_looks}
    require(len(are_shown) <= 1, f"{path}nothing", "shown in all looks, or in none")
    for index, nothing in enumerate(nothing_of_looks):
        _check_nothing(nothing, length, f"{path}nothing[{index}]")


def _may_be_clips(clips: list[int], images: list[int]) -> bool:
    """Whether each class can have so many clips: at least one if it has images.

    Args:
        clips: number of clips of each class, not negative.
        images: number of images of each class; a clip has at least one.
    """
    if len(clips) != len(images):
        return False
    return all(
        min(1, n_images) <= n_clips <= n_images
        for n_clips, n_images in zip(clips, images, strict=True)
    )


def _check_settings(statistics: dict[str, Any], n_classes: int, path: str) -> None:
    """Raise StateError unless statistics have known settings, and tensors that fit.

    Args:
        statistics: what ``ClosedForm.state_dict`` returned.
        n_classes: number of classes that they are of.
        path: where they stand, for errors.
    """
    settings: Any = statistics.get("settings")
    check(NAMED, settings, f"{path}.settings")
    setting_names = ("n_classes", "length", *settings)
    # The type of each value by its name; those of unlisted names are numbers or plain.
    types = {name: STATISTICS.get(name, NUMBERS) for name in (*statistics, "counts")}
    settings_types = {name: SETTINGS.get(name, PLAIN) for name in setting_names}
    types["settings"] = record(**settings_types)
    check(record(**types), statistics, path)
    is_right = settings["n_classes"] == n_classes
    require(is_right, f"{path}.settings.n_classes", "the number of names")


def _same_settings(statistics: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether statistics of two looks have the same settings.

    How many directions a budget left to each may differ.
    """
    settings = {**statistics["settings"], "total_directions": None}
    return settings == {**others["settings"], "total_directions": None}


def _check_look_weights(look_weights: dict[str, Any], looks: Looks, path: str) -> None:
    """Check what ``LookWeights.state_dict`` returned."""
    n_weightings = len(LookWeights(looks).losses)
    is_allowed = len(look_weights["losses"]) == n_weightings
    require(is_allowed, f"{path}.losses", f"{n_weightings} values")
    is_right = len(look_weights["squares"]) == len(looks)
    require(is_right, f"{path}.squares", "one for each look")
    used = look_weights["used"]
    are_known = used and set(used) <= set(looks.all) and used == sorted(set(used))
    require(bool(are_known), f"{path}.used", "numbers of looks, in order")


def _check_statistics(
    statistics: dict[str, Any], images: list[int], n_views: int, path: str
) -> None:
    """Raise StateError unless statistics are of so many images of each class.

    Args:
        statistics: what ``ClosedForm.state_dict`` returned.
        images: number of images of each class, by number.
        n_views: number of views of an image that the look has.
        path: where they stand, for errors.
    """
    counts = statistics["counts"].tolist()
    is_right = counts == [n_views * count for count in images]
    require(is_right, f"{path}.counts", "of the views of the images of the lessons")
    directions = statistics.get("direction_counts")
    if directions is not None:
        is_allowed = directions.shape == statistics["counts"].shape
        is_allowed = is_allowed and bool((directions <= statistics["counts"]).all())
        rule = "at most the images of each class"
        require(is_allowed, f"{path}.direction_counts", rule)
    for name in SCATTERS:
        scatter = statistics.get(name)
        if scatter is not None and scatter.dim() == 2:
            is_allowed = bool((scatter.diagonal() >= 0).all())
            require(is_allowed, f"{path}.{name}", "of a diagonal that is not negative")


def _check_confidence(
    confidence: dict[str, Any], names: list[str | None], path: str
) -> None:
    """Raise StateError unless records of answers are of classes that exist.

    A record says how an image was answered before it was learned: its class, and the
    rivals, which are the other classes with the largest scores.

    Args:
        confidence: columns of ``Records`` by name, and ``next``, the number of the next
            clip.
        names: of the classes by number; ``None`` for one that was forgotten.
        path: where they stand, for errors.
    """
    records = Records.of_state(confidence)
    is_allowed = len(records.labels) <= Confidence().capacity
    # By number of the class; the last one is for the number -1, which stands for none.
    has_name = torch.tensor([name is not None for name in names] + [True])
    for numbers in (records.labels, records.rivals):
        is_allowed = is_allowed and bool((numbers < len(names)).all())
        is_allowed = is_allowed and bool(has_name[numbers].all())
    require(is_allowed, path, "records of the classes")
    _check_rivals(records, path)
    latest = max(records.clip_numbers.tolist(), default=-1)
    require(latest < confidence["next"], f"{path}.next", "above all clips")


def _check_nothing(nothing: Tensor, length: int, path: str) -> None:
    """Check the features of images that show nothing, of one look."""
    limit = DRAWN + MOST_SHOWN
    is_allowed = DRAWN <= len(nothing) <= limit and nothing.shape[1] == length
    require(is_allowed, path, f"of {DRAWN} to {limit} rows of {length} features")
