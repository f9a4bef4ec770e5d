"""The classes of a learner: their names, and how much of each was taught."""

from typing import Any

from crumb_avalanche.learner.answer import ClassInfo


class TaughtClasses:
    """Names of classes by number, and the images and clips that each was learned from.

    Numbers stay as they are when a class is forgotten; the next new class gets the
    number that was freed.

    Attributes:
        names: by number; ``None`` where a class was forgotten.
        images: number of images learned, by number of the class.
        clips: number of clips that they are of, likewise.
    """

    def __init__(self) -> None:
        self.names: list[str | None] = []
        self.images: list[int] = []
        self.clips: list[int] = []

    def __len__(self) -> int:
        """Return the number of classes taught."""
        return len(self.numbers)

    def __deepcopy__(self, memo: dict) -> "TaughtClasses":
        # Faster than item by item.
        copied = TaughtClasses()
        copied.load_state_dict(self.state_dict())
        return copied

    @property
    def numbers(self) -> list[int]:
        """Numbers of the classes taught."""
        return [number for number, name in enumerate(self.names) if name is not None]

    @property
    def infos(self) -> list[ClassInfo]:
        """Name and number of images of each class taught."""
        return [
            ClassInfo(name, count)
            for name, count in zip(self.names, self.images, strict=True)
            if name is not None
        ]

    def find(self, name: str) -> int:
        """Return a class's number.

        Raises:
            ValueError: there is no such class; lists those that there are.
        """
        if name not in self.names:
            taught = ", ".join(info.name for info in self.infos) or "none"
            raise ValueError(f"there is no class {name!r}; taught are: {taught}")
        return self.names.index(name)

    def add(self, name: str) -> int:
        """Add a class without images, and return its number.

        Args:
            name: of the class, which is not taken.
        """
        if None in self.names:  # the number of a class that was forgotten
            number = self.names.index(None)
            self.names[number] = name
            return number
        self.names.append(name)
        self.images.append(0)
        self.clips.append(0)
        return len(self.names) - 1

    def count(self, number: int, n_images: int, n_clips: int) -> None:
        """Count further images and clips of a class.

        Args:
            number: of the class.
            n_images, n_clips: how many were learned.
        """
        self.images[number] += n_images
        self.clips[number] += n_clips

    def rename(self, old: str, new: str) -> None:
        """Give a class another name.

        Raises:
            ValueError: there is no class ``old``, or ``new`` is taken.
        """
        number = self.find(old)
        if new in self.names and new != old:
            raise ValueError(
                f"there is a class {new!r} already: forget one of the two, or choose "
                "another name"
            )
        self.names[number] = new

    def move(self, source: int, target: int) -> None:
        """Count the images and clips of a class as those of another; forget the first.

        Args:
            source, target: numbers of two classes.
        """
        self.count(target, self.images[source], self.clips[source])
        self.forget(source)

    def forget(self, number: int) -> None:
        """Remove the name of a class, and its counts."""
        self.names[number] = None
        self.images[number] = 0
        self.clips[number] = 0

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the names and counts."""
        return {
            "names": list(self.names),
            "images": list(self.images),
            "clips": list(self.clips),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load names and counts that ``state_dict`` returned, among other values."""
        self.names = list(state["names"])
        self.images = list(state["images"])
        self.clips = list(state["clips"])
