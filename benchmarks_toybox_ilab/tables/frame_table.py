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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from benchmarks_toybox_ilab.tables.csv import read_frames, write_frames
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


@dataclass
class _Columns:
    """The columns of a table that is being made."""

    path: list[str] = field(default_factory=list)
    class_name: list[str] = field(default_factory=list)
    object_name: list[str] = field(default_factory=list)
    session: list[str] = field(default_factory=list)
    frame: list[int] = field(default_factory=list)
    split: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # One object for equal names: a million rows have few classes and sessions.
        self._names: dict[str, str] = {}

    def add_row(self, row: Frame) -> None:
        """Append the values of a row to the columns of the table."""
        self.path.append(row.path)
        self.class_name.append(self._shared_name(row.class_name))
        self.object_name.append(row.object_name)
        self.session.append(self._shared_name(row.session))
        self.frame.append(operator.index(row.frame))
        self.split.append(self._shared_name(row.split))

    def _shared_name(self, name: str) -> str:
        """Return the object that stands for a name in all rows of the table."""
        return self._names.setdefault(name, name)


class FrameTable:
    """A data set as an immutable table of frames, stored by column.

    Args:
        frames: The rows, in the order of the table.
        root, reader, name, padded, classes, upright: See below.

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
        upright: Whether files are rotated as their EXIF orientation says. Official data
            sets are read as their files are; a reader decides for itself.

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
        upright: bool = False,
    ) -> None:
        self.upright = upright
        self.root = None if root is None else Path(root)
        self.reader = reader
        self.name = name
        self.padded = padded
        columns = _Columns()
        clip_of_path: dict[str, tuple | None] = {}
        for number, row in enumerate(frames):
            check_row(number, row, clip_of_path, padded)
            columns.add_row(row)
        if not clip_of_path:
            raise FrameTableError(
                f"{self._title()} has no frames; a table needs at least one training "
                "frame."
            )
        del clip_of_path  # as large as the columns
        self.path = tuple(columns.path)
        self.class_name = tuple(columns.class_name)
        self.object_name = tuple(columns.object_name)
        self.session = tuple(columns.session)
        self.frame = tuple(columns.frame)
        self.split = tuple(columns.split)
        self.classes = self._check_classes(classes)
        label_of = {name: label for label, name in enumerate(self.classes)}
        labels = map(label_of.__getitem__, self.class_name)
        self.labels = np.fromiter(labels, np.int64, len(self))
        self.labels.setflags(write=False)
        is_test = (split == "test" for split in self.split)
        self._is_test = np.fromiter(is_test, bool, len(self))  # of each row, (N,)
        self._check_training_frames()

    def _check_classes(self, classes: Sequence[str] | None) -> tuple[str, ...]:
        """Return the class names of the table in the given or in natural order.

        Raises:
            FrameTableError: If `classes` are not those of the rows.
        """
        natural = tuple(sorted(set(self.class_name), key=natural_key))
        if classes is None:
            return natural
        if sorted(classes) != sorted(natural):
            raise FrameTableError(
                f"classes is {', '.join(classes)}, but must be the classes of "
                f"{self._title()} in any order, each once: {', '.join(natural)}"
            )
        return tuple(classes)

    def _check_training_frames(self) -> None:
        """Raise if a class of the table has no training frames."""
        for class_name, count in self.counts().items():
            if not count["train"]:
                raise FrameTableError(
                    f"class {class_name!r} of {self._title()} has {count['test']} test "
                    "frames and no training frames; every class needs training frames. "
                    "Mark some of its rows as train, or leave the class out."
                )

    def _title(self) -> str:
        """Return what messages call this table."""
        if not self.name:
            return "the frame table"
        return f"frame table {self.name!r}"

    def __repr__(self) -> str:
        splits = f"{self.split.count('train')} train, {self.split.count('test')} test"
        return (
            f"<FrameTable {self.name!r}: {len(self)} frames of {len(self.classes)} "
            f"classes, {splits}>"
        )

    def _columns(self) -> tuple[tuple, ...]:
        """Return the columns of the table in the order of a CSV."""
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
        return Frame(
            path=self.path[row],
            class_name=self.class_name[row],
            object_name=self.object_name[row],
            session=self.session[row],
            frame=self.frame[row],
            split=self.split[row],
        )

    def __iter__(self) -> Iterator[Frame]:
        return (self[row] for row in range(len(self)))

    def rows(
        self, split: str | None = None, class_name: str | None = None
    ) -> np.ndarray:
        """Return the row numbers of a split and of a class, `(n,)` int64.

        They ascend.

        Args:
            split: "train" or "test"; None is both.
            class_name: Name of the class; None are all.

        Raises:
            FrameTableError: If there is no such split or class.
        """
        mask = np.ones(len(self), dtype=bool)
        if split is not None:
            if split not in SPLITS:
                raise FrameTableError(
                    f"there is no split {split!r}; use 'train', 'test', or None for "
                    "both."
                )
            mask &= self._is_test if split == "test" else ~self._is_test
        if class_name is not None:
            if class_name not in self.classes:
                raise FrameTableError(
                    f"there is no class {class_name!r}; the classes are "
                    f"{', '.join(self.classes)}."
                )
            mask &= self.labels == self.classes.index(class_name)
        return np.flatnonzero(mask)

    def clips(self, rows: Iterable[int]) -> list[np.ndarray]:
        """Group `rows` by class, object and session.

        Returns:
            The rows of each clip, `(n,)` int64: clips in natural order, frames
            ascending.
        """
        rows_of: dict[tuple[str, str, str], list[int]] = {}
        for row in map(int, rows):
            clip = (self.class_name[row], self.object_name[row], self.session[row])
            rows_of.setdefault(clip, []).append(row)
        clips = sorted(rows_of, key=lambda clip: tuple(map(natural_key, clip)))
        return [
            np.array(sorted(rows_of[clip], key=self._position_in_clip))
            for clip in clips
        ]

    def _position_in_clip(self, row: int) -> tuple[int, int]:
        """Return what the rows of a clip are sorted by: frame, and row of the table."""
        return self.frame[row], row

    def read(self, row: int) -> Image.Image:
        """Read the frame of a `row` as an RGB image of Pillow.

        It has 8 bits a channel and the size of the file.

        Raises:
            BadFrameError: If the file is missing, truncated or not an image.
        """
        path = self.path[row]
        file = path
        if self.root is not None:
            file = str(self.root / path)
        try:
            if self.reader is None:
                return read_image(file, self.upright)
            # A table with a reader draws or cuts its images, which are no plain files.
            return self.reader(path).convert("RGB")
        # Pillow's decoders raise far more than OSError on damaged bytes (SyntaxError,
        # ValueError, struct.error ...).
        except Exception as error:
            raise BadFrameError(
                f"cannot decode frame {file}: {error or type(error).__name__}. "
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

        def error_of_row(row: int) -> str | None:
            try:
                self.read(row)
            except BadFrameError as error:
                return str(error)
            return None

        bad_rows = []
        # Pillow releases the interpreter lock while it decodes.
        with (
            progress(len(self), "checking frames", " images") as bar,
            ThreadPoolExecutor(max_workers=2) as pool,
        ):
            messages = pool.map(error_of_row, range(len(self)))
            for row, message in enumerate(messages):
                if message is not None:
                    bad_rows.append((row, message))
                bar.update()
        return bad_rows

    def without(self, rows: Iterable[int]) -> "FrameTable":
        """Return the table without some `rows`, given by number.

        The others keep their order. A class that loses all its training frames is left
        out with its test frames, since it could not be learned.

        Raises:
            FrameTableError: If a row does not exist, or no class is left.
        """
        dropped = set(map(operator.index, rows))  # also NumPy's numbers; no floats
        unknown = dropped.difference(range(len(self)))
        if unknown:
            raise FrameTableError(
                f"there is no row {min(unknown)}; {self._title()} has rows 0 to "
                f"{len(self) - 1}."
            )
        kept_rows = [row for row in range(len(self)) if row not in dropped]
        # Classes that still have training frames.
        trained = {self.class_name[row] for row in kept_rows if not self._is_test[row]}
        frames = [self[row] for row in kept_rows if self.class_name[row] in trained]
        return FrameTable(
            frames,
            root=self.root,
            reader=self.reader,
            name=self.name,
            padded=self.padded,
            classes=[name for name in self.classes if name in trained],
            upright=self.upright,
        )

    def frames_below(self, folder: Path) -> list[Frame]:
        """Return all frames of the table, with paths relative to another folder.

        Args:
            folder: A folder above the root of the table, which must have one.
        """
        prefix = cast(Path, self.root).relative_to(folder).as_posix()
        return [replace(frame, path=f"{prefix}/{frame.path}") for frame in self]

    def with_classes(self, classes: Sequence[str]) -> "FrameTable":
        """Return the table with other labels.

        They are positions in `classes`, which are those of the table in any order.
        """
        relabelled = copy(self)
        relabelled.classes = self._check_classes(classes)
        new_label_of_old = [relabelled.classes.index(name) for name in self.classes]
        relabelled.labels = np.array(new_label_of_old)[self.labels]
        relabelled.labels.setflags(write=False)
        return relabelled

    def counts(self) -> dict[str, dict[str, int]]:
        """Count frames by class and split: `counts()["cup"]["test"]`."""
        n_classes = len(self.classes)
        test = np.bincount(self.labels[self._is_test], minlength=n_classes).tolist()
        train = np.bincount(self.labels[~self._is_test], minlength=n_classes).tolist()
        counts = {}
        for label, name in enumerate(self.classes):
            counts[name] = {"train": train[label], "test": test[label]}
        return counts

    def content_hash(self) -> str:
        """Return the SHA-256 of all columns of the table in row order, in hexadecimal.

        Without the root, so that it is the same on every machine.
        """
        return _rows_digest(zip(*self._columns(), strict=True))

    def frames_hash(self) -> str:
        """Return the SHA-256 of the paths of the table in row order, in hexadecimal.

        It is the same for every split of the same files.
        """
        return _rows_digest(zip(self.path))

    def to_csv(self, path: str | Path) -> None:
        """Write the table to `path` atomically, as UTF-8 CSV.

        Its header is path,class,object,session,frame,split. The hidden file
        `.NAME.sha256` beside it receives the `content_hash`, which `from_csv` compares.
        """
        digest_file = _digest_file(path)
        # First: a crash may leave a table without a digest, which can be read, but not
        # with the digest of another.
        digest_file.unlink(missing_ok=True)
        write_frames(path, zip(*self._columns(), strict=True))
        with atomic_write(digest_file) as file:
            file.write(self.content_hash().encode())

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        root: str | Path | None,
        reader: Callable[[str], Image.Image] | None = None,
        padded: bool = False,
        upright: bool = True,
    ) -> "FrameTable":
        """Read a file of `to_csv`, or a table made by hand with the same header.

        Args:
            path: The file.
            root: Folder that the paths of the table are relative to, if any.
            reader: Makes the image of a path; None reads the file below root.
            padded: Whether a path may be repeated in its clip as another frame.
            upright: Rotate files as their EXIF orientation says, as photos of your own
                are everywhere. False reads those of an official data set as its own
                function does.

        Raises:
            FrameTableError: If the file is missing, its header or a line is invalid,
                the table breaks a rule, or it is not the one that `to_csv` wrote.
        """
        frames = read_frames(path)
        digest_file = _digest_file(path)  # which `to_csv` writes beside the table
        try:
            table = cls(
                frames,
                root,
                reader=reader,
                name=Path(path).stem,
                padded=padded,
                upright=upright,
            )
        except FrameTableError as error:
            raise FrameTableError(f"{path}: {error}") from error
        if not digest_file.is_file():
            return table
        digest = table.content_hash().encode()
        if digest_file.read_bytes() != digest:
            raise FrameTableError(
                f"{path} is not what was written: the SHA-256 of its rows is not the "
                f"one in {digest_file}, so one of them was damaged or changed later. "
                f"Write the table again; if you changed it, remove {digest_file}."
            )
        return table


def _digest_file(path: str | Path) -> Path:
    """Return the file that holds the digest of the table at a path."""
    return Path(path).with_name(f".{Path(path).name}.sha256")


def _rows_digest(rows: Iterable[Sequence]) -> str:
    """Return the SHA-256 of rows of a table, a line of JSON each, in hexadecimal."""
    digest = hashlib.sha256()
    for row in rows:
        line = json.dumps(row, ensure_ascii=True, separators=(",", ":"))
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()
