"""The length of the rows of a codebook: what divides the channels of a map."""

import math


def largest_divisor(n_channels: int, limit: int) -> int:
    """Return the largest divisor of a number of channels up to ``limit``."""
    return next(
        number
        for number in range(min(limit, n_channels), 0, -1)
        if n_channels % number == 0
    )


def row_length(
    map_shape: tuple[int, int, int], image_size: int, memories_per_image: float
) -> int:
    """Return the length of codebook rows at which memories are not too small.

    A map of ``C * H * W`` values has a code for each ``length`` of them. Longer rows
    make fewer codes: more memories in the same bytes, with a larger error. A map of few
    values keeps too little of itself in long rows, so the length follows from the
    bytes.

    Args:
        map_shape: ``(C, H, W)``.
        image_size: side of the images in pixels.
        memories_per_image: largest number of memories that take the bytes of a raw
            image, at a byte a code.

    Returns:
        The largest divisor of ``C`` with at most so many memories, or 1.
    """
    n_values = math.prod(map_shape)
    image_bytes = 3 * image_size**2
    # The n_values / length bytes of a memory are at least image_bytes /
    # memories_per_image.
    longest = int(n_values * memories_per_image / image_bytes)
    return largest_divisor(map_shape[0], max(1, longest))
