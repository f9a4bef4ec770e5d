"""Codes and bytes: inverses of each other at every width, and counted by hand."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crumb_avalanche.memory.packing import WIDTHS, bits_per_code, pack, packed_bytes, unpack


@pytest.mark.parametrize("bits", WIDTHS)
@given(data=st.data(), n=st.integers(0, 5), length=st.integers(0, 40))
def test_unpack_is_the_inverse_of_pack(bits, data, n, length):
    highest = min(2**bits, 2**15) - 1  # int16 codes stop there
    values = data.draw(st.lists(st.integers(0, highest), min_size=n * length, max_size=n * length))
    codes = torch.tensor(values, dtype=torch.int16).view(n, length)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8 and packed.is_contiguous()
    assert packed.shape == (n, packed_bytes(length, bits)) == (n, (length * bits + 7) // 8)
    restored = unpack(packed, bits, length)
    assert restored.dtype == (torch.int16 if bits == 16 else torch.uint8)
    assert torch.equal(restored.to(torch.int16), codes)


@pytest.mark.parametrize(
    "bits, codes, packed",
    [
        (1, [1, 0, 1, 1, 0, 0, 0, 1, 1], [0b10001101, 0b00000001]),
        (2, [1, 0, 3, 2], [0b10_11_00_01]),
        (2, [3, 3, 3, 3, 2], [255, 2]),
        (4, [1, 15, 7], [0xF1, 0x07]),
        (8, [0, 255, 128], [0, 255, 128]),
        (16, [1, 256, 32767], [1, 0, 0, 1, 255, 127]),
    ],
)
def test_bytes_worked_by_hand(bits, codes, packed):
    assert pack(torch.tensor([codes], dtype=torch.int16), bits).tolist() == [packed]
    assert unpack(torch.tensor([packed], dtype=torch.uint8), bits, len(codes)).tolist() == [codes]


def test_the_smallest_width_that_names_every_row():
    rows = (1, 2, 3, 4, 5, 16, 17, 256, 257, 32768)
    assert [bits_per_code(number) for number in rows] == [1, 1, 2, 2, 4, 4, 8, 8, 16, 16]


def test_codes_and_bytes_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match="codes of 3 bits cannot be packed; use one of 1, 2, 4, 8, 16"):
        pack(torch.zeros(1, 1), 3)
    for bits, wrong in ((1, 2), (2, 4), (4, -1), (8, 256), (16, -1)):
        words = f"codes from {min(0, wrong)} to {max(0, wrong)} do not fit in {bits} bits (0 to {2**bits - 1})"
        with pytest.raises(ValueError, match=re.escape(words)):
            pack(torch.tensor([[0, wrong]], dtype=torch.int16), bits)
    for bits, length, right in ((2, 5, 2), (8, 3, 3), (16, 3, 6)):
        for wrong in (right - 1, right + 1):
            words = f"{wrong} bytes are not {length} codes of {bits} bits, which take {right}"
            with pytest.raises(ValueError, match=words):
                unpack(torch.zeros(1, wrong, dtype=torch.uint8), bits, length)
