"""Stream-51: 51 classes of animals and vehicles in videos, cut to the object, and images of classes never taught.

150,736 training frames, 2,550 test images (50 of each class), and 2,550 images of other
classes to tell as novel, in 51 experiences of one class.

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

LAYOUT = Layout(
    name="stream51",
    title="Stream-51",
    tree=f"<root>/train/<class>/<image>.jpg and <root>/test/<image>.jpg with {LISTS['train']} and {LISTS['test']}",
    source="http://klab.cis.rit.edu/files/Stream-51.zip",
    pattern=re.compile(
        r"(?P<folder>train)/(?P<class_name>[^/]+)/[^/.][^/]*\.(?i:jpe?g)|test/[^/.][^/]*\.(?i:jpe?g)|"
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
        """Read the image at a path relative to the root: its box, `RATIO` times as large, as far as the image goes."""
        image = read_image(self.root / path)
        right, left, bottom, top = self.boxes[path]
        sides = []
        for low, high, most in (
            (left, right, image.width),
            (top, bottom, image.height),
        ):
            centre, half = int(low + (high - low) / 2), (high - low) * RATIO / 2
            sides.append((max(int(centre - half), 0), min(int(centre + half), most)))
        (left, right), (top, bottom) = sides
        return image.crop((left, top, right, bottom))


def Stream51Frames(root: str | Path) -> FrameTable:
    """The table of Stream-51 by the two official lists: the same in every run, without the novel images.

    Labels are the official numbers of the classes, and a class is named after its
    training folder ("3-bear" is "bear"). An object is a source clip and a session a
    video of it. A test image is a clip of its own. Images are cut to 1.1 times the box
    around the object. See `Layout.read` for root and errors; a list that is damaged is
    one, too.
    """
    return _table(root, novel=False)


def Stream51Novel(root: str | Path) -> FrameTable:
    """The 2,550 test images of classes that are never taught, as a table of one class "novel".

    It is for scoring novelty, not for training, though its rows are marked "train",
    which every table needs. See `Layout.read` for root and errors.
    """
    return _table(root, novel=True)


def class_order(seed: int) -> list[int]:
    """The labels in the official order of a seed, for `fixed_class_order`; the published runs have 10, 20 and 30."""
    order = list(range(LAYOUT.counts["classes"]))
    random.Random(seed).shuffle(order)
    return order


def _table(root: str | Path, novel: bool) -> FrameTable:
    folder, images = LAYOUT.read(root)
    there = {image[0] for image in images}
    lists = {split: list(_listed(folder, split, there)) for split in LISTS}
    names = {
        entry[0]: f"class {entry[0]}" for entry in lists["test"] if entry[0] != NOVEL
    }
    names |= {
        entry[0]: re.sub(r"^\d+-", "", entry[-1].split("/")[1])
        for entry in lists["train"]
    }
    if len(set(names.values())) < len(names):
        raise FrameTableError(
            f"{folder / LISTS['train']} gives two classes one folder; unpack Stream-51.zip again."
        )
    frames = []
    for number, clip, video, frame, _, _, path in lists["train"]:
        frames.append(Frame(path, names[number], f"{clip}", f"{video}", frame, "train"))
    for number, _, _, path in lists["test"]:
        if number != NOVEL:
            frames.append(
                Frame(path, names[number], Path(path).stem, "test", 0, "test")
            )
    if novel:
        paths = [entry[-1] for entry in lists["test"] if entry[0] == NOVEL]
        frames = [
            Frame(path, "novel", Path(path).stem, "test", 0, "train") for path in paths
        ]
    boxes = {entry[-1]: entry[-2] for entries in lists.values() for entry in entries}
    classes = ["novel"] if novel else [names[number] for number in sorted(names)]
    reader = Cuts(folder, {frame.path: boxes[frame.path] for frame in frames})
    return FrameTable(frames, folder, reader, LAYOUT.name, classes=classes)


def _listed(folder: Path, split: str, there: set[str]) -> Iterator[list]:
    """Yield the entries of an official list, each checked."""
    file, form = folder / LISTS[split], ENTRIES[split]
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        raise FrameTableError(
            f"{file} cannot be read: {error}. Unpack it from Stream-51.zip."
        ) from error
    for position, entry in enumerate(
        entries if isinstance(entries, list) else [entries]
    ):
        whole = (
            isinstance(entry, list)
            and len(entry) == form.count(",") + 1
            and isinstance(entry[-1], str)
        )
        whole = whole and all(type(value) is int and value >= 0 for value in entry[:-3])
        box = entry[-2] if whole else None
        whole = (
            isinstance(box, list)
            and len(box) == 4
            and all(type(side) in (int, float) for side in box)
        )
        if not (whole and box[0] > box[1] and box[2] > box[3]):
            raise FrameTableError(
                f"entry {position} of {file} is {str(entry)[:80]}, but must be {form}, the box right, left, bottom and "
                "top in pixels. Unpack it again from Stream-51.zip."
            )
        if entry[-1] not in there or not entry[-1].startswith(f"{split}/"):
            raise FrameTableError(
                f"{file} lists {entry[-1][:80]!r}, which is no image below {folder / split}; unpack it again."
            )
        yield entry


BENCHMARK = register(Benchmark(LAYOUT, Stream51Frames, 1, 128, 51))


def Stream51(
    dataset_root: str | Path | None = None,
    *,
    download: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Stream-51 as an Avalanche benchmark of 51 experiences of one class, about 3,000 training frames each.

    See `Benchmark.stream`.
    """
    return BENCHMARK.stream(dataset_root, {}, download, **host)
