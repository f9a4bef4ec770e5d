"""Labels of a data set."""

from weakref import finalize

from torch.utils.data import Dataset

from crumb_avalanche.system.rng_state import preserve_rng_state

_read: dict[int, list[int]] = {}  # by id: Avalanche's data sets have no hash


def labels_of(dataset: Dataset) -> list[int]:
    """Return the label of each item: ``targets``, or the second value of each item where a data set has none.

    Without ``targets`` every item is read once; the global RNG state is restored afterwards.
    """
    targets = getattr(dataset, "targets", None)
    if targets is not None:
        return list(map(int, targets))
    if id(dataset) not in _read:
        with preserve_rng_state():
            _read[id(dataset)] = [int(dataset[number][1]) for number in range(len(dataset))]
        finalize(dataset, _read.pop, id(dataset), None)
    return list(_read[id(dataset)])
