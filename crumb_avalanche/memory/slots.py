"""The slots of a buffer: which are free, and of which class the others are."""

import numpy as np


class Slots:
    """The slots of a buffer, and the class of the memory that each holds.

    Args:
        capacity: number of slots.
        seed: of the random evictions and draws.

    Attributes:
        by_class: slots of the memories of each class, in order of arrival of the
            classes; a list is empty if all memories of its class were evicted.
        free: slots without a memory; the last one is taken next.
        random: draws evictions, and the memories of a replay.
    """

    def __init__(self, capacity: int, seed: int = 0):
        self.capacity = capacity
        self.by_class: dict[int, list[int]] = {}
        self.free = list(range(capacity - 1, -1, -1))  # slot 0 is taken first
        self.random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self.capacity - len(self.free)

    @property
    def classes(self) -> list[int]:
        """Classes with at least one memory, in order of arrival."""
        return [label for label, slots in self.by_class.items() if slots]

    def count(self, label: int) -> int:
        """Return the number of memories of a class."""
        return len(self.by_class.get(label, ()))

    def size_of_largest_class(self) -> int:
        """Return the number of memories of the largest class."""
        return max((len(slots) for slots in self.by_class.values()), default=0)

    def release(self, label: int) -> int:
        """Evict a random memory of a class and return its slot, which becomes free."""
        slots = self.by_class[label]
        index = int(self.random.integers(len(slots)))
        slot = slots[index]
        slots[index] = slots[-1]
        slots.pop()
        self.free.append(slot)
        return slot

    def make_room(self, label: int) -> None:
        """Make sure that a slot is free: evict a random memory of a largest class.

        A slot is the place of one memory. Nothing is evicted if one is free.

        Args:
            label: class that needs the slot; it gives up a memory itself if it is one
                of the largest, else a random one of them does.
        """
        if self.free:
            return
        size_of_largest = self.size_of_largest_class()
        largest_classes = []
        for candidate, slots in self.by_class.items():
            if len(slots) == size_of_largest:
                largest_classes.append(candidate)
        if label in largest_classes:
            self.release(label)  # evicts a random memory of the class
        else:
            index = int(self.random.integers(len(largest_classes)))
            self.release(largest_classes[index])

    def take(self, label: int) -> int:
        """Take a free slot for a memory of ``label``.

        Raises:
            ValueError: no slot is free.
        """
        if not self.free:
            raise ValueError(
                f"all {self.capacity} slots are taken; call make_room or release "
                "before take"
            )
        slot = self.free.pop()
        self.by_class.setdefault(label, []).append(slot)
        return slot

    def trim(self, quota: int) -> list[int]:
        """Evict the memories of each class above the quota; return the freed slots."""
        freed = []
        for label in self.by_class:
            while self.count(label) > quota:
                freed.append(self.release(label))
        return freed
