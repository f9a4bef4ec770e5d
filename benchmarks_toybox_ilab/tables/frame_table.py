"""A data set as a table of frames: path, class, object, session, frame, split.

Every data set of this package is a function from a folder to such a table, and every
protocol orders the frames of one. A user's own data needs no code: write the table as
CSV and read it with `FrameTable.from_csv`.
"""

import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from benchmarks_toybox_ilab.tables.csv import COLUMNS, read_frames, write_frames
from benchmarks_toybox_ilab.tables.frame import (
    SPLITS,
    BadFrameError,
    Frame,
    FrameTableError,
    check_row,
    natural_key,
)
from benchmarks_toybox_ilab.tables.image import read_image
from benchmarks_toybox_ilab.tables.progress import terminal_bar


class FrameTable:
    """A data set as an immutable table of frames, stored by column.

    Args:
        frames: The rows, in the order of the table.
        root, reader, name, padded, classes: See below.

    Attributes:
        path, class_name, object_name, session, frame, split: Tuples, an entry per row;
            frame of int, the others of str.
        classes: The class names, in natural order unless given; a label is an index
            into them.
        labels: `(N,)` int64, read-only.
        root: Folder that the paths are relative to, or None.
        reader: Turns a path into a PIL image, or None to read files.
        name: Short name for messages.
        padded: Whether a path may be repeated in its clip as another frame, as some
            data sets lengthen short clips.

    Raises:
        FrameTableError: If there are no frames, a row breaks a rule of `Frame`, a path
            is repeated (in a padded table: in another clip), a class has no training
            frames, or `classes` are not those of the frames.
    """

    def __init__(
        self,
        frames: Iterable[Frame],
        root: str | Path | None = None,
        reader: Callable[[str], Image.Image] | None = None,
        name: str = "",
        padded: bool = False,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.root = None if root is None else Path(root)
        self.reader = reader
        self.name = name
        self.padded = padded
        columns: tuple[list, ...] = tuple([] for _ in COLUMNS)
        seen: dict[str, tuple | None] = {}
        names: dict[
            str, str
            # one object for equal names: a million rows have few classes and sessions
        ] = {}
        for number, row in enumerate(frames):
            check_row(number, row, seen, padded)
            shared = (
                names.setdefault(text, text)
                for text in (row.class_name, row.session, row.split)
            )
            class_name, session, split = shared
            values = (
                row.path,
                class_name,
                row.object_name,
                session,
                operator.index(row.frame),
                split,
            )
            for column, value in zip(columns, values):
                column.append(value)
        if not seen:
            raise FrameTableError(
                f"{self._title()} has no frames; a table needs at least one training frame."
            )
        del seen
        (
            self.path,
            self.class_name,
            self.object_name,
            self.session,
            self.frame,
            self.split,
        ) = map(tuple, columns)
        self.classes = self._check_classes(classes)
        label_of = {name: label for label, name in enumerate(self.classes)}
        self.labels = np.fromiter(
            map(label_of.__getitem__, self.class_name), np.int64, len(self)
        )
        self.labels.setflags(write=False)
        self._is_test = np.fromiter(
            (split == "test" for split in self.split), bool, len(self)
        )
        for class_name, count in self.counts().items():
            if not count["train"]:
                raise FrameTableError(
                    f"class {class_name!r} of {self._title()} has {count['test']} test frames and no training frames; "
                    "every class needs training frames. Mark some of its rows as train, or leave the class out."
                )

    def _check_classes(self, classes: Sequence[str] | None) -> tuple[str, ...]:
        natural = tuple(sorted(set(self.class_name), key=natural_key))
        if classes is None:
            return natural
        if sorted(classes) != sorted(natural):
            raise FrameTableError(
                f"classes is {', '.join(classes)}, but must be the classes of {self._title()} in any order, each once: "
                f"{', '.join(natural)}"
            )
        return tuple(classes)

    def _title(self) -> str:
        return f"frame table {self.name!r}" if self.name else "the frame table"

    def __repr__(self) -> str:
        splits = f"{self.split.count('train')} train, {self.split.count('test')} test"
        return f"<FrameTable {self.name!r}: {len(self)} frames of {len(self.classes)} classes, {splits}>"

    def _columns(self) -> tuple[tuple, ...]:
        return (
            self.path,
            self.class_name,
            self.object_name,
            self.session,
            self.frame,
            self.split,
        )

    def __len__(self) -> int:
        return len(self.path)

    def __getitem__(self, row: int) -> Frame:
        return Frame(*(column[row] for column in self._columns()))

    def __iter__(self) -> Iterator[Frame]:
        return (self[row] for row in range(len(self)))

    def rows(
        self, split: str | None = None, class_name: str | None = None
    ) -> np.ndarray:
        """Row numbers of a `split` ("train", "test") and of `class_name`, ascending, `(n,)` int64; None selects all.

        Raises:
            FrameTableError: If there is no such split or class.
        """
        chosen = np.ones(len(self), dtype=bool)
        if split is not None:
            if split not in SPLITS:
                raise FrameTableError(
                    f"there is no split {split!r}; use 'train', 'test', or None for both."
                )
            chosen &= self._is_test == (split == "test")
        if class_name is not None:
            if class_name not in self.classes:
                raise FrameTableError(
                    f"there is no class {class_name!r}; the classes are {', '.join(self.classes)}."
                )
            chosen &= self.labels == self.classes.index(class_name)
        return np.flatnonzero(chosen)

    def clips(self, rows: Iterable[int]) -> list[np.ndarray]:
        """Group `rows` by (class, object, session): clips in natural order, frames ascending, `(n,)` int64."""
        groups: dict[tuple[str, str, str], list[int]] = {}
        for row in map(int, rows):
            groups.setdefault(
                (self.class_name[row], self.object_name[row], self.session[row]), []
            ).append(row)
        ordered = sorted(groups, key=lambda clip: tuple(map(natural_key, clip)))
        return [
            np.array(sorted(groups[clip], key=lambda row: (self.frame[row], row)))
            for clip in ordered
        ]

    def read(self, row: int) -> Image.Image:
        """Read the frame of a `row` as an RGB image of Pillow, 8 bits a channel, in the size of the file.

        Raises:
            BadFrameError: If the file is missing, truncated or not an image.
        """
        path = self.path[row]
        source = path if self.root is None else str(self.root / path)
        try:
            return (
                read_image(source)
                if self.reader is None
                else self.reader(path).convert("RGB")
            )
        # Pillow's decoders raise far more than OSError on damaged bytes (SyntaxError,
        # ValueError, struct.error ...).
        except Exception as error:
            raise BadFrameError(
                f"cannot decode frame {source}: {error or type(error).__name__}. "
                "Restore the file, or leave it out with --on-bad-frame skip."
            ) from error

    def bad_rows(
        self, progress: Callable[..., Any] = terminal_bar
    ) -> list[tuple[int, str]]:
        """Decode every frame and list those that fail.

        Args:
            progress: Makes a progress bar of the frames; see `terminal_bar`.

        Returns:
            (row, message) for each frame that cannot be decoded, in row order.
        """

        def failure(row: int) -> str | None:
            try:
                self.read(row)
            except BadFrameError as error:
                return str(error)

        bad = []
        # Pillow releases the interpreter lock while it decodes.
        with (
            progress(len(self), "checking frames", " images") as bar,
            ThreadPoolExecutor(max_workers=2) as pool,
        ):
            for row, message in enumerate(pool.map(failure, range(len(self)))):
                if message is not None:
                    bad.append((row, message))
                bar.update()
        return bad

    def without(self, rows: Iterable[int]) -> "FrameTable":
        """Return the table without `rows`, given by number; the others keep their order.

        Raises:
            FrameTableError: If a row does not exist or a class loses all its training
                frames.
        """
        dropped = set(map(operator.index, rows))
        unknown = dropped.difference(range(len(self)))
        if unknown:
            raise FrameTableError(
                f"there is no row {min(unknown)}; {self._title()} has rows 0 to {len(self) - 1}."
            )
        kept = [frame for row, frame in enumerate(self) if row not in dropped]
        left = {frame.class_name for frame in kept}
        classes = [name for name in self.classes if name in left]
        return FrameTable(kept, self.root, self.reader, self.name, self.padded, classes)

    def with_classes(self, classes: Sequence[str]) -> "FrameTable":
        """Return the table with other labels: positions in `classes`, which are those of the table in any order."""
        relabelled = copy(self)
        relabelled.classes = self._check_classes(classes)
        relabelled.labels = np.array(
            [relabelled.classes.index(name) for name in self.classes]
        )[self.labels]
        relabelled.labels.setflags(write=False)
        return relabelled

    def counts(self) -> dict[str, dict[str, int]]:
        """Count frames by class and split: `counts()["cup"]["test"]`."""
        test = np.bincount(
            self.labels[self._is_test], minlength=len(self.classes)
        ).tolist()
        both = np.bincount(self.labels, minlength=len(self.classes)).tolist()
        return {
            name: {"train": count - in_test, "test": in_test}
            for name, count, in_test in zip(self.classes, both, test, strict=True)
        }

    def content_hash(self) -> str:
        """SHA-256 of all columns in row order, without the root: the same on every machine."""
        return _sha256(zip(*self._columns(), strict=True))

    def frames_hash(self) -> str:
        """SHA-256 of the paths in row order: the same for every split of the same files."""
        return _sha256((path,) for path in self.path)

    def to_csv(self, path: str | Path) -> None:
        """Write the table atomically to `path`, as UTF-8 CSV with the header path,class,object,session,frame,split.

        The hidden file `.NAME.sha256` beside it receives the `content_hash`, which
        `from_csv` compares.
        """
        beside = _digest_file(path)
        beside.unlink(
            missing_ok=True
        )  # a table without a digest is read, one with that of another is not
        write_frames(path, zip(*self._columns(), strict=True))
        with atomic_write(beside) as file:
            file.write(self.content_hash().encode())

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        root: str | Path | None,
        reader: Callable[[str], Image.Image] | None = None,
        padded: bool = False,
    ) -> "FrameTable":
        """Read a file of `to_csv`, or a table made by hand with the same header.

        Args:
            path: The file.
            root, reader, padded: See `FrameTable`.

        Raises:
            FrameTableError: If the file is missing, its header or a line is invalid,
                the table breaks a rule, or it is not the one that `to_csv` wrote.
        """
        frames, beside = read_frames(path), _digest_file(path)
        try:
            table = cls(frames, root, reader, Path(path).stem, padded)
        except FrameTableError as error:
            raise FrameTableError(f"{path}: {error}") from error
        if beside.is_file() and beside.read_bytes() != table.content_hash().encode():
            raise FrameTableError(
                f"{path} is not what was written: the SHA-256 of its rows is not the one in {beside}, so one of them "
                f"was damaged or changed later. Write the table again; if you changed it, remove {beside}."
            )
        return table


def _digest_file(path: str | Path) -> Path:
    return Path(path).with_name(f".{Path(path).name}.sha256")


def _sha256(rows: Iterable[Sequence]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(
            json.dumps(row, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        )
    return digest.hexdigest()
