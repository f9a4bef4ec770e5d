"""What a data set declares of its files, and the one reader of such declarations."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.tables.folders import (
    IMAGE_EXTENSIONS,
    files_below,
    is_visible,
    listed_entries,
)
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

SPLIT_OF_FOLDER = {
    "train": ("0", "train"),
    "val": ("1", "test"),
    "test": ("1", "test"),
}  # session and split
_LISTED = 20  # incomplete classes that are reported one by one
_WORDS = {"classes": "classes"} | {
    f"{split}{key}": f"{'training' if split == 'train' else 'test'} {words}"
    for key, words in (
        ("", "images"),
        ("_clips", "clips"),
        ("_sessions", "sessions of a class"),
    )
    for split in ("train", "test")
}

Clips = dict[
    str, dict[Any, dict[Any, dict[Any, str]]]
]  # path by class, object, session and frame


@dataclass(frozen=True)
class Layout:
    """The files of a data set.

    Attributes:
        name: Short name, as on the command line; also of a folder that may contain the
            data set.
        title: Name in messages.
        tree: The layout in words; empty for a data set without files.
        source: Where to get the data.
        pattern: Matches the paths of its images, relative to its folder; None if only a
            generator knows the files.
        ignored: Matches the paths of other images, which are no error.
        rule: What else holds for the path of an image, for messages.
        key: `key(match)` returns class, object, session and frame of an image, or None
            if it is not used.
        folders: Folders directly in that of the data set.
        whole: Whether all of `folders` are needed, and other folders are ignored;
            otherwise any of them is enough.
        inside: Whether the root may be the only one of `folders` itself.
        places: Folders below a root that may be that of the data set, besides the root
            itself and the folder `name`.
        counts: Numbers of the whole data set that do not vary: of "classes", of "train"
            and "test" images, of clips ("train_clips", "test_clips"), and of sessions
            of each class ("train_sessions", "test_sessions").
        owner: Whose numbers `counts` are.
        classes: The classes, if the names are known.
        lacks: `lacks(table)` lists what else a table lacks of the whole data set.
        archived: `archived(name)` returns the path below the root of an archive's file,
            or None to leave it out; None takes the images of `pattern`.
        url, md5: Address and MD5 checksum of the archive, if it can be downloaded.
    """

    name: str
    title: str
    tree: str
    source: str
    pattern: re.Pattern[str] | None = None
    ignored: re.Pattern[str] = re.compile("(?!)")
    rule: str = "other images lie elsewhere"
    key: Callable[[re.Match[str]], tuple | None] = lambda match: None
    folders: tuple[str, ...] = ()
    whole: bool = True
    inside: bool = False
    places: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    owner: str = "the paper"
    classes: Sequence[str] = ()
    lacks: Callable[[FrameTable], list[str]] = lambda table: []
    archived: Callable[[str], str | None] | None = None
    url: str = ""
    md5: str = ""

    def find(self, root: Path, every: bool = False) -> Path | None:
        """The folder of the data set: root or a folder below it that holds any (or every one) of `folders`, or None."""
        enough = all if every else any
        places = [root / place for place in ("", *self.places, self.name)]
        found = next(
            (
                place
                for place in places
                if enough((place / top).is_dir() for top in self.folders)
            ),
            None,
        )
        return (
            root
            if found is None and self.inside and root.absolute().name in self.folders
            else found
        )

    def folder(self, root: Path) -> Path:
        """The folder of the data set, which has all that a table needs; FrameTableError if it is not there."""
        found = self.find(root, self.whole)
        if found is not None and found.is_dir():
            return found
        made = f"`crumb prepare {self.name}`" if self.pattern else self.source
        advice = f"{self.name} is laid out as {self.tree}; give that folder as root, or make it with {made}."
        if not root.is_dir():
            raise FrameTableError(f"there is no folder {root}. {advice}")
        absent = [top for top in self.folders if not (root / top).is_dir()][
            : None if self.whole else 1
        ]
        holds = listed_entries(root)
        raise FrameTableError(
            f"{root} has no folder {' and no folder '.join(absent)}, but holds {holds}. {advice}"
        )

    def images(self, paths: Iterable[str]) -> Iterator[re.Match[str]]:
        """Yield a match of `pattern` for each image; FrameTableError at one that does not fit. Others are ignored."""
        for path in paths:
            if match := self.pattern.fullmatch(path):
                yield match
            elif (
                path.lower().endswith(IMAGE_EXTENSIONS)
                and _seen(path)
                and not self.ignored.fullmatch(path)
            ):
                raise FrameTableError(
                    f"image {path} does not fit the layout of {self.title}: {self.tree}; {self.rule}. Rename it or "
                    "move it away."
                )

    def read(
        self, root: str | Path, paths: Iterable[str] | None = None
    ) -> tuple[Path, Iterator[re.Match[str]]]:
        """The folder of the data set and a match of each image; all functions that make tables take these arguments.

        Args:
            root: The folder that `tree` describes, or one that contains it as one of
                `places`.
            paths: Files below root, if they are known; None lists the folder.

        Raises:
            FrameTableError: If the folder is missing, or the files do not fit the
                layout; from a function that makes a table also if a class has no
                training frames.
        """
        root = Path(root)
        if paths is None:
            root = self.folder(root)
            tops = (
                [top for top in self.folders if (root / top).is_dir()]
                if self.whole
                else []
            )
            paths = [name for top in tops or [""] for name in files_below(root, top)]
        return root, self.images(paths)

    def clips(self, images: Iterable[re.Match[str]]) -> Clips:
        """Group images by what `key` returns, classes by name; FrameTableError if two images are the same frame."""
        found: Clips = {}
        for image in images:
            if place := self.key(image):
                class_name, thing, session, frame = place
                clip = (
                    found.setdefault(class_name, {})
                    .setdefault(thing, {})
                    .setdefault(session, {})
                )
                if frame in clip:
                    raise FrameTableError(
                        f"{image[0]} and {clip[frame]} are the same frame; keep one file per frame."
                    )
                clip[frame] = image[0]
        return dict(sorted(found.items()))

    def table(
        self, frames: Sequence[Frame], root: Path, padded: bool = False
    ) -> FrameTable:
        """The table of these frames; FrameTableError if there are none."""
        if not frames:
            raise FrameTableError(
                f"{root} holds no images of {self.title} that are used. The layout is {self.tree}; `crumb prepare "
                f"{self.name} --dataset-root {root}` makes it of a download."
            )
        return FrameTable(frames, root, name=self.name, padded=padded)

    def image_table(
        self,
        root: str | Path,
        paths: Iterable[str] | None = None,
        reference: bool = False,
    ) -> FrameTable:
        """The table of single images in `<split>/<class>/<image>`: `train` is the training split in every run.

        Every image is a clip of its own, see `single_image`; rows have the order of the
        files. Classes may be missing. `reference` has no effect; see `read` for the
        others.
        """
        root, images = self.read(root, paths)
        return self.table(list(map(single_image, images)), root)

    def place(self, name: str) -> str | None:
        """The path below the root of a file of an archive, which may have outer folders; None if it is not needed."""
        if self.archived or not self.pattern or not _seen(name):
            return self.archived(name) if self.archived else None
        parts = name.split("/")
        ends = ["/".join(parts[first:]) for first in range(len(parts))]
        ignored = any(map(self.ignored.fullmatch, ends))
        return None if ignored else next(filter(self.pattern.fullmatch, ends), None)

    def missing(self, table: FrameTable) -> list[str]:
        """List what a table lacks of the whole data set: totals that differ, and classes with less than their share."""
        clips = set(
            zip(table.class_name, table.split, table.session, table.object_name)
        )
        found = Counter((name, "classes") for name in table.classes)
        found.update(zip(table.class_name, table.split))
        found.update((name, f"{split}_clips") for name, split, *_ in clips)
        found.update(
            (name, f"{split}_sessions")
            for name, split, _ in {clip[:3] for clip in clips}
        )
        lines, shares, few = [], {}, []
        for key, count in self.counts.items():
            total = sum(number for (_, one), number in found.items() if one == key)
            if total != count:
                lines.append(f"{total} {_WORDS[key]}; {self.owner} has {count}")
            if key != "classes" and count % self.counts["classes"] == 0:
                shares[key] = count // self.counts["classes"]
        for name in self.classes or table.classes:
            gaps = {
                key: share for key, share in shares.items() if found[name, key] < share
            }
            if gaps:
                parts = (
                    f"{found[name, key]} of {share} {_WORDS[key]}"
                    for key, share in gaps.items()
                )
                few.append(f"class {name}: {', '.join(parts)}")
        more = [f"{len(few) - _LISTED} more classes are incomplete"] * (
            len(few) > _LISTED
        )
        return [*lines, *few[:_LISTED], *more, *self.lacks(table)]


def _seen(path: str) -> bool:
    return all(map(is_visible, path.split("/")))


def single_image(image: re.Match[str], class_name: str | None = None) -> Frame:
    """The row of an image that is a clip of its own; its class is the folder's unless given.

    Object is the file name without extension, session "0" for training and "1" for
    testing, frame 0. `image` is a match with the groups "folder" (a key of
    `SPLIT_OF_FOLDER`), "class_name" and "name".
    """
    session, split = SPLIT_OF_FOLDER[image["folder"]]
    return Frame(
        image[0], class_name or image["class_name"], image["name"], session, 0, split
    )


def paper_order(classes: Sequence[str]) -> Callable[..., list[list[str]] | None]:
    """Make `class_groups(table, reference)`: by reference one group in this order, else None, which sorts by name."""

    def class_groups(
        table: FrameTable, reference: bool = False
    ) -> list[list[str]] | None:
        return (
            [[name for name in classes if name in table.classes]] if reference else None
        )

    return class_groups


def read_lists(
    folder: Path,
    ending: str,
    batches: int,
    pattern: re.Pattern[str],
    example: str,
    names: Callable[[re.Match[str], int, int], tuple[str, str, int]],
    labelled: bool = True,
) -> tuple[list[Frame], list[str]]:
    """Read official lists of images and labels, of which a session each consists: "batch0", "batch1", ... and "test".

    Args:
        folder, ending: The files are `train_batch_00` and so on, and `test`, with this
            ending.
        batches: Number of training lists.
        pattern, example: Of the path of an image, and of a line, for messages.
        names: Class, object and frame of an image, from the match of its path, its
            label and the number of its line.
        labelled: Whether each class has a label of its own, from 0.

    Returns:
        The frames, and the classes in the order of their labels; none if these are not
        their own.

    Raises:
        FrameTableError: If a list is missing or empty, or a line or the labels are not
            as they should be.
    """
    frames, label_of = [], {}
    for batch in range(batches + 1):
        session, split, name = f"batch{batch}", "train", f"train_batch_{batch:02d}"
        if batch == batches:
            session = split = name = "test"
        file = folder / f"{name}{ending}"
        if not file.is_file() or not file.stat().st_size:
            raise FrameTableError(
                f"{file}, one of the official lists, is missing or empty; unpack them again."
            )
        for number, line in enumerate(
            file.read_text(encoding="utf-8", errors="replace").splitlines(), 1
        ):
            path, _, label = line.strip().rpartition(" ")
            image = pattern.fullmatch(path)
            if not image or not (label.isascii() and label.isdigit()):
                raise FrameTableError(
                    f"line {number} of {file} is {line[:80]!r}, but must be the path of an image and a label, e.g. "
                    f"{example}. Unpack the lists again."
                )
            class_name, thing, frame = names(image, int(label), number)
            if labelled and label_of.setdefault(class_name, int(label)) != int(label):
                raise FrameTableError(
                    f"line {number} of {file} gives {class_name} a second label; unpack it again."
                )
            frames.append(Frame(path, class_name, thing, session, frame, split))
    classes = sorted(label_of, key=label_of.__getitem__)
    if [label_of[name] for name in classes] != [*range(len(classes))]:
        raise FrameTableError(
            f"the labels in {folder} are not 0 to {len(classes) - 1}; unpack it again."
        )
    return frames, classes
