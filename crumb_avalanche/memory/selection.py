"""Selection rules: which images of the stream are stored, and what is evicted for them.

Every rule keeps the classes balanced and never holds more than the capacity. Rules move
slot numbers only; the buffers of ``memory.buffers`` hold the bytes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import ClassVar

from crumb_avalanche.memory.slots import Slots


def classes_with(slots: Slots, coming: Iterable[int]) -> list[int]:
    """Return the classes that have memories or are coming, ascending."""
    return sorted({*slots.classes, *coming})


class SelectionRule(ABC):
    """Chooses, batch by batch, which images go to which slots.

    A rule with settings or a state is a dataclass. Its settings are arguments of the
    constructor; what changes with the stream are fields with ``init=False``.

    Attributes:
        second_pass: whether images are offered in a second pass after the experience's
            training, instead of during the last epoch.
        evenly_spread: whether the memories of a class are spread evenly over all its
            images, however many experiences they come in.
        every_class_holds_one: whether each class seen is to hold a memory, so that
            there may not be more classes than slots.
        needs_image_counts: whether it stores no image of a class that
            ``begin_experience`` did not announce.
        groups_are_classes: whether the groups of ``Slots`` are classes.
        class_numbers: fields that hold class numbers: lists, sets, or dictionaries by
            class.
    """

    second_pass = False
    evenly_spread = True
    every_class_holds_one = True
    needs_image_counts = False
    groups_are_classes = True
    class_numbers: ClassVar[tuple[str, ...]] = ()

    def check_room(
        self, capacity: int, n_classes: int, when: str = "seen so far"
    ) -> None:
        """Raise ValueError if a buffer cannot hold a memory of each of its classes.

        Only rules by which every class holds one (``every_class_holds_one``) need that.

        Args:
            capacity: number of slots.
            n_classes: number of classes.
            when: which classes they are, in words for the message.
        """
        if self.every_class_holds_one and n_classes > capacity:
            raise ValueError(
                f"mem_size={capacity} cannot hold a memory of each of the {n_classes} "
                f"classes {when}; raise mem_size (or the budget) to at least "
                f"{n_classes}"
            )

    def begin_experience(
        self, slots: Slots, coming: dict[int, int], batch_size: int
    ) -> list[int]:
        """Prepare for an experience: check that each class has room for a memory.

        Rules with quotas set them here, too.

        Args:
            slots: of the buffer.
            coming: number of images of each class in the experience.
            batch_size: of the batches that will be offered.

        Returns:
            Freed slots, for the buffer to wipe; none by default.

        Raises:
            ValueError: more classes than slots, and each is to hold a memory.
        """
        n_classes = len(classes_with(slots, coming))
        self.check_room(slots.capacity, n_classes)
        return []

    @abstractmethod
    def choose(self, slots: Slots, labels: Sequence[int]) -> list[tuple[int, int]]:
        """Choose the images of a batch to store, and take slots for them.

        Buffers call it for each batch that is offered, and write the chosen images into
        the slots. Memories that are evicted for them lose their slots.

        Args:
            slots: of the buffer; they change.
            labels: class of each image of the batch.

        Returns:
            ``(position in the batch, slot)`` of each chosen image. If a slot comes
            twice, the later image replaces the earlier one.
        """

    @property
    def finished(self) -> bool:
        """Whether the rest of the experience can be skipped."""
        return False

    def state_dict(self) -> dict:
        """Return the settings and the state of a selection rule, sets as sorted lists.

        A rule that is no dataclass has none.
        """
        state = {}
        for name in getattr(self, "__dataclass_fields__", ()):
            field_value = getattr(self, name)
            if isinstance(field_value, set):
                state[name] = sorted(field_value)
            else:
                state[name] = deepcopy(field_value)
        return state

    def load_state_dict(self, state: dict) -> None:
        """Load the settings and the state, which ``state_dict`` returned."""
        for name in getattr(self, "__dataclass_fields__", ()):
            field_type = type(getattr(self, name))
            setattr(self, name, field_type(state[name]))


@dataclass
class EveryJth(SelectionRule):
    """Every j-th image, so that the buffer fills towards the end of the experience.

    Paper: "Replay to mitigate catastrophic forgetting", algorithm 1. A class may hold
    ``capacity / classes seen`` memories. Of its ``N`` coming images every ``j``-th is
    kept, with ``j = N / quota``, not rounded: the kept images are spread evenly over
    the experience and exactly fill the quota. In the first experience this is the
    paper's ``j`` = images / capacity; later ones have only their share of the buffer.

    The paper's classes come in one experience each. If a class returns, as in an online
    or domain-incremental stream, its ``n``-th image of all is kept with the probability
    quota / ``n`` and replaces a random memory of the class (reservoir sampling), so
    that its memories stay a uniform sample of all its images.

    Attributes:
        coming, offered: images of each class in this experience, and those offered so
            far.
        past: images of each class that were offered in earlier experiences.
        quota: memories a class may hold.

    Raises:
        ValueError: an image has a class that was not announced.
    """

    needs_image_counts = True
    class_numbers = ("coming", "offered", "past")
    coming: dict[int, int] = field(init=False, default_factory=dict)
    offered: dict[int, int] = field(init=False, default_factory=dict)
    past: dict[int, int] = field(init=False, default_factory=dict)
    quota: int = field(init=False, default=0)

    def begin_experience(
        self, slots: Slots, coming: dict[int, int], batch_size: int
    ) -> list[int]:
        """Count the images of the last experience as past, and set the new quota.

        The quota is the number of memories that a class may hold.

        Args:
            slots: of the buffer.
            coming: number of images of each class in the experience that begins.
            batch_size: without effect.

        Returns:
            No freed slots: memories of old classes stay until room is needed.
        """
        super().begin_experience(slots, coming, batch_size)
        for label, count in self.offered.items():
            self.past[label] = self.past.get(label, 0) + count
        self.coming = dict(coming)
        self.offered = dict.fromkeys(coming, 0)
        n_classes = len(classes_with(slots, coming))
        # No class has come where the first experience is empty.
        self.quota = slots.capacity // max(1, n_classes)
        return []

    def choose(self, slots: Slots, labels: Sequence[int]) -> list[tuple[int, int]]:
        """Choose images evenly from those announced of a new class, else at random.

        Args:
            slots: of the buffer; changed in place.
            labels: class of each image of the batch.

        Returns:
            Position in the batch and slot of each image that is to be stored.

        Raises:
            ValueError: a class was not announced by ``begin_experience``.
        """
        chosen = []
        for position, label in enumerate(labels):
            if label not in self.coming:
                raise ValueError(
                    f"class {label} was not announced: call begin_experience with the "
                    "image counts of the experience, and take away plugins that mix in "
                    "images of earlier ones, such as Avalanche's ReplayPlugin; or use "
                    "ClassBalancedReservoir, which needs to know nothing in advance"
                )
            n_before = self.offered[label]  # images of the class in this experience
            self.offered[label] += 1
            is_returned = bool(self.past.get(label))  # from earlier experiences
            if is_returned:
                number = self.past[label] + n_before + 1
                is_admitted = self._admit_of_returned_class(slots, label, number)
            else:
                is_admitted = self._admit_of_new_class(slots, label, n_before)
            if is_admitted:
                chosen.append((position, slots.take(label)))
        return chosen

    def _admit_of_new_class(self, slots: Slots, label: int, n_before: int) -> bool:
        """Decide on an image of a class that was not seen before this experience.

        Frees a slot for it if it is to be stored. Of the ``N`` coming images of the
        class, these are the ones at which a multiple of ``j = N / quota`` is passed.

        Args:
            slots: of the buffer.
            label: the class.
            n_before: images of the class that came before in this experience.

        Returns:
            Whether the image is to be stored.
        """
        n_coming = self.coming[label]
        n_to_store = min(self.quota, n_coming)
        # Memories that are due after so many images, spread evenly over all.
        n_due_before = n_before * n_to_store // n_coming
        n_due_with_this = (n_before + 1) * n_to_store // n_coming
        if n_due_with_this == n_due_before:
            return False
        slots.make_room(label)
        return True

    def _admit_of_returned_class(self, slots: Slots, label: int, number: int) -> bool:
        """Decide on an image of a class that earlier experiences had.

        By reservoir sampling, the memories of the class stay a uniform sample of all
        its images. A slot is freed for the image if it is to be stored.

        Args:
            slots: of the buffer.
            label: the class.
            number: of the image among all of the class, from 1.

        Returns:
            Whether the image is to be stored.
        """
        n_memories = slots.count(label)
        # A class above its quota still is a uniform sample; others that need room make
        # it smaller.
        sample_size = max(n_memories, self.quota)
        admission_probability = sample_size / number
        if slots.random.random() >= admission_probability:
            return False
        if n_memories >= self.quota:
            slots.release(label)  # evicts a random memory of the class
        else:
            slots.make_room(label)  # evicts one of a largest class, unless one is free
        return True


@dataclass
class ClassBalancedReservoir(SelectionRule):
    """Class-balancing reservoir sampling, which needs no counts in advance.

    Chrysakis and Moens, "Online Continual Learning from Imbalanced Data", ICML 2020. In
    a full buffer, an image replaces a random memory of its own class if that was
    once the largest, with the probability memories / images of the class so far; else a
    random memory of a largest class.

    Attributes:
        seen: images of each class that were offered.
        full: classes that were once the largest of a full buffer.
    """

    class_numbers = ("seen", "full")
    seen: dict[int, int] = field(init=False, default_factory=dict)
    full: set[int] = field(init=False, default_factory=set)

    def choose(self, slots: Slots, labels: Sequence[int]) -> list[tuple[int, int]]:
        """Choose every image while slots are free, and later some at random.

        Args:
            slots, labels: as for ``SelectionRule.choose``.
        """
        chosen = []
        for position, label in enumerate(labels):
            self.seen[label] = self.seen.get(label, 0) + 1
            if slots.free or self._admit_to_full(slots, label):
                chosen.append((position, slots.take(label)))
        return chosen

    def _admit_to_full(self, slots: Slots, label: int) -> bool:
        """Decide on an image of a class for a full buffer.

        One of a class that was once the largest replaces a memory of its class with the
        probability ``memories / images so far``, which keeps these a uniform sample.
        Any other takes the slot of a memory of a largest class.

        Args:
            slots: of the buffer; one is freed for the image if it is to be stored.
            label: class of the image.

        Returns:
            Whether the image is to be stored.
        """
        # A class that has once been the largest is "full" from then on.
        size_of_largest = slots.size_of_largest_class()
        for candidate in slots.classes:
            if slots.count(candidate) == size_of_largest:
                self.full.add(candidate)
        if label not in self.full:
            slots.make_room(label)  # evicts a random memory of a largest class
            return True
        n_memories = slots.count(label)
        if n_memories == 0:
            return False
        n_images = self.seen[label]  # offered of the class so far, with this one
        admission_probability = n_memories / n_images
        if slots.random.random() >= admission_probability:
            return False
        slots.release(label)  # evicts a random memory of the class
        return True


@dataclass
class ReferenceRule(SelectionRule):
    """The rule of the published code, a second pass over an experience after training.

    Quota ``capacity // classes seen``; within each batch every ``j``-th image of each
    class, starting with its first, ``j = max(1, (batches - 1) * batch size //
    capacity)``; a class above its quota evicts random members; the pass ends as soon as
    every class is at its quota, so it reads only the first part of later experiences.
    Old classes are cut to their quota when the pass begins; while the experience is
    trained on, all their memories are replayed.

    If a class returns, most of its memories are of its latest experiences.

    Attributes:
        quota: memories a class may hold.
        stride: ``j``.
        expected: classes seen, those of the present experience included.
        finished: whether every class is at its quota, so that the rest of the
            experience can be skipped.
        trimmed: whether old classes were cut to the quota.
    """

    second_pass = True
    evenly_spread = False
    class_numbers = ("expected",)
    quota: int = field(init=False, default=0)
    stride: int = field(init=False, default=1)
    expected: list[int] = field(init=False, default_factory=list)
    finished: bool = field(init=False, default=False)
    trimmed: bool = field(init=False, default=False)

    def begin_experience(
        self, slots: Slots, coming: dict[int, int], batch_size: int
    ) -> list[int]:
        """Set the quota and the stride of the second pass over an experience.

        The quota is the number of memories that a class may hold; of each batch every
        ``stride``-th image of a class is chosen.

        Args:
            slots: of the buffer.
            coming: number of images of each class in the experience.
            batch_size: of the batches that will be offered.

        Returns:
            No freed slots: old memories are replayed until the second pass.
        """
        super().begin_experience(slots, coming, batch_size)
        self.expected = classes_with(slots, coming)
        self.quota = slots.capacity // max(1, len(self.expected))
        n_batches = math.ceil(sum(coming.values()) / batch_size)
        self.stride = max(1, (n_batches - 1) * batch_size // slots.capacity)
        self.finished = False
        self.trimmed = False
        return []

    def choose(self, slots: Slots, labels: Sequence[int]) -> list[tuple[int, int]]:
        """Choose from every ``stride``-th image of each class, up to its quota.

        At the first batch, all classes are cut to their quota.

        Args:
            slots: of the buffer; changed in place.
            labels: class of each image of the batch.

        Returns:
            Position in the batch and slot of each image that is to be stored.
        """
        if not self.trimmed:
            slots.trim(self.quota)  # the buffer wipes what is not taken again
            self.trimmed = True
        positions_by_class: dict[int, list[int]] = {}
        for position, label in enumerate(labels):
            positions_by_class.setdefault(label, []).append(position)
        chosen: list[tuple[int, int]] = []
        for label, positions in positions_by_class.items():
            candidates = positions[:: self.stride]
            chosen += self._choose_of_class(slots, label, candidates)
        self.finished = all(slots.count(label) >= self.quota for label in self.expected)
        return chosen

    def _choose_of_class(
        self, slots: Slots, label: int, candidates: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Draw the quota of a class from its memories and the candidates alike.

        Args:
            slots: of the buffer; they lose the memories of the class that are not
                drawn.
            label: the class.
            candidates: positions of images of the class in the batch.

        Returns:
            Position and slot of each candidate that is drawn.
        """
        n_memories = slots.count(label)
        # Numbers below n_memories stand for memories, larger ones for candidates.
        drawn_order = slots.random.permutation(n_memories + len(candidates))
        survivors = set(drawn_order[: self.quota].tolist())
        n_surviving_memories = sum(number < n_memories for number in survivors)
        # ``release`` takes a memory at random, so that their number is enough.
        for _ in range(n_memories - n_surviving_memories):
            slots.release(label)
        chosen = []
        for number, position in enumerate(candidates, n_memories):
            if number in survivors:
                chosen.append((position, slots.take(label)))
        return chosen


RULES: dict[str, type[SelectionRule]] = {
    "every_jth": EveryJth,
    "reservoir": ClassBalancedReservoir,
    "reference": ReferenceRule,
}


def make_rule(name: str) -> SelectionRule:
    """Make a new selection rule of ``RULES``.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in RULES:
        raise ValueError(
            f"selection rule {name!r} is unknown; known are {', '.join(RULES)}"
        )
    return RULES[name]()
