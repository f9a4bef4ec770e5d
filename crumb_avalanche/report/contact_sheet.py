"""A page of answers: each with its image, runners-up and heat map, mistakes first."""

import base64
import io
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple

import torch
from markupsafe import Markup
from PIL import Image, ImageDraw
from torch import Tensor

from benchmarks_toybox_ilab.tables.text import listed
from crumb_avalanche.images.clips import BadImage, Clip, Frames, OnBad
from crumb_avalanche.images.sources import clips_to_ask
from crumb_avalanche.report.page import (
    Cell,
    Matrix,
    MatrixCell,
    MatrixRow,
    Table,
    count_cell,
    render,
)
from crumb_avalanche.system.words import counted, error_rates

MOST_CARDS = 300
MOST_COLUMNS = 40  # classes of a confusion table
SMALL_COLUMNS = 10  # more are set in small type
AT_A_TIME = 64  # photos of a folder, and small copies of a clip's frames
SIDE = 192  # pixels of the longer side of a thumbnail
HEAT_SIDE = 28  # pixels of the longer side of a heat map, which the browser enlarges
STRONGEST = 0.65  # opacity of a heat map where the evidence is strongest
# Colours of evidence, red, green and blue: distinct for every kind of colour vision.
SPEAKS_FOR = (213, 94, 0)  # orange
SPEAKS_AGAINST = (0, 114, 178)  # blue

# What ``Learner.predict`` returns; reports know learners by what they do alone.
Answer = Any
# How often each true class was given each answer, by (true, answered) class; the
# answered class of unknown images is ``None``.
ClassPairs = Counter[tuple[str, str | None]]
# How often each true class was taken for another one, by (true, other) class.
MistakenPairs = Counter[tuple[str, str]]


@dataclass(frozen=True)
class Caption:
    """What a card says.

    Attributes:
        answer: in words.
        confidence: its probability, 0 to 1.
        path: of the image.
        source: the path, with the box if the answer is for one.
        truth: the true class, if it is known.
        runners_up: the next classes with their probabilities, most likely first.
        frames: number of frames of a clip, 0 for an image.
        unknown: whether no class explains the image, so that no probability is shown.
        compared: what the heat map weighs: the nearest class, and the next one.
    """

    answer: str
    confidence: float
    path: str
    source: str
    truth: str | None = None
    runners_up: tuple[tuple[str, float], ...] = ()
    frames: int = 0
    unknown: bool = False
    compared: tuple[str, ...] = ()

    @classmethod
    def of_answer(cls, answer: Answer) -> "Caption":
        """Return the caption of a learner's answer, which stands below its image."""
        # The class that is second, if there is one.
        next_names = [name for name, _ in answer.runners_up[:1]]
        return cls(
            answer=answer.label_text,
            confidence=answer.confidence,
            path=answer.path,
            source=answer.source,
            truth=answer.truth,
            runners_up=answer.runners_up,
            frames=len(answer.frames),
            unknown=answer.unknown,
            compared=(answer.label, *next_names),  # what the heat map weighs
        )


class AnswerGroup(IntEnum):
    """Groups of answers, in the order in which the page shows them."""

    MISTAKE = 0  # another class was named
    NOT_RECOGNISED = 1  # the true class was taught, and the answer is unknown
    OTHER = 2


@dataclass(order=True)
class Card:
    """One answer on the page, with its thumbnail and heat map; the smallest come first.

    Attributes:
        order: the group; within it, the most confident mistakes first, and others as
            they came.
        caption: what was answered, and the true class if it is known.
        image: the thumbnail as a data URI, empty without one.
        heat: the heat map as a data URI.
    """

    order: tuple[AnswerGroup, float, int]
    caption: Caption = field(compare=False)
    image: Markup = field(compare=False)
    heat: Markup | None = field(compare=False, default=None)

    @property
    def group(self) -> AnswerGroup:
        """The group of answers that the card is shown with."""
        return self.order[0]


class SmallCopy(NamedTuple):
    """What is kept of an image for its card.

    Attributes:
        thumbnail: a data URI.
        square: the image at the size that the network takes.
        size: width and height of the image.
    """

    thumbnail: Markup
    square: Image.Image
    size: tuple[int, int]


def _with_copies(
    frames: Iterable[tuple[str, Image.Image]], side: int, copies: list[SmallCopy]
) -> Frames:
    """Yield the frames of a clip as they are, and list small copies of them.

    At most ``AT_A_TIME`` (64) copies are held: of more frames, every second, fourth ...
    one is copied, evenly spread.

    Args:
        frames: path and image of each.
        side: of the network's images, in pixels.
        copies: a list to which a thumbnail, a square of that side, and the size of each
            copied frame are appended.
    """
    step = 1
    for number, (path, image) in enumerate(frames):
        if number % step == 0:
            square = image.resize((side, side), Image.Resampling.BILINEAR)
            copies.append(SmallCopy(thumbnail(image), square, image.size))
            if len(copies) > AT_A_TIME:
                del copies[1::2]
                step *= 2
        yield path, image


@dataclass(frozen=True)
class AnswersPage:
    """What ``contact_sheet.html`` shows.

    Attributes:
        title, lead: head of the page.
        note: what a person who reads the answers should know; may be empty.
        errors: how often the learner errs about what it knows; empty if nobody can
            tell.
        asked: answers whose true class is known; of them ``right``,
            ``unknown_with_truth`` unknown, and the others taken for another class.
        not_taught: of the unknown ones those of classes that were not taught.
        total: all answers; ``unknown`` of them show no class that was taught.
        mistakes, not_recognised, others: the cards, not of all answers if they are
            many.
        confusion: ``None`` for too many classes.
        confused: a line for each pair of classes that were mistaken.
        explained: whether there are heat maps.
        unread: files that were left out.
    """

    title: str
    lead: str
    note: str
    errors: str
    asked: int
    right: int
    unknown_with_truth: int
    not_taught: int
    total: int
    unknown: int
    mistakes: list[Card]
    not_recognised: list[Card]
    others: list[Card]
    confusion: Matrix | None
    confused: Table
    explained: bool
    unread: Sequence[BadImage]


class ContactSheet:
    """Collects a learner's answers for a page.

    Args:
        learner: a ``Learner``, which answers.
        most_cards: number of answers whose images are kept.

    Attributes:
        total: number of answers so far.
        unknown: number of those that no class taught explains.
        pairs: of true and answered class, where the true class is known.
    """

    def __init__(self, learner: Any, most_cards: int = MOST_CARDS):
        self.learner = learner
        self.most_cards = most_cards
        self.total = 0
        self.unknown = 0
        self.pairs: ClassPairs = Counter()
        self._cards: list[Card] = []  # in their order

    def predict_all(
        self, source: Any, on_bad: OnBad, report: Callable[[BadImage], object]
    ) -> Iterator[Answer]:
        """Answer for each image and clip, and collect the answers.

        The arguments are those of ``predict_all``.
        """
        clips = clips_to_ask(source, self.learner.classes, on_bad=on_bad, report=report)
        for clip in clips:
            if clip.is_folder:
                yield from self._ask_folder(clip)
            else:
                yield from self._ask_clip(clip, clip.frames)

    def _ask_folder(self, clip: Clip) -> Iterator[Answer]:
        """Answer for each photo of a folder, some at a time."""
        while True:
            n_answered = self.total
            yield from self._ask_clip(clip, islice(clip.frames, AT_A_TIME))
            if self.total == n_answered:
                return  # the folder has no further photos

    def _ask_clip(self, clip: Clip, frames: Iterable) -> Iterator[Answer]:
        """Yield the learner's answers for a clip, and add each to the page.

        Of a folder each photo has an answer; a clip has one, shown by its middle frame.

        Args:
            clip: name and kind of the clip.
            frames: path and image of each frame to ask about.
        """
        copies: list[SmallCopy] = []  # filled as the learner takes the frames
        copied_frames = _with_copies(frames, self.learner.image_size, copies)
        answers = list(self.learner.predict_all(replace(clip, frames=copied_frames)))
        if not copies:
            return
        if not clip.is_folder:
            middle = len(copies) // 2
            copies = [copies[middle]]
        for answer, copy in zip(answers, copies, strict=True):
            self._add_answer(answer, copy)
            yield answer

    def predict_boxes(self, source: Any, boxes: Any) -> Iterator[Answer]:
        """Answer for boxes of an image, as ``predict`` does, and draw each."""
        answers = self.learner.predict(source, boxes)
        # The source is a single image.
        (clip,) = clips_to_ask(source, ())
        ((_, image),) = clip.frames
        for answer in answers:
            small = image.copy()
            small.thumbnail((2 * SIDE, 2 * SIDE))
            scale = small.width / image.width
            box = [edge * scale for edge in answer.box]
            ImageDraw.Draw(small).rectangle(box, outline=SPEAKS_FOR, width=5)
            self._add_answer(answer, SmallCopy(thumbnail(small), small, small.size))
            yield answer

    def _add_answer(self, answer: Answer, copy: SmallCopy) -> None:
        """Count an answer, and keep its card if it is among the first of all.

        Mistakes come first, the most confident ones before others; at most
        ``most_cards`` are shown.

        Args:
            answer: of the learner.
            copy: thumbnail of the image, and the square that the network saw.
        """
        group = self._group_of(answer)
        rank = 0.0
        if group == AnswerGroup.MISTAKE:
            rank = -answer.confidence  # the most confident first
        card = Card(
            order=(group, rank, self.total),
            caption=Caption.of_answer(answer),
            image=copy.thumbnail,
        )
        self.total += 1
        self.unknown += answer.unknown
        if answer.truth is not None:
            answered = answer.label
            if answer.unknown:
                answered = None
            self.pairs[answer.truth, answered] += 1
        # Cards are compared by ``order``, and sorted.
        is_among_the_first = (
            len(self._cards) < self.most_cards or card < self._cards[-1]
        )
        if is_among_the_first:
            # It takes time, and is computed for cards alone, of whole images.
            if self.learner.explains and answer.box is None:
                card.heat = heat_map(self.learner.explain(copy.square), copy.size)
            insort(self._cards, card)
            del self._cards[self.most_cards :]

    def _group_of(self, answer: Answer) -> AnswerGroup:
        """Return the group of answers that an answer is shown with."""
        if answer.wrong:
            return AnswerGroup.MISTAKE
        if answer.unknown and answer.truth in self._taught_names():
            return AnswerGroup.NOT_RECOGNISED
        return AnswerGroup.OTHER

    def _taught_names(self) -> list[str]:
        """Return the names of the classes that the learner was taught."""
        return [info.name for info in self.learner.classes]

    def _error_sentence(self) -> str:
        """Return how often the learner errs about what it knows; empty if unknown."""
        if self.learner.rates is None:
            return ""
        text = error_rates(*self.learner.rates)
        return f"{text[0].upper()}{text[1:]}."

    def page(self, name: str, unread: Sequence[BadImage]) -> str:
        """Render the page of the answers as HTML.

        Args:
            name: of the learner's file.
            unread: the files that were left out.
        """
        taught_names = self._taught_names()
        cards: dict[AnswerGroup, list[Card]] = defaultdict(list)
        for card in self._cards:
            cards[card.group].append(card)
        # Of images whose true class is known, by that class; ``self.pairs`` counts them
        # by true and answered class.
        unknown_counts = count_unknown(self.pairs)
        not_taught = 0  # unknown images of classes that the learner does not know
        for truth, times in unknown_counts.items():
            if truth not in taught_names:
                not_taught += times
        classes = f"{counted(len(taught_names), 'class')}: {listed(taught_names)}"
        page = AnswersPage(
            title=f"{self.total:,} answers of {name}",
            lead=f"{self.learner.method}, {classes}.",
            note=self.learner.note,
            errors=self._error_sentence(),
            asked=self.pairs.total(),  # images whose true class is known
            right=count_right(self.pairs),
            unknown_with_truth=unknown_counts.total(),
            not_taught=not_taught,
            total=self.total,
            unknown=self.unknown,
            mistakes=cards[AnswerGroup.MISTAKE],
            not_recognised=cards[AnswerGroup.NOT_RECOGNISED],
            others=cards[AnswerGroup.OTHER],
            confusion=confusion_matrix(self.pairs),
            confused=confused_table(self.pairs),
            explained=self.learner.explains,  # whether cards have heat maps
            unread=unread,
        )
        return render("contact_sheet.html", page)


def count_right(pairs: ClassPairs) -> int:
    """Count the right answers in counts by (true, answered) class."""
    right = 0
    for (truth, label), times in pairs.items():
        if truth == label:
            right += times
    return right


def count_unknown(pairs: ClassPairs) -> Counter[str]:
    """Count the unknown images of each true class."""
    counts: Counter[str] = Counter()
    for (truth, label), times in pairs.items():
        if label is None:
            counts[truth] = times
    return counts


def mistaken_pairs(pairs: ClassPairs) -> MistakenPairs:
    """Return how often each class was taken for another one, by (true, other) class."""
    mistaken: MistakenPairs = Counter()
    for (truth, label), times in pairs.items():
        if label is not None and label != truth:
            mistaken[truth, label] = times
    return mistaken


def confusion_matrix(pairs: ClassPairs) -> Matrix | None:
    """Return how often each true class (row) was given each answer (column).

    A column of unknown images follows those of the classes. ``None`` for too many
    classes, or none.
    """
    truths = list(dict.fromkeys(truth for truth, _ in pairs))
    answers = [label for _, label in pairs if label is not None]
    columns = list(dict.fromkeys([*truths, *answers]))
    if not columns or len(columns) > MOST_COLUMNS:
        return None
    rows = [_confusion_row(pairs, truth, columns) for truth in truths]
    heads = ["is", *columns, "(unknown)", "right"]
    return Matrix(heads, rows, small=len(columns) > SMALL_COLUMNS)


def _confusion_row(pairs: ClassPairs, truth: str, columns: Sequence[str]) -> MatrixRow:
    """Return a row of the confusion matrix: how often a class was given each answer.

    Args:
        pairs: number of answers by true and answered class; ``None`` for unknown.
        truth: the true class of the row.
        columns: the answered classes, in order.

    Returns:
        A cell for each answer, shaded by its share; then one for unknown, and one with
        the share of right answers.
    """
    counts = [pairs[truth, label] for label in columns] + [pairs[truth, None]]
    total = sum(counts)
    cells = []
    for times in counts:
        if times:
            cells.append(MatrixCell(count_cell(times), f"{times / total:.1%}"))
        else:
            cells.append(MatrixCell())
    right = f"{pairs[truth, truth] / total:.0%}".replace("%", " %")
    return MatrixRow(truth, [*cells, MatrixCell(Cell(right))])


def confused_table(pairs: ClassPairs) -> Table:
    """Return a line for each pair of classes that were mistaken, the frequent first."""
    columns = {"truth": "is", "answer": "taken for", "images": "images or clips"}
    rows = []
    for (truth, label), times in mistaken_pairs(pairs).most_common():
        rows.append([Cell(truth), Cell(label), count_cell(times)])
    return Table(columns, rows)


def thumbnail(image: Image.Image, side: int = SIDE) -> Markup:
    """Encode an image as JPEG with at most ``side`` pixels on the longer side.

    Its metadata are left out.
    """
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.BILINEAR)
    small.info.clear()
    file = io.BytesIO()
    small.save(file, "JPEG", quality=80)
    return _data_uri(file.getvalue(), "jpeg")


def heat_map(attribution: Tensor, size: tuple[int, int]) -> Markup:
    """Encode where an image speaks for its answer, as a PNG to lay over a thumbnail.

    It is orange where the image speaks for the answer, blue where it speaks for the
    second class, and more transparent the less it does.

    Args:
        attribution: ``(H, W)`` float of each location, positive where it speaks for the
            answer, as of ``Learner.explain``.
        size: width and height of the image in pixels, for the ratio of the sides.

    Returns:
        A ``data:`` address, for the ``src`` of an image.
    """
    longer_side = max(size)
    # The longer side has HEAT_SIDE pixels.
    width, height = (max(1, round(HEAT_SIDE * side / longer_side)) for side in size)
    # Resized: each pixel has the mean of the locations that it covers.
    means = torch.nn.functional.adaptive_avg_pool2d(
        attribution[None].float(), (height, width)
    )[0]
    colours = torch.tensor([SPEAKS_AGAINST, SPEAKS_FOR], dtype=torch.uint8)
    pixels = colours[(means > 0).long()]  # the first or the second colour
    strength = means.abs() / means.abs().max().clamp_min(1e-12)
    opacity = (255 * STRONGEST * strength).round().to(torch.uint8)  # alpha
    rgba = torch.cat([pixels, opacity[:, :, None]], 2).numpy()
    file = io.BytesIO()
    Image.fromarray(rgba, "RGBA").save(file, "PNG", optimize=True)
    return _data_uri(file.getvalue(), "png")


def _data_uri(content: bytes, image_type: str) -> Markup:
    """Return the content of a PNG or JPEG file as a data URI for a page."""
    text = base64.b64encode(content).decode()
    return Markup(f"data:image/{image_type};base64,{text}")
