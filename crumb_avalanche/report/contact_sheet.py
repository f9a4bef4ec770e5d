"""A page of answers: each with its image, runners-up and heat map, mistakes first."""

import base64
import io
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from markupsafe import Markup
from PIL import Image, ImageDraw
from torch import Tensor

from crumb_avalanche.images.clips import BadImage, Frames, OnBad
from crumb_avalanche.images.sources import clips_to_ask
from crumb_avalanche.learner.answer import Answer
from crumb_avalanche.report.page import EMPTY, Cell, Matrix, Table, count, render
from crumb_avalanche.system.progress import counted, listed

MOST_CARDS = 300
MOST_COLUMNS = 40  # classes of a confusion table
SMALL_COLUMNS = 10  # more are set in small type
AT_A_TIME = 64  # photos of a folder, and small copies of a clip's frames
SIDE = 192  # pixels of the longer side of a thumbnail
HEAT_SIDE = 28  # pixels of the longer side of a heat map, which the browser enlarges
STRONGEST = 0.65  # opacity of a heat map where the evidence is strongest
SPEAKS_FOR, SPEAKS_AGAINST = (
    (213, 94, 0),
    (0, 114, 178),
)  # orange and blue, distinct for every kind of colour vision


@dataclass(order=True)
class Card:
    """One answer on the page, with its thumbnail and heat map; the smallest come first."""

    order: tuple[
        bool, float, int
    ]  # mistakes before the others, the most confident first; the others as they came
    answer: Answer = field(compare=False)
    image: Markup = field(compare=False)
    heat: Markup | None = field(compare=False, default=None)

    @property
    def wrong(self) -> bool:
        """Whether the true class is known and another was answered."""
        return not self.order[0]


class Copy(NamedTuple):
    """Small copies of an image: a thumbnail as a data URI, its pixels as the network sees them, and its size."""

    thumbnail: Markup
    square: Image.Image
    shape: tuple[int, int]


def _copying(
    frames: Iterable[tuple[str, Image.Image]], side: int, copies: list[Copy]
) -> Frames:
    """Yield frames and keep small copies: of more than 64 every second, fourth ... one."""
    step = 1
    for number, (path, image) in enumerate(frames):
        if number % step == 0:
            square = image.resize((side, side), Image.Resampling.BILINEAR)
            copies.append(Copy(thumbnail(image), square, image.size))
            if len(copies) > AT_A_TIME:
                del copies[1::2]
                step *= 2
        yield path, image


class ContactSheet:
    """Collects a learner's answers for a page; keeps the images of ``most`` of them."""

    def __init__(self, learner: Any, most: int = MOST_CARDS):
        self.learner, self.most = learner, most
        self.total = self.unknown = 0
        self.pairs: Counter[tuple[str, str]] = Counter()  # of true and answered class
        self._cards: list[Card] = []

    def ask(
        self, source: Any, on_bad: OnBad, report: Callable[[BadImage], object]
    ) -> Iterator[Answer]:
        """Answer for each image and clip as ``predict_all`` does, with the same arguments, and collect the answers."""
        for clip in clips_to_ask(
            source, self.learner.classes, on_bad=on_bad, report=report
        ):
            while True:
                copies: list[Copy] = []
                frames = (
                    islice(clip.frames, AT_A_TIME) if clip.is_folder else clip.frames
                )
                frames = _copying(frames, self.learner.image_size, copies)
                answers = list(self.learner.predict_all(replace(clip, frames=frames)))
                if not copies:
                    break
                copies = copies if clip.is_folder else [copies[len(copies) // 2]]
                for answer, copy in zip(answers, copies, strict=True):
                    self._add(answer, copy)
                    yield answer

    def ask_boxes(self, source: Any, boxes: Any) -> Iterator[Answer]:
        """Answer for boxes of an image as ``predict`` does, and draw each on the image."""
        answers = self.learner.predict(source, boxes)
        ((_, image),) = (
            frame for clip in clips_to_ask(source, ()) for frame in clip.frames
        )
        for answer in answers:
            drawn = image.copy()
            drawn.thumbnail((2 * SIDE, 2 * SIDE))
            box = [edge * drawn.width / image.width for edge in answer.box]
            ImageDraw.Draw(drawn).rectangle(box, outline=SPEAKS_FOR, width=5)
            self._add(answer, Copy(thumbnail(drawn), drawn, drawn.size))
            yield answer

    def _add(self, answer: Answer, copy: Copy) -> None:
        wrong = answer.truth not in (None, answer.label)
        card = Card(
            (not wrong, -answer.confidence if wrong else 0.0, self.total),
            answer,
            copy.thumbnail,
        )
        self.total += 1
        self.unknown += answer.known is False
        if answer.truth is not None:
            self.pairs[answer.truth, answer.label] += 1
        if len(self._cards) < self.most or card < self._cards[-1]:
            if self.learner.explains and answer.box is None:
                card.heat = heat_map(self.learner.explain(copy.square), copy.shape)
            insort(self._cards, card)
            del self._cards[self.most :]

    def page(self, name: str, unread: Sequence[BadImage]) -> str:
        """Render the page of a learner's name, with the files that were left out."""
        classes = self.learner.classes
        wrong = [card for card in self._cards if card.wrong]
        return render(
            "contact_sheet.html",
            title=f"{self.total:,} answers of {name}",
            lead=f"{self.learner.method}, {counted(len(classes), 'class')}: {listed([info.name for info in classes])}.",
            note=self.learner.note,
            asked=sum(self.pairs.values()),
            right=sum(
                number
                for (truth, label), number in self.pairs.items()
                if truth == label
            ),
            total=self.total,
            unknown=self.unknown,
            mistakes=wrong,
            others=self._cards[len(wrong) :],
            confusion=confusion_matrix(self.pairs),
            confused=confused_table(self.pairs),
            explained=self.learner.explains,
            unread=unread,
        )


def confusion_matrix(pairs: Counter[tuple[str, str]]) -> Matrix | None:
    """How often each true class (row) was given each answer (column); ``None`` for too many classes."""
    names = list(
        dict.fromkeys([*(truth for truth, _ in pairs), *(label for _, label in pairs)])
    )
    if not names or len(names) > MOST_COLUMNS:
        return None
    rows = []
    for truth in dict.fromkeys(truth for truth, _ in pairs):
        numbers = [pairs[truth, label] for label in names]
        cells = [
            (count(n) if n else EMPTY, f"{n / sum(numbers):.1%}" if n else "")
            for n in numbers
        ]
        rows.append(
            (
                truth,
                [
                    *cells,
                    (
                        Cell(
                            f"{pairs[truth, truth] / sum(numbers):.0%}".replace(
                                "%", " %"
                            )
                        ),
                        "",
                    ),
                ],
            )
        )
    return Matrix(["is", *names, "right"], rows, len(names) > SMALL_COLUMNS)


def confused_table(pairs: Counter[tuple[str, str]]) -> Table:
    """A line for each pair of classes that were mistaken, the most frequent first."""
    columns = {"truth": "is", "answer": "taken for", "images": "images or clips"}
    mistaken = [
        (pair, number) for pair, number in pairs.most_common() if pair[0] != pair[1]
    ]
    return Table(
        columns,
        [
            [Cell(truth), Cell(label), count(number)]
            for (truth, label), number in mistaken
        ],
    )


def thumbnail(image: Image.Image, side: int = SIDE) -> Markup:
    """Encode an image as JPEG with at most ``side`` pixels on the longer side, without its metadata."""
    small, file = image.convert("RGB"), io.BytesIO()
    small.thumbnail((side, side), Image.Resampling.BILINEAR)
    small.info.clear()
    small.save(file, "JPEG", quality=80)
    return _uri(file.getvalue(), "jpeg")


def heat_map(shares: Tensor, shape: tuple[int, int]) -> Markup:
    """Encode the evidence of ``Learner.explain``, ``(H, W)``, as PNG to lay over a thumbnail of some width and height.

    It is orange where positive, blue where negative, and transparent where 0.
    """
    width, height = (max(1, round(HEAT_SIDE * side / max(shape))) for side in shape)
    small = torch.nn.functional.adaptive_avg_pool2d(
        shares[None].float(), (height, width)
    )[0]
    strength = small.abs() / small.abs().max().clamp_min(1e-12)
    pixels = torch.tensor([SPEAKS_AGAINST, SPEAKS_FOR], dtype=torch.uint8)[
        (small > 0).long()
    ]
    alpha = (255 * STRONGEST * strength).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(torch.cat([pixels, alpha[:, :, None]], 2).numpy(), "RGBA").save(
        file, "PNG", optimize=True
    )
    return _uri(file.getvalue(), "png")


def _uri(data: bytes, kind: str) -> Markup:
    return Markup(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")
