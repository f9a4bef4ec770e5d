"""A data set as a table of frames: path, class, object, session, frame, split.

Every data set of this package is a function from a folder to such a table, and every protocol starts from one. So a
new data set needs no loader, and a user's own table needs no code: write the CSV, read it with `FrameTable.from_csv`.
"""

import csv
import hashlib
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

SPLITS = ("train", "test")
COLUMNS = ("path", "class", "object", "session", "frame", "split")  # the header of a CSV file

_DIGITS = re.compile(r"(\d+)")
_LINE_BREAKS = re.compile(r"[\r\n\0]")


class FrameTableError(ValueError):
    """A table, a folder or a name that breaks a rule; says which, the rule, and what to do."""


class BadFrameError(OSError):
    """A frame that cannot be decoded; the message names the file."""


@dataclass(frozen=True)
class Frame:
    """One row of a table.

    Attributes:
        path: Relative to the table's root, with forward slashes; comes once in a table, unless the table is padded.
        class_name: What is to be recognised.
        object_name: Which thing of that class; a name needs to be unique only inside its class.
        session: Which clip of that object.
        frame: Position in the clip, at least 0; gaps are fine.
        split: "train" or "test".
    """

    path: str
    class_name: str
    object_name: str
    session: str
    frame: int
    split: str


class FrameTable:
    """A data set as a table of frames; column-wise and immutable.

    Attributes:
        path, class_name, object_name, session, frame, split: Tuples, one entry a row; frame of int, the others of str.
        classes: The class names in natural order; a label is an index into this, the same in every run.
        labels: `(N,)` int64, read-only.
        root, reader, name: As given: the folder that the paths are relative to, what turns a path into a PIL image
            instead of opening a file, and a short name for messages.
        padded: As given: whether a path may come again in its own clip, as another frame. Some data sets bring short
            clips to length that way.

    Raises:
        FrameTableError: If there are no frames, a row breaks a rule of `Frame`, a path comes twice (in a padded table:
            in two clips), or a class has no training frames.
    """

    def __init__(
        self,
        frames: Iterable[Frame],
        root: str | Path | None = None,
        reader: Callable[[str], Image.Image] | None = None,
        name: str = "",
        padded: bool = False,
    ) -> None:
        rows = tuple(frames)
        self.root = None if root is None else Path(root)
        self.reader = reader
        self.name = name
        self.padded = padded
        if not rows:
            raise FrameTableError(f"{self._title()} has no frames; a table needs at least one training frame.")
        seen: dict[str, tuple | None] = {}
        for number, row in enumerate(rows):
            _check_row(number, row, seen, padded)
        self.path = tuple(row.path for row in rows)
        self.class_name = tuple(row.class_name for row in rows)
        self.object_name = tuple(row.object_name for row in rows)
        self.session = tuple(row.session for row in rows)
        self.frame = tuple(operator.index(row.frame) for row in rows)
        self.split = tuple(row.split for row in rows)
        self.classes = tuple(sorted(set(self.class_name), key=natural_key))
        label_of = {name: label for label, name in enumerate(self.classes)}
        self.labels = np.array([label_of[name] for name in self.class_name], dtype=np.int64)
        self.labels.setflags(write=False)
        for class_name, count in self.counts().items():
            if not count["train"]:
                raise FrameTableError(
                    f"class {class_name!r} of {self._title()} has {count['test']} test frames and no training frames; "
                    "every class needs training frames. Mark some of its rows as train, or leave the class out."
                )

    def _title(self) -> str:
        return f"frame table {self.name!r}" if self.name else "the frame table"

    def __repr__(self) -> str:
        splits = f"{self.split.count('train')} train, {self.split.count('test')} test"
        return f"<FrameTable {self.name!r}: {len(self)} frames of {len(self.classes)} classes, {splits}>"

    def _columns(self) -> tuple[tuple, ...]:
        return self.path, self.class_name, self.object_name, self.session, self.frame, self.split

    def __len__(self) -> int:
        return len(self.path)

    def __getitem__(self, row: int) -> Frame:
        return Frame(*(column[row] for column in self._columns()))

    def __iter__(self) -> Iterator[Frame]:
        return (self[row] for row in range(len(self)))

    def rows(self, split: str | None = None, class_name: str | None = None) -> np.ndarray:
        """Numbers of the rows of a split and a class, ascending; `(n,)` int64, None takes all."""
        chosen = np.ones(len(self), dtype=bool)
        if split is not None:
            if split not in SPLITS:
                raise FrameTableError(f"there is no split {split!r}; take 'train', 'test', or None for both.")
            chosen &= np.array(self.split) == split
        if class_name is not None:
            if class_name not in self.classes:
                raise FrameTableError(f"there is no class {class_name!r}; the classes are {', '.join(self.classes)}.")
            chosen &= self.labels == self.classes.index(class_name)
        return np.flatnonzero(chosen)

    def clips(self, rows: Iterable[int]) -> list[np.ndarray]:
        """The rows grouped by (class, object, session): clips in natural order, frames ascending in each."""
        groups: dict[tuple[str, str, str], list[int]] = {}
        for row in map(int, rows):
            groups.setdefault((self.class_name[row], self.object_name[row], self.session[row]), []).append(row)
        ordered = sorted(groups, key=lambda clip: tuple(map(natural_key, clip)))
        return [np.array(sorted(groups[clip], key=lambda row: (self.frame[row], row))) for clip in ordered]

    def read(self, row: int) -> Image.Image:
        """The frame as an RGB image.

        Raises:
            BadFrameError: If the file is missing, cut off or not an image.
        """
        path = self.path[row]
        source = path if self.reader or self.root is None else str(self.root / path)
        try:
            if self.reader is not None:
                return self.reader(path).convert("RGB")
            with Image.open(source) as image:
                image.load()
                return image.convert("RGB")
        # Pillow's decoders raise far more than OSError on damaged bytes (SyntaxError, ValueError, struct.error ...).
        except Exception as error:
            raise BadFrameError(
                f"cannot decode frame {source}: {error or type(error).__name__}. "
                "Restore the file, or go on without it with --on-bad-frame skip."
            ) from error

    def bad_rows(self, progress: Callable[[int, int], object] | None = None, workers: int = 2) -> list[tuple[int, str]]:
        """Decode every frame once and list those that fail.

        Args:
            progress: Called with (frames done, frames in all) after each frame.
            workers: Number of threads; Pillow decodes outside the interpreter lock.

        Returns:
            (row, message) of each frame that cannot be decoded, in row order.
        """

        def failure(row: int) -> str | None:
            try:
                self.read(row)
            except BadFrameError as error:
                return str(error)

        bad = []
        with ThreadPoolExecutor(max_workers=workers) as pool:
            for row, message in enumerate(pool.map(failure, range(len(self)))):
                if message is not None:
                    bad.append((row, message))
                if progress is not None:
                    progress(row + 1, len(self))
        return bad

    def without(self, rows: Iterable[int]) -> "FrameTable":
        """The table without these rows; the others keep their order.

        Raises:
            FrameTableError: If a row does not exist, or a class would be left without training frames.
        """
        dropped = set(map(operator.index, rows))
        unknown = dropped.difference(range(len(self)))
        if unknown:
            raise FrameTableError(f"there is no row {min(unknown)}; {self._title()} has rows 0 to {len(self) - 1}.")
        kept = (frame for row, frame in enumerate(self) if row not in dropped)
        return FrameTable(kept, self.root, self.reader, self.name, self.padded)

    def counts(self) -> dict[str, dict[str, int]]:
        """Number of frames by class and split: `counts()["cup"]["test"]`."""
        table = {class_name: dict.fromkeys(SPLITS, 0) for class_name in self.classes}
        for class_name, split in zip(self.class_name, self.split, strict=True):
            table[class_name][split] += 1
        return table

    def content_hash(self) -> str:
        """SHA-256 over all columns in row order, but not the root: the same on every machine."""
        return _sha256(zip(*self._columns(), strict=True))

    def frames_hash(self) -> str:
        """SHA-256 over the paths in row order: the same for every split of one list of files."""
        return _sha256((path,) for path in self.path)

    def to_csv(self, path: str | Path) -> None:
        """Write the table as UTF-8 CSV with the header path,class,object,session,frame,split; whole or not at all."""
        path = Path(path)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(unfinished, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(COLUMNS)
                writer.writerows(zip(*self._columns(), strict=True))
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        root: str | Path | None,
        reader: Callable[[str], Image.Image] | None = None,
        padded: bool = False,
    ) -> "FrameTable":
        """Read what `to_csv` wrote, or a table made by hand with the same header.

        Raises:
            FrameTableError: If the file is missing, its header or a line is wrong, or the table breaks a rule.
        """
        path = Path(path)
        if not path.is_file():
            raise FrameTableError(f"there is no frame table at {path}; give the CSV file that to_csv wrote.")
        # utf-8-sig: spreadsheets put a byte order mark in front.
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            if tuple(header) != COLUMNS:
                raise FrameTableError(f"{path} begins with {','.join(header)!r}; it must be {','.join(COLUMNS)!r}")
            frames = [_parse_line(path, lines.line_num, line) for line in lines if line]
        return cls(frames, root, reader, path.stem, padded)


def natural_key(text: str) -> tuple:
    """Sort key that takes runs of digits as numbers: object2 before object10."""
    parts = _DIGITS.split(text)
    parts[1::2] = map(int, parts[1::2])  # every other part is digits, so numbers only ever meet numbers
    return tuple(parts), text


def whole_number(name: str, value: object, least: int, error: type[ValueError] = ValueError) -> int:
    """The value as int; an error that names it unless it is a whole number of at least `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < least:
        raise error(f"{name} is {value!r}, but must be a whole number of at least {least}.")
    return operator.index(value)


def _check_row(number: int, row: Frame, seen: dict[str, tuple | None], padded: bool) -> None:
    """Raise FrameTableError if a row breaks a rule, or its path was seen; note its path and clip as seen."""
    where = f"row {number} ({row.path})"
    if not row.path or not row.class_name:
        raise FrameTableError(f"{where} has no {'class' if row.path else 'path'}; every row needs a path and a class.")
    if row.split not in SPLITS:
        raise FrameTableError(f"{where} has split {row.split!r}; a split is 'train' or 'test'.")
    whole_number(f"the frame number of {where}", row.frame, 0, FrameTableError)
    if _LINE_BREAKS.search(row.path + row.class_name + row.object_name + row.session):
        raise FrameTableError(f"row {number} ({row.path!r}) has a name with a line break in it; rename it.")
    clip = (row.class_name, row.object_name, row.session, row.split) if padded else None
    if row.path in seen and not (padded and seen[row.path] == clip):
        rule = "a padded table repeats a frame only inside its clip" if padded else "list every frame once"
        raise FrameTableError(f"{where} repeats the path of an earlier row; {rule}.")
    seen[row.path] = clip


def _parse_line(path: Path, number: int, line: Sequence[str]) -> Frame:
    if len(line) != len(COLUMNS):
        raise FrameTableError(
            f"{path}, line {number} has {len(line)} values, but needs {len(COLUMNS)}: {','.join(COLUMNS)}"
        )
    *names, frame, split = line
    if not frame.isascii() or not frame.isdecimal():
        raise FrameTableError(f"{path}, line {number}: frame is {frame!r}, but must be a whole number of at least 0.")
    return Frame(*names, int(frame), split)


def _sha256(rows: Iterable[Sequence]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, ensure_ascii=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()
