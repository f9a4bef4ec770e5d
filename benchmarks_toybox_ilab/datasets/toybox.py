"""Toybox: 12 classes x 29 objects x 10 clips of a rotating or moving object, seen by a head-mounted camera.

36,540 training frames (7 clips of each object) and 15,660 test frames (3 clips), 15 frames per clip at one per second,
in 6 experiences of 2 classes.

Wang et al., "The Toybox Dataset of Egocentric Visual Object Transformations", 2018, arXiv:1806.06034.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks_toybox_ilab.datasets._generator import generator
from benchmarks_toybox_ilab.tables.folders import dataset_folder, files_below
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

LAYOUT = (
    "<root>/images/<supercategory>/<object>/<object>_<transform>_<frame>.png, "
    "e.g. images/households/cup_01_pivothead/cup_01_pivothead_rzplus_1.png"
)
SOURCE = "https://aivaslab.github.io/toybox/; `crumb prepare toybox` extracts the frames from the videos"
COUNTS = {"classes": 12, "train": 36_540, "test": 15_660}

# Folder of each class; the classes in the order of the paper's class numbers.
SUPERCATEGORY = {
    **dict.fromkeys(("cup", "mug", "spoon", "ball"), "households"),
    **dict.fromkeys(("duck", "cat", "horse", "giraffe"), "animals"),
    **dict.fromkeys(("car", "truck", "airplane", "helicopter"), "vehicles"),
}
SESSIONS = ("rxplus", "ryplus", "rzplus", "rxminus", "ryminus", "rzminus", "tx", "ty", "tz", "hodgepodge")
TEST_SESSIONS = frozenset({"rzplus", "rzminus", "tz"})
UNUSED_SESSIONS = ("present", "absent")  # the object at rest, and no object
OBJECTS = 29  # per class; the thirtieth is left out if all are complete
FRAMES = 15  # per clip

_FILE = re.compile(
    rf"(?P<class_name>{'|'.join(SUPERCATEGORY)})_(?P<number>\d+)_pivothead"
    rf"_(?P<session>{'|'.join(SESSIONS + UNUSED_SESSIONS)})_(?P<frame>0*[1-9]\d*)\.(?i:png|jpe?g)",
    re.ASCII,
)
_IMAGE = re.compile(r"[^.].*\.(?:png|jpe?g)", re.IGNORECASE | re.DOTALL)
_LISTED = 8  # objects of a class that are listed one by one

_Clips = dict[str, dict[int, str]]  # frame number -> path, by session


def ToyboxFrames(root: str | Path, paths: Iterable[str] | None = None, reference: bool = False) -> FrameTable:
    """The table of Toybox, from the frames that `crumb prepare toybox` extracts from the videos.

    A session is a clip named after its transform; rzplus, rzminus and tz are the test split in every run. The clips
    "present" and "absent" are not used, and only the first 15 frames of a clip are. Objects that lack one of the ten
    clips are left out, and so is the last object of a class that then has 30. Every frame is listed once, so clips of
    fewer than 15 frames stay short. Sessions follow the paper's numbers. Classes may be missing.

    Args:
        root: The folder that contains `images`, or the one that contains it as `toybox`.
        paths: Files below root with forward slashes if they are known; None lists the folder.
        reference: Extend short clips to 15 frames as the published code does: run backwards from the last frame but
            one, to the first at most (9 frames: 1..9, 8..3). These frames are repeated under continued numbers.

    Raises:
        FrameTableError: If the folder is missing or has another layout, an image is not named like a frame of Toybox,
            or a class has no object with all ten clips.
    """
    root = Path(root)
    if paths is None:
        root = _data_folder(root)
        paths = files_below(root, "images")
    frames = []
    for class_name, objects in _found(paths).items():
        complete = [number for number in sorted(objects) if len(objects[number]) == len(SESSIONS)]
        if not complete:
            most = max(map(len, objects.values()))
            raise FrameTableError(
                f"class {class_name!r} in {root} has {len(objects)} objects, none with all {len(SESSIONS)} clips (at "
                f"most {most}), but only objects that have them all are used. Complete the class, or move it away."
            )
        for number in complete[:OBJECTS]:
            for session in SESSIONS:
                split = "test" if session in TEST_SESSIONS else "train"
                for frame, path in _clip(objects[number][session], reference):
                    frames.append(Frame(path, class_name, f"{class_name}_{number:02d}", session, frame, split))
    if not frames:
        raise FrameTableError(
            f"{root / 'images'} holds no frames of Toybox; extract them from the videos with `crumb prepare toybox "
            f"--dataset-root {root}`. The layout is {LAYOUT}"
        )
    return FrameTable(frames, root, name="toybox", padded=reference)


def parse_file_name(name: str) -> tuple[str, int, str, int] | None:
    """Return class, object number, transform and frame of a file, or None if it is not named like a frame of Toybox.

    `cup_07_pivothead_rzplus_001.png` is `("cup", 7, "rzplus", 1)`. Frames count from 1, with or without leading zeros.
    """
    match = _FILE.fullmatch(name)
    return match and (match["class_name"], int(match["number"]), match["session"], int(match["frame"]))


def class_groups(table: FrameTable, reference: bool = False) -> list[list[str]] | None:
    """With `reference` one group in the order of the paper's class numbers, otherwise None, which sorts by name."""
    return [[name for name in SUPERCATEGORY if name in table.classes]] if reference else None


def missing(paths: Iterable[str]) -> list[str]:
    """List what these files below root lack of the paper's data set, one line per object.

    A class is complete with 29 objects that have ten clips of 15 frames. Short clips are listed too, although some
    videos may be shorter than 15 seconds; a table can be made of them.

    Raises:
        FrameTableError: If an image is not named like a frame of Toybox.
    """
    found = _found(paths)
    lines = []
    for class_name in sorted(SUPERCATEGORY):
        objects = found.get(class_name, {})
        gaps = {number: gap for number in sorted(objects) if (gap := _gaps(objects[number]))}
        if not objects:
            lines.append(f"class {class_name}: all {OBJECTS} objects are missing")
        elif len(objects) - len(gaps) < OBJECTS:
            lines += [f"{class_name}_{number:02d}: {gap}" for number, gap in list(gaps.items())[:_LISTED]]
            if len(gaps) > _LISTED:
                lines.append(f"class {class_name}: {len(gaps) - _LISTED} more objects are incomplete")
            if len(objects) < OBJECTS:
                absent = [f"{number:02d}" for number in range(1, OBJECTS + 2) if number not in objects]
                count = OBJECTS - len(objects)
                lines.append(
                    f"class {class_name}: {count} of {OBJECTS} objects missing; there is no number {', '.join(absent)}"
                )
    return lines


def _data_folder(root: Path) -> Path:
    """The folder that contains `images`; raise and say how to make it if there are only videos."""
    folders = root, root / "toybox"
    if not any((folder / "images").is_dir() for folder in folders):
        for folder in folders:
            tops = [top for top in dict.fromkeys(SUPERCATEGORY.values()) if (folder / top).is_dir()]
            if any(path.lower().endswith(".mp4") for top in tops for path in files_below(folder, top)):
                raise FrameTableError(
                    f"{folder} holds the videos of Toybox, but no folder images with their frames; extract them "
                    f"with `crumb prepare toybox --dataset-root {folder}`"
                )
    return dataset_folder(root, ("images",), "toybox", LAYOUT)


def _found(paths: Iterable[str]) -> dict[str, dict[int, _Clips]]:
    """The files by class (in natural order), object and session, without the unused sessions."""
    found: dict[str, dict[int, _Clips]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if _IMAGE.fullmatch(name) is None:
            continue
        parsed = parse_file_name(name)
        if parsed is None:
            raise FrameTableError(
                f"{path} is not named like a frame of Toybox: <class>_<number>_pivothead_<transform>_<frame>.png, with "
                f"one of the classes {', '.join(SUPERCATEGORY)}, one of the transforms "
                f"{', '.join(SESSIONS + UNUSED_SESSIONS)}, and frames from 1. Rename it or move it away."
            )
        class_name, number, session, frame = parsed
        expected = f"images/{SUPERCATEGORY[class_name]}/{name[: name.index('_pivothead')]}_pivothead"
        if folder != expected and not folder.endswith(f"/{expected}"):
            raise FrameTableError(f"{path} lies in the wrong folder; it belongs in {expected}. Move it there or away.")
        if session not in UNUSED_SESSIONS:
            clip = found.setdefault(class_name, {}).setdefault(number, {}).setdefault(session, {})
            if frame in clip:
                raise FrameTableError(
                    f"{path} and {clip[frame]} are the same frame of the same clip; keep one file per frame."
                )
            clip[frame] = path
    return dict(sorted(found.items()))


def _clip(files: dict[int, str], reference: bool) -> list[tuple[int, str]]:
    """Number and path of the first frames of a clip; with `reference` a short clip is followed by itself backwards."""
    frames = sorted(files.items())
    if reference:
        last = frames[-1][0]
        frames += [(last + step, path) for step, (_, path) in enumerate(frames[-2::-1], 1)]
    return frames[:FRAMES]


def _gaps(clips: _Clips) -> str:
    """What is missing from an object, in words; "" if nothing is."""
    absent = [session for session in SESSIONS if session not in clips]
    short = [
        f"clip {session} has {len(clips[session])} of {FRAMES} frames"
        for session in SESSIONS
        if session in clips and len(clips[session]) < FRAMES
    ]
    return "; ".join(([f"no clip {', '.join(absent)}"] if absent else []) + short)


@generator(class_groups=class_groups)
def Toybox(dataset_root: str | Path, reference: bool = False) -> FrameTable:
    """Toybox as an Avalanche benchmark of 6 experiences, 6,090 training frames each.

    Split: of the 10 clips of each of the 348 objects, rzplus, rzminus and tz are for testing in every run. Frames are
    resized to the transform's size without keeping the aspect ratio (224 x 224 pixels in the paper).

    Wang et al., "The Toybox Dataset of Egocentric Visual Object Transformations", 2018,
    https://aivaslab.github.io/toybox/

    Args:
        dataset_root: As `root` of `ToyboxFrames`.
        reference: Follow the paper's code: short clips are filled up to 15 frames with frames of their own; order and
            labels are drawn as in `orders.ReferenceDraws`, from the classes in the order of the paper's numbers.
    """
    return ToyboxFrames(dataset_root, reference=reference)
