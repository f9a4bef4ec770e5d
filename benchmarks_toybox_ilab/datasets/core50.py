"""CORe50: 10 classes x 5 objects x 11 sessions, objects turned in a hand in front of different backgrounds.

6,000 training frames (8 sessions of each object) and 2,250 test frames (3 sessions), 15 frames per clip at one per
second, in 5 experiences of 2 classes. The complete data set has 164,866 frames.

Lomonaco and Maltoni, "CORe50: a New Dataset and Benchmark for Continuous Object Recognition", CoRL 2017, PMLR 78:17-26.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks_toybox_ilab.datasets.layout import Layout, paper_order
from benchmarks_toybox_ilab.datasets.registry import Benchmark, StreamKeywords, Unpack, register
from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

if TYPE_CHECKING:
    from benchmarks_toybox_ilab.streams.protocols import FrameBenchmark

# In the order of the paper's class numbers: o1 to o5 are plug adapters, o46 to o50 remote controls.
CLASSES = (
    *("plug_adapter", "mobile_phone", "scissor", "light_bulb", "can"),
    *("glass", "ball", "marker", "cup", "remote_control"),
)
OBJECTS = 5  # per class
SESSIONS = tuple(f"s{session}" for session in range(1, 12))
TEST_SESSIONS = frozenset({"s3", "s7", "s10"})
FRAMES = range(10, 300, 20)  # used of a clip: one per second, starting after the frames that some clips lack


def _key(image: re.Match[str]) -> tuple | None:
    number, frame = int(image["object"]), int(image["frame"])
    return (CLASSES[(number - 1) // OBJECTS], number, image["session"], frame) if frame in FRAMES else None


LAYOUT = Layout(
    name="core50",
    title="CORe50",
    tree="<root>/core50_128x128/s{1..11}/o{1..50}/C_SS_OO_FFF.png, e.g. core50_128x128/s1/o3/C_01_03_010.png",
    source="https://vlomonaco.github.io/core50/: core50_128x128.zip",
    # The lookaheads ask for two digits, of which the first is 0 where the folder has one.
    pattern=re.compile(
        r"(?:core50_128x128/)?(?P<session>s(?P<s>[1-9]|1[01]))/o(?P<object>[1-9]|[1-4]\d|50)/"
        r"C_(?=\d\d_)0?(?P=s)_(?=\d\d_)0?(?P=object)_(?P<frame>[0-2]\d\d)\.(?i:png)",
        re.ASCII,
    ),
    folders=SESSIONS,
    rule="SS is the session, OO the object of the folders, in two digits each, and FFF a frame from 000 to 299",
    key=_key,
    whole=False,
    places=("core50_128x128", "core50", "core50/core50_128x128"),
    counts={"classes": 10, "train": 6_000, "test": 2_250},
    classes=CLASSES,
    needed=OBJECTS,
    sessions=SESSIONS,
    # The published data set lacks none of the frames that are used: its 134 missing frames have numbers below 10.
    frames=len(FRAMES),
    label=lambda class_name, number: f"o{number}",
    url="http://bias.csr.unibo.it/maltoni/download/core50/core50_128x128.zip",
    md5="745f3373fed08d69343f1058ee559e13",
)
class_groups = paper_order(CLASSES)


def CORe50Frames(root: str | Path, paths: Iterable[str] | None = None, reference: bool = False) -> FrameTable:
    """The table of CORe50: sessions 3, 7 and 10 are the test split, the other eight the training split in every run.

    Frames 10, 30, ..., 290 of each clip (an object in a session) are used. Objects are named "o1" to "o50" and sessions
    "s1" to "s11" like their folders. Sessions, clips and frames may be missing.

    Args:
        root: The folder that contains the session folders, or one that contains it as `core50_128x128`, `core50` or
            `core50/core50_128x128`.
        paths: Files below root, if they are known; None lists the folder.
        reference: Has no effect, because the published code uses the same frames; the generator draws order and labels.

    Raises:
        FrameTableError: If the files do not fit the layout, or a class has no training frames.
    """
    root, images = LAYOUT.read(root, paths)
    frames = [
        Frame(path, class_name, f"o{number}", session, frame, "test" if session in TEST_SESSIONS else "train")
        for class_name, objects in LAYOUT.clips(images).items()
        for number, clips in sorted(objects.items())
        for session in SESSIONS
        for frame, path in sorted(clips.get(session, {}).items())
    ]
    return LAYOUT.table(frames, root)


BENCHMARK = register(Benchmark(LAYOUT, CORe50Frames, 2, 21, 15, class_groups))


def CORe50Categories(
    dataset_root: str | Path | None = None,
    *,
    reference: bool = False,
    download: bool = False,
    **host: Unpack[StreamKeywords],
) -> "FrameBenchmark":
    """CORe50 by its 10 classes as an Avalanche benchmark of 5 experiences, 1,200 training frames each.

    Args:
        dataset_root: As `root` of `CORe50Frames`; None is `~/.avalanche/data/core50`.
        reference: Draw orders and labels as the paper's code does.
        download: Download the data set (5 GB) if nothing of it is there.
        **host: See `StreamKeywords`.
    """
    return BENCHMARK.stream(dataset_root, {"reference": reference}, download, **host)


def CORe50(
    dataset_root: str | Path | None = None,
    *,
    scenario: str = "paper",
    reference: bool = False,
    download: bool = False,
    **host: Unpack[StreamKeywords],
) -> "FrameBenchmark":
    """CORe50 as an Avalanche benchmark.

    Args:
        dataset_root: As `root` of `CORe50Frames`; None is `~/.avalanche/data/core50`.
        scenario: "paper" is `CORe50Categories`.
        reference: Draw orders and labels as the paper's code does.
        download: Download the data set (5 GB) if nothing of it is there.
        **host: See `StreamKeywords`.
    """
    return CORe50Categories(dataset_root, reference=reference, download=download, **host)
