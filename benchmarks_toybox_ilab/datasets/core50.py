"""CORe50: objects turned in a hand in front of different backgrounds.

10 classes x 5 objects x 11 sessions. 6,000 training frames (8 sessions of each object)
and 2,250 test frames (3 sessions), 15 frames per clip at one per second, in 5
experiences of 2 classes. The complete data set has 164,866 frames.

Lomonaco and Maltoni, "CORe50: a New Dataset and Benchmark for Continuous Object
Recognition", CoRL 2017, PMLR 78:17-26.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from benchmarks_toybox_ilab.datasets import registry
from benchmarks_toybox_ilab.datasets.layout import (
    Layout,
    Listed,
    paper_order,
    read_lists,
)
from benchmarks_toybox_ilab.datasets.registry import (
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
from benchmarks_toybox_ilab.tables.numbers import whole_number

# In the order of the paper's class numbers: o1 to o5 are plug adapters, o46 to o50
# remote controls.
# fmt: off
CLASSES = (
    "plug_adapter", "mobile_phone", "scissor", "light_bulb", "can",
    "glass", "ball", "marker", "cup", "remote_control",
)
# fmt: on
OBJECTS_PER_CLASS = 5
SESSIONS = tuple(f"s{session}" for session in range(1, 12))
TEST_SESSIONS = frozenset({"s3", "s7", "s10"})
# Used of a clip: one per second, starting after the 134 frames that the data set lacks.
FRAMES = range(10, 300, 20)

# folders of the images
IMAGES = "core50_128x128"
MINI = "core50_32x32"
# The official protocols: folder of their lists, and the number of training experiences.
LISTS = {
    "ni": ("batches_filelists/NI_inc", 8),
    "nc": ("batches_filelists/NC_inc", 9),
    "nic": ("batches_filelists/NIC_inc", 79),
    "nicv2_79": ("NIC_v2_79", 79),
    "nicv2_196": ("NIC_v2_196", 196),
    "nicv2_391": ("NIC_v2_391", 391),
}
_PAGE = "https://vlomonaco.github.io/core50/data"
# Address and MD5 checksum of the lists of ni and nc, and of those of nicv2; of the
# small images.
LISTS_ARCHIVES = (
    (f"{_PAGE}/batches_filelists.zip", "e3297508a8998ba0c99a83d6b36bde62"),
    (f"{_PAGE}/batches_filelists_NICv2.zip", "460f980a6c85b86b1ec8e7c6067bb7a3"),
)
MINI_ARCHIVE = (
    "http://vps.continualai.org/data/core50_32x32.zip",
    "d89d34cdc0281fa84074430e9a22b728",
)
# The lookaheads ask for two digits, of which the first is 0 where the folder has one.
PATTERN = re.compile(
    r"(?:core50_128x128/)?(?P<session>s(?P<s>[1-9]|1[01]))/"
    r"o(?P<object>[1-9]|[1-4]\d|50)/"
    r"C_(?=\d\d_)0?(?P=s)_(?=\d\d_)0?(?P=object)_(?P<frame>[0-2]\d\d)\.(?i:png)",
    re.ASCII,
)


def _key_of_image(image: re.Match[str]) -> tuple | None:
    """Return class, object, session and frame of an image of CORe50; None if unused."""
    frame = int(image["frame"])
    if frame not in FRAMES:
        return None
    number = int(image["object"])
    class_name = CLASSES[
        (number - 1) // OBJECTS_PER_CLASS
    ]  # objects count class by class
    return class_name, number, image["session"], frame


LAYOUT = Layout(
    name="core50",
    title="CORe50",
    tree="<root>/core50_128x128/s{1..11}/o{1..50}/C_SS_OO_FFF.png, "
    "e.g. core50_128x128/s1/o3/C_01_03_010.png",
    source="https://vlomonaco.github.io/core50/: core50_128x128.zip",
    pattern=PATTERN,
    folders=SESSIONS,
    rule="SS is the session, OO the object of the folders, in two digits each, and FFF "
    "a frame from 000 to 299",
    key=_key_of_image,
    needs_all_folders=False,
    inner_folders=("core50_128x128", "core50/core50_128x128"),
    counts={"classes": 10, "train": 6_000, "test": 2_250},
    classes=CLASSES,
    url="http://bias.csr.unibo.it/maltoni/download/core50/core50_128x128.zip",
    md5="745f3373fed08d69343f1058ee559e13",
)
class_groups = paper_order(CLASSES)


def CORe50Frames(
    root: str | Path, paths: Iterable[str] | None = None, reference: bool = False
) -> FrameTable:
    """Make the table of CORe50.

    Sessions 3, 7 and 10 are the test split, the other eight the training split in every
    run. Frames 10, 30, ..., 290 of each clip (an object in a session) are used. Objects
    are named "o1" to "o50" and sessions "s1" to "s11" like their folders. Sessions,
    clips and frames may be missing.

    Args:
        root: Folder of the data set.
        paths: Files below root, if they are known; None lists the folder.
        reference: Has no effect: the published code uses the same frames.
    """
    root, images = LAYOUT.find_images(root, paths)
    frames = []
    # `objects` holds the path of each image by object, session and frame.
    for class_name, objects in LAYOUT.clips(images).items():
        for number, clips in sorted(objects.items()):
            for session in SESSIONS:
                split = "test" if session in TEST_SESSIONS else "train"
                path_of_frame = clips.get(session, {})
                for frame, path in sorted(path_of_frame.items()):
                    frames.append(
                        Frame(
                            path=path,
                            class_name=class_name,
                            object_name=f"o{number}",
                            session=session,
                            frame=frame,
                            split=split,
                        )
                    )
    return LAYOUT.table(frames, root)


BENCHMARK = register(
    Benchmark(
        LAYOUT,
        CORe50Frames,
        classes_per_experience=2,
        batch_size=21,
        budget_images=15,
        class_groups=class_groups,
    )
)


@shows_keywords
def CORe50Categories(
    dataset_root: str | Path | None = None,
    *,
    reference: bool = False,
    download: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make CORe50 by its 10 classes as an Avalanche benchmark of 5 experiences.

    Each has 1,200 training frames. See `Benchmark.stream`; the data set has 5 GB.
    """
    return BENCHMARK.stream(dataset_root, {"reference": reference}, download, **host)


def CORe50ListedFrames(
    root: str | Path,
    scenario: str,
    run: int = 0,
    object_lvl: bool = True,
    mini: bool = False,
) -> FrameTable:
    """Make the table of an official protocol of CORe50.

    From the text lists that the authors publish beside the images. Sessions are the
    experiences: "batch0", "batch1", ... for training and "test", rows in the order of
    the lists. The lists label the 50 objects. These labels are used for objects, and
    ignored for the ten categories, which are labelled in their official order. No
    pickle is read.

    Args:
        root: The folder that contains `batches_filelists` (ni, nc, nic) or `NIC_v2_79`
            and the like, beside the images.
        scenario: A key of `LISTS`.
        run: One of the ten published orders, 0 to 9.
        object_lvl: Whether the 50 objects are the classes, instead of the ten
            categories.
        mini: Take the images of 32 x 32 pixels in `core50_32x32` instead of those of
            128 x 128.

    Raises:
        FrameTableError: If lists or images are missing, or a line of a list is invalid.
        ValueError: If run is not 0 to 9.
    """
    if whole_number("run", run, 0) > 9:
        raise ValueError(f"run is {run}, but CORe50 publishes the runs 0 to 9.")
    # Folder of the lists, and the number of training experiences.
    folder, n_batches = LISTS[scenario]
    image_folder = MINI if mini else IMAGES
    root = _inner_root(Path(root), (folder, image_folder))
    images = root / image_folder
    needed_folders = (root / folder, images)
    missing = [str(path) for path in needed_folders if not path.is_dir()]
    if missing:
        archives = ", ".join(url for url, _ in LISTS_ARCHIVES)
        raise FrameTableError(
            f"there is no folder {' and no folder '.join(missing)}. Scenario "
            f"{scenario!r} needs the images and the official lists ({archives}) side "
            "by side, as download=True does."
        )

    def listed_image(image: re.Match[str], label: int, line: int) -> Listed:
        """Return what the path of an image says; label and number of line do not count.

        Objects o1 to o50 are numbered category by category, five of each.
        """
        number = int(image["object"])
        class_index, index_in_class = divmod(number - 1, OBJECTS_PER_CLASS)
        class_name = CLASSES[class_index]
        if object_lvl:
            class_name += str(index_in_class + 1)
        return Listed(class_name, f"o{number}", int(image["frame"]))

    lists = read_lists(
        root / folder / f"run{run}",
        ending="_filelist.txt",
        n_batches=n_batches,
        pattern=PATTERN,
        example="s1/o3/C_01_03_010.png 2",
        describe_image=listed_image,
        # The lists' labels are of objects. A category has five of them, so they are
        # not read for categories, and `lists.classes` is empty.
        has_label_per_class=object_lvl,
    )
    return FrameTable(
        lists.frames, images, name="core50", classes=lists.classes or CLASSES
    )


@shows_keywords
def CORe50(
    dataset_root: str | Path | None = None,
    *,
    scenario: str = "paper",
    object_lvl: bool | None = None,
    mini: bool = False,
    reference: bool = False,
    download: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make CORe50 as an Avalanche benchmark.

    The paper's ten categories, or an official protocol.

    Args:
        dataset_root: Folder of the data set; None is where Avalanche keeps it.
        reference: Draw orders as the paper's published code does; for "paper".
        scenario: "paper" is `CORe50Categories`; "ni", "nc", "nic", "nicv2_79",
            "nicv2_196" and "nicv2_391" have the experiences and the one test experience
            of the authors' lists, as Avalanche's `CORe50` has, and `run` chooses the
            list.
        object_lvl: Whether the 50 objects are the classes, instead of the ten
            categories; by default so in the official protocols, as in Avalanche.
            "paper" has categories alone.
        mini: Take images of 32 x 32 pixels instead of 128 x 128, which "paper" has not.
        download: Download the images (5 GB) and the lists, if they are not there.
        **host: Keywords of every stream, see `StreamKeywords`. Lists leave nothing to
            draw or divide.

    Raises:
        ValueError: If the scenario is unknown, or a keyword does not fit it.
    """
    if scenario == "paper":
        if mini:
            raise ValueError(
                'mini=True is for the official protocols; scenario="paper" reads '
                "core50_128x128."
            )
        if object_lvl:
            raise ValueError(
                'object_lvl=True is for the official protocols; scenario="paper" has '
                "the ten categories: give another scenario, such as "
                f"{list(LISTS)[-1]!r}, or leave object_lvl out."
            )
        return CORe50Categories(
            dataset_root, reference=reference, download=download, **host
        )
    if scenario not in LISTS:
        raise ValueError(
            f"unknown scenario {scenario!r}; known are paper, {', '.join(LISTS)}."
        )
    useless = given_keywords(host)  # names of those that a caller gave a value
    if reference:
        useless.append("reference")
    if useless:
        raise ValueError(
            f"{' and '.join(useless)} cannot be given with scenario {scenario!r}, "
            "whose experiences and order are in the official lists: choose one of "
            "these by run, from 0 to 9."
        )
    root = cast(Path, BENCHMARK.resolve_root(dataset_root))
    if download:
        _download_missing(root, scenario, mini)
    listed = Benchmark(
        LAYOUT,
        CORe50ListedFrames,
        classes_per_experience=None,
        batch_size=21,
        budget_images=15,
        protocol=TABLE,  # experiences and order as in the table
    )
    by_object = object_lvl is None or object_lvl  # so by default
    arguments = {"scenario": scenario, "object_lvl": by_object, "mini": mini}
    return listed.stream(root, arguments, **host)


def _inner_root(root: Path, folders: Iterable[str]) -> Path:
    """Return the root that holds any of the folders of CORe50.

    It is the given one, or `core50` below it, as in the folder of Avalanche's data; the
    given one if none is there.
    """
    for candidate in (root, root / "core50"):
        if any((candidate / folder).is_dir() for folder in folders):
            return candidate
    return root


def _download_missing(root: Path, scenario: str, mini: bool) -> None:
    """Download the images of CORe50 and the official lists, unless they are there.

    Args:
        root: Folder of the data set.
        scenario: A key of `LISTS`.
        mini: Whether to download the images of 32 x 32 pixels.
    """
    archives = {IMAGES: (LAYOUT.url, LAYOUT.md5)}  # by the folder that they make
    if mini:
        archives = {MINI: MINI_ARCHIVE}
    lists_folder, _ = LISTS[scenario]
    lists_archive, nicv2_archive = LISTS_ARCHIVES
    if scenario.startswith("nicv2"):
        lists_archive = nicv2_archive
    archives[lists_folder] = lists_archive
    root = _inner_root(root, tuple(archives))
    for folder, (url, md5) in archives.items():
        if not (root / folder).is_dir():
            registry.download_whole(url, md5, root)
