"""Pack codes into bytes, with 1, 2, 4, 8 or 16 bits per code."""

import torch
from torch import Tensor

WIDTHS = (1, 2, 4, 8, 16)  # bits of a code


def bits_per_code(codebook_size: int) -> int:
    """Return the smallest width of ``WIDTHS`` that holds every row of a codebook."""
    needed = max(codebook_size - 1, 1).bit_length()
    return next(width for width in WIDTHS if width >= needed)


def packed_bytes(codes_per_item: int, bits: int) -> int:
    """Return the bytes of one packed item, whose last byte is padded with zeros.

    Raises:
        ValueError: the width is none of ``WIDTHS``.
    """
    if bits not in WIDTHS:
        widths = ", ".join(map(str, WIDTHS))
        raise ValueError(f"codes of {bits} bits cannot be packed; use one of {widths}")
    return -(-codes_per_item * bits // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack the codes of ``N`` items, the lowest bits of a byte first.

    Args:
        codes: ``(N, L)`` integers in ``[0, 2**bits)``.
        bits: of one code.

    Returns:
        ``(N, ceil(L * bits / 8))`` uint8.

    Raises:
        ValueError: the width is none of ``WIDTHS``, or too small for a code.
    """
    count, length = codes.shape
    size = packed_bytes(length, bits)
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
    per_byte = 8 // bits
    padded = codes.new_zeros((count, size * per_byte), dtype=torch.uint8)
    padded[:, :length] = codes
    shifts = torch.arange(per_byte, dtype=torch.uint8, device=codes.device) * bits
    # The shifted codes of one byte share no bit, so their sum is their union.
    return (padded.view(count, size, per_byte) << shifts).sum(dim=2, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, length: int) -> Tensor:
    """Unpack ``(N, length)`` codes, uint8 or at 16 bits int16, that ``pack`` packed.

    Raises:
        ValueError: the width is another one, or the number of bytes in a row does not
            match ``length``.
    """
    size = packed_bytes(length, bits)
    if packed.shape[1] != size:
        raise ValueError(
            f"{packed.shape[1]} bytes are not {length} codes of {bits} bits, which "
            f"take {size}"
        )
    if bits == 8:
        return packed
    if bits == 16:
        return packed.contiguous().view(torch.int16)
    per_byte = 8 // bits
    shifts = torch.arange(per_byte, dtype=torch.uint8, device=packed.device) * bits
    codes = (packed.unsqueeze(2) >> shifts) & (2**bits - 1)
    return codes.flatten(1)[:, :length]
