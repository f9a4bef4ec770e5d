"""A learner file written by hand, with right checksums, is a learner or one line that says what is wrong."""

import copy
import json
import re

import numpy as np
import pytest
import torch
from crafted import crafted, json_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from small_lessons import images

from crumb_avalanche.cli import main
from crumb_avalanche.learner.classifier import CLOSED_FORMS
from crumb_avalanche.learner.file import read_header
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.methods.run_file import LEARNER, LearnerError
from crumb_avalanche.models.backbone_names import Preprocessing
from crumb_avalanche.system.tensor_file import (
    flatten,
    read_tensors,
    unflatten,
    write_tensors,
)

PHOTO = images(0, 1)[0]


@pytest.fixture(scope="module")
def files(tmp_path_factory, weights_file):
    """A folder, the weights, and of each method the parts of a good file, with another learner that was taught apart.

    The parts are ``format``, ``learner`` (the header) and ``state``.
    """
    folder, parts, others = tmp_path_factory.mktemp("good"), {}, {}
    network = FrozenNetwork.build("small_cnn", weights_file, 32)
    for method in CLOSED_FORMS:
        learner, other = (Learner.__new__(Learner) for _ in range(2))
        for one, numbers in ((learner, (0, 1, 2, 0)), (other, (1, 3))):
            one._set_up(method, network, 400_000 if method != "rda" else 60_000)
            for number in numbers:
                one.teach(images(number, 6, seed=len(one.lessons)), f"c{number}")
        learner.save(folder / f"{method}.safetensors", weights=method != "slda")
        parts[method] = parts_of(folder / f"{method}.safetensors")
        others[method] = other
    return folder, weights_file, parts, others


def parts_of(path):
    tensors, metadata = read_tensors(path)
    state = unflatten(json.loads(metadata["tree"]), tensors)
    return {
        "format": metadata["format"],
        "learner": json.loads(metadata["learner"]),
        "state": state,
    }


def write_crafted(path, data, parts):
    """Write the parts of a file with something wrong, but right checksums; return whether a file can hold them."""
    try:
        written(path, crafted(data.draw, parts))
    except (ValueError, RecursionError, TypeError):
        return False
    return True


def written(path, parts):
    tree, tensors = flatten(parts.get("state"))
    metadata = {"format": str(parts.get("format")), "tree": json_of(tree)}
    if "learner" in parts:
        metadata["learner"] = json_of(parts["learner"])
    write_tensors(path, tensors, metadata)


def check_line(error, path):
    """An error is one line of bounded length, safe to print, that names the file."""
    text = str(error)
    assert (
        str(path) in text
        and "\n" not in text
        and len(text) < 1000
        and text.isprintable()
    ), text[:2000]


def check_use(path, weights, other):
    """Load a file and use what it holds: an error is one line, and answers are probabilities of its classes."""
    try:
        learner = Learner.load(path, weights)
    except LearnerError as error:
        return check_line(error, path)
    again, merged = path.with_suffix(".again"), copy.deepcopy(other)
    try:
        if learner.classes:
            answer = learner.predict(PHOTO)
            shares = [answer.confidence, *(share for _, share in answer.runners_up)]
            assert answer.label in {info.name for info in learner.classes}
            assert (
                np.isfinite(shares).all()
                and min(shares) >= 0
                and sum(shares) <= 1 + 1e-6
            )
        merged.merge(learner)
        merged.save(again)
        assert Learner.load(again).classes == merged.classes
        learner.teach(images(1, 2, seed=9), "c1")
        learner.save(again)
        assert Learner.load(again).classes == learner.classes
    except ValueError as error:
        assert "\n" not in str(error)


# Not made smaller after a failure: each example takes a tenth of a second.
@settings(phases=[Phase.generate])
@given(data=st.data())
def test_crafted_files(files, data):
    folder, weights, parts, others = files
    method = data.draw(st.sampled_from(CLOSED_FORMS))
    path = folder / "crafted.safetensors"
    if not write_crafted(path, data, parts[method]):
        return
    check_use(path, weights if method == "slda" else None, others[method])
    try:
        read_header(path)
    except LearnerError as error:
        check_line(error, path)


@pytest.fixture(scope="module")
def run_files(tmp_path_factory, clips):
    """A folder, and the parts of the learner files of two runs, of which ``Learner`` reads the first."""
    folder, parts = tmp_path_factory.mktemp("runs"), {}
    for name in ("ncm", "er"):
        command = [
            *(
                "run",
                "--benchmark",
                "clip_folder",
                "--dataset-root",
                clips,
                "--weights",
                "none",
                "--preset",
                "paper",
            ),
            *(
                "--backbone",
                "small_cnn",
                "--image-size",
                32,
                "--batch-size",
                8,
                "--first-epochs",
                1,
                "--threads",
                1,
            ),
            *(
                "--progress",
                "false",
                "--mem-size",
                8,
                "--checkpoint",
                "false",
                "--strategy",
                name,
            ),
            *("--output", folder / name),
        ]
        assert main([str(part) for part in command]) == 0
        parts[name] = parts_of(folder / name / LEARNER)
    return folder, parts


@pytest.mark.slow
@settings(max_examples=2000, phases=[Phase.generate])
@given(data=st.data())
def test_crafted_files_of_runs(run_files, data):
    folder, parts = run_files
    path, name = folder / "crafted.safetensors", data.draw(st.sampled_from(list(parts)))
    if not write_crafted(path, data, parts[name]):
        return
    try:
        answer = Learner.load(path).predict(PHOTO)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert np.isfinite(answer.confidence) and 0 <= answer.confidence <= 1


@pytest.mark.parametrize(
    ("field", "value", "line"),
    [
        (
            "names.1",
            "c0",
            "names does not agree with the rest, but has to be different ones",
        ),
        (
            "names.1",
            "a\x1b[2J",
            "names[1] is 'a\\x1b[2J', but has to be another text: class name",
        ),
        (
            "lessons.1.images.c1",
            -3,
            "lessons[1].images.c1 is -3, but has to be greater than or equal to 0",
        ),
        (
            "features.cells",
            100_000,
            "features.cells is 100000, but has to be less than or equal to 8",
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
            "state.history.kept.0.features",
            torch.zeros(6, 5),
            "history.kept[0].features does not agree with the rest",
        ),
        (
            "network.arguments.cut_layer",
            1001,
            "cut_layer is 1001, but has to be a valid string or has to be less",
        ),
        (
            "lessons.1.images.a\x1b[2J",
            0,
            "images['a\\x1b[2J'] is 'a\\x1b[2J', but has to be another text: class name",
        ),
        (
            "method",
            "magic",
            "method is 'magic', but has to be another text: known are rda, slda, ncm, ranpac",
        ),
        (
            "network.weights_sha256",
            "abc",
            "network.weights_sha256 is 'abc', but has to be another text: a SHA-256",
        ),
        (
            "names.0",
            "\ud800",
            "names[0] is '\\ud800', but has to be a valid string, unable to parse raw data",
        ),
        (
            "lessons.0.right",
            7,
            "lessons[0] does not agree with the rest, but has to be right <= answered <= clips",
        ),
    ],
)
def test_the_line_names_file_field_value_and_rule(
    files, field, value, line, crumb, tmp_path
):
    parts, path = copy.deepcopy(files[2]["rda"]), tmp_path / "mine.safetensors"
    *inner, last = (int(key) if key.isdigit() else key for key in field.split("."))
    held = parts if inner[:1] == ["state"] else parts["learner"]
    for key in inner:
        held = held[key]
    held[last] = value
    written(path, parts)
    with pytest.raises(LearnerError, match=re.escape(line)):
        Learner.load(path)
    code, out, err = crumb(
        "learner", "undo" if inner[:1] == ["state"] else "show", path
    )
    assert code == 1 and not out and str(path) in err and err.count("\n") == 1


def test_what_cannot_be_read_again_is_not_written(files, tmp_path):
    learner, path = copy.deepcopy(files[3]["slda"]), tmp_path / "mine.safetensors"
    learner.save(path)
    before = path.read_bytes()
    learner._classifier.statistics.covariance[0, 0] = float("nan")
    with pytest.raises(
        LearnerError,
        match=r"mine\.safetensors cannot be saved: .*covariance is float32.*holds nan",
    ):
        learner.save(path)
    assert path.read_bytes() == before
