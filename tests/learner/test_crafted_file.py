"""A learner file written by hand, with right checksums, is a learner or one line that says what is wrong."""

import json

import numpy as np
import pytest
from crafted import crafted, json_of
from hypothesis import given, settings
from hypothesis import strategies as st
from patch_images import images
from small_lessons import METHODS

from crumb_avalanche.learner.answer import Answer
from crumb_avalanche.learner.file import LearnerError
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.learner.store import read_header
from crumb_avalanche.system.tensor_file import flatten, read_tensors, unflatten, write_tensors

PHOTO = images(0, 1)[0]


@pytest.fixture(scope="module")
def files(tmp_path_factory, weights_file):
    """The parts of a good file of each method: metadata with the parsed header, and state."""
    folder, parts = tmp_path_factory.mktemp("good"), {}
    network = FrozenNetwork.build("small_cnn", weights_file, 32)
    for method in METHODS:
        learner = Learner.__new__(Learner)
        learner._set_up(method, network, 400_000 if method != "rda" else 60_000)
        for number in (0, 1, 2, 0):
            learner.teach(images(number, 6, seed=len(learner.lessons)), f"c{number}", thumbnails=True)
        learner.save(folder / f"{method}.safetensors", weights=method != "slda")
        tensors, metadata = read_tensors(folder / f"{method}.safetensors")
        state = unflatten(json.loads(metadata["tree"]), tensors)
        before = state["before"]
        before["tree"] = json.loads(before["tree"])
        parts[method] = {"format": metadata["format"], "learner": json.loads(metadata["learner"]), "state": state}
    return folder, weights_file, parts


def written(path, parts):
    """Write the parts of a file with right checksums, as far as they can be written at all."""
    state = parts.get("state")
    if isinstance(state, dict) and isinstance(before := state.get("before"), dict) and "tree" in before:
        state = {**state, "before": {**before, "tree": json_of(before["tree"])}}
    tree, tensors = flatten(state)
    metadata = {"format": str(parts.get("format")), "tree": json_of(tree)}
    if "learner" in parts:
        metadata["learner"] = json_of(parts["learner"])
    write_tensors(path, tensors, metadata)


def check_line(error, path):
    """An error is one line of bounded length, safe to print, that names the file."""
    text = str(error)
    assert str(path) in text and "\n" not in text and len(text) < 1000 and text.isprintable(), text[:2000]


def asked(path, weights):
    """Load a file, and use what it holds: an error is one line, and answers are probabilities of its classes."""
    try:
        learner = Learner.load(path, weights)
    except LearnerError as error:
        check_line(error, path)
        return None
    names = [info.name for info in learner.classes]
    try:
        answer = learner.predict(PHOTO)
    except ValueError as error:
        assert "\n" not in str(error)
        return learner
    assert isinstance(answer, Answer) and answer.label in names and 0 <= answer.confidence <= 1
    shares = [answer.confidence, *(share for _, share in answer.runners_up)]
    assert all(np.isfinite(shares)) and sum(shares) <= 1 + 1e-6
    try:
        learner.teach(images(1, 2, seed=9), names[0])
        learner.save(path.with_suffix(".again"))
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert Learner.load(path.with_suffix(".again")).classes == learner.classes
    return learner


def check_crafted(files, data):
    folder, weights, parts = files
    method = data.draw(st.sampled_from(METHODS))
    changed = data.draw(crafted(parts[method]))
    path = folder / "crafted.safetensors"
    try:
        written(path, changed)
    except (ValueError, RecursionError, TypeError):
        return  # no file can hold it
    asked(path, weights if method == "slda" else None)
    try:
        read_header(path)
    except LearnerError as error:
        check_line(error, path)


@settings(max_examples=100)
@given(data=st.data())
def test_100_crafted_files(files, data):
    check_crafted(files, data)


@pytest.mark.slow
@settings(max_examples=2000)
@given(data=st.data())
def test_2000_crafted_files(files, data):
    check_crafted(files, data)
