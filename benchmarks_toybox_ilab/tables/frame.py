"""One frame of a data set, its rules, and the errors raised when it breaks one."""

import posixpath
import re
from dataclasses import dataclass

from benchmarks_toybox_ilab.tables.numbers import check_whole_number

SPLITS = ("train", "test")

_DIGITS = re.compile(r"(\d+)")
_LINE_BREAKS = re.compile(r"[\r\n\0]")


class FrameTableError(ValueError):
    """A table, folder or file name breaks a rule.

    The message says which, the rule, and what to do.
    """


class BadFrameError(OSError):
    """A frame cannot be decoded; the message names the file.

    Attributes:
        reason: What is wrong with it, without its name and what to do; may be empty.
    """

    reason = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """One row of a table.

    Attributes:
        path: Relative to the table's root, with forward slashes; unique in a table
            unless the table is padded.
        class_name: Name of the class.
        object_name: Name of the object, unique inside its class.
        session: Name of the clip of that object.
        frame: Position in the clip, at least 0; gaps are fine.
        split: "train" or "test".
    """

    path: str
    class_name: str
    object_name: str
    session: str
    frame: int
    split: str


def check_row(
    number: int, row: Frame, clip_of_path: dict[str, tuple | None], padded: bool
) -> None:
    """Raise FrameTableError if a row breaks a rule or repeats a path; note its path.

    Args:
        number: Number of the row in its table, from 0.
        row: The row.
        clip_of_path: Class, object, session and split of each path of the rows before,
            or None where the table is not padded. The path of this row is added to it.
        padded: Whether a path may be repeated in its clip.
    """
    where = _row_in_words(number, row)
    if not row.path:
        raise FrameTableError(
            f"{where} has no path; every row needs a path and a class."
        )
    if not row.class_name:
        raise FrameTableError(
            f"{where} has no class; every row needs a path and a class."
        )
    if row.split not in SPLITS:
        raise FrameTableError(
            f"{where} has split {row.split!r}; a split is 'train' or 'test'."
        )
    is_valid = type(row.frame) is int and row.frame >= 0  # quick, true of most rows
    if not is_valid:
        name = f"the frame number of {where}"
        # Accepts NumPy's whole numbers, too; raises for all others.
        check_whole_number(name, row.frame, 0, FrameTableError)
    if _LINE_BREAKS.search(row.path + row.class_name + row.object_name + row.session):
        raise FrameTableError(
            f"row {number} ({row.path!r}) has a name that contains a line break; "
            "rename it."
        )
    clip = None
    if padded:
        clip = (row.class_name, row.object_name, row.session, row.split)
    path = posixpath.normpath(row.path)  # ./a.png is a.png
    is_repeated = path in clip_of_path
    is_padding = padded and clip_of_path.get(path) == clip
    if is_repeated and not is_padding:
        rule = "list every frame once"
        if padded:
            rule = "a padded table repeats a frame only within its clip"
        raise FrameTableError(f"{where} repeats the path of an earlier row; {rule}.")
    clip_of_path[path] = clip


def _row_in_words(number: int, row: Frame) -> str:
    """Name a row of a table in a message, as in `row 3 (cup/a.png)`."""
    return f"row {number} ({row.path})"


def natural_key(text: str) -> tuple:
    """Return a sort key of `text`, a frame's file name or a class: a2 before a10.

    Digits are compared as numbers.
    """
    texts_and_digits: list = _DIGITS.split(text)
    # Every other part is digits, so numbers are only compared with numbers; int()
    # refuses thousands of digits.
    for position in range(1, len(texts_and_digits), 2):
        digits = texts_and_digits[position].lstrip("0")
        texts_and_digits[position] = (len(digits), digits)
    return tuple(texts_and_digits), text
