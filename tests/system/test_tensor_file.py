"""Tensor files: inverse pairs, checksums that find every flipped byte, older files and files of others."""

import random
import re
import struct
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from crumb_avalanche.system.tensor_file import (
    CHECKSUMS,
    DIGEST,
    StateError,
    TensorFileError,
    flatten,
    loaded_json,
    read_metadata,
    read_state,
    read_tensors,
    unflatten,
    write_state,
    write_tensors,
)

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
)
KEYS = st.text(max_size=3) | st.integers()
STATES = st.recursive(
    PLAIN
    | st.integers(0, 3).map(lambda n: torch.arange(n))
    | st.integers(0, 3).map(lambda n: np.arange(n) / 2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a, b):
    """Whether two states hold equal values of equal types, in the same order."""
    if isinstance(a, torch.Tensor | np.ndarray):
        return (
            type(a) is type(b)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and bool((a == b).all())
        )
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@given(STATES)
def test_unflatten_is_the_inverse_of_flatten(state):
    assert same(unflatten(*flatten(state)), state)


def test_a_state_comes_back_from_a_file(tmp_path):
    """Also tensors that share memory, and names that meet."""
    row = torch.arange(4.0)
    state = {
        "weights": torch.eye(3).half(),
        7: [1, (2.5, None)],
        "random": 2**100,
        "rows": np.zeros((0, 4), np.int16),
    }
    state |= {"a": {"b": row}, "a.b": row[1:], "c": row.t(), "__metadata__": row[:2]}
    write_state(tmp_path / "a.safetensors", state, {"format": "test-1"})
    found, metadata = read_state(tmp_path / "a.safetensors")
    assert same(found, state) and metadata == {"format": "test-1"}


def test_values_that_a_file_cannot_hold_are_named(tmp_path):
    with pytest.raises(StateError, match=r"plugins\.0\.rule is of type object"):
        flatten({"plugins": [{"rule": object()}]})
    with pytest.raises(StateError, match=r"names is an array of <U1"):
        flatten({"names": np.array(["a"])})
    with pytest.raises(StateError, match=r"complex128.*convert"):
        write_tensors(
            tmp_path / "a.safetensors", {"x": torch.ones(2, dtype=torch.complex128)}, {}
        )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "tree",
    [{"tuple": 5}, {"dict": [[1]]}, {"tensor": ["x"]}, {"array": "y"}, {"set": []}, {}],
)
def test_trees_of_another_program_are_refused(tree):
    with pytest.raises(StateError, match="unknown node"):
        unflatten(tree, {"x": torch.ones(1)})


def test_strides_and_shared_memory(tmp_path):
    rows = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "rows": rows,
        "turned": rows.t(),
        "same": rows,
        "second": rows[1],
        "wide": torch.ones(1).expand(4),
    }
    tensors["maps"] = (
        torch.arange(24.0)
        .view(1, 2, 3, 4)
        .contiguous(memory_format=torch.channels_last)
    )
    write_tensors(tmp_path / "a.safetensors", tensors, {})
    found, _ = read_tensors(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys() and all(
        same(found[name], tensors[name]) for name in tensors
    )


def test_the_same_content_gives_the_same_bytes(tmp_path):
    notes = {name: f'"{name}"\\ \n\t\x01 \x7f é 漢' for name in "abcdefgh"}
    for number in range(4):
        write_state(
            tmp_path / f"{number}.safetensors", {"x": torch.ones(3), "é": 1}, notes
        )
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert read_state(tmp_path / "0.safetensors")[1] == notes


@pytest.mark.parametrize("stripped", [CHECKSUMS, DIGEST])
def test_a_file_without_one_of_its_checksum_entries_is_damaged(tmp_path, stripped):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.ones(2)}, {"format": "test-1"})
    metadata = read_metadata(path)
    del metadata[stripped]
    save_file({"x": torch.ones(2)}, path, metadata)
    with pytest.raises(TensorFileError, match=r"metadata of .* are damaged"):
        read_tensors(path)


def test_every_flipped_byte_is_found(tmp_path):
    path = tmp_path / "a.safetensors"
    state = {
        "weights": torch.randn(40, 40),
        "codes": torch.arange(500, dtype=torch.uint8),
        "clock": {"steps": 12},
    }
    write_state(path, state, {"format": "test-1"})
    whole = path.read_bytes()
    draws = random.Random(0)
    last = len(whole) - 1
    for place in [*(draws.randrange(len(whole)) for _ in range(100)), *range(16), last]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draws.randrange(8)
        path.write_bytes(damaged)
        words = (
            "tensor '.*' of .* is damaged" if place == last else re.escape(str(path))
        )
        with pytest.raises(TensorFileError, match=words):
            read_state(path)


def test_another_spelling_of_the_header_is_damage(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(
        path,
        {"x": torch.ones(3), "y": torch.zeros(3)},
        {"format": "test-1", "note": "1/2"},
    )
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = whole[8 : 8 + size]
    spellings = [
        (b"} ", b"}\t"),
        (b"} ", b" }"),
        (b"1/2", rb"1\/2"),
        (b'"note":"1', rb'"note":"\u0031'),
    ]
    for old, new in spellings:
        other = header.replace(old, new)
        assert other != header
        path.write_bytes(len(other).to_bytes(8, "little") + other + whole[8 + size :])
        with pytest.raises(TensorFileError, match=r"metadata of .* are damaged"):
            read_tensors(path)


@pytest.mark.parametrize("read", [read_tensors, read_state])
def test_a_file_that_is_replaced_while_it_is_read(tmp_path, read):
    """What is read is one of the files, never a part of each."""
    path = tmp_path / "a.safetensors"
    done = threading.Event()

    def replace():
        for number in range(300):
            values = torch.full((1000,), number)
            write_state(path, {"x": values}, {"number": str(number)})
        done.set()

    write_state(path, {"x": torch.zeros(1000, dtype=torch.int64)}, {"number": "0"})
    writer = threading.Thread(target=replace)
    writer.start()
    while not done.is_set():
        content, metadata = read(path)
        assert (content["x"] == int(metadata["number"])).all()
    writer.join()


@pytest.mark.parametrize("content", [b"", bytes(5000), b"x" * 5000], ids=len)
def test_what_is_read_does_not_change_with_the_file(tmp_path, content):
    """As ``cp backup mine`` does, which writes into the file that is there."""
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.arange(1000.0)}, {})
    tensors, _ = read_tensors(path)
    with open(path, "r+b") as file:
        file.truncate(len(content))
        file.write(content)
    assert torch.equal(tensors["x"], torch.arange(1000.0))


def test_no_file_and_a_damaged_header_are_errors(tmp_path):
    path = tmp_path / "w.safetensors"
    for text in ("{", "[" * 200_000):
        with pytest.raises(StateError, match="characters is no JSON"):
            loaded_json(text)
    with pytest.raises(TensorFileError, match="there is no file"):
        read_metadata(path)
    for header in (
        struct.pack("<Q", 2**62) + b"{}",  # longer than memory
        struct.pack("<Q", 2**63 + 5) + b"{}",
        struct.pack("<Q", 200_000) + b"[" * 200_000,
        struct.pack("<Q", 8) + "{}".encode("utf-32-be"),
        struct.pack("<Q", 4) + b"null",
        b"",
        b"half",
    ):
        path.write_bytes(header)
        with pytest.raises(TensorFileError, match=r"is no complete \.safetensors file"):
            read_tensors(path)
