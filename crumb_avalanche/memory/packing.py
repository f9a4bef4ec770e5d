"""Pack codes into bytes, with 1, 2, 4, 8 or 16 bits per code."""

import torch
from torch import Tensor

WIDTHS = (1, 2, 4, 8, 16)  # bits of a code


def bits_per_code(codebook_size: int) -> int:
    """Return the smallest width of ``WIDTHS`` that holds every code of a codebook."""
    needed_bits = max(codebook_size - 1, 1).bit_length()
    return next(width for width in WIDTHS if width >= needed_bits)


def packed_bytes(codes_per_item: int, bits: int) -> int:
    """Return the bytes of the packed codes of one item, zeros at the end included.

    Raises:
        ValueError: the width is none of ``WIDTHS``.
    """
    if bits not in WIDTHS:
        widths = ", ".join(map(str, WIDTHS))
        raise ValueError(f"codes of {bits} bits cannot be packed; use one of {widths}")
    return -(-codes_per_item * bits // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack the codes of ``N`` items into bytes, the first code in the lowest bits.

    Args:
        codes: ``(N, L)`` integers in ``[0, 2**bits)``.
        bits: of one code.

    Returns:
        ``(N, ceil(L * bits / 8))`` uint8.

    Raises:
        ValueError: the width is none of ``WIDTHS``, or too small for a code.
    """
    n_items, n_codes = codes.shape
    n_bytes = packed_bytes(n_codes, bits)
    if codes.numel():
        lowest, highest = torch.stack(codes.aminmax()).tolist()
        if lowest < 0 or highest >= 2**bits:
            raise ValueError(
                f"codes from {lowest} to {highest} do not fit in {bits} bits (0 to "
                f"{2**bits - 1}); take a larger width"
            )
    if bits == 8:
        return codes.to(torch.uint8).contiguous()
    if bits == 16:
        return codes.to(torch.int16).contiguous().view(torch.uint8)
    codes_per_byte = 8 // bits
    padded = codes.new_zeros((n_items, n_bytes * codes_per_byte), dtype=torch.uint8)
    padded[:, :n_codes] = codes
    codes_by_byte = padded.view(n_items, n_bytes, codes_per_byte)
    shifts = torch.arange(codes_per_byte, dtype=torch.uint8, device=codes.device) * bits
    # The shifted codes of one byte share no bit, so their sum is their union.
    return (codes_by_byte << shifts).sum(dim=2, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, length: int) -> Tensor:
    """Unpack the codes of ``N`` items that ``pack`` packed.

    Args:
        packed: ``(N, ceil(length * bits / 8))`` uint8.
        bits: of one code.
        length: number of codes of an item.

    Returns:
        ``(N, length)`` uint8, or at 16 bits int16.

    Raises:
        ValueError: the width is another one, or the number of bytes in a row does not
            match ``length``.
    """
    n_bytes = packed_bytes(length, bits)
    if packed.shape[1] != n_bytes:
        raise ValueError(
            f"{packed.shape[1]} bytes are not {length} codes of {bits} bits, which "
            f"take {n_bytes}"
        )
    if bits == 8:
        return packed
    if bits == 16:
        return packed.contiguous().view(torch.int16)
    codes_per_byte = 8 // bits
    shifts = (
        torch.arange(codes_per_byte, dtype=torch.uint8, device=packed.device) * bits
    )
    codes_by_byte = (packed.unsqueeze(2) >> shifts) & (2**bits - 1)
    return codes_by_byte.flatten(1)[:, :length]  # without what fills the last byte
