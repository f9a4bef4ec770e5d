"""What counts as a whole number, and its check."""

import numpy as np
import pytest
import torch

from benchmarks_toybox_ilab.tables.numbers import is_whole_number, whole_number


@pytest.mark.parametrize("value", [0, -3, 10**20, np.int8(3), torch.tensor(3)], ids=str)
def test_whole_numbers(value):
    assert is_whole_number(value)


@pytest.mark.parametrize(
    "value",
    [True, np.bool_(True), 2.0, np.float32(2), torch.tensor(2.5), "3", None],
    ids=repr,
)
def test_other_values(value):
    assert not is_whole_number(value)


def test_a_whole_number_becomes_an_int():
    assert type(whole_number("run", np.int64(3), 0)) is int


@pytest.mark.parametrize("value", [-1, 0.5, True])
def test_a_number_that_is_refused(value):
    words = f"run is {value}, but must be a whole number of at least 0"
    with pytest.raises(ValueError, match=words):
        whole_number("run", value, 0)


def test_another_error_is_raised():
    with pytest.raises(KeyError, match="run is 1"):
        whole_number("run", 1, 2, KeyError)
