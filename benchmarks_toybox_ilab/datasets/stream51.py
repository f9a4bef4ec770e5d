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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from PIL import Image

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import (
    DRAWN,
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    given_keywords,
    register,
    shows_keywords,
)
from benchmarks_toybox_ilab.streams.orders import TABLE
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.image import read_image
from benchmarks_toybox_ilab.tables.numbers import whole_number

NOVEL = 51  # the number of all classes that are not taught
RATIO = 1.1  # of the side of the cut to that of the box around the object
SCENARIOS = ("class_instance", "class_iid", "instance")
FRAMES = 30_000  # of an experience of the scenario "instance"
SEED = 10  # of the scenario "instance" by default, as in Avalanche; see `class_order`
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
    inner_folders=("Stream-51",),
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
        ratio: Of the side of the cut to that of the box.
    """

    root: Path
    boxes: dict[str, list[float]] = field(repr=False)
    ratio: float = RATIO

    def __call__(self, path: str) -> Image.Image:
        """Read the image at a path relative to the root.

        It is cut to the box around its object, `ratio` times as large, as far as the
        image goes.
        """
        image = read_image(self.root / path)
        right, left, bottom, top = self.boxes[path]
        left, right = self._widened_side(left, right, image.width)
        top, bottom = self._widened_side(top, bottom, image.height)
        return image.crop((left, top, right, bottom))

    def _widened_side(self, low: float, high: float, most: int) -> tuple[int, int]:
        """Return begin and end of a side of an object's box, `ratio` times as long.

        Args:
            low, high: Begin and end of the side, in pixels.
            most: Length of that side of the image, which is not exceeded.
        """
        half = (high - low) * self.ratio / 2
        centre = int(low + (high - low) / 2)
        return max(int(centre - half), 0), min(int(centre + half), most)


def Stream51Frames(
    root: str | Path, bbox_crop: bool = True, ratio: float = RATIO
) -> FrameTable:
    """Make the table of Stream-51 by the two official lists.

    It is the same in every run, and has no novel images. Labels are the official
    numbers of the classes, and a class is named after its training folder ("3-bear" is
    "bear"). An object is a source clip and a session a video of it. A test image is a
    clip of its own. A list that is damaged is an error, too.

    Args:
        root: Folder of the data set.
        bbox_crop: Whether images are cut to the box around their object.
        ratio: Of the side of the cut to that of the box, at least 1.

    Raises:
        ValueError: If the ratio is below 1.
    """
    return _table_of_classes(root, bbox_crop=bbox_crop, ratio=ratio)


def Stream51InstanceFrames(
    root: str | Path,
    seed: int = SEED,
    eval_num: int = FRAMES,
    bbox_crop: bool = True,
    ratio: float = RATIO,
) -> FrameTable:
    """Make the table of the scenario "instance": videos of all classes in random order.

    Rows are in the order of training, which is Avalanche's. Sessions are the
    experiences, "batch0", "batch1", ... of `eval_num` frames for training, and "test".

    Args:
        root: Folder of the data set.
        bbox_crop: Whether images are cut to the box around their object.
        ratio: Of the side of the cut to that of the box, at least 1.
        seed: Of the order of the videos.
        eval_num: Frames of an experience; the last may have fewer.
    """
    table = _table_of_classes(root, bbox_crop=bbox_crop, ratio=ratio)
    videos: list[list[Frame]] = []  # the training frames of each
    for row in table.rows("train").tolist():
        begins_video = table.frame[row] == 0
        if begins_video or not videos:
            videos.append([])
        videos[-1].append(table[row])
    random.Random(seed).shuffle(videos)
    shuffled = list(chain.from_iterable(videos))
    frames = [
        replace(frame, session=f"batch{position // eval_num}")
        for position, frame in enumerate(shuffled)
    ]
    frames += [table[row] for row in table.rows("test").tolist()]
    return FrameTable(
        frames,
        root=table.root,
        reader=table.reader,
        name=LAYOUT.name,
        classes=table.classes,
    )


def Stream51Novel(root: str | Path) -> FrameTable:
    """Make a table of the 2,550 test images of classes that are never taught.

    They are one class, "novel". It is for scoring novelty, not for training, though its
    rows are marked "train", which every table needs. See `Layout.find_images` for root
    and errors.
    """
    return _table_of_classes(root, novel=True)


def class_order(seed: int, classes: int = LAYOUT.counts["classes"]) -> list[int]:
    """Return the labels of Stream-51 in the official order of a seed, also Avalanche's.

    The published runs have the seeds 10, 20 and 30.
    """
    order = list(range(classes))
    random.Random(seed).shuffle(order)
    return order


def _order_of_avalanche(table: FrameTable, seed: int) -> list[int]:
    """Return the labels of Stream-51 as Avalanche orders them with a seed."""
    return class_order(seed, len(table.classes))


@dataclass(frozen=True)
class _ListEntry:
    """An entry of an official list of Stream-51.

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


def _table_of_classes(
    root: str | Path,
    novel: bool = False,
    bbox_crop: bool = True,
    ratio: float = RATIO,
) -> FrameTable:
    """Make the table of the known classes of Stream-51, or of the novel one.

    Args:
        root: Folder of the data set.
        novel: Whether to take the images of novel classes, as one class.
        bbox_crop: Whether images are cut to the box around the object.
        ratio: Side of the cut in units of that of the box.
    """
    if ratio < 1:
        raise ValueError(
            f"ratio is {ratio}, but must be at least 1: the cut holds the box around "
            "the object."
        )
    folder, images = LAYOUT.find_images(root)
    paths = {image[0] for image in images}  # of all images, relative to the folder
    train = list(_entries_of_list(folder, "train", paths))
    test = []
    for entry in _entries_of_list(folder, "test", paths):
        is_novel = entry.number == NOVEL
        if is_novel == novel:
            test.append(entry)
    frames = []
    if novel:
        classes = ["novel"]
        for entry in test:  # marked as training images, which every table needs
            frames.append(_row_of_test_image(entry, "novel", split="train"))
    else:
        names = _class_of_number(folder, train, test)  # by official number
        classes = [names[number] for number in sorted(names)]
        for entry in train:
            frames.append(_row_of_training_image(entry, names[entry.number]))
        for entry in test:
            frames.append(_row_of_test_image(entry, names[entry.number], split="test"))
    reader = None  # images are read as they are
    if bbox_crop:
        boxes = {entry.path: entry.box for entry in (*train, *test)}
        boxes_of_frames = {frame.path: boxes[frame.path] for frame in frames}
        reader = Cuts(folder, boxes_of_frames, ratio)  # cuts an image as it is read
    return FrameTable(
        frames, root=folder, reader=reader, name=LAYOUT.name, classes=classes
    )


def _class_of_number(
    folder: Path, train: Sequence[_ListEntry], test: Sequence[_ListEntry]
) -> dict[int, str]:
    """Return the name of each class of Stream-51 by its official number.

    The folder of its training images gives it.

    Args:
        folder: Folder of the data set, for the error.
        train, test: The entries of the two lists.

    Raises:
        FrameTableError: If two classes have one folder.
    """
    # What a class without training images is called.
    names = {entry.number: f"class {entry.number}" for entry in test}
    for entry in train:
        names[entry.number] = _class_in_path(entry.path)
    if len(set(names.values())) < len(names):
        raise FrameTableError(
            f"{folder / LISTS['train']} gives two classes one folder; unpack "
            "Stream-51.zip again."
        )
    return names


def _class_in_path(path: str) -> str:
    """Return the class of a training image of Stream-51, "bear" of train/3-bear."""
    return re.sub(r"^\d+-", "", path.split("/")[1])


def _row_of_training_image(entry: _ListEntry, class_name: str) -> Frame:
    """Return the row of an image of Stream-51's training list."""
    return Frame(
        path=entry.path,
        class_name=class_name,
        object_name=str(entry.clip),
        session=str(entry.video),
        frame=entry.frame,
        split="train",
    )


def _row_of_test_image(entry: _ListEntry, class_name: str, split: str) -> Frame:
    """Return the row of an image of Stream-51's test list, a clip of its own."""
    return Frame(
        path=entry.path,
        class_name=class_name,
        object_name=Path(entry.path).stem,
        session="test",
        frame=0,
        split=split,
    )


def _entries_of_list(folder: Path, split: str, paths: set[str]) -> Iterator[_ListEntry]:
    """Yield the entries of an official list of Stream-51, each checked.

    Args:
        folder: The folder of the data set.
        split: "train" or "test".
        paths: The images that exist.

    Raises:
        FrameTableError: If the list or an entry is damaged, or an image is missing.
    """
    file = folder / LISTS[split]
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        raise FrameTableError(
            f"{file} cannot be read: {error}. Unpack it from Stream-51.zip."
        ) from error
    if not isinstance(entries, list):
        entries = [entries]  # no list: the check below says so
    for position, entry in enumerate(entries):
        length = 1 + ENTRIES[split].count(",")  # values in the example of an entry
        if not _is_list_entry(entry, length):
            raise FrameTableError(
                f"entry {position} of {file} is {str(entry)[:80]}, but must be "
                f"{ENTRIES[split]}, the box right, left, bottom and top in pixels. "
                "Unpack it again from Stream-51.zip."
            )
        # Class, clip, video and frame, size, box, path; a test image has no clip, video
        # and frame.
        number, *clip_video_frame, _, box, path = entry
        if path not in paths or not path.startswith(f"{split}/"):
            raise FrameTableError(
                f"{file} lists {path[:80]!r}, which is no image below "
                f"{folder / split}; unpack it again."
            )
        yield _ListEntry(number, path, box, *clip_video_frame)


def _is_list_entry(entry: object, length: int) -> bool:
    """Whether an entry of an official list has numbers, a box and a path where it must.

    Args:
        entry: From the list, of any type.
        length: Number of values that it must have.
    """
    if not isinstance(entry, list) or len(entry) != length:
        return False
    *numbers, _, box, path = entry
    if not all(type(number) is int and number >= 0 for number in numbers):
        return False
    return isinstance(path, str) and _is_box_of_object(box)


def _is_box_of_object(box: object) -> bool:
    """Whether a value of a list is a box around an object: right, left, bottom, top.

    In pixels, and not empty.
    """
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
        host_order=_order_of_avalanche,
    )
)


@shows_keywords
def Stream51(
    dataset_root: str | Path | None = None,
    *,
    scenario: str = "class_instance",
    eval_num: int | None = None,
    bbox_crop: bool = True,
    ratio: float = RATIO,
    download: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make Stream-51 as an Avalanche benchmark of 51 experiences of one class.

    Each has about 3,000 training frames.

    Args:
        dataset_root: Folder of the data set; None is where Avalanche keeps it.
        scenario: "class_instance" and "class_iid" are the protocols of these names;
            "instance" shows the videos of all classes in random order, with one test
            experience.
        eval_num: Classes of an experience, by default 1 (Avalanche: 10); in "instance"
            its frames, by default 30,000.
        bbox_crop: Whether images are cut to the box around their object.
        ratio: Of the side of the cut to that of the box, at least 1.
        download: Download the data set if nothing of it is there.
        **host: Keywords of every stream, see `StreamKeywords`. A seed draws the order
            of classes, or of videos, as Avalanche and the authors do.

    Raises:
        ValueError: If the scenario is unknown, or a keyword does not fit it.
    """
    if scenario not in SCENARIOS:
        raise ValueError(
            f"unknown scenario {scenario!r}; known are {', '.join(SCENARIOS)}. All "
            'frames in one shuffled experience are protocol="offline".'
        )
    cuts = {"bbox_crop": bbox_crop, "ratio": ratio}  # arguments of the table
    if scenario == "instance":
        return _instance_stream(dataset_root, eval_num, cuts, download, host)
    # Editors follow the keywords only if no item is assigned.
    if host.get("protocol") is None:
        host.update({"protocol": scenario})
    if eval_num is not None:
        _check_not_given(("classes_per_experience", "n_experiences"), host, "eval_num")
        host.update({"classes_per_experience": eval_num})
    return BENCHMARK.stream(dataset_root, cuts, download, **host)


def _instance_stream(
    dataset_root: str | Path | None,
    eval_num: int | None,
    cuts: Mapping[str, object],
    download: bool,
    stream_keywords: StreamKeywords,
) -> FrameBenchmark:
    """Make the stream of the scenario "instance" of Stream-51.

    Args:
        dataset_root: Folder of the data set; None is where Avalanche keeps it.
        eval_num: Frames of an experience; None is 30,000.
        cuts: The arguments `bbox_crop` and `ratio` of its table.
        download: Download the data set if nothing of it is there.
        stream_keywords: Keywords of every stream, see `StreamKeywords`.

    Raises:
        ValueError: If a keyword is given that has no effect here.
    """
    # Refuse the keywords that draw or divide an order of classes. Of these only the
    # seed has an effect here: it draws the order of the videos.
    without_effect = [name for name in DRAWN if name != "seed"]
    _check_not_given(without_effect, stream_keywords, 'scenario="instance"')
    benchmark = replace(
        BENCHMARK,
        frames=Stream51InstanceFrames,
        classes_per_experience=None,
        protocol=TABLE,  # experiences and order as in the table
        host_order=None,  # no order of classes is drawn
    )
    seed = stream_keywords.get("seed")
    if seed is None:
        seed = SEED
    if eval_num is None:
        eval_num = FRAMES
    arguments = {
        **cuts,
        "seed": seed,
        "eval_num": whole_number("eval_num", eval_num, 1),
    }
    return benchmark.stream(dataset_root, arguments, download, **stream_keywords)


def _check_not_given(
    names: Sequence[str], stream_keywords: StreamKeywords, keyword: str
) -> None:
    """Raise ValueError for keywords of a stream that have no effect beside another one.

    Args:
        names: The keywords without effect.
        stream_keywords: All keywords of a call.
        keyword: The other one.
    """
    useless = given_keywords(stream_keywords, names)
    if useless:
        raise ValueError(
            f"{' and '.join(useless)} cannot be given with {keyword}; leave one of "
            "them out."
        )
