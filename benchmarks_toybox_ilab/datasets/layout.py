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

# Session and split of the images in a folder.
SPLIT_OF_FOLDER = {
    "train": ("0", "train"),
    "val": ("1", "test"),
    "test": ("1", "test"),
}
_MOST_LISTED = 20  # incomplete classes that are reported one by one
_COUNTED_IN_WORDS = {
    "classes": "classes",
    "train": "training images",
    "test": "test images",
    "train_clips": "training clips",
    "test_clips": "test clips",
    "train_sessions": "training sessions of a class",
    "test_sessions": "test sessions of a class",
}

# Path of an image by class, object, session and frame.
Clips = dict[str, dict[Any, dict[Any, dict[Any, str]]]]


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
        needs_all_folders: Whether all of `folders` are needed, and other folders are
            ignored; otherwise any of them is enough.
        inside: Whether the root may be the only one of `folders` itself.
        inner_folders: Folders below a root that may be that of the data set, besides
            the root itself and the folder `name`.
        counts: Numbers of the whole data set that do not vary: of "classes", of "train"
            and "test" images, of clips ("train_clips", "test_clips"), and of sessions
            of each class ("train_sessions", "test_sessions").
        owner: Whose numbers `counts` are.
        classes: The classes, if the names are known.
        lacks: `lacks(table)` lists what else a table lacks of the whole data set.
        compared_by_lacks: What `lacks` compares, in words.
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
    needs_all_folders: bool = True
    inside: bool = False
    inner_folders: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    owner: str = "the paper"
    classes: Sequence[str] = ()
    lacks: Callable[[FrameTable], list[str]] = lambda table: []
    compared_by_lacks: str = ""
    archived: Callable[[str], str | None] | None = None
    url: str = ""
    md5: str = ""

    def find(self, root: Path, every: bool = False) -> Path | None:
        """Return the folder of the data set, or None if it is not there.

        It is the root or a folder below it that has any of `self.folders`, such as
        `train` and `test`. With `self.inside` it may also be the root that is itself
        one of these folders, whether or not every one is asked for.

        Args:
            root: The folder that a user gave.
            every: Whether it must have every one of them.
        """
        for inner_folder in ("", *self.inner_folders, self.name):
            folder = root / inner_folder
            present = self._folders_in(folder)
            if every and len(present) == len(self.folders):
                return folder
            if present and not every:
                return folder
        if self.inside and root.absolute().name in self.folders:
            return root
        return None

    def _folders_in(self, root: Path) -> list[str]:
        """Return the names of those folders of the data set that a root has."""
        return [name for name in self.folders if (root / name).is_dir()]

    def folder(self, root: Path) -> Path:
        """Return the folder of the data set: the root that a user gave, or one below.

        Raises:
            FrameTableError: If it is not there, or lacks one of `self.folders` where
                the data set needs them all.
        """
        folder = self.find(root, self.needs_all_folders)
        if folder is not None and folder.is_dir():
            return folder
        maker = self.source
        # `crumb prepare` lays out the files of a data set by their pattern.
        if self.pattern is not None:
            maker = f"`crumb prepare {self.name}`"
        advice = (
            f"{self.name} is laid out as {self.tree}; give that folder as root, or "
            f"make it with {maker}."
        )
        if not root.is_dir():
            raise FrameTableError(f"there is no folder {root}. {advice}")
        incomplete = self.find(root) or root
        present = self._folders_in(incomplete)
        missing = [name for name in self.folders if name not in present]
        if not self.needs_all_folders:
            missing = missing[:1]  # as an example: any of them is enough
        raise FrameTableError(
            f"{incomplete} has no folder {' and no folder '.join(missing)}, but holds "
            f"{listed_entries(incomplete)}. {advice}"
        )

    def images(self, paths: Iterable[str]) -> Iterator[re.Match[str]]:
        """Yield a match of `pattern` for each image of the data set.

        Its groups say what the image shows. Files that are no images are left out.

        Args:
            paths: Files below the folder of the data set, relative to it.

        Raises:
            FrameTableError: At an image whose path does not fit the layout.
        """
        if self.pattern is None:  # only a generator knows the files
            return
        for path in paths:
            match = self.pattern.fullmatch(path)
            if match:
                yield match
            elif self._is_misplaced_image(path):
                raise FrameTableError(
                    f"image {path} does not fit the layout of {self.title}: "
                    f"{self.tree}; {self.rule}. Rename it or move it away."
                )

    def _is_misplaced_image(self, path: str) -> bool:
        """Whether a path that does not fit the layout is an error: that of an image."""
        if not path.lower().endswith(IMAGE_EXTENSIONS) or not _is_visible_path(path):
            return False
        return not self.ignored.fullmatch(path)

    def find_images(
        self, root: str | Path, paths: Iterable[str] | None = None
    ) -> tuple[Path, Iterator[re.Match[str]]]:
        """List the images of a copy of the data set; no image is opened.

        Functions that make tables begin with it and take these arguments.

        Args:
            root: The folder that `tree` describes, or one that contains it as one of
                `inner_folders`.
            paths: Files below root, if they are known; None lists the folder.

        Returns:
            The folder that the paths are relative to, and a match of `pattern` for each
            image.

        Raises:
            FrameTableError: If the folder is missing, or the files do not fit the
                layout; from a function that makes a table also if a class has no
                training frames.
        """
        root = Path(root)
        if paths is None:
            root = self.folder(root)
            paths = self._paths_in_folder(root)
        return root, self.images(paths)

    def _paths_in_folder(self, folder: Path) -> list[str]:
        """List the files of the data set below its folder, relative to it.

        Where it needs all of `self.folders`, other folders are not listed.
        """
        names = [""]  # the folder itself
        if self.needs_all_folders:
            names = self._folders_in(folder) or names
        paths: list[str] = []
        for name in names:
            paths += files_below(folder, name)
        return paths

    def clips(self, images: Iterable[re.Match[str]]) -> Clips:
        """Group the images of the data set by class, object and session.

        Args:
            images: Matches of `pattern`, as `images` yields them.

        Returns:
            Path of each image that is used by class, object, session and frame, which
            are what `key` returns. Classes are sorted by name.

        Raises:
            FrameTableError: If two images are the same frame.
        """
        clips: Clips = {}
        for image in images:
            path = image[0]
            key = self.key(image)
            if key is None:
                continue
            class_name, object_name, session, frame = key
            objects = clips.setdefault(class_name, {})
            sessions = objects.setdefault(object_name, {})
            path_of_frame = sessions.setdefault(session, {})
            if frame in path_of_frame:
                raise FrameTableError(
                    f"{path} and {path_of_frame[frame]} are the same frame; keep one "
                    "file per frame."
                )
            path_of_frame[frame] = path
        return dict(sorted(clips.items()))

    def table(
        self, frames: Sequence[Frame], root: Path, padded: bool = False
    ) -> FrameTable:
        """Make the frame table of a copy of the data set.

        Args:
            frames: The rows.
            root: Folder that their paths are relative to.
            padded: Whether a path may be repeated in its clip as another frame.

        Raises:
            FrameTableError: If there are no frames; says how the data set is laid out.
        """
        if not frames:
            raise FrameTableError(
                f"{root} holds no images of {self.title} that are used. The layout is "
                f"{self.tree}; `crumb prepare {self.name} --dataset-root {root}` makes "
                "it of a download."
            )
        return FrameTable(frames, root, name=self.name, padded=padded)

    def image_table(
        self,
        root: str | Path,
        paths: Iterable[str] | None = None,
        reference: bool = False,
    ) -> FrameTable:
        """Make the table of a data set of single images in `<split>/<class>/<image>`.

        `train` is the training split in every run. Every image is a clip of its own,
        see `single_image`; rows have the order of the files. Classes may be missing.
        `reference` has no effect; see `find_images` for the others.
        """
        root, images = self.find_images(root, paths)
        return self.table(list(map(single_image, images)), root)

    def unpacked_path(self, name: str) -> str | None:
        """Return where a file of an archive of the data set goes, below the root.

        The archive may have outer folders, which are left out.

        Args:
            name: Path of the file in the archive.

        Returns:
            The path, or None if the file is not needed.
        """
        if not _is_visible_path(name):
            return None
        if self.archived is not None:
            return self.archived(name)
        if self.pattern is None:
            return None
        # The path, the path without its first folder, without its first two ...
        candidates = without_outer_folders(name)
        if any(map(self.ignored.fullmatch, candidates)):
            return None
        return next(filter(self.pattern.fullmatch, candidates), None)

    def unfinished_mark(self, root: Path) -> Path:
        """Return the hidden file that a preparation has in a root until it is done."""
        return root / f".{self.name}.unfinished"

    def is_unfinished(self, root: Path) -> bool:
        """Whether a preparation or a download of the data set was interrupted."""
        if self.unfinished_mark(root).exists():
            return True
        return bool(self.url) and unfinished_download(self.url, root).exists()

    def missing(self, table: FrameTable) -> list[str]:
        """List what a table lacks of the whole data set, for who prepares a copy.

        A line for each total that differs, and for each class with less than its share.
        """
        # Of images, clips and sessions, by class and what is counted.
        counts = _count_by_class(table)
        lines = self._wrong_totals(counts)
        incomplete_classes = []
        for name in self.classes or table.classes:
            gaps = self._gaps_of_class(name, counts)
            if gaps:
                incomplete_classes.append(f"class {name}: {', '.join(gaps)}")
        lines += incomplete_classes[:_MOST_LISTED]
        n_unlisted = len(incomplete_classes) - _MOST_LISTED
        if n_unlisted > 0:
            lines.append(f"{n_unlisted} more classes are incomplete")
        return [*lines, *self.lacks(table)]

    @property
    def counts_images(self) -> bool:
        """Whether the numbers of images of the whole data set are known."""
        return {"train", "test"} <= self.counts.keys()

    def counted_in_words(self) -> str:
        """Name what `missing` compares: "20 classes, 800 training clips"."""
        counted = []
        for name, number in self.counts.items():
            counted.append(f"{number} {_COUNTED_IN_WORDS[name]}")
        if self.compared_by_lacks:
            counted.append(self.compared_by_lacks)
        return ", ".join(counted)

    def _wrong_totals(self, counts: Mapping[tuple[str, str], int]) -> list[str]:
        """Describe the totals of a table that are not those of the whole data set.

        Args:
            counts: By class and by what is counted, such as "train", "test_clips"; as
                `_count_by_class` returns them.
        """
        totals: Counter[str] = Counter()
        for (_, counted), count in counts.items():
            totals[counted] += count
        lines = []
        for counted, expected in self.counts.items():
            if totals[counted] != expected:
                lines.append(
                    f"{totals[counted]} {_COUNTED_IN_WORDS[counted]}; {self.owner} has "
                    f"{expected}"
                )
        return lines

    def _gaps_of_class(
        self, name: str, counts: Mapping[tuple[str, str], int]
    ) -> list[str]:
        """Describe what a class of a table has less of than its share.

        The share is known where the total of the data set divides evenly by its
        classes.

        Args:
            name: The class.
            counts: By class and by what is counted, such as "train", "test_clips"; as
                `_count_by_class` returns them.
        """
        n_classes = self.counts.get("classes", 0)
        gaps = []
        for counted, total in self.counts.items():
            if counted == "classes" or total % n_classes:
                continue
            share = total // n_classes
            count = counts[name, counted]
            if count < share:
                gaps.append(f"{count} of {share} {_COUNTED_IN_WORDS[counted]}")
        return gaps


def unfinished_download(url: str, root: Path) -> Path:
    """Return the hidden folder that a download has in a root until it is done."""
    return root / f".{url.rpartition('/')[2]}.unpacked"


def without_outer_folders(path: str) -> list[str]:
    """Return the path of a data set's file without 0, 1, 2 ... of its outer folders."""
    names = path.split("/")
    return ["/".join(names[start:]) for start in range(len(names))]


def _count_by_class(table: FrameTable) -> Counter[tuple[str, str]]:
    """Count images, clips and sessions of a table by class and split.

    Returns:
        Numbers by class and what is counted: "train" (images), "train_clips",
        "train_sessions", the same of "test", and 1 for "classes".
    """
    counts = Counter((name, "classes") for name in table.classes)
    counts.update(zip(table.class_name, table.split))  # each row is an image
    clips = set(zip(table.class_name, table.split, table.session, table.object_name))
    for name, split, _, _ in clips:
        counts[name, f"{split}_clips"] += 1
    sessions = set(zip(table.class_name, table.split, table.session))
    for name, split, _ in sessions:
        counts[name, f"{split}_sessions"] += 1
    return counts


def _is_visible_path(path: str) -> bool:
    """Whether neither a file of a data set nor one of its folders is hidden."""
    return all(map(is_visible, path.split("/")))


def single_image(image: re.Match[str], class_name: str | None = None) -> Frame:
    """Return the row of an image of a data set that is a clip of its own.

    Object is the file name without extension, session "0" for training and "1" for
    testing, frame 0.

    Args:
        image: A match with the groups "folder" (a key of `SPLIT_OF_FOLDER`),
            "class_name" and "name".
        class_name: The class; None is that of the match.
    """
    session, split = SPLIT_OF_FOLDER[image["folder"]]
    return Frame(
        path=image[0],
        class_name=class_name or image["class_name"],
        object_name=image["name"],
        session=session,
        frame=0,
        split=split,
    )


def paper_order(classes: Sequence[str]) -> Callable[..., list[list[str]] | None]:
    """Make the function that returns the groups of classes in the paper's order.

    Args:
        classes: Names of all classes in this order.

    Returns:
        `class_groups(table, reference)`, which returns one group, the classes of the
        table in this order, with `reference`; and None, which sorts by name, without.
    """

    def class_groups(
        table: FrameTable, reference: bool = False
    ) -> list[list[str]] | None:
        if not reference:
            return None
        return [[name for name in classes if name in table.classes]]

    return class_groups


@dataclass(frozen=True)
class Listed:
    """What an official list of a data set says of an image."""

    class_name: str
    object_name: str
    frame: int


@dataclass(frozen=True)
class Lists:
    """The contents of official lists.

    Attributes:
        frames: The rows.
        classes: The classes in the order of their labels; empty if these are not their
            own.
    """

    frames: list[Frame]
    classes: list[str]


def read_lists(
    folder: Path,
    ending: str,
    n_batches: int,
    pattern: re.Pattern[str],
    example: str,
    describe_image: Callable[[re.Match[str], int, int], Listed],
    has_label_per_class: bool = True,
) -> Lists:
    """Read the text lists of images and labels that authors publish with a data set.

    Each list is a session: "batch0", "batch1", ... and "test".

    Args:
        folder, ending: The files are `train_batch_00` and so on, and `test`, with this
            ending.
        n_batches: Number of training lists.
        pattern: Regular expression of the path of an image.
        example: A line, for messages.
        describe_image: Called with the match of an image's path, its label and the
            number of its line; returns class, object and frame of the image.
        has_label_per_class: Whether the lists give each class a label of its own, from
            0, which is checked. Otherwise their labels are of something else, and the
            classes are not in the result.

    Raises:
        FrameTableError: If a list is missing or empty, or a line or the labels are not
            as they should be.
    """
    frames = []
    label_of: dict[str, int] = {}
    for batch in range(n_batches + 1):
        file = folder / f"train_batch_{batch:02d}{ending}"
        session = f"batch{batch}"
        split = "train"
        if batch == n_batches:  # after those of training
            file = folder / f"test{ending}"
            session = "test"
            split = "test"
        if not file.is_file() or not file.stat().st_size:
            raise FrameTableError(
                f"{file}, one of the official lists, is missing or empty; unpack them "
                "again."
            )
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            path, _, label = line.strip().rpartition(" ")  # the last word is the label
            image = pattern.fullmatch(path)
            if not image or not (label.isascii() and label.isdigit()):
                raise FrameTableError(
                    f"line {number} of {file} is {line[:80]!r}, but must be the path "
                    f"of an image and a label, e.g. {example}. Unpack the lists again."
                )
            listed = describe_image(image, int(label), number)
            class_name = listed.class_name
            if has_label_per_class:
                first_label = label_of.setdefault(class_name, int(label))
                if first_label != int(label):
                    raise FrameTableError(
                        f"line {number} of {file} gives {class_name} a second label; "
                        "unpack it again."
                    )
            frames.append(
                Frame(
                    path=path,
                    class_name=class_name,
                    object_name=listed.object_name,
                    session=session,
                    frame=listed.frame,
                    split=split,
                )
            )
    # Names of the classes in the order of their labels, which have to be 0, 1, 2 ...
    classes = sorted(label_of, key=label_of.__getitem__)
    if [label_of[name] for name in classes] != list(range(len(classes))):
        raise FrameTableError(
            f"the labels in {folder} are not 0 to {len(classes) - 1}; unpack it again."
        )
    return Lists(frames=frames, classes=classes)
