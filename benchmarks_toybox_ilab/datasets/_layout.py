"""What a data set declares of its files, and the one reader of such declarations."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.tables.folders import IMAGE_EXTENSIONS, files_below, listed_entries
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

SPLIT_OF_FOLDER = {"train": ("0", "train"), "val": ("1", "test"), "test": ("1", "test")}  # session and split
_LISTED = 8  # objects of a class that are reported one by one
_LISTED_CLASSES = 20

Clips = dict[str, dict[Any, dict[Any, dict[Any, str]]]]  # path by class, object, session and frame


@dataclass(frozen=True)
class Layout:
    """The files of a data set.

    Attributes:
        name: Short name, as on the command line; also of a folder that may contain the data set.
        title: Name in messages.
        tree: The layout in words, for messages.
        source: Where to get the data.
        counts: Numbers of "classes", "train" and "test" images of the whole data set, or None where they vary;
            "train_clips" and "test_clips" if those are fixed.
        pattern: Matches the paths of its images, relative to its folder.
        folders: Folders directly in that of the data set.
        key: `key(match)` returns class, object, session and frame of an image, or None if it is not used.
        places: Folders below a root that may be that of the data set, besides the root itself.
        whole: Whether all of `folders` are needed, and other folders are ignored; otherwise any of them is enough.
        inside: Whether the root may be the only one of `folders` itself.
        rule: What else holds for the path of an image, for messages.
        owner: Whose numbers `counts` are.
    """

    name: str
    title: str
    tree: str
    source: str
    counts: Mapping[str, int | None]
    pattern: re.Pattern[str]
    folders: tuple[str, ...]
    key: Callable[[re.Match[str]], tuple | None] = lambda match: None
    places: tuple[str, ...] = ()
    whole: bool = True
    inside: bool = False
    rule: str = "other images lie elsewhere"
    owner: str = "the paper"

    def find(self, root: Path, every: bool = False) -> Path | None:
        """The folder of the data set: root or a folder below it that holds any (or every one) of `folders`, or None."""
        enough = all if every else any
        places = [root / place for place in ("", *self.places)]
        found = next((place for place in places if enough((place / top).is_dir() for top in self.folders)), None)
        return root if found is None and self.inside and root.absolute().name in self.folders else found

    def folder(self, root: Path) -> Path:
        """The folder of the data set, which has all that a table needs.

        Raises:
            FrameTableError: If it is not there; says what is expected and what was found.
        """
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
        """Yield a match of `pattern` for each image; hidden files and others than images are ignored.

        Raises:
            FrameTableError: At an image that does not fit.
        """
        for path in paths:
            if match := self.pattern.fullmatch(path):
                yield match
            elif path.lower().endswith(IMAGE_EXTENSIONS) and not re.search(r"(?:^|/)(?:\.|__MACOSX/)", path):
                raise FrameTableError(
                    f"image {path} does not fit the layout of {self.title}: {self.tree}; {self.rule}. Rename it or "
                    "move it away."
                )

    def read(self, root: str | Path, paths: Iterable[str] | None = None) -> tuple[Path, Iterator[re.Match[str]]]:
        """The folder of the data set and a match of each image: of the files below root, or of `paths` if given."""
        root = Path(root)
        if paths is None:
            root = self.folder(root)
            paths = self.files(root)
        return root, self.images(paths)

    def clips(self, images: Iterable[re.Match[str]]) -> Clips:
        """Group images by what `key` returns; classes are in the order of their names.

        Raises:
            FrameTableError: If two images are the same frame.
        """
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
        """The table of these frames.

        Raises:
            FrameTableError: If there are none, or they break a rule of `FrameTable`.
        """
        if not frames:
            raise FrameTableError(
                f"{root} holds no images of {self.title} that are used. The layout is {self.tree}; `crumb prepare "
                f"{self.name} --dataset-root {root}` makes it of a download."
            )
        return FrameTable(frames, root, name=self.name, padded=padded)


def paper_order(classes: Sequence[str]) -> Callable[..., list[list[str]] | None]:
    """Make `class_groups(table, reference)`: by reference one group in this order, else None, which sorts by name."""

    def class_groups(table: FrameTable, reference: bool = False) -> list[list[str]] | None:
        return [[name for name in classes if name in table.classes]] if reference else None

    return class_groups


def clip_gaps(sessions: Sequence, frames: int, label: Callable = str) -> Callable[[dict], str]:
    """Make a function that says which of the sessions an object lacks, and which have too few frames."""

    def gaps(clips: dict) -> str:
        absent = [label(session) for session in sessions if session not in clips]
        short = [
            f"clip {label(session)} has {len(clips[session])} of {frames} frames"
            for session in sessions
            if session in clips and len(clips[session]) < frames
        ]
        return "; ".join(([f"no clip {', '.join(absent)}"] if absent else []) + short)

    return gaps


def missing_objects(
    found: Clips,
    known: Mapping[str, Sequence],
    needed: int,
    sessions: Sequence,
    gaps: Callable[[Sequence], Callable[[dict], str]],
    label: Callable[[str, Any], str],
) -> list[str]:
    """List what is missing from a data set of clips of objects, one line per session, object or class.

    Args:
        found: What there is.
        known: The objects of each class, as far as their names are known.
        needed: Number of complete objects that a class needs.
        sessions: The sessions of an object, as far as their names are known.
        gaps: `gaps(sessions)` returns a function that says what is missing from an object, "" if nothing is.
        label: Returns the name of a class's object.
    """
    if not found:
        return [f"all {len(known)} classes are missing"]
    present = {session for objects in found.values() for clips in objects.values() for session in clips}
    lines = [f"clip {one}: all {needed * len(known)} are missing" for one in sessions if one not in present]
    gap_of = gaps([session for session in sessions if session in present])
    for class_name, things in known.items():
        objects = found.get(class_name, {})
        incomplete = {thing: gap for thing in sorted(objects) if (gap := gap_of(objects[thing]))}
        if not objects:
            lines.append(f"class {class_name}: all {needed} objects are missing")
        elif len(objects) - len(incomplete) < needed:
            lines += [f"{label(class_name, thing)}: {gap}" for thing, gap in list(incomplete.items())[:_LISTED]]
            if len(incomplete) > _LISTED:
                lines.append(f"class {class_name}: {len(incomplete) - _LISTED} more objects are incomplete")
            if len(objects) < needed:
                absent = ", ".join(label(class_name, thing) for thing in things if thing not in objects)
                line = f"class {class_name}: {needed - len(objects)} of {needed} objects are missing"
                lines.append(f"{line}; there is no {absent}" if absent else line)
    return lines


def image_tree(layout: Layout, root: str | Path, paths: Iterable[str] | None = None) -> FrameTable:
    """The table of single images in `<split>/<class>/<image>`, in the order of the files.

    Every image is a clip of its own: object is the file name without extension, session is "0" for training and "1" for
    testing, frame is 0.

    Args:
        layout: Its pattern has groups "folder", "class_name" and "name".
        root: Root of the data set.
        paths: Files below root if they are known; None lists the folder.
    """
    root, images = layout.read(root, paths)
    return FrameTable(map(tree_frame, images), root, name=layout.name)


def tree_frame(image: re.Match[str], class_name: str | None = None) -> Frame:
    """The row of an image of `image_tree`; its class is the folder's unless given."""
    session, split = SPLIT_OF_FOLDER[image["folder"]]
    return Frame(image[0], class_name or image["class_name"], image["name"], session, 0, split)


def missing_images(layout: Layout, paths: Iterable[str], expected: Mapping[str, int | None]) -> list[str]:
    """List what is missing from a tree of single images, one line per class; files that do not fit are ignored.

    Args:
        layout: As for `image_tree`.
        paths: Files below root.
        expected: Number of images in each class, by folder; None accepts any number but 0.
    """
    images = filter(None, map(layout.pattern.fullmatch, paths))
    found = Counter((image["class_name"], image["folder"]) for image in images if image["folder"] in expected)
    names, classes = sorted({name for name, _ in found}), layout.counts["classes"]
    if not names:
        return [f"all {classes} classes are missing"]
    lines = [f"{classes - len(names)} of {classes} classes are missing altogether"] if len(names) < classes else []
    incomplete = []
    for name in names:
        gaps = [
            f"no images in {folder}" if count is None else f"{found[name, folder]} of {count} images in {folder}"
            for folder, count in expected.items()
            if found[name, folder] < (count or 1)
        ]
        if gaps:
            incomplete.append(f"class {name}: {', '.join(gaps)}")
    lines += incomplete[:_LISTED_CLASSES]
    if len(incomplete) > _LISTED_CLASSES:
        lines.append(f"{len(incomplete) - _LISTED_CLASSES} more classes are incomplete")
    return lines
