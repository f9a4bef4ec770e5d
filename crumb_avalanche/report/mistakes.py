"""``mistakes.html`` of a run on own clips: what it got wrong, from how much it learned, and what would help."""

from collections import Counter
from pathlib import Path

import numpy as np
from markupsafe import Markup

from benchmarks_toybox_ilab.tables.frame import BadFrameError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.answer import Answer
from crumb_avalanche.report.advice import ClassCounts, advice, training_size
from crumb_avalanche.report.contact_sheet import Card, confused_table, confusion_matrix
from crumb_avalanche.report.images import thumbnail
from crumb_avalanche.report.page import render
from crumb_avalanche.report.table import Cell, Column, Table, count
from crumb_avalanche.runs.run_folder import MISTAKES, write_text
from crumb_avalanche.system.counted import counted

MOST_MISTAKES = 200  # with images


def write_mistakes(
    folder: Path, table: FrameTable, predictions: dict[str, np.ndarray], preset: str, strategy: str, unread: int = 0
) -> None:
    """Write the page of a finished run.

    Args:
        folder: folder of the run.
        table: frames of the run, whose rows the predictions name.
        predictions: ``row``, ``label``, ``answer`` and ``confidence``, ``(N,)`` each.
        preset, strategy: of the run.
        unread: files that were left out.
    """
    pairs = Counter(
        (table.classes[label], table.classes[answer])
        for label, answer in zip(predictions["label"].tolist(), predictions["answer"].tolist())
    )
    confused = Counter({pair: number for pair, number in pairs.items() if pair[0] != pair[1]})
    classes = counts_of(table, pairs)
    wrong = np.flatnonzero(predictions["label"] != predictions["answer"])
    worst = wrong[np.argsort(-predictions["confidence"][wrong], kind="stable")]
    asked, right = len(predictions["row"]), len(predictions["row"]) - len(wrong)
    page = render(
        "mistakes.html",
        title=f"{len(wrong):,} mistakes of {asked:,} test images",
        lead=f"{strategy}, preset {preset}, {counted(len(table.classes), 'class')} of {table.root}.",
        asked=asked,
        right=right,
        unread=unread,
        size=training_size(classes),
        advice=advice(classes, confused, unread, preset, strategy),
        classes=class_table(classes),
        confusion=confusion_matrix(pairs) if len(wrong) else None,
        confused=confused_table(pairs),
        mistakes=[_card(table, predictions, place) for place in worst[:MOST_MISTAKES].tolist()],
        wrong=len(wrong),
    )
    write_text(folder / MISTAKES, page)


def counts_of(table: FrameTable, pairs: Counter[tuple[str, str]]) -> list[ClassCounts]:
    """Count what each class was learned from and tested on.

    Args:
        table: frames of the run.
        pairs: number of test images by true and answered class.
    """
    found = []
    for name in table.classes:
        train, test = (table.rows(split, name).tolist() for split in ("train", "test"))
        found.append(
            ClassCounts(
                name,
                len({table.object_name[row] for row in train}),
                len({(table.object_name[row], table.session[row]) for row in train}),
                len(train),
                sum(number for (truth, _), number in pairs.items() if truth == name),
                pairs[name, name],
                len({table.object_name[row] for row in test}),
            )
        )
    return found


def class_table(classes: list[ClassCounts]) -> Table:
    """A line for each class: accuracy, and what it was learned from; the worst first."""
    heads = ("class", "right, %", "test images", "test objects", "objects learned", "clips learned", "images learned")
    names = ("class", "accuracy", "tested", "tested_objects", "objects", "clips", "images")
    rows = []
    for one in sorted(classes, key=lambda one: one.share):
        numbers = (one.tested, one.tested_objects, one.objects, one.clips, one.images)
        rows.append([Cell(one.name), Cell(f"{100 * one.share:.1f}" if one.tested else ""), *map(count, numbers)])
    return Table([Column(*pair) for pair in zip(names, heads)], rows)


def _card(table: FrameTable, predictions: dict[str, np.ndarray], place: int) -> Card:
    row, confidence = int(predictions["row"][place]), float(predictions["confidence"][place])
    truth, label = (table.classes[predictions[name][place]] for name in ("label", "answer"))
    try:
        image = thumbnail(table.read(row))
    except BadFrameError:  # changed since the run read it
        image = Markup()
    return Card((False, -confidence, place), Answer(label, confidence, None, (), table.path[row], truth), image)
