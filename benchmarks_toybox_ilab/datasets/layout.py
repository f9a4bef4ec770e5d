"""What a data set declares of its files, and the one reader of such declarations."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.tables.folders import IMAGE_EXTENSIONS, files_below, is_visible, listed_entries
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

SPLIT_OF_FOLDER = {"train": ("0", "train"), "val": ("1", "test"), "test": ("1", "test")}  # session and split
_LISTED, _LISTED_CLASSES = 8, 20  # objects of a class, and classes of images, that are reported one by one

Clips = dict[str, dict[Any, dict[Any, dict[Any, str]]]]  # path by class, object, session and frame


@dataclass(frozen=True)
class Layout:
    """The files of a data set.

    Attributes:
        name: Short name, as on the command line; also of a folder that may contain the data set.
        title: Name in messages.
        tree: The layout in words; empty for a data set without files.
        source: Where to get the data.
        pattern: Matches the paths of its images, relative to its folder; None if only a generator knows the files.
        ignored: Matches the paths of other images, which are no error.
        rule: What else holds for the path of an image, for messages.
        key: `key(match)` returns class, object, session and frame of an image, or None if it is not used.
        folders: Folders directly in that of the data set.
        whole: Whether all of `folders` are needed, and other folders are ignored; otherwise any of them is enough.
        inside: Whether the root may be the only one of `folders` itself.
        places: Folders below a root that may be that of the data set, besides the root itself.
        parts: The layouts of the data sets that it consists of, by folder.
        counts: Numbers of "classes", "train" and "test" images of the whole data set, or None where they vary;
            "train_clips" and "test_clips" if those are fixed.
        owner: Whose numbers `counts` are.
        classes: The classes of a data set of clips.
        needed: Number of complete objects that a class needs, or that each class needs.
        sessions: The names of an object's clips, or how many it needs.
        frames: Number of images of a complete clip.
        label: `label(class name, object)` names an object.
        per_class: Number of images in each class of a tree of single images, by folder; None accepts any but 0.
        archived: `archived(name)` returns the path below the root of an archive's file, or None to leave it out; None
            takes the images of `pattern`.
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
    parts: "Mapping[str, Layout]" = field(default_factory=dict)
    counts: Mapping[str, int | None] = field(default_factory=dict)
    owner: str = "the paper"
    classes: Sequence[str] = ()
    needed: int | Mapping[str, int] = 0
    sessions: Sequence | int = ()
    frames: int = 1
    label: Callable[[str, Any], str] = lambda class_name, thing: thing
    per_class: Mapping[str, int | None] = field(default_factory=dict)
    archived: Callable[[str], str | None] | None = None
    url: str = ""
    md5: str = ""

    def find(self, root: Path, every: bool = False) -> Path | None:
        """The folder of the data set: root or a folder below it that holds any (or every one) of `folders`, or None."""
        enough = all if every else any
        places = [root / place for place in ("", *self.places)]
        found = next((place for place in places if enough((place / top).is_dir() for top in self.folders)), None)
        return root if found is None and self.inside and root.absolute().name in self.folders else found

    def folder(self, root: Path) -> Path:
        """The folder of the data set, which has all that a table needs; FrameTableError if it is not there."""
        found = self.find(root, self.whole)
        if found is not None and found.is_dir():
            return found
        advice = f"{self.name} is laid out as {self.tree}; give that folder as root, or make it with `crumb prepare "
        advice += f"{self.name}`."
        if not root.is_dir():
            raise FrameTableError(f"there is no folder {root}. {advice}")
        absent = [top for top in self.folders if not (root / top).is_dir()][: None if self.whole else 1]
        holds = listed_entries(root)
        raise FrameTableError(f"{root} has no folder {' and no folder '.join(absent)}, but holds {holds}. {advice}")

    def files(self, folder: Path) -> list[str]:
        """The visible files of the data set in its folder, in the order of `folders` and of their names."""
        tops = [top for top in self.folders if (folder / top).is_dir()] if self.whole else []
        return [name for top in tops or [""] for name in files_below(folder, top)]

    def images(self, paths: Iterable[str]) -> Iterator[re.Match[str]]:
        """Yield a match of `pattern` for each image; FrameTableError at one that does not fit. Others are ignored."""
        for path in paths:
            if match := self.pattern.fullmatch(path):
                yield match
            elif path.lower().endswith(IMAGE_EXTENSIONS) and _seen(path) and not self.ignored.fullmatch(path):
                raise FrameTableError(
                    f"image {path} does not fit the layout of {self.title}: {self.tree}; {self.rule}. Rename it or "
                    "move it away."
                )

    def read(self, root: str | Path, paths: Iterable[str] | None = None) -> tuple[Path, Iterator[re.Match[str]]]:
        """The folder of the data set and a match of each image; all functions that make tables take these arguments.

        Args:
            root: The folder that `tree` describes, or one that contains it as one of `places`.
            paths: Files below root, if they are known; None lists the folder.

        Raises:
            FrameTableError: If the folder is missing, or the files do not fit the layout; from a function that makes a
                table also if a class has no training frames.
        """
        root = Path(root)
        if paths is None:
            root = self.folder(root)
            paths = self.files(root)
        return root, self.images(paths)

    def clips(self, images: Iterable[re.Match[str]]) -> Clips:
        """Group images by what `key` returns, classes by name; FrameTableError if two images are the same frame."""
        found: Clips = {}
        for image in images:
            if place := self.key(image):
                class_name, thing, session, frame = place
                clip = found.setdefault(class_name, {}).setdefault(thing, {}).setdefault(session, {})
                if frame in clip:
                    raise FrameTableError(f"{image[0]} and {clip[frame]} are the same frame; keep one file per frame.")
                clip[frame] = image[0]
        return dict(sorted(found.items()))

    def table(self, frames: Sequence[Frame], root: Path, padded: bool = False) -> FrameTable:
        """The table of these frames; FrameTableError if there are none."""
        if not frames:
            raise FrameTableError(
                f"{root} holds no images of {self.title} that are used. The layout is {self.tree}; `crumb prepare "
                f"{self.name} --dataset-root {root}` makes it of a download."
            )
        return FrameTable(frames, root, name=self.name, padded=padded)

    def image_table(self, root: str | Path, paths: Iterable[str] | None = None, reference: bool = False) -> FrameTable:
        """The table of single images in `<split>/<class>/<image>`: `train` is the training split in every run.

        Every image is a clip of its own, see `single_image`; rows have the order of the files. Classes may be missing.
        `reference` has no effect; see `read` for the others.
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

    def of_parts(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """The files in the folders of `parts`, relative to them; others are ignored."""
        below: dict[str, list[str]] = {folder: [] for folder in self.parts}
        for path in paths:
            folder, _, rest = path.partition("/")
            if folder in below:
                below[folder].append(rest)
        return below

    def missing(self, paths: Iterable[str]) -> list[str]:
        """List what these files lack of the whole data set, a line for each class.

        Raises:
            FrameTableError: If an image of a data set of clips does not fit, or two are the same frame.
        """
        if self.parts:
            below = self.of_parts(paths)
            return [f"{top}: {line}" for top, part in self.parts.items() for line in part.missing(below[top])]
        return self._missing_objects(paths) if self.classes else self._missing_images(paths)

    def _missing_objects(self, paths: Iterable[str]) -> list[str]:
        found = self.clips(self.images(paths))
        if not found:
            return [f"all {len(self.classes)} classes are missing"]
        lines = []
        for class_name in self.classes:
            objects = sorted(found.get(class_name, {}).items())
            gaps = [(thing, gap) for thing, clips in objects if (gap := self._gap(clips))]
            whole = len(objects) - len(gaps)
            listed = "".join(f"; {self.label(class_name, thing)}: {gap}" for thing, gap in gaps[:_LISTED])
            needed = self.needed if isinstance(self.needed, int) else self.needed[class_name]
            if whole < needed:
                lines.append(f"class {class_name}: {whole} of {needed} objects are complete{listed}")
        return lines

    def _gap(self, clips: dict) -> str:
        """What an object lacks; "" if nothing."""
        if isinstance(self.sessions, int):
            whole = sum(len(clip) >= self.frames for clip in clips.values())
            return f"{whole} of {self.sessions} sessions of {self.frames} images" * (whole < self.sessions)
        few = [name for name in self.sessions if len(clips.get(name, ())) < self.frames]
        return ", ".join(f"clip {name} has {len(clips.get(name, ()))} of {self.frames} frames" for name in few)

    def _missing_images(self, paths: Iterable[str]) -> list[str]:
        images = filter(None, map(self.pattern.fullmatch, paths))
        found = Counter((image["class_name"], image["folder"]) for image in images if image["folder"] in self.per_class)
        names, classes = sorted({name for name, _ in found}), self.counts.get("classes") or 0
        if not names:
            return [f"all {classes} classes are missing"]
        lines = [f"{classes - len(names)} of {classes} classes are missing altogether"] if len(names) < classes else []
        incomplete = []
        for name in names:
            gaps = [
                f"no images in {folder}" if count is None else f"{found[name, folder]} of {count} images in {folder}"
                for folder, count in self.per_class.items()
                if found[name, folder] < (count or 1)
            ]
            if gaps:
                incomplete.append(f"class {name}: {', '.join(gaps)}")
        more = [f"{len(incomplete) - _LISTED_CLASSES} more classes are incomplete"]
        return lines + incomplete[:_LISTED_CLASSES] + more * (len(incomplete) > _LISTED_CLASSES)


def _seen(path: str) -> bool:
    return all(map(is_visible, path.split("/")))


def single_image(image: re.Match[str], class_name: str | None = None) -> Frame:
    """The row of an image that is a clip of its own; its class is the folder's unless given.

    Object is the file name without extension, session "0" for training and "1" for testing, frame 0. `image` is a match
    with the groups "folder" (a key of `SPLIT_OF_FOLDER`), "class_name" and "name".
    """
    session, split = SPLIT_OF_FOLDER[image["folder"]]
    return Frame(image[0], class_name or image["class_name"], image["name"], session, 0, split)


def paper_order(classes: Sequence[str]) -> Callable[..., list[list[str]] | None]:
    """Make `class_groups(table, reference)`: by reference one group in this order, else None, which sorts by name."""

    def class_groups(table: FrameTable, reference: bool = False) -> list[list[str]] | None:
        return [[name for name in classes if name in table.classes]] if reference else None

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
        folder, ending: The files are `train_batch_00` and so on, and `test`, with this ending.
        batches: Number of training lists.
        pattern, example: Of the path of an image, and of a line, for messages.
        names: Class, object and frame of an image, from the match of its path, its label and the number of its line.
        labelled: Whether each class has a label of its own, from 0.

    Returns:
        The frames, and the classes in the order of their labels; none if these are not their own.

    Raises:
        FrameTableError: If a list is missing, or a line or the labels are not as they should be.
    """
    frames, label_of = [], {}
    for batch in range(batches + 1):
        session, split, name = f"batch{batch}", "train", f"train_batch_{batch:02d}"
        if batch == batches:
            session = split = name = "test"
        file = folder / f"{name}{ending}"
        if not file.is_file():
            raise FrameTableError(f"there is no {file}, one of the official lists; unpack them again.")
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            path, _, label = line.strip().rpartition(" ")
            image = pattern.fullmatch(path)
            if not image or not (label.isascii() and label.isdigit()):
                raise FrameTableError(
                    f"line {number} of {file} is {line[:80]!r}, but must be the path of an image and a label, e.g. "
                    f"{example}. Unpack the lists again."
                )
            class_name, thing, frame = names(image, int(label), number)
            if labelled and label_of.setdefault(class_name, int(label)) != int(label):
                raise FrameTableError(f"line {number} of {file} gives {class_name} a second label; unpack it again.")
            frames.append(Frame(path, class_name, thing, session, frame, split))
    classes = sorted(label_of, key=label_of.__getitem__)
    if [label_of[name] for name in classes] != [*range(len(classes))]:
        raise FrameTableError(f"the labels in {folder} are not 0 to {len(classes) - 1}; unpack it again.")
    return frames, classes
