"""How far classes are from having images enough to tell what varies within a class."""

from collections.abc import Sequence

# Images of a class from which on its variances are taken as they are. With fewer, in
# ten trials on each stream for development: taught one photo of every second class and
# two of the others, 80 instead of 67 % of rendered shapes are right, 89 instead of 76 %
# of groceries, and 61 instead of 51 % of CIFAR-100, if each feature is given the mean
# variance.
ENOUGH = 4


def shortage(images: Sequence[int]) -> float:
    """Return how many of four images a class lacks on average, 1 at most.

    It is 0 if each class has four, and 1 if they have three or fewer on average, of
    which no class counts more than four.

    Args:
        images: that each class was learned from; at least one class.
    """
    lacking = [max(0, ENOUGH - count) for count in images]
    return min(1.0, sum(lacking) / len(lacking))
