"""The slots of a buffer: which are free, and of which class the others are."""

import numpy as np


class Slots:
    """The slots of a buffer, and the class of the memory that each holds.

    Args:
        capacity: number of slots.
        seed: of the random evictions and draws.
    """

    def __init__(self, capacity: int, seed: int = 0):
        self.capacity = capacity
        self.by_class: dict[int, list[int]] = {}
        self.free = list(
            range(capacity - 1, -1, -1)
        )  # popped from the end: slot 0 first
        self.random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self.capacity - len(self.free)

    @property
    def classes(self) -> list[int]:
        """Classes with at least one memory, in order of arrival."""
        return [label for label, slots in self.by_class.items() if slots]

    def count(self, label: int) -> int:
        """The number of memories of a class."""
        return len(self.by_class.get(label, ()))

    def largest(self) -> int:
        """The size of the largest class."""
        return max((len(slots) for slots in self.by_class.values()), default=0)

    def release(self, label: int) -> int:
        """Evict a random memory of a class and return its slot, which becomes free."""
        slots = self.by_class[label]
        place = int(self.random.integers(len(slots)))
        slots[place], slots[-1] = slots[-1], slots[place]
        slot = slots.pop()
        self.free.append(slot)
        return slot

    def make_room(self, label: int) -> None:
        """Make sure a slot is free: evict from a largest class, from ``label`` if it is one of them."""
        if self.free:
            return
        largest = self.largest()
        victims = [
            other for other, slots in self.by_class.items() if len(slots) == largest
        ]
        self.release(
            label
            if label in victims
            else victims[int(self.random.integers(len(victims)))]
        )

    def take(self, label: int) -> int:
        """Take a free slot for a memory of ``label``.

        Raises:
            ValueError: no slot is free.
        """
        if not self.free:
            raise ValueError(
                f"all {self.capacity} slots are taken; call make_room or release before take"
            )
        slot = self.free.pop()
        self.by_class.setdefault(label, []).append(slot)
        return slot

    def trim(self, quota: int) -> list[int]:
        """Shrink every class to the quota and return the freed slots."""
        return [
            self.release(label)
            for label in self.by_class
            for _ in range(max(0, self.count(label) - quota))
        ]
