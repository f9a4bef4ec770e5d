"""Selection rules: which images of the stream are stored, and which memories are evicted for them.

Every rule keeps the classes balanced and never holds more than the capacity. Rules move slot numbers only; the buffers
of ``memory.buffers`` hold the bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

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
        self.free = list(range(capacity - 1, -1, -1))  # popped from the end: slot 0 first
        self.random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self.capacity - len(self.free)

    @property
    def classes(self) -> list[int]:
        """Classes with at least one memory, in order of arrival."""
        return [label for label, slots in self.by_class.items() if slots]

    def count(self, label: int) -> int:
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
        victims = [other for other, slots in self.by_class.items() if len(slots) == largest]
        self.release(label if label in victims else victims[int(self.random.integers(len(victims)))])

    def take(self, label: int) -> int:
        """Take a free slot for a memory of ``label``.

        Raises:
            ValueError: no slot is free.
        """
        if not self.free:
            raise ValueError(f"all {self.capacity} slots are taken; call make_room or release before take")
        slot = self.free.pop()
        self.by_class.setdefault(label, []).append(slot)
        return slot

    def forget(self, label: int) -> list[int]:
        """Evict all memories of a class and return the freed slots."""
        freed = self.by_class.pop(label, [])
        self.free += freed
        return freed

    def trim(self, quota: int) -> list[int]:
        """Shrink every class to the quota and return the freed slots."""
        return [self.release(label) for label in self.by_class for _ in range(max(0, self.count(label) - quota))]


class SelectionRule(ABC):
    """Chooses, batch by batch, which images go to which slots.

    Attributes:
        second_pass: whether images are offered in a second pass after the experience's training, instead of during
            the last epoch.
        evenly_spread: whether the memories of a class are spread evenly over all its images, however many experiences
            they come in.
    """

    second_pass = False
    evenly_spread = True

    def begin_experience(self, slots: Slots, coming: dict[int, int], batch_size: int) -> list[int]:
        """Prepare for an experience, given its number of images of each class.

        Returns:
            freed slots, for the buffer to wipe.

        Raises:
            ValueError: more classes than slots.
        """
        classes = set(slots.classes) | set(coming)
        if len(classes) > slots.capacity:
            raise ValueError(
                f"mem_size={slots.capacity} cannot hold a memory of each of the {len(classes)} classes seen so far; "
                f"raise mem_size (or the budget) to at least {len(classes)}"
            )
        return []

    @abstractmethod
    def choose(self, slots: Slots, labels: Sequence[int]) -> list[tuple[int, int]]:
        """Choose the images of a batch to store.

        Args:
            slots: updated in place.
            labels: class of each image of the batch.

        Returns:
            ``(position in the batch, slot)`` pairs; a later pair for the same slot replaces an earlier one.
        """

    @property
    def finished(self) -> bool:
        """Whether the rest of the experience can be skipped."""
        return False

    def check_capacity(self, capacity: int) -> None:  # noqa: B027 (most rules support any)
        """Raise ValueError if the rule does not support a new capacity."""

    def shrink(self, slots: Slots) -> list[int]:
        """Follow a buffer that was made smaller, maybe within an experience; returns freed slots, to be wiped."""
        return []

    def give_up(self, slots: Slots, label: int) -> int:
        """Evict a memory of a class from a buffer that is made smaller; returns its slot."""
        return slots.release(label)

    def forget(self, label: int) -> None:  # noqa: B027 (most rules know nothing of single classes)
        """Remove what is known of a class."""

    def state_dict(self) -> dict:
        """Return the state: plain values and tensors."""
        return {}

    def load_state_dict(self, state: dict) -> None:  # noqa: B027 (nothing to load)
        """Load what ``state_dict`` returned."""


@dataclass
class EveryJth(SelectionRule):
    """Every j-th image, so that the buffer fills towards the end of the experience (paper, "Replay to mitigate...").

    A class may hold ``capacity / classes seen`` memories. Of its ``N`` coming images every ``j``-th is kept, with
    ``j = N / quota``, not rounded: the kept images are spread evenly over the experience and exactly fill the quota. In
    the first experience this is the paper's ``j`` = images / capacity; later ones have only their share of the buffer.

    The paper's classes come in one experience each. If a class returns, as in an online or domain-incremental stream,
    its ``n``-th image of all is kept with the probability quota / ``n`` and replaces a random memory of the class
    (reservoir sampling), so that its memories stay a uniform sample of all its images.

    Attributes:
        coming, offered: images of each class in this experience, and those offered so far.
        past: images of each class that were offered in earlier experiences.
        quota: memories a class may hold.

    Raises:
        ValueError: an experience brings the classes above the number of slots, or an image has a class that was not
            announced.
    """

    coming: dict[int, int] = field(default_factory=dict)
    offered: dict[int, int] = field(default_factory=dict)
    past: dict[int, int] = field(default_factory=dict)
    quota: int = 0

    def begin_experience(self, slots, coming, batch_size):
        super().begin_experience(slots, coming, batch_size)
        for label, count in self.offered.items():
            self.past[label] = self.past.get(label, 0) + count
        self.coming = dict(coming)
        self.offered = dict.fromkeys(coming, 0)
        self.quota = slots.capacity // len(set(slots.classes) | set(coming))
        return []

    def choose(self, slots, labels):
        chosen = []
        for position, label in enumerate(labels):
            total = self.coming.get(label)
            if total is None:
                raise ValueError(
                    f"class {label} was not announced: call begin_experience with the image counts of the experience, "
                    "and take away plugins that mix in images of earlier ones, such as Avalanche's ReplayPlugin; or "
                    "use ClassBalancedReservoir, which needs to know nothing in advance"
                )
            number = self.offered[label]
            self.offered[label] += 1
            if self.past.get(label):
                if not self._replaces(slots, label, self.past[label] + number + 1):
                    continue
            else:
                kept = min(self.quota, total)
                if (number + 1) * kept // total == number * kept // total:
                    continue
                slots.make_room(label)
            chosen.append((position, slots.take(label)))
        return chosen

    def _replaces(self, slots: Slots, label: int, number: int) -> bool:
        """Decide on the ``number``-th image of a class that returned; if it is kept, free a slot for it."""
        held = slots.count(label)
        # A class above its quota still is a uniform sample; others that need room make it smaller.
        if slots.random.random() >= max(held, self.quota) / number:
            return False
        if held >= self.quota:
            slots.release(label)
        else:
            slots.make_room(label)
        return True

    def forget(self, label):
        for counts in (self.coming, self.offered, self.past):
            counts.pop(label, None)

    def state_dict(self):
        return {
            "coming": dict(self.coming),
            "offered": dict(self.offered),
            "past": dict(self.past),
            "quota": self.quota,
        }

    def load_state_dict(self, state):
        self.coming, self.offered = dict(state["coming"]), dict(state["offered"])
        self.past = dict(state.get("past", {}))  # older states lack it
        self.quota = state["quota"]


@dataclass
class ClassBalancedReservoir(SelectionRule):
    """Single-pass, class-balancing reservoir sampling (Chrysakis and Moens, ICML 2020); needs no counts in advance.

    A full buffer makes room for an image in one of two ways. If its class was once the largest, the image replaces a
    random memory of this class, with the probability memories / images of the class so far. Else it replaces a random
    memory of a largest class.

    Attributes:
        seen: images of each class that were offered.
        full: classes that were once the largest of a full buffer.

    Raises:
        ValueError: an experience brings the classes above the number of slots.
    """

    seen: dict[int, int] = field(default_factory=dict)
    full: set[int] = field(default_factory=set)

    def choose(self, slots, labels):
        chosen = []
        for position, label in enumerate(labels):
            self.seen[label] = self.seen.get(label, 0) + 1
            if not slots.free:
                # A class that has once been the largest is "full" from then on.
                largest = slots.largest()
                self.full |= {other for other in slots.classes if slots.count(other) == largest}
                held = slots.count(label)
                if label in self.full:
                    if held == 0 or slots.random.random() >= held / self.seen[label]:
                        continue
                    slots.release(label)
                else:
                    slots.make_room(label)
            chosen.append((position, slots.take(label)))
        return chosen

    def forget(self, label):
        self.seen.pop(label, None)
        self.full.discard(label)

    def state_dict(self):
        return {"seen": dict(self.seen), "full": sorted(self.full)}

    def load_state_dict(self, state):
        self.seen, self.full = dict(state["seen"]), set(state["full"])


@dataclass
class ReferenceRule(SelectionRule):
    """The rule of the published code: a second pass over the experience after its training.

    Quota ``capacity // classes seen``; within each batch every ``j``-th image of each class, starting with its first,
    ``j = max(1, (batches - 1) * batch size // capacity)``; a class above its quota evicts random members; the pass ends
    as soon as every class is at its quota, so it reads only the first part of later experiences. Old classes are cut
    to their quota when the pass begins; while the experience is trained on, all their memories are replayed.

    If a class returns, most of its memories are of its latest experiences.

    Attributes:
        quota: memories a class may hold.
        stride: ``j``.
        expected: classes seen, those of the present experience included.
        images: of the experience, without its last batch.
        done: whether every class is at its quota.
        trimmed: whether old classes were cut to the quota.

    Raises:
        ValueError: there are more classes than slots.
    """

    second_pass = True
    evenly_spread = False
    quota: int = 0
    stride: int = 1
    expected: list[int] = field(default_factory=list)
    images: int = 0
    done: bool = False
    trimmed: bool = False

    def begin_experience(self, slots, coming, batch_size):
        super().begin_experience(slots, coming, batch_size)
        self.expected = sorted(set(slots.classes) | set(coming))
        self.images = (-(-sum(coming.values()) // batch_size) - 1) * batch_size
        self.done = False
        return self.shrink(slots)

    def check_capacity(self, capacity):
        if capacity < len(self.expected):
            raise ValueError(
                f"mem_size={capacity} cannot hold a memory of each of the {len(self.expected)} classes seen so far; "
                f"give at least {len(self.expected)}"
            )

    def shrink(self, slots):
        self.quota = slots.capacity // max(1, len(self.expected))
        self.stride = max(1, self.images // slots.capacity)
        self.trimmed = False
        return []

    def choose(self, slots, labels):
        if not self.trimmed:
            slots.trim(self.quota)  # the buffer wipes what is not taken again
            self.trimmed = True
        chosen: list[tuple[int, int]] = []
        for label in dict.fromkeys(labels):
            candidates = [position for position, other in enumerate(labels) if other == label][:: self.stride]
            held = slots.count(label)
            # A uniform choice of the quota among old and new members.
            survivors = set(slots.random.permutation(held + len(candidates))[: self.quota].tolist())
            for _ in range(held - sum(member < held for member in survivors)):
                slots.release(label)
            for number, position in enumerate(candidates):
                if held + number in survivors:
                    chosen.append((position, slots.take(label)))
        self.done = all(slots.count(label) >= self.quota for label in self.expected)
        return chosen

    @property
    def finished(self):
        return self.done

    def state_dict(self):
        state = {"quota": self.quota, "stride": self.stride, "expected": list(self.expected), "images": self.images}
        return {**state, "done": self.done, "trimmed": self.trimmed}

    def load_state_dict(self, state):
        self.quota, self.stride, self.images = state["quota"], state["stride"], state["images"]
        self.expected, self.done, self.trimmed = list(state["expected"]), state["done"], state["trimmed"]


RULES: dict[str, type[SelectionRule]] = {
    "every_jth": EveryJth,
    "reservoir": ClassBalancedReservoir,
    "reference": ReferenceRule,
}
