"""A learner file written by hand, with right checksums, is a learner or one line."""

import copy
import io
import json
import math
import pickle
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from crafted import crafted, json_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from small_lessons import images

from crumb_avalanche.cli import main
from crumb_avalanche.learner.header import CLOSED_FORMS, read_header
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.methods.run_header import LEARNER, LearnerError
from crumb_avalanche.models.backbone_names import Preprocessing
from crumb_avalanche.system.tensor_file import (
    flatten,
    read_tensors,
    unflatten,
    write_tensors,
)

PHOTO = images(0, 1)[0]
TWO_LOOKS = "rda, two looks"
BUDGETS = {"rda": 60_000}  # of which features are given up; of other methods 400,000
# A doubt about images of lesson 1, which shows 6 images of c1.
DOUBT = {
    "label": "c1",
    "frames": 6,
    "as_label": 1,
    "other": "c0",
    "as_other": 5,
    "unknown": 0,
}
TWO_PIXELS = torch.ones(2, dtype=torch.uint8)


@dataclass
class Good:
    """Learners whose files are changed.

    Attributes:
        folder: of files.
        weights: of the network.
        contents: by method ``format``, ``learner`` (the header) and ``state`` of a good
            file; that of slda is without weights. ``TWO_LOOKS`` is rda with two looks.
        others: by method a learner that was taught apart.
    """

    folder: Path
    weights: Path
    contents: dict[str, dict]
    others: dict[str, Learner]

    def weights_of(self, method):
        """What has to be given with a file of a method."""
        return self.weights if method == "slda" else None


@pytest.fixture(scope="module")
def good(tmp_path_factory, weights_file):
    folder = tmp_path_factory.mktemp("good")
    network = FrozenNetwork.build("small_cnn", weights_file, 32)
    contents = {}
    others = {}
    for method in CLOSED_FORMS:
        learner = learner_of(method, network, classes=(0, 1, 2, 0))
        path = folder / f"{method}.safetensors"
        learner.save(path, weights=method != "slda")
        contents[method] = content_of(path)
        others[method] = learner_of(method, network, classes=(1, 3))
    two_looks = learner_of("rda", network, classes=(0, 1), looks=(1.0, 0.6))
    path = folder / "two_looks.safetensors"
    two_looks.save(path)
    contents[TWO_LOOKS] = content_of(path)
    others[TWO_LOOKS] = learner_of("rda", network, classes=(1, 3), looks=(1.0, 0.6))
    return Good(folder, weights_file, contents, others)


def learner_of(method, network, classes, looks=(1.0,)):
    """A learner that was taught six images of classes, one lesson each."""
    learner = Learner.__new__(Learner)
    budget = BUDGETS.get(method, 400_000) * len(looks)
    learner._set_up(method, network, budget, looks=looks)
    for seed, number in enumerate(classes):
        learner.teach(images(number, 6, seed=seed), f"c{number}")
    return learner


def content_of(path):
    """What a file holds: its format, its header and its state."""
    tensors, metadata = read_tensors(path)
    return {
        "format": metadata["format"],
        "learner": json.loads(metadata["learner"]),
        "state": unflatten(json.loads(metadata["tree"]), tensors),
    }


def write_content(path, content):
    """Write a file of any content, with right checksums."""
    tree, tensors = flatten(content.get("state"))
    metadata = {"format": str(content.get("format")), "tree": json_of(tree)}
    if "learner" in content:
        metadata["learner"] = json_of(content["learner"])
    write_tensors(path, tensors, metadata)


def write_crafted(path, data, content):
    """Write a file with something wrong; return whether a file can hold it."""
    try:
        write_content(path, crafted(data.draw, content))
    except (ValueError, RecursionError, TypeError):
        return False
    return True


# Anything may be wrong


def check_line(error, path):
    """An error is one line of bounded length, safe to print, that names the file."""
    text = str(error)
    assert str(path) in text
    assert "\n" not in text
    assert len(text) < 1000
    assert text.isprintable()


def check_answer(learner):
    """An answer is a class of the learner, with probabilities."""
    answer = learner.predict(PHOTO)
    runners_up = [probability for _, probability in answer.runners_up]
    probabilities = np.array([answer.confidence, *runners_up])
    assert answer.label in {info.name for info in learner.classes}
    assert np.isfinite(probabilities).all()
    assert probabilities.min() >= 0
    assert probabilities.sum() <= 1 + 1e-6


def check_use(path, weights, other):
    """Use what a file holds: an error is one line, and answers are probabilities."""
    try:
        learner = Learner.load(path, weights)
    except LearnerError as error:
        check_line(error, path)
        return
    copy_path = path.with_suffix(".copy")
    merged = copy.deepcopy(other)
    try:
        if learner.classes:
            check_answer(learner)
        merged.merge(learner)
        check_copy(merged, copy_path)
        learner.teach(images(1, 2, seed=9), "c1")
        check_copy(learner, copy_path)
    except ValueError as error:
        assert "\n" not in str(error)


def check_copy(learner, path):
    """A learner that is saved can be loaded."""
    learner.save(path)
    assert Learner.load(path).classes == learner.classes
    path.unlink()


# Not made smaller after a failure: each example takes a tenth of a second.
@settings(phases=[Phase.generate])
@given(data=st.data())
def test_crafted_files(good, data):
    method = data.draw(st.sampled_from([*CLOSED_FORMS, TWO_LOOKS]))
    path = good.folder / "crafted.safetensors"
    if not write_crafted(path, data, good.contents[method]):
        return
    check_use(path, good.weights_of(method), good.others[method])
    try:
        read_header(path)
    except LearnerError as error:
        check_line(error, path)


@pytest.fixture(scope="module")
def run_contents(tmp_path_factory, clips):
    """The contents of two runs' files; a ``Learner`` is made of the first."""
    folder = tmp_path_factory.mktemp("runs")
    settings = (
        f"--benchmark clip_folder --dataset-root {clips} --weights none --preset paper "
        "--backbone small_cnn --image-size 32 --batch-size 8 --first-epochs 1 "
        "--threads 1 --progress false --mem-size 8 --checkpoint false"
    )
    contents = {}
    for name in ("ncm", "er"):
        output = folder / name
        options = ["--strategy", name, "--output", str(output)]
        assert main(["run", *settings.split(), *options]) == 0
        contents[name] = content_of(output / LEARNER)
    return contents


@pytest.mark.slow
@settings(max_examples=2000, phases=[Phase.generate])
@given(data=st.data())
def test_crafted_files_of_runs(run_contents, good, data):
    path = good.folder / "crafted_run.safetensors"
    name = data.draw(st.sampled_from(list(run_contents)))
    if not write_crafted(path, data, run_contents[name]):
        return
    try:
        answer = Learner.load(path).predict(PHOTO)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert np.isfinite(answer.confidence)
        assert 0 <= answer.confidence <= 1


# One value is wrong


def changed(content, field, value):
    """Return a copy of the content of a file with another value of a field.

    Args:
        content: see ``Good``.
        field: path of the field; in the header unless it begins with ``state.``.
        value: the new value, or a function of the old one.
    """
    content = copy.deepcopy(content)
    *path, last = map(as_key, field.split("."))
    inner = content["learner"]
    if path[:1] == ["state"]:
        inner = content
    for key in path:
        inner = inner[key]
    if callable(value):
        value = value(inner[last])
    inner[last] = value
    return content


def as_key(text):
    """Return the index of a list or the key of a dictionary."""
    return int(text) if text.isdigit() else text


def picture(width, height, kind="JPEG"):
    """The bytes of a picture, as a tensor."""
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, kind)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def with_first(number):
    """Return a function that gives a copy of a tensor with another first value."""

    def change(tensor):
        copied = tensor.clone()
        copied.view(-1)[0] = number
        return copied

    return change


def doubt(**changes):
    return [{**DOUBT, **changes}]


NAMES = [
    ("names.1", "c0", "names does not agree with the rest, but has to be different"),
    (
        "names.1",
        "a\x1b[2J",
        "names[1] is 'a\\x1b[2J', but has to be another text: class",
    ),
    (
        "names.0",
        "\ud800",
        "names[0] is '\\ud800', but has to be a valid string, unable",
    ),
    (
        "lessons.1.images.a\x1b[2J",
        0,
        "images['a\\x1b[2J'] is 'a\\x1b[2J', but has to be",
    ),
]
COUNTS = [
    (
        "lessons.1.images.c1",
        -3,
        "lessons[1].images.c1 is -3, but has to be greater than",
    ),
    ("lessons.1.images.c1", 5, "images does not agree with the rest"),
    (
        "lessons.0.right",
        7,
        "lessons[0] does not agree with the rest, but has to be right",
    ),
    ("lessons.1.number", 1, "lessons does not agree with the rest, but has to be with"),
    (
        "lessons",
        lambda lessons: [{**lesson, "id": 5} for lesson in lessons],
        "lessons does not agree with the rest, but has to be each with an id of its "
        "own",
    ),
    (
        "state.images",
        lambda images: images[1:],
        "images does not agree with the rest, but has to be what the lessons add up",
    ),
    (
        "state.statistics.0.counts",
        with_first(1),
        "statistics[0].counts does not agree with the rest, but has to be of the views",
    ),
    (
        "state.look_weights.used",
        [2, 0],
        "look_weights.used does not agree with the rest, but has to be numbers of",
    ),
    (
        "state.look_weights.squares",
        lambda squares: squares[1:],
        "look_weights.squares does not agree with the rest, but has to be one for",
    ),
    (
        "state.look_weights.losses",
        lambda losses: losses[1:],
        "look_weights.losses does not agree with the rest, but has to be",
    ),
    (
        "state.statistics.0.direction_counts",
        with_first(13),
        "statistics[0].direction_counts does not agree with the rest, but has to be at "
        "most",
    ),
]
SETTINGS = [
    ("features.cells", 100_000, "features.cells is 100000, but has to be less than or"),
    (
        "method",
        "magic",
        "method is 'magic', but has to be another text: known are rda, ",
    ),
    (
        "network.arguments.image_size",
        10**9,
        "network.arguments.image_size is 1000000000, but has to be less",
    ),
    (
        "network.arguments.preprocessing",
        Preprocessing(9, std=(0, 1, 1)).as_dict(),
        "std[0] is 0, but has to be",
    ),
    (
        "network.arguments.cut_layer",
        1001,
        "cut_layer is 1001, but has to be a valid string or has to be less",
    ),
    (
        "network.weights_sha256",
        "abc",
        "network.weights_sha256 is 'abc', but has to be another text: a SHA-256",
    ),
]
DOUBTS = [
    ("lessons.1.doubts", doubt(frames=7), "of images that the lesson shows"),
    ("lessons.1.doubts", doubt(as_label=2), "as_label + as_other + unknown <= frames"),
    ("lessons.1.doubts", doubt(unknown=1), "as_label + as_other + unknown <= frames"),
    ("lessons.1.doubts", doubt(as_label=3, as_other=3), "as_label < as_other"),
    ("lessons.1.doubts", doubt(label="c2"), "of a class that the lesson shows"),
    ("lessons.1.doubts", doubt(other="cup"), "between two classes that exist"),
    ("lessons.1.doubts", doubt(other="c1"), "between two classes that exist"),
    ("lessons.1.doubts", 2 * doubt(), "at most one for each class"),
    ("lessons.1.doubts", doubt(frames=-1), "doubts[0].frames is -1, but has to be"),
]
TENSORS = [
    (
        "state.statistics.0.direction_scales",
        torch.neg,
        "statistics[0].direction_scales is bfloat16",
    ),
    (
        "state.statistics.0.outside",
        with_first(-1.0),
        "values from 0 to 1e+30, and holds -1",
    ),
    (
        "state.history.kept.0.features",
        torch.zeros(6, 5),
        "history.kept[0].features does not agree with the rest",
    ),
    (
        "state.history.kept.0.features",
        with_first(1e25),
        "values from -1e+12 to 1e+12, and holds 1e+25",
    ),
    ("state.nothing.0", with_first(-1e25), "from -1e+12 to 1e+12, and holds -1e+25"),
    (
        "state.confidence.labels",
        with_first(9),
        "confidence does not agree with the rest",
    ),
    (
        "state.confidence.rivals",
        with_first(9),
        "confidence does not agree with the rest",
    ),
    ("state.confidence.gaps", with_first(-math.inf), "-inf where there is no rival"),
    ("state.confidence.next", 0, "confidence.next does not agree with the rest"),
]
PICTURES = [
    ("state.pictures.0", TWO_PIXELS, "pictures[0] has to be a JPEG"),
    ("state.pictures.0", picture(64, 64, "PNG"), "pictures[0] has to be a JPEG"),
    (
        "state.pictures.0",
        picture(64, 65),
        "pictures[0] has to be a JPEG 64 pixels high",
    ),
    ("state.pictures.0", picture(600, 64), "64 pixels high, at most 512 wide"),
    ("state.pictures.0", TWO_PIXELS.repeat(2**16), "of at most 65,536 bytes"),
]


@pytest.mark.parametrize(
    ("field", "value", "line"), NAMES + COUNTS + SETTINGS + DOUBTS + TENSORS + PICTURES
)
def test_line_of_a_wrong_value(good, field, value, line, tmp_path):
    """It names the field, its value, and the rule."""
    # Given a file with a wrong value
    path = tmp_path / "mine.safetensors"
    write_content(path, changed(good.contents["rda"], field, value))
    # When it is loaded
    # Then the error is one line that says what is wrong
    with pytest.raises(LearnerError, match=re.escape(line)) as error:
        Learner.load(path)
    check_line(error.value, path)


LOOKS = [
    ("statistics", lambda of_looks: of_looks[:1], "one for each look that is used"),
    ("look_weights.used", [0], "statistics does not agree with the rest, but has to"),
    ("look_weights.used", [1, 0], "used does not agree with the rest, but has to be"),
    ("statistics.1.settings.own", 0.5, "[1].settings does not agree with the rest"),
    ("statistics.1.counts", with_first(1), "[1].counts does not agree with the rest"),
    ("nothing", lambda of_looks: of_looks[:1], "of each look that is used, or of none"),
    ("nothing.1", lambda rows: rows[:, 1:], "nothing[1] does not agree with the rest"),
    ("nothing.1", lambda rows: torch.cat([rows, rows[:1]]), "shown in all looks, or"),
]


@pytest.mark.parametrize(("field", "value", "line"), LOOKS)
def test_line_of_looks_that_disagree(good, field, value, line, tmp_path):
    path = tmp_path / "mine.safetensors"
    write_content(path, changed(good.contents[TWO_LOOKS], f"state.{field}", value))
    with pytest.raises(LearnerError, match=re.escape(line)) as error:
        Learner.load(path)
    check_line(error.value, path)


def test_good_looks(good, tmp_path):
    path = tmp_path / "mine.safetensors"
    write_content(path, good.contents[TWO_LOOKS])
    assert Learner.load(path).predict(PHOTO).label == "c0"


@pytest.mark.parametrize(
    ("method", "name"), [("slda", "covariance"), ("ranpac", "gram")]
)
def test_line_of_a_negative_scatter(good, method, name, tmp_path):
    path = tmp_path / "mine.safetensors"
    field = f"state.statistics.0.{name}"
    write_content(path, changed(good.contents[method], field, with_first(-1.0)))
    line = rf"statistics\[0\]\.{name} does not agree .* a diagonal that is not negative"
    with pytest.raises(LearnerError, match=line):
        Learner.load(path, good.weights)


FEATURES = "state.history.kept.0.features"


@pytest.mark.parametrize(
    ("action", "field", "value"),
    [
        pytest.param("show", "names.1", "c0", id="show"),
        pytest.param("undo", FEATURES, torch.zeros(6, 5), id="undo"),
    ],
)
def test_commands_print_the_line(good, action, field, value, crumb, tmp_path):
    path = tmp_path / "mine.safetensors"
    write_content(path, changed(good.contents["rda"], field, value))
    code, out, err = crumb("learner", action, path)
    assert code == 1
    assert not out
    assert str(path) in err
    assert err.count("\n") == 1


def test_a_good_doubt(good, tmp_path):
    path = tmp_path / "mine.safetensors"
    write_content(path, changed(good.contents["rda"], "lessons.1.doubts", doubt()))
    assert Learner.load(path).lessons[1].doubts[0].other == "c0"


def test_a_good_picture(good, tmp_path):
    path = tmp_path / "mine.safetensors"
    jpeg = picture(512, 64)
    content = changed(good.contents["rda"], "state.pictures.0", jpeg)
    write_content(path, changed(content, "lessons.0.pictured", [0]))
    assert Learner.load(path).lessons[0].picture == jpeg.numpy().tobytes()


def test_unreadable_states_are_not_written(good, tmp_path):
    # Given a learner, which shares no memory with that of other tests, and its file
    path = tmp_path / "mine.safetensors"
    learner = pickle.loads(pickle.dumps(good.others["slda"]))
    learner.save(path)
    before = path.read_bytes()
    # When a value of its state is NaN
    learner._classifier.statistics.covariance[0, 0] = float("nan")
    # Then it is not saved, and the file is as before
    line = r"mine\.safetensors cannot be saved: .*covariance is float32.*holds nan"
    with pytest.raises(LearnerError, match=line):
        learner.save(path)
    assert path.read_bytes() == before
