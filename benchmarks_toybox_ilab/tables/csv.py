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
    _write(text, rows)
    return text.getvalue()


def write_frames(path: str | Path, frames: Iterable[Sequence]) -> None:
    """Write the header and rows of `COLUMNS` as UTF-8, atomically."""
    with atomic_write(
        path, "w", encoding="utf-8", errors="surrogateescape", newline=""
    ) as file:
        _write(cast(TextIO, file), chain([COLUMNS], frames))


def _write(file: TextIO, rows: Iterable[Iterable]) -> None:
    # With a line end that has both characters, both are quoted inside a cell; lines end
    # with the second alone.
    lines = SimpleNamespace(write=lambda line: file.write(line[:-2] + "\n"))
    writer = csv.writer(lines, lineterminator="\r\n")
    for row in rows:
        writer.writerow(map(spreadsheet_cell, row))


def read_frames(path: str | Path) -> list[Frame]:
    """Read a file of `write_frames`, or one made by hand with the same header.

    Raises:
        FrameTableError: If the file is missing, or its header or a line is invalid.
    """
    if not Path(path).is_file():
        raise FrameTableError(
            f"there is no frame table at {path}; give a CSV file written by to_csv."
        )
    # utf-8-sig: spreadsheets write a byte order mark first.
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = csv.reader(file)
        try:
            header = next(lines, [])
            if tuple(header) != COLUMNS:
                raise FrameTableError(
                    f"{path} begins with {','.join(header)!r}; it must begin with "
                    f"{','.join(COLUMNS)!r}"
                )
            return [_frame(path, lines.line_num, line) for line in lines if line]
        except csv.Error as error:
            raise FrameTableError(
                f"{path}, line {lines.line_num} is no CSV: {error}."
            ) from error


def _frame(path: str | Path, number: int, line: Sequence[str]) -> Frame:
    """Return the frame of a line of a file."""
    if len(line) != len(COLUMNS):
        raise FrameTableError(
            f"{path}, line {number} has {len(line)} values, but needs {len(COLUMNS)}: "
            f"{','.join(COLUMNS)}"
        )
    cells = dict(zip(COLUMNS, map(from_spreadsheet_cell, line)))
    frame = cells["frame"]
    if not frame.isascii() or not frame.isdecimal() or len(frame) > MOST_DIGITS:
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
