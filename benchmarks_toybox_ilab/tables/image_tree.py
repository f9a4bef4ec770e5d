"""Data sets of single images in `<split>/<class>/<image>` folders, such as CIFAR-100 and ImageNet."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks_toybox_ilab.tables.folders import dataset_folder, files_below
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg"})


def image_tree_table(
    root: str | Path,
    folders: tuple[str, str],
    name: str,
    layout: str,
    paths: Iterable[str] | None = None,
    parts_of: Callable[[str], Sequence[str]] = lambda path: path.split("/"),
) -> FrameTable:
    """Make a table of two image folders: the first is the training split, the second the test split.

    Every image is a clip of its own: object is the file name without extension, session is "0" for training and "1" for
    testing, frame is 0. Rows are sorted by split, class and file name. Hidden files and other files are ignored.

    Args:
        root: The folder of the two folders, or the folder that holds it under `name`.
        folders: Names of the training and the test folder.
        name: Name of the data set.
        layout: Layout of the tree, for messages.
        paths: Files below root if they are known; None lists the two folders.
        parts_of: Returns folder, class and file name of a path, for trees in which the path itself does not.

    Raises:
        FrameTableError: If a folder is missing, an image lies at another depth, or the splits differ in their classes.
    """
    root = Path(root)
    if paths is None:
        root = dataset_folder(root, folders, name, layout)
        paths = (path for folder in folders for path in files_below(root, folder))
    return FrameTable(_frames(paths, folders, layout, parts_of), root, name=name)


def _frames(
    paths: Iterable[str], folders: tuple[str, str], layout: str, parts_of: Callable[[str], Sequence[str]]
) -> Iterator[Frame]:
    splits = dict(zip(folders, ("train", "test"), strict=True))
    sessions = dict(zip(folders, "01", strict=True))
    for path in paths:
        parts = parts_of(path)
        stem, _, extension = parts[-1].rpartition(".")
        if parts[-1][:1] in (".", "") or f".{extension.lower()}" not in EXTENSIONS:
            continue
        if len(parts) != 3 or parts[0] not in splits:
            raise FrameTableError(f"image {path} lies at the wrong depth; the layout is {layout}. Move it away.")
        folder, class_name, _ = parts
        yield Frame(path, class_name, stem, sessions[folder], 0, splits[folder])
