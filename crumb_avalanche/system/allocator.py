"""Memory that is freed and needed again with the next batch, kept by the process instead of going back and forth."""

import ctypes

# Of malloc.h. A block from M_MMAP_THRESHOLD bytes on is mapped by itself and goes back to the system when it is freed;
# free memory above M_TRIM_THRESHOLD bytes at the end of the heap does too.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory(most: int = 512 * 2**20) -> bool:
    """Let the C library use freed blocks again; for the rest of the process.

    A batch of 128 maps of 512x13x13 is 44 MB. By glibc's own rule a tensor of that size is new memory each time, which
    the system clears page by page: reading maps from a cache takes twice as long.

    Args:
        most: bytes of a block, and of free memory at the end of the heap, from which on they go back to the system.

    Returns:
        Whether the C library has such a rule; without glibc nothing is changed.
    """
    try:
        set_rule = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return all([set_rule(M_MMAP_THRESHOLD, most), set_rule(M_TRIM_THRESHOLD, most)])
