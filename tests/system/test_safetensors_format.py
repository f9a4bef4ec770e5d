"""The format of tensor files: what we write the library reads, and the other way."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from crumb_avalanche.system.safetensors_format import (
    DTYPES,
    read_tensors_of,
    write_safetensors,
)
from crumb_avalanche.system.safetensors_header import FormatError, read_header
from crumb_avalanche.system.tensor_file import write_tensors

SHAPES = st.lists(st.integers(0, 3), max_size=3)
TENSORS = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=4).filter("__metadata__".__ne__),
    st.tuples(SHAPES, st.sampled_from(list(DTYPES.values()))),
    max_size=4,
)
TEXTS = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=4),
    st.text(st.characters(codec="utf-8"), max_size=4),
    max_size=3,
)
# Writes a tensor of 200 MB again and again.
WRITER = """
import sys, torch
from crumb_avalanche.system.tensor_file import write_tensors
tensors = {"x": torch.ones(50_000_000)}
while True:
    write_tensors(sys.argv[1], tensors, {})
"""


def random_tensor(shape, dtype):
    count = torch.Size(shape).numel() * dtype.itemsize
    limit = 2 if dtype == torch.bool else 256
    values = torch.randint(limit, (count,), dtype=torch.uint8)
    return values.view(dtype).reshape(shape)


def same_bytes(first, second):
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and first.reshape(-1).view(torch.uint8).tolist()
        == second.reshape(-1).view(torch.uint8).tolist()
    )


def written(path, tensors, metadata):
    with open(path, "wb") as file:
        write_safetensors(file, tensors, metadata)
    return path


def read(path):
    with open(path, "rb") as file:
        header = read_header(file)
        return read_tensors_of(file, header), header.metadata


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("format") / "a.safetensors"


@given(TENSORS, TEXTS)
def test_the_library_reads_our_files(path, described, metadata):
    tensors = {name: random_tensor(*value) for name, value in described.items()}
    loaded = load_file(written(path, tensors, metadata))
    assert loaded.keys() == tensors.keys()
    assert all(same_bytes(loaded[name], tensors[name]) for name in tensors)


@given(TENSORS, TEXTS)
def test_we_read_files_of_the_library(path, described, metadata):
    tensors = {name: random_tensor(*value) for name, value in described.items()}
    metadata = {"format": "test-1", **metadata}  # without any, its header is broken
    save_file(tensors, path, metadata)
    loaded, texts = read(path)
    assert list(loaded) == sorted(tensors)
    assert all(same_bytes(loaded[name], tensors[name]) for name in tensors)
    assert texts == metadata


@given(TENSORS)
def test_our_bytes_are_those_of_the_library(path, described):
    """With one text; of several, the library writes another order each time."""
    tensors = {name: random_tensor(*value) for name, value in described.items()}
    save_file(tensors, path, {"format": "test-1"})
    expected = path.read_bytes()
    assert written(path, tensors, {"format": "test-1"}).read_bytes() == expected


def test_a_canonical_header(path):
    written(path, {"x": torch.ones(2)}, {"b": "1", "a": "2"})
    with open(path, "rb") as file:
        assert read_header(file).is_canonical


def test_unknown_types_are_refused(path):
    with pytest.raises(FormatError, match=r"tensor 'x' is of type torch\.complex128"):
        written(path, {"x": torch.ones(1, dtype=torch.complex128)}, {})


X = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BROKEN = {
    "no object": ([], "no JSON object"),
    "metadata": ({"__metadata__": {"a": 1}}, "its metadata are no texts"),
    "metadata list": ({"__metadata__": []}, "its metadata are no texts"),
    "no entry": ({"x": 5}, "'x' is not described"),
    "no type": ({"x": {**X, "dtype": None}}, "unknown type"),
    "list as type": ({"x": {**X, "dtype": ["F32"]}}, "unknown type"),
    "other type": ({"x": {**X, "dtype": "F31"}}, "unknown type"),
    "no shape": ({"x": {**X, "shape": None}}, "has no shape"),
    "negative": ({"x": {**X, "shape": [-2, -1]}}, "has no shape"),
    "true": ({"x": {**X, "shape": [True, 2]}}, "has no shape"),
    "huge": ({"x": {**X, "shape": [2**63]}}, "has no shape"),
    "large": ({"x": {**X, "shape": [2**62, 2**62]}}, "another size"),
    "three offsets": ({"x": {**X, "data_offsets": [0, 4, 8]}}, "has no place"),
    "fractions": ({"x": {**X, "data_offsets": [0.0, 8.0]}}, "has no place"),
    "backwards": ({"x": {**X, "data_offsets": [8, 0]}}, "another size"),
    "a hole": ({"x": {**X, "data_offsets": [8, 16]}}, "does not follow"),
    "one place": ({"x": X, "y": X}, "'y' does not follow"),
    "too few bytes": ({"x": {**X, "shape": [3], "data_offsets": [0, 12]}}, "needs 12"),
    "too many bytes": ({}, "needs 0"),
}


@pytest.mark.parametrize(("header", "words"), BROKEN.values(), ids=BROKEN)
def test_broken_rules_are_named(path, header, words):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(FormatError, match=words):
        read(path)


def test_a_file_cut_off_while_it_is_read(path):
    written(path, {"x": torch.ones(100_000)}, {})
    with open(path, "rb") as file:
        header = read_header(file)
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(FormatError, match="it ends in tensor 'x'"):
            read_tensors_of(file, header)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_kill_while_saving_leaves_nothing(tmp_path):
    """Nothing of full size stays after the next writing of the same file."""
    path = tmp_path / "a.safetensors"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path])
    while not list(tmp_path.glob(".*.part")) and writer.poll() is None:
        time.sleep(0.001)
    writer.kill()
    writer.wait()
    assert list(tmp_path.glob(".*.part"))
    write_tensors(path, {"x": torch.ones(1)}, {})
    assert os.listdir(tmp_path) == [path.name]
