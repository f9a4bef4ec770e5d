"""What a discriminant stores within a budget of bytes while classes come, of which nobody knows how many follow."""

from crumb_avalanche.methods.directions import direction_bytes, fixed_bytes
from crumb_avalanche.methods.packed_scatter import PackedScatter
from crumb_avalanche.methods.rda import RegularizedDiscriminant

MOST_DIRECTIONS = 64  # of a class; more do not help
LEAST_DIRECTIONS = 4  # of a class beside the full common covariance
LEAST_OF_ALL_FEATURES = 8  # directions of a class; with fewer, fewer features answer better


def class_bytes(length: int, directions: int, eight_bits: bool = True) -> int:
    """Return the bytes of a class with so many directions."""
    return fixed_bytes(length, eight_bits) + directions * direction_bytes(length, eight_bits)


def share_budget(statistics: RegularizedDiscriminant, classes: int, budget: int) -> str:
    """Fit the statistics of a number of classes into a budget in bytes.

    Classes with the most directions lose their weakest ones when the bytes of all directions are exceeded. The full
    common covariance, which statistics of earlier versions may hold, is dropped when it leaves less than four
    directions to each class.

    Args:
        statistics: the statistics.
        classes: number of classes that take a mean.
        budget: bytes; at least those of the means.

    Returns:
        What is given up for it, or an empty text.
    """
    length, eight_bits = statistics.settings["length"], statistics.settings["eight_bits"]
    one = direction_bytes(length, eight_bits)
    left = budget - classes * fixed_bytes(length, eight_bits)
    notes = []
    if statistics.scatter is not None:
        beside = left - PackedScatter.bytes_of(length)
        if beside < classes * LEAST_DIRECTIONS * one:
            statistics.drop_scatter()
            notes.append("the full common covariance is given up; it is put together from the classes' directions")
        else:
            left = beside
    total, held = left // one, len(statistics.directions)
    if total < held:
        notes.append(f"{held - total} of {held} directions of classes are given up, the weakest first")
    statistics.limit(total)
    return "; ".join(notes)
