"""ETH-80: 8 classes x 10 objects x 41 views on a grid around the object; a small set of real images.

Leibe and Schiele, "Analyzing Appearance and Contour Based Methods for Object Categorization", CVPR 2003.
"""

import re
from pathlib import Path

from benchmarks_toybox_ilab.datasets._generator import generator
from benchmarks_toybox_ilab.datasets._layout import Layout
from benchmarks_toybox_ilab.tables.folders import files_below, visible_entries
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError, natural_key, whole_number
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

TEST_OBJECTS = 2  # per class and run


def _key(image: re.Match[str]) -> tuple | None:
    class_name, thing, ring, azimuth = image.group("class_name", "object", "ring", "azimuth")
    return (class_name, thing, ring, int(azimuth)) if class_name else None


LAYOUT = Layout(
    name="eth80",
    title="ETH-80",
    tree="<root>/<object>/<object>-EEE-AAA.jpg, e.g. apple1/apple1-090-022.jpg",
    source="Leibe & Schiele, CVPR 2003; 256 px copy at https://github.com/Kai-Xuan/ETH-80",
    counts={"classes": 8},
    pattern=re.compile(
        r"(?P<object>(?P<class_name>[^/]*[^\d/])\d+)/(?P=object)-(?P<ring>\d{3})-(?P<azimuth>\d{3})\.(?i:jpe?g|png)"
        r"|[^/]+/maps/.*",  # the masks of the original distribution
        re.ASCII,
    ),
    folders=("eth80",),
    key=_key,
    rule="an object is a class and a number, EEE its polar angle and AAA the azimuth in three digits each",
)


def ETH80Frames(root: str | Path, run: int = 0) -> FrameTable:
    """The table of ETH-80: 3,280 frames; two objects of each class are held out.

    A clip is one ring of views (one polar angle) around one object, sorted by azimuth: 1 to 16 turntable images, not
    video. All views are used. In run r the test objects of a class are those at positions 2r and 2r + 1 of its
    objects in natural order, in runs 5 to 9 those at positions r - 5 and r; run 10 repeats run 0. So ten runs have
    ten different test splits, and every object is held out once in runs 0 to 4 and once in runs 5 to 9. The cars are
    numbered 1, 2, 3, 5, 6, 7, 9, 11, 12, 14. In a class of n other than ten objects, positions are modulo n, and runs 5
    to 9 use r - 5 and r - 5 + n // 2.

    Args:
        root: The folder that contains the 80 object folders, or the one that contains it as `eth80`.
        run: Chooses the test objects.

    Raises:
        FrameTableError: If the folder is missing, empty or has another layout, or a class has fewer than 3 objects.
        ValueError: If run is not a whole number of at least 0.
    """
    run = whole_number("run", run, 0)
    root = _data_folder(Path(root))
    found = LAYOUT.clips(LAYOUT.images(files_below(root)))
    views = {thing: rings for objects in found.values() for thing, rings in objects.items()}
    for folder in filter(Path.is_dir, visible_entries(root)):
        if folder.name not in views:
            raise FrameTableError(
                f"{folder} holds no views; fill it or move it away. ETH-80 is laid out as {LAYOUT.tree}"
            )
    frames = []
    for class_name in sorted(found, key=natural_key):
        objects = sorted(found[class_name], key=natural_key)
        if len(objects) <= TEST_OBJECTS:
            raise FrameTableError(
                f"class {class_name!r} in {root} has only {len(objects)} objects ({', '.join(objects)}), but "
                f"{TEST_OBJECTS} are held out and at least one must remain for training; complete the data."
            )
        # Two neighbours in runs 0 to 4, two positions half the number apart in runs 5 to 9.
        first, apart = (2 * (run % 10), 1) if run % 10 < 5 else (run % 10 - 5, len(objects) // 2)
        held_out = {objects[position % len(objects)] for position in (first, first + apart)}
        for name in objects:
            split = "test" if name in held_out else "train"
            for ring, files in sorted(views[name].items()):
                frames += [
                    Frame(path, class_name, name, ring, azimuth, split) for azimuth, path in sorted(files.items())
                ]
    return FrameTable(frames, root, name="eth80")


def _data_folder(root: Path) -> Path:
    """The folder of the object folders: root, or `eth80` in a root without objects."""
    advice = f"ETH-80 is laid out as {LAYOUT.tree}; give that folder as root."
    if not root.is_dir():
        raise FrameTableError(f"there is no folder {root}. {advice}")
    folders = list(filter(Path.is_dir, visible_entries(root)))
    views = (f"{folder.name}/{file.name}" for folder in folders for file in visible_entries(folder))
    if (root / "eth80").is_dir() and not any(map(LAYOUT.pattern.fullmatch, views)):
        return _data_folder(root / "eth80")
    if not folders:
        raise FrameTableError(f"{root} holds no object folders. {advice}")
    return root


@generator()
def ETH80(dataset_root: str | Path, run: int = 0) -> FrameTable:
    """ETH-80 as an Avalanche benchmark of 4 experiences of 2 classes.

    Args:
        dataset_root: As `root` of `ETH80Frames`.
        run: Chooses the test objects; also the seed of the order of classes, clips and frames.
    """
    return ETH80Frames(dataset_root, run)
