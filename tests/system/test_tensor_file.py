"""Tensor files: inverse pairs, checksums that find every flipped byte."""

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

from crumb_avalanche.system.file_metadata import (
    CHECKSUMS,
    DIGEST,
    TensorFileError,
    format_of,
    loaded_json,
    read_metadata,
    tensor_names,
)
from crumb_avalanche.system.tensor_file import (
    flatten,
    read_state,
    read_tensors,
    unflatten,
    write_state,
    write_tensors,
)
from crumb_avalanche.system.value_types import StateError

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


ROW = torch.arange(4.0)
STATE = {
    "weights": torch.eye(3).half(),
    7: [1, (2.5, None)],
    "random": 2**100,
    "rows": np.zeros((0, 4), np.int16),
    # Tensors that share memory, and names that meet.
    "a": {"b": ROW},
    "a.b": ROW[1:],
    "c": ROW.t(),
    "__metadata__": ROW[:2],
}


def test_a_state_comes_back_from_a_file(tmp_path):
    write_state(tmp_path / "a.safetensors", STATE, {"format": "test-1"})
    state, metadata = read_state(tmp_path / "a.safetensors")
    assert same(state, STATE)
    assert metadata == {"format": "test-1"}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"plugins": [{"rule": object()}]}, r"plugins\.0\.rule is of type object"),
        ({"names": np.array(["a"])}, r"names is an array of <U1"),
        (object(), "the state is of type object"),
    ],
)
def test_values_that_no_file_holds(state, words):
    with pytest.raises(StateError, match=words):
        flatten(state)


def test_tensors_that_no_file_holds(tmp_path):
    tensors = {"x": torch.ones(2, dtype=torch.complex128)}
    with pytest.raises(StateError, match=r"complex128.*convert"):
        write_tensors(tmp_path / "a.safetensors", tensors, {})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "tree",
    [{"tuple": 5}, {"dict": [[1]]}, {"tensor": ["x"]}, {"array": "y"}, {"set": []}, {}],
)
def test_trees_of_another_program_are_refused(tree):
    with pytest.raises(StateError, match="unknown node"):
        unflatten(tree, {"x": torch.ones(1)})


def strided_tensors():
    """Tensors that share memory, or are no rows of it."""
    rows = torch.arange(6.0).reshape(2, 3)
    maps = torch.arange(24.0).view(1, 2, 3, 4)
    return {
        "rows": rows,
        "turned": rows.t(),
        "same": rows,
        "second": rows[1],
        "wide": torch.ones(1).expand(4),
        "maps": maps.contiguous(memory_format=torch.channels_last),
    }


def test_strides_and_shared_memory(tmp_path):
    tensors = strided_tensors()
    write_tensors(tmp_path / "a.safetensors", tensors, {})
    read, _ = read_tensors(tmp_path / "a.safetensors")
    assert same(read, dict(sorted(tensors.items())))


NOTES = {name: f'"{name}"\\ \n\t\x01 \x7f é 漢' for name in "abcdefgh"}


def test_the_same_content_gives_the_same_bytes(tmp_path):
    state = {"x": torch.ones(3), "é": 1}
    for number in range(4):
        write_state(tmp_path / f"{number}.safetensors", state, NOTES)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize(
    ("texts", "expected"), [({"format": "learner"}, "learner"), ({}, "")]
)
def test_the_kind_of_a_file(tmp_path, texts, expected):
    path = tmp_path / "file.safetensors"
    write_tensors(path, {"values": torch.zeros(2)}, texts)
    assert format_of(path) == expected


def test_the_kind_of_no_tensor_file(tmp_path):
    path = tmp_path / "file.safetensors"
    path.write_text("hello")
    assert format_of(path) == ""


def test_texts_come_back(tmp_path):
    write_state(tmp_path / "a.safetensors", {}, NOTES)
    assert read_state(tmp_path / "a.safetensors")[1] == NOTES


@pytest.mark.parametrize("stripped", [CHECKSUMS, DIGEST])
def test_a_file_without_one_of_its_checksum_entries_is_damaged(tmp_path, stripped):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.ones(2)}, {"format": "test-1"})
    metadata = read_metadata(path)
    del metadata[stripped]
    save_file({"x": torch.ones(2)}, path, metadata)
    with pytest.raises(TensorFileError, match=r"metadata of .* are damaged"):
        read_tensors(path)


@pytest.fixture
def written(tmp_path):
    """A file with a state, and its bytes."""
    path = tmp_path / "a.safetensors"
    state = {
        "weights": torch.randn(40, 40),
        "codes": torch.arange(500, dtype=torch.uint8),
        "clock": {"steps": 12},
    }
    write_state(path, state, {"format": "test-1"})
    return path, path.read_bytes()


SHARES = random.Random(0)


@pytest.mark.parametrize("bit", [SHARES.randrange(8) for _ in range(10)])
@pytest.mark.parametrize("share", [SHARES.random() for _ in range(10)])
def test_every_flipped_bit_is_found(written, share, bit):
    path, content = written
    damaged = bytearray(content)
    damaged[int(share * len(content))] ^= 1 << bit
    path.write_bytes(damaged)
    with pytest.raises(TensorFileError, match=re.escape(str(path))):
        read_state(path)


@pytest.mark.parametrize("index", range(16))
def test_every_flipped_bit_of_the_begin_is_found(written, index):
    path, content = written
    damaged = bytearray(content)
    damaged[index] ^= 1 << (index % 8)
    path.write_bytes(damaged)
    with pytest.raises(TensorFileError, match=re.escape(str(path))):
        read_state(path)


def test_the_damaged_tensor_is_named(written):
    path, content = written
    damaged = bytearray(content)
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(TensorFileError, match=r"tensor 'codes' of .* is damaged"):
        read_state(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"} ", b"}\t"),
        (b"} ", b" }"),
        (b"1/2", rb"1\/2"),
        (b'"note":"1', rb'"note":"\u0031'),
    ],
)
def test_another_spelling_of_the_header_is_damage(tmp_path, old, new):
    path = tmp_path / "a.safetensors"
    tensors = {"x": torch.ones(3), "y": torch.zeros(3)}
    write_tensors(path, tensors, {"format": "test-1", "note": "1/2"})
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size]
    changed = header.replace(old, new)
    assert changed != header
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + size :])
    with pytest.raises(TensorFileError, match=r"metadata of .* are damaged"):
        read_tensors(path)


@pytest.mark.parametrize("read", [read_tensors, read_state])
def test_a_file_that_is_replaced_while_it_is_read(tmp_path, read):
    """What is read is one of the files, never a part of each."""
    path = tmp_path / "a.safetensors"
    finished = threading.Event()

    def replace():
        for number in range(300):
            values = torch.full((1000,), number)
            write_state(path, {"x": values}, {"number": str(number)})
        finished.set()

    write_state(path, {"x": torch.zeros(1000, dtype=torch.int64)}, {"number": "0"})
    writer = threading.Thread(target=replace)
    writer.start()
    while not finished.is_set():
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


@pytest.mark.parametrize("text", ["{", "[" * 200_000], ids=["cut", "deep"])
def test_texts_that_are_no_json(text):
    with pytest.raises(StateError, match="characters is no JSON"):
        loaded_json(text)


@pytest.mark.parametrize("read", [read_metadata, read_tensors, read_state])
def test_there_is_no_file(tmp_path, read):
    with pytest.raises(TensorFileError, match="there is no file"):
        read(tmp_path / "w.safetensors")


HEADERS = {
    "longer than the file": struct.pack("<Q", 64) + b"{}",
    "deep": struct.pack("<Q", 200_000) + b"[" * 200_000,
    "other characters": struct.pack("<Q", 8) + "{}".encode("utf-32-be"),
    "null": struct.pack("<Q", 4) + b"null",
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_files_that_are_none(tmp_path, content):
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(TensorFileError, match=r"is no complete \.safetensors file"):
        read_tensors(path)


OTHER_FILES = {
    "empty": (b"", "is empty"),
    "half": (b"half", "is no .safetensors file"),
    "text": (b"This is a text, not tensors.", "is no .safetensors file"),
    "zeros": (bytes(64), "is no .safetensors file"),
    "longer than memory": (struct.pack("<Q", 2**62) + b"{}", "is no .safetensors"),
    "longer than counts": (struct.pack("<Q", 2**63 + 5) + b"{}", "is no .safetensors"),
}


@pytest.mark.parametrize(("content", "words"), OTHER_FILES.values(), ids=OTHER_FILES)
def test_files_of_another_format(tmp_path, content, words):
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(TensorFileError, match=f"w.safetensors {words}.*check the path"):
        read_tensors(path)


def test_names_are_read_alone(tmp_path):
    path = tmp_path / "w.safetensors"
    write_tensors(path, {"b": torch.ones(2), "a": torch.ones(1)}, {})
    assert sorted(tensor_names(path)) == ["a", "b"]
