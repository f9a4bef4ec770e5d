"""Read and write frames as CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO, cast

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.text import from_spreadsheet_cell, spreadsheet_cell

COLUMNS = ("path", "class", "object", "session", "frame", "split")
MOST_DIGITS = 18  # of a frame's number


def csv_text(rows: Iterable[Iterable]) -> str:
    """Format rows as CSV that a spreadsheet opens without computing a text of it.

    See `spreadsheet_cell`.
    """
    text = io.StringIO()
    _write_rows(text, rows)
    return text.getvalue()


def write_frames(path: str | Path, frames: Iterable[Sequence]) -> None:
    """Write a frame table as CSV in UTF-8, atomically.

    Args:
        path: The file.
        frames: The values of each row, in the order of `COLUMNS`, which are its header.
    """
    with atomic_write(
        path, "w", encoding="utf-8", errors="surrogateescape", newline=""
    ) as file:
        _write_rows(cast(TextIO, file), chain([COLUMNS], frames))


def _write_rows(file: TextIO, rows: Iterable[Iterable]) -> None:
    """Write rows as lines of CSV that end with a newline."""
    # The writer quotes cells that contain a character of its line end, so it gets both
    # characters, of which the first is left out again at the end of each line.
    lines = SimpleNamespace(write=lambda line: file.write(line[:-2] + "\n"))
    writer = csv.writer(lines, lineterminator="\r\n")
    for row in rows:
        writer.writerow(map(spreadsheet_cell, row))


def read_frames(path: str | Path) -> list[Frame]:
    """Read the rows of a frame table from a CSV of `write_frames` or made by hand.

    Its header is `COLUMNS`.

    Raises:
        FrameTableError: If the file is missing, or its header or a line is invalid.
    """
    if not Path(path).is_file():
        raise FrameTableError(
            f"there is no frame table at {path}; give a CSV file written by to_csv."
        )
    # utf-8-sig: spreadsheets write a byte order mark first. surrogateescape: names of
    # files may hold bytes that are not UTF-8.
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = csv.reader(file)
        try:
            header = next(lines, [])
            if tuple(header) != COLUMNS:
                raise FrameTableError(
                    f"{path} begins with {','.join(header)!r}; it must begin with "
                    f"{','.join(COLUMNS)!r}"
                )
            return [
                _frame_of_line(path, lines.line_num, line) for line in lines if line
            ]
        except csv.Error as error:
            raise FrameTableError(
                f"{path}, line {lines.line_num} is no CSV: {error}."
            ) from error


def _frame_of_line(path: str | Path, number: int, line: Sequence[str]) -> Frame:
    """Return the frame of a line of CSV.

    Args:
        path: The file, for errors.
        number: Number of the line in it, for errors.
        line: Its cells.

    Raises:
        FrameTableError: If the cells are not as many as the `COLUMNS`, or the number of
            the frame is not a whole number.
    """
    if len(line) != len(COLUMNS):
        raise FrameTableError(
            f"{path}, line {number} has {len(line)} values, but needs {len(COLUMNS)}: "
            f"{','.join(COLUMNS)}"
        )
    # An apostrophe before what a spreadsheet would compute is taken off.
    cells = dict(zip(COLUMNS, map(from_spreadsheet_cell, line)))
    frame = cells["frame"]
    is_number = frame.isascii() and frame.isdecimal()
    if not is_number or len(frame) > MOST_DIGITS:
        raise FrameTableError(
            f"{path}, line {number}: frame is {frame[:40]!r}, but must be a whole "
            f"number from 0, of at most {MOST_DIGITS} digits."
        )
    return Frame(
        path=cells["path"],
        class_name=cells["class"],
        object_name=cells["object"],
        session=cells["session"],
        frame=int(frame),
        split=cells["split"],
    )
