"""What a learner answers, and the classes that it answers with."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ClassInfo:
    """A class of a learner.

    Attributes:
        name: its name.
        images: number of images learned.
    """

    name: str
    images: int


@dataclass(frozen=True)
class Answer:
    """Answer for an image or a clip.

    Attributes:
        label: name of the most likely class.
        confidence: its probability, 0 to 1; what is missing to 1 in all classes is that
            of something that was never taught. Where ``known`` is ``None``, it holds if
            one of the classes is shown.
        known: whether the confidence is enough to name the class, see
            ``Learner.strict``; if not, ``label`` is the nearest class. ``None`` where
            nobody can tell: while there are ``Learner.missing_clips``, and of what a
            run left.
        runners_up: the next classes with their probabilities, most likely first.
        path: of the image or clip.
        truth: class of the class folder that it lies in, if there is one.
        frames: answers for the frames of a clip of several.
        box: left, top, right and bottom in pixels, if it was asked about a box of the
            image.
    """

    label: str
    confidence: float
    known: bool | None
    runners_up: tuple[tuple[str, float], ...] = ()
    path: str = ""
    truth: str | None = None
    frames: tuple["Answer", ...] = field(default=(), repr=False)
    box: tuple[float, float, float, float] | None = None

    @property
    def unknown(self) -> bool:
        """Whether no class taught explains the image; false if nobody can tell."""
        return self.known is False

    @property
    def right(self) -> bool:
        """Whether the true class is given, and is the answer."""
        return not self.unknown and self.label == self.truth

    @property
    def wrong(self) -> bool:
        """Whether the true class is given, and another one is the answer."""
        return not self.unknown and self.truth not in (None, self.label)

    @property
    def label_text(self) -> str:
        """The label, or that the image is unknown and which class is nearest."""
        if self.unknown:
            return f"unknown (nearest: {self.label})"
        return self.label

    @property
    def source(self) -> str:
        """The path, with the box if there is one: ``photo.jpg#box=10,20,110,220``."""
        if self.box is None:
            return self.path
        return f"{self.path}#box={','.join(f'{edge:g}' for edge in self.box)}"

    def as_dict(self) -> dict:
        """Return plain values for JSON, without the frames.

        ``label`` is the most likely class, also where the answer is that the image is
        unknown: then ``known`` is false and ``unknown`` true. Where nobody can tell,
        ``known`` is null and ``unknown`` false.
        """
        runners_up = [
            {"label": label, "confidence": round(probability, 6)}
            for label, probability in self.runners_up
        ]
        values = {
            "path": self.path,
            "label": self.label,
            "confidence": round(self.confidence, 6),
            "known": self.known,
            "unknown": self.unknown,
            "runners_up": runners_up,
        }
        if self.box is not None:
            values["box"] = list(self.box)
        return values
