"""CORe50: 10 classes x 5 objects x 11 sessions, objects turned in a hand in front of different backgrounds.

6,000 training frames (8 sessions of each object) and 2,250 test frames (3 sessions), 15 frames per clip at one per
second, in 5 experiences of 2 classes. The complete data set has 164,866 frames.

Lomonaco and Maltoni, "CORe50: a New Dataset and Benchmark for Continuous Object Recognition", CoRL 2017, PMLR 78:17-26.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks_toybox_ilab.datasets._generator import generator
from benchmarks_toybox_ilab.tables.folders import dataset_folder, files_below
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

LAYOUT = "<root>/core50_128x128/s{1..11}/o{1..50}/C_SS_OO_FFF.png, e.g. core50_128x128/s1/o3/C_01_03_010.png"
SOURCE = "https://vlomonaco.github.io/core50/: core50_128x128.zip"
COUNTS = {"classes": 10, "train": 6_000, "test": 2_250}

# In the order of the paper's class numbers: o1 to o5 are plug adapters, o46 to o50 remote controls.
CLASSES = (
    *("plug_adapter", "mobile_phone", "scissor", "light_bulb", "can"),
    *("glass", "ball", "marker", "cup", "remote_control"),
)
OBJECTS = 5  # per class
SESSIONS = 11
TEST_SESSIONS = frozenset({3, 7, 10})
FRAMES = range(10, 300, 20)  # used of a clip: one per second, starting after the frames that some clips lack

_FOLDER = "core50_128x128"
_IMAGE = re.compile(r".*\.png", re.IGNORECASE | re.DOTALL)
_HIDDEN = re.compile(r"(?:^|/)(?:\.|__MACOSX/)")
_FILE = re.compile(
    rf"(?:{_FOLDER}/)?s([1-9]\d*)/o([1-9]\d*)/C_(\d\d)_(\d\d)_([0-2]\d\d)\.(?i:png)",
    re.ASCII,
)


def CORe50Frames(root: str | Path, paths: Iterable[str] | None = None, reference: bool = False) -> FrameTable:
    """The table of CORe50: sessions 3, 7 and 10 are the test split, the other eight the training split in every run.

    Frames 10, 30, ..., 290 of each clip (an object in a session) are used. Objects are named "o1" to "o50" and sessions
    "s1" to "s11" like their folders. Sessions, clips and frames may be missing.

    Args:
        root: The folder that contains the session folders, or one that contains it as `core50_128x128`, `core50` or
            `core50/core50_128x128`.
        paths: Files below root with forward slashes if they are known; None lists the folder.
        reference: Has no effect, because the published code uses the same frames; the generator draws order and labels.

    Raises:
        FrameTableError: If the folder is missing or contains no frame that is used, an image is not named like a frame
            of CORe50 or does not match its folders, a frame is repeated, or a class has no training frames.
    """
    root = Path(root)
    if paths is None:
        root = _data_folder(root)
        paths = files_below(root)
    found: dict[tuple[str, int, int, int], str] = {}
    for path in paths:
        parsed = parse_path(path)
        if parsed is None or parsed[2] not in FRAMES:
            continue
        session, number, frame = parsed
        key = (CLASSES[(number - 1) // OBJECTS], number, session, frame)
        if key in found:
            raise FrameTableError(f"{path} and {found[key]} are the same frame; keep one file per frame.")
        found[key] = path
    if not found:
        raise FrameTableError(
            f"{root} holds none of the frames of CORe50 that are used (10, 30, ..., 290 of each clip). "
            f"The layout is {LAYOUT}"
        )
    frames = [
        Frame(path, class_name, f"o{number}", f"s{session}", frame, "test" if session in TEST_SESSIONS else "train")
        for (class_name, number, session, frame), path in sorted(found.items())
    ]
    return FrameTable(frames, root, name="core50")


def parse_path(path: str) -> tuple[int, int, int] | None:
    """Return session, object and frame of a file below root, or None if it is hidden or no image.

    `s1/o3/C_01_03_010.png` is `(1, 3, 10)`, with or without a leading `core50_128x128/`.

    Raises:
        FrameTableError: If an image is not named like a frame of CORe50 or does not match its folders.
    """
    match = _FILE.fullmatch(path)
    if match is None:
        if _IMAGE.fullmatch(path) is None or _HIDDEN.search(path):
            return None
        raise FrameTableError(
            f"image {path} is not named like a frame of CORe50: s<session>/o<object>/C_SS_OO_FFF.png, with two "
            "digits for the session and the object each, and a frame from 000 to 299. Rename it or move it away."
        )
    session, number, session_of_name, number_of_name, frame = map(int, match.groups())
    if session > SESSIONS:
        raise FrameTableError(
            f"image {path} belongs to session s{session}, but CORe50 has sessions s1 to s{SESSIONS}. Move it away."
        )
    if number > OBJECTS * len(CLASSES):
        raise FrameTableError(
            f"image {path} belongs to object o{number}, but CORe50 has objects o1 to o{OBJECTS * len(CLASSES)}. "
            "Move it away."
        )
    if (session, number) != (session_of_name, number_of_name):
        raise FrameTableError(
            f"image {path} does not match its folders: names in s{session}/o{number} begin with "
            f"C_{session:02d}_{number:02d}_. Move it to the folder of its name, or away."
        )
    return session, number, frame


def class_groups(table: FrameTable, reference: bool = False) -> list[list[str]] | None:
    """The groups of classes for `protocols.plan_stream`.

    With `reference` one group in the order of the paper's class numbers, otherwise None, which sorts by name.
    """
    return [[name for name in CLASSES if name in table.classes]] if reference else None


def missing(paths: Iterable[str]) -> list[str]:
    """List what these files below root lack of the paper's data set, one line per object.

    Only the 15 frames that are used of a clip count. The published data set lacks none of them: its 134 missing frames
    of 165,000 have numbers below 10.

    Raises:
        FrameTableError: If an image is not named like a frame of CORe50.
    """
    clips: dict[tuple[int, int], set[int]] = {}
    for session, number, frame in filter(None, map(parse_path, paths)):
        clip = clips.setdefault((number, session), set())
        if frame in FRAMES:
            clip.add(frame)
    if not clips:
        return [f"all {len(CLASSES)} classes are missing"]
    present = {session for _, session in clips}
    objects = {number for number, _ in clips}
    lines = [
        f"session s{session}: all {OBJECTS * len(CLASSES)} clips are missing"
        for session in range(1, SESSIONS + 1)
        if session not in present
    ]
    for label, class_name in enumerate(CLASSES):
        numbers = range(OBJECTS * label + 1, OBJECTS * (label + 1) + 1)
        absent = [f"o{number}" for number in numbers if number not in objects]
        if len(absent) == OBJECTS:
            lines.append(f"class {class_name}: all {OBJECTS} objects are missing")
            continue
        if absent:
            lines.append(f"class {class_name}: {len(absent)} of {OBJECTS} objects are missing: {', '.join(absent)}")
        for number in sorted(objects.intersection(numbers)):
            if gaps := _gaps({session: clips.get((number, session)) for session in sorted(present)}):
                lines.append(f"o{number}: {gaps}")
    return lines


def _gaps(clips: dict[int, set[int] | None]) -> str:
    """What is missing from the clips of an object, in words; "" if nothing is."""
    absent = [f"s{session}" for session, frames in clips.items() if frames is None]
    short = [
        f"clip s{session} has {len(frames)} of {len(FRAMES)} frames"
        for session, frames in clips.items()
        if frames is not None and len(frames) < len(FRAMES)
    ]
    return "; ".join(([f"no clip {', '.join(absent)}"] if absent else []) + short)


def _data_folder(root: Path) -> Path:
    """The folder that contains any session folder; the others may be missing."""
    inner = root / _FOLDER
    for folder in (root, inner, root / "core50", root / "core50" / _FOLDER):
        if any((folder / f"s{session}").is_dir() for session in range(1, SESSIONS + 1)):
            return folder
    return dataset_folder(inner if inner.is_dir() else root, ("s1",), "core50", LAYOUT)


@generator(class_groups=class_groups)
def CORe50(dataset_root: str | Path, reference: bool = False) -> FrameTable:
    """CORe50 by its 10 classes as an Avalanche benchmark of 5 experiences, 1,200 training frames each.

    Split: of the 11 sessions of each of the 50 objects, 3, 7 and 10 are for testing (2,250 frames) in every run. Each
    clip gives 15 frames. They are resized to the transform's size without keeping the aspect ratio (224 x 224 pixels
    in the paper). Avalanche's own benchmark `CORe50` has 50 classes and other experiences.

    Lomonaco and Maltoni, "CORe50: a New Dataset and Benchmark for Continuous Object Recognition", CoRL 2017,
    https://vlomonaco.github.io/core50/

    Args:
        dataset_root: As `root` of `CORe50Frames`.
        reference: Draw order and labels as the paper's code does, from the classes in the order of their numbers; see
            `orders.ReferenceDraws`. The frames are the same.
    """
    return CORe50Frames(dataset_root, reference=reference)
