"""Stream-51: animals and vehicles in videos, and images of classes never taught.

51 classes, cut to the object. 150,736 training frames, 2,550 test images (50 of each
class), and 2,550 images of other classes to tell as novel, in 51 experiences of one
class.

Layout, lists and cut are those of `StreamDataset.py` and `orderings/` in
https://github.com/tyler-hayes/Stream-51.

Roady, Hayes, Vaidya and Kanan, "Stream-51: Streaming Classification and Novelty
Detection from Videos", CVPR Workshops 2020.
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
)
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.image import read_image

NOVEL = 51  # the number of all classes that are not taught
RATIO = 1.1  # of the side of the cut to that of the box around the object
LISTS = {"train": "Stream-51_meta_train.json", "test": "Stream-51_meta_test.json"}
ENTRIES = {
    "train": "[class, clip, video, frame, size, box, path]",
    "test": "[class, size, box, path]",
}
_PIXELS = r"[^/.][^/]*\.(?i:jpe?g)"  # the name of an image

LAYOUT = Layout(
    name="stream51",
    title="Stream-51",
    tree="<root>/train/<class>/<image>.jpg and <root>/test/<image>.jpg with "
    f"{LISTS['train']} and {LISTS['test']}",
    source="http://klab.cis.rit.edu/files/Stream-51.zip",
    pattern=re.compile(
        rf"(?P<folder>train)/(?P<class_name>[^/]+)/{_PIXELS}|test/{_PIXELS}|"
        rf"{'|'.join(map(re.escape, LISTS.values()))}"
    ),
    folders=("train", "test"),
    places=("Stream-51",),
    counts={"classes": 51, "train": 150_736, "test": 2_550},
    owner="the data set",
    url="http://klab.cis.rit.edu/files/Stream-51.zip",
    md5="5f34d542b71af7e5ecb2226d1bc7297c",
)


@dataclass(frozen=True)
class Cuts:
    """Read images below a root, cut to their objects.

    Attributes:
        root: The folder.
        boxes: Right, left, bottom and top of the box around the object in pixels, by
            path.
    """

    root: Path
    boxes: dict[str, list[float]] = field(repr=False)

    def __call__(self, path: str) -> Image.Image:
        """Read the image at a path relative to the root.

        It is cut to its box, `RATIO` times as large, as far as the image goes.
        """
        image = read_image(self.root / path)
        right, left, bottom, top = self.boxes[path]
        left, right = _widened(left, right, image.width)
        top, bottom = _widened(top, bottom, image.height)
        return image.crop((left, top, right, bottom))


def _widened(low: float, high: float, most: int) -> tuple[int, int]:
    """Return a side of a box `RATIO` times as long, from 0 to `most` at the most."""
    half = (high - low) * RATIO / 2
    centre = int(low + (high - low) / 2)
    return max(int(centre - half), 0), min(int(centre + half), most)


def Stream51Frames(root: str | Path) -> FrameTable:
    """Make the table of Stream-51 by the two official lists.

    It is the same in every run, and has no novel images. Labels are the official
    numbers of the classes, and a class is named after its training folder ("3-bear" is
    "bear"). An object is a source clip and a session a video of it. A test image is a
    clip of its own. Images are cut to 1.1 times the box around the object. See
    `Layout.read` for root and errors; a list that is damaged is one, too.
    """
    return _table(root, novel=False)


def Stream51Novel(root: str | Path) -> FrameTable:
    """Make a table of the 2,550 test images of classes that are never taught.

    They are one class, "novel". It is for scoring novelty, not for training, though its
    rows are marked "train", which every table needs. See `Layout.read` for root and
    errors.
    """
    return _table(root, novel=True)


def class_order(seed: int) -> list[int]:
    """Return the labels in the official order of a seed, for `fixed_class_order`.

    The published runs have the seeds 10, 20 and 30.
    """
    order = list(range(LAYOUT.counts["classes"]))
    random.Random(seed).shuffle(order)
    return order


@dataclass(frozen=True)
class _Entry:
    """An entry of an official list.

    Attributes:
        number: Official number of the class.
        path: The image, below the folder of the data set.
        box: Right, left, bottom and top of the object in pixels.
        clip, video, frame: Of a training image.
    """

    number: int
    path: str
    box: list[float]
    clip: int = 0
    video: int = 0
    frame: int = 0


def _table(root: str | Path, novel: bool) -> FrameTable:
    folder, images = LAYOUT.read(root)
    paths = {image[0] for image in images}
    train = list(_listed(folder, "train", paths))
    test = list(_listed(folder, "test", paths))
    if novel:
        test = [entry for entry in test if entry.number == NOVEL]
        frames = [_test_frame(entry, "novel", "train") for entry in test]
        classes = ["novel"]
    else:
        test = [entry for entry in test if entry.number != NOVEL]
        names = {entry.number: f"class {entry.number}" for entry in test}
        names |= {entry.number: _class_name(entry.path) for entry in train}
        if len(set(names.values())) < len(names):
            raise FrameTableError(
                f"{folder / LISTS['train']} gives two classes one folder; unpack "
                "Stream-51.zip again."
            )
        frames = [_training_frame(entry, names[entry.number]) for entry in train]
        frames += [_test_frame(entry, names[entry.number], "test") for entry in test]
        classes = [names[number] for number in sorted(names)]
    used = {frame.path for frame in frames}
    boxes = {entry.path: entry.box for entry in (*train, *test) if entry.path in used}
    return FrameTable(frames, folder, Cuts(folder, boxes), LAYOUT.name, classes=classes)


def _class_name(path: str) -> str:
    """Return the name of the class of a training image, "bear" of train/3-bear."""
    return re.sub(r"^\d+-", "", path.split("/")[1])


def _training_frame(entry: _Entry, class_name: str) -> Frame:
    return Frame(
        path=entry.path,
        class_name=class_name,
        object_name=str(entry.clip),
        session=str(entry.video),
        frame=entry.frame,
        split="train",
    )


def _test_frame(entry: _Entry, class_name: str, split: str) -> Frame:
    return Frame(
        path=entry.path,
        class_name=class_name,
        object_name=Path(entry.path).stem,
        session="test",
        frame=0,
        split=split,
    )


def _listed(folder: Path, split: str, paths: set[str]) -> Iterator[_Entry]:
    """Yield the entries of an official list, each checked.

    Args:
        folder: The folder of the data set.
        split: "train" or "test".
        paths: The images that exist.
    """
    file = folder / LISTS[split]
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        raise FrameTableError(
            f"{file} cannot be read: {error}. Unpack it from Stream-51.zip."
        ) from error
    if not isinstance(entries, list):
        entries = [entries]
    for position, entry in enumerate(entries):
        if not _is_entry(entry, ENTRIES[split].count(",") + 1):
            raise FrameTableError(
                f"entry {position} of {file} is {str(entry)[:80]}, but must be "
                f"{ENTRIES[split]}, the box right, left, bottom and top in pixels. "
                "Unpack it again from Stream-51.zip."
            )
        number, *clip, _, box, path = entry
        if path not in paths or not path.startswith(f"{split}/"):
            raise FrameTableError(
                f"{file} lists {path[:80]!r}, which is no image below "
                f"{folder / split}; unpack it again."
            )
        yield _Entry(number, path, box, *clip)


def _is_entry(entry: object, length: int) -> bool:
    """Whether an entry of a list has numbers, a box and a path in their places."""
    if not isinstance(entry, list) or len(entry) != length:
        return False
    *numbers, _, box, path = entry
    if not all(type(number) is int and number >= 0 for number in numbers):
        return False
    return isinstance(path, str) and _is_box(box)


def _is_box(box: object) -> bool:
    """Whether a value is a box that is not empty: right, left, bottom, top."""
    if not isinstance(box, list) or len(box) != 4:
        return False
    if not all(type(side) in (int, float) for side in box):
        return False
    right, left, bottom, top = box
    return right > left and bottom > top


BENCHMARK = register(
    Benchmark(
        LAYOUT,
        Stream51Frames,
        classes_per_experience=1,
        batch_size=128,
        budget_images=51,
    )
)


def Stream51(
    dataset_root: str | Path | None = None,
    *,
    download: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make Stream-51 as an Avalanche benchmark of 51 experiences of one class.

    Each has about 3,000 training frames. See `Benchmark.stream`.
    """
    return BENCHMARK.stream(dataset_root, {}, download, **host)
