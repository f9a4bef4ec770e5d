"""What a learner remembers of a lesson, in plain values; read without torch."""

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from crumb_avalanche.system.words import counted

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Doubt:
    """Images of a lesson that looked like another class than that they were given as.

    Attributes:
        label: the class given.
        frames: images that were predicted before they were learned.
        as_label: how many of them looked like the class given.
        other: the class that most of the others looked like.
        as_other: how many looked like that one.
        unknown: how many are of clips that looked like no class.
    """

    label: str
    frames: int
    as_label: int
    other: str
    as_other: int
    unknown: int = 0

    @property
    def text(self) -> str:
        """What speaks against the label, as a question."""
        like_nothing = ""
        if self.unknown:
            like_nothing = f", {self.unknown} like nothing that was taught"
        return (
            f"{self.as_label} of {counted(self.frames, 'image')} looked like "
            f"{self.label}, {self.as_other} like {self.other}{like_nothing}: is the "
            "label right?"
        )


@dataclass(frozen=True)
class Lesson:
    """What one call of ``teach`` or ``teach_nothing`` did.

    Attributes:
        images: number of images learned by class name.
        clips: number of clips.
        repeated: those of them whose images had all been learned before as the same
            class; they were learned, and not asked, as the answer says nothing of new
            images.
        answered: clips that were predicted before they were learned.
        right: those of them that were recognised: their class was named, and explained
            them.
        unknown: those of them that no class explained, which are news, whatever the
            nearest class; the others were taken for another class.
        when: date and time, ISO 8601 in UTC.
        unread: files that could not be read (``BadImage``); a saved lesson has none.
        notes: what the learner gave up to stay within its budget.
        doubts: what speaks against a label; at most one for each class.
        runtime: name and version of what ran the network.
        nothing: number of images that show nothing.
        number: from 1; stays the same when other lessons are taken back.
        source: name of what was shown, without its folder.
        picture: JPEG of up to 4 of its images, if the learner keeps pictures; else
            empty.
        pictured: the numbers of these images in the lesson, from 0.
        id: random number; equal in copies of a learner alone.
    """

    images: dict[str, int]
    clips: int
    answered: int
    right: int
    unknown: int
    when: str
    unread: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    runtime: str = "torch"
    number: int = 1
    source: str = ""
    picture: bytes = field(default=b"", compare=False, repr=False)
    pictured: tuple[int, ...] = field(default=(), compare=False, repr=False)
    nothing: int = 0
    id: int = field(default=0, compare=False)
    repeated: int = 0

    def renamed(self, old: str, new: str) -> "Lesson":
        """Return the lesson with another name of a class.

        Args:
            old: name of the class.
            new: its new name; if a class has it already, the two become one.
        """
        images: Counter[str] = Counter()
        for name, count in self.images.items():
            if name == old:
                name = new
            images[name] += count
        doubts = []
        for doubt in self.doubts:
            # The label was in doubt under its old name, or is the other class now.
            if doubt.label == old or (doubt.label == new and doubt.other == old):
                continue
            if doubt.other == old:
                doubt = replace(doubt, other=new)
            doubts.append(doubt)
        return replace(self, images=dict(images), doubts=tuple(doubts))

    def without(self, name: str) -> "Lesson":
        """Return the lesson without a class.

        The picture of a lesson that showed the class goes, too, and the name of its
        source, which may be that of the class. Numbers of clips still count those of
        the class.
        """
        lesson = self
        if name in self.images:
            lesson = replace(self, picture=b"", pictured=(), source="")
        images = {label: n for label, n in self.images.items() if label != name}
        doubts = (
            doubt for doubt in self.doubts if name not in (doubt.label, doubt.other)
        )
        return replace(lesson, images=images, doubts=tuple(doubts))

    def without_picture_of(self, image: int) -> "Lesson":
        """Return the lesson whose picture lacks one of its images, by its number."""
        from crumb_avalanche.learner.picture_strip import Picture

        picture = Picture(self.picture, self.pictured).without(image)
        return replace(self, picture=picture.jpeg, pictured=picture.shows)

    def learned_again(self, relearned: "Lesson") -> "Lesson":
        """Return the lesson with what was counted when it was learned again."""
        return replace(
            self,
            images=relearned.images,
            clips=relearned.clips,
            repeated=relearned.repeated,
            answered=relearned.answered,
            right=relearned.right,
            unknown=relearned.unknown,
            notes=relearned.notes,
            doubts=relearned.doubts,
        )

    @property
    def repeated_note(self) -> str:
        """What is said of clips that were taught before; empty without any."""
        if not self.repeated:
            return ""
        clips = counted(self.repeated, "clip")
        return f"{clips} taught before: not counted as asked"

    @property
    def has_images(self) -> bool:
        """Whether any of its images is still learned; not if all were forgotten."""
        return bool(self.images or self.nothing)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values.

        Without ``unread``, as a learner file holds no paths, and without the picture,
        which ``picture_state`` returns.
        """
        values = asdict(replace(self, unread=()))
        del values["picture"]
        return values

    def picture_state(self) -> "Tensor | None":
        """Return the bytes of the picture, ``(n,)`` uint8; ``None`` without one."""
        import torch

        if not self.picture:
            return None
        return torch.frombuffer(bytearray(self.picture), dtype=torch.uint8)

    @classmethod
    def of_state(cls, state: dict[str, Any], picture: "Tensor | None") -> "Lesson":
        """Load what ``state_dict`` returned, also after JSON, and ``picture_state``."""
        values = {
            **state,
            "unread": (),
            "notes": tuple(state["notes"]),
            "doubts": tuple(Doubt(**doubt) for doubt in state["doubts"]),
            "pictured": tuple(state["pictured"]),
        }
        jpeg = b"" if picture is None else picture.numpy().tobytes()
        return cls(**values, picture=jpeg)
