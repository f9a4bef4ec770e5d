"""Tensor files: inverse pairs, checksums that find every flipped byte, older files and files of others."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from crumb_avalanche.system.tensor_file import (
    StateError,
    TensorFileError,
    flatten,
    read_metadata,
    read_state,
    read_tensors,
    unflatten,
    write_state,
    write_tensors,
)

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
KEYS = st.text(max_size=3) | st.integers()
STATES = st.recursive(
    PLAIN | st.integers(0, 3).map(lambda n: torch.arange(n)) | st.integers(0, 3).map(lambda n: np.arange(n) / 2),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def same(a, b):
    if isinstance(a, torch.Tensor | np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@given(STATES)
def test_unflatten_is_the_inverse_of_flatten(state):
    assert same(unflatten(*flatten(state)), state)


def test_a_state_comes_back_from_a_file(tmp_path):
    state = {"weights": torch.eye(3).half(), 7: [1, (2.5, None)], "random": 2**100, "rows": np.zeros((0, 4), np.int16)}
    write_state(tmp_path / "a.safetensors", state, {"format": "test-1"})
    found, metadata = read_state(tmp_path / "a.safetensors")
    assert same(found, state) and metadata == {"format": "test-1"}


def test_tensors_that_share_memory_and_names_that_meet():
    row = torch.arange(4.0)
    state = {"a": {"b": row}, "a.b": row[1:], "c": row.t()}
    tree, tensors = flatten(state)
    assert len(tensors) == 3 and same(unflatten(tree, tensors), state)


def test_values_that_a_file_cannot_hold_are_named():
    with pytest.raises(StateError, match=r"plugins\.0\.rule is of type object"):
        flatten({"plugins": [{"rule": object()}]})


def test_every_flipped_byte_is_found(tmp_path):
    path = tmp_path / "a.safetensors"
    state = {"weights": torch.randn(40, 40), "codes": torch.arange(500, dtype=torch.uint8), "clock": {"steps": 12}}
    write_state(path, state, {"format": "test-1"})
    whole = path.read_bytes()
    draws = random.Random(0)
    places = [draws.randrange(len(whole)) for _ in range(200)] + list(range(16))
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draws.randrange(8)
        path.write_bytes(damaged)
        try:
            found, metadata = read_state(path)
        except (TensorFileError, StateError):
            continue
        # A flip inside white space or between equal spellings changes nothing.
        assert same(found, state) and metadata == {"format": "test-1"}, place


def test_a_damaged_tensor_is_named(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"blocks": torch.zeros(100)}, {"format": "test-1"})
    damaged = bytearray(path.read_bytes())
    damaged[-7] = 1
    path.write_bytes(damaged)
    with pytest.raises(TensorFileError, match=r"tensor 'blocks' of .*a\.safetensors is damaged"):
        read_tensors(path)


def test_older_files_are_read_with_a_warning_and_files_of_others_silently(tmp_path, recwarn):
    tensors = {"x": torch.ones(2)}
    save_file(tensors, tmp_path / "other.safetensors")
    assert same(read_tensors(tmp_path / "other.safetensors")[0], tensors) and not recwarn
    save_file(tensors, tmp_path / "old.safetensors", {"format": "crumb-pretrained-1"})
    with pytest.warns(UserWarning, match="older version"):
        assert same(read_tensors(tmp_path / "old.safetensors")[0], tensors)


def test_an_absent_file(tmp_path):
    with pytest.raises(TensorFileError, match="there is no file"):
        read_metadata(tmp_path / "a.safetensors")


def test_equal_states_are_equal_files(tmp_path):
    state = {"weights": torch.arange(3.0), "name": 'ü "quoted"\n\x1f'}
    for number in range(8):
        write_state(tmp_path / str(number), state, {"format": "test", "a": "1", "b": "2\t"})
    assert len({(tmp_path / str(number)).read_bytes() for number in range(8)}) == 1
    assert read_state(tmp_path / "0")[0]["name"] == state["name"]
