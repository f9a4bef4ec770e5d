"""Toybox: rotating or moving objects, seen by a head-mounted camera.

12 classes x 29 objects x 10 clips. At most 36,540 training frames (7 clips of each
object) and 15,660 test frames (3 clips), 15 frames per clip at one per second, in 6
experiences of 2 classes.

Wang et al., "The Toybox Dataset of Egocentric Visual Object Transformations", 2018,
arXiv:1806.06034.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks_toybox_ilab.datasets.layout import Layout, paper_order
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
    shows_keywords,
)
from benchmarks_toybox_ilab.tables.folders import is_visible
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

# Folders of the classes; the classes in the order of the paper's class numbers.
SUPERCATEGORIES = {
    "households": ("cup", "mug", "spoon", "ball"),
    "animals": ("duck", "cat", "horse", "giraffe"),
    "vehicles": ("car", "truck", "airplane", "helicopter"),
}
CLASSES = tuple(name for names in SUPERCATEGORIES.values() for name in names)
# fmt: off
SESSIONS = (
    "rxplus", "ryplus", "rzplus", "rxminus", "ryminus", "rzminus",
    "tx", "ty", "tz", "hodgepodge",
)
# fmt: on
TEST_SESSIONS = frozenset({"rzplus", "rzminus", "tz"})
UNUSED_SESSIONS = ("present", "absent")  # the object at rest, and no object
OBJECTS_PER_CLASS = 29  # the thirtieth is left out if all are complete
FRAMES = 15  # per clip
VIDEOS = "videos"  # folder of the videos of an archive

# The folder and the name, without its ending, of an object's clip:
# cup_01_pivothead/cup_01_pivothead_rzplus.
CLIP = (
    r"(?P<thing>(?P<class_name>[a-z]+)_(?P<number>\d+)_pivothead)/(?P=thing)_"
    rf"(?P<session>{'|'.join(SESSIONS + UNUSED_SESSIONS)})"
)
IN_FOLDER = "|".join(
    f"{folder}/(?=(?:{'|'.join(names)})_)" for folder, names in SUPERCATEGORIES.items()
)
_IN_WORDS = "; ".join(
    f"in {folder} {', '.join(names)}" for folder, names in SUPERCATEGORIES.items()
)


def _key_of_image(image: re.Match[str]) -> tuple | None:
    """Return class, object, session and frame of an image of Toybox; None if unused."""
    if image["session"] in UNUSED_SESSIONS:
        return None
    return (
        image["class_name"],
        int(image["number"]),
        image["session"],
        int(image["frame"]),
    )


def _unpacked_video_path(name: str) -> str | None:
    """Return where a video of an archive of Toybox goes, below the root.

    Some archives lack the folder of the supercategory, such as `vehicles`. None for
    other files.
    """
    if not all(map(is_visible, name.split("/"))):
        return None
    match = re.search(rf"(?:^|/)({CLIP}\.mp4)$", name, re.IGNORECASE)
    if match:
        for folder, class_names in SUPERCATEGORIES.items():
            if match["class_name"] in class_names:
                return f"{VIDEOS}/{folder}/{match[1]}"
    return None


LAYOUT = Layout(
    name="toybox",
    title="Toybox",
    tree="<root>/images/<supercategory>/<object>/<object>_<transform>_<frame>.png, "
    "e.g. images/households/cup_01_pivothead/cup_01_pivothead_rzplus_1.png",
    source="https://aivaslab.github.io/toybox/; `crumb prepare toybox` extracts the "
    "frames from the videos",
    pattern=re.compile(
        rf"(?:.*/)?images/(?:{IN_FOLDER}){CLIP}_(?P<frame>0*[1-9]\d*)"
        r"\.(?i:png|jpe?g)",
        re.ASCII,
    ),
    rule=f"the classes are {_IN_WORDS}; the transforms are "
    f"{', '.join(SESSIONS + UNUSED_SESSIONS)}; frames count from 1",
    key=_key_of_image,
    folders=("images",),
    # Images vary: clips of fewer than 15 frames stay short, unless they are extended.
    counts={"classes": 12, "train_clips": 2_436, "test_clips": 1_044},
    classes=CLASSES,
    archived=_unpacked_video_path,
)
class_groups = paper_order(CLASSES)


def ToyboxFrames(
    root: str | Path, paths: Iterable[str] | None = None, reference: bool = False
) -> FrameTable:
    """Make the table of Toybox.

    From the frames that `crumb prepare toybox` extracts from the videos. A session is a
    clip named after its transform; rzplus, rzminus and tz are the test split in every
    run. The clips "present" and "absent" are not used, and only the first 15 frames of
    a clip are. Objects that lack one of the ten clips are left out, and so is the last
    object of a class that then has 30. Every frame is listed once, so clips of fewer
    than 15 frames stay short. Sessions follow the paper's numbers. Classes may be
    missing.

    Args:
        root: Folder of the data set.
        paths: Files below root, if they are known; None lists the folder.
        reference: Extend short clips to 15 frames as the published code does: run
            backwards from the last frame but one, to the first at most (9 frames: 1..9,
            8..3). These frames are repeated under continued numbers.

    Raises:
        FrameTableError: If there is no data set, or a class has no object with all ten
            clips.
    """
    root, images = LAYOUT.find_images(root, paths)
    frames = []
    # `objects` holds the path of each image by object, session and frame.
    for class_name, objects in LAYOUT.clips(images).items():
        complete_objects = []  # their numbers
        for number, clips in sorted(objects.items()):
            if len(clips) == len(SESSIONS):
                complete_objects.append(number)
        if not complete_objects:
            most_clips = max(map(len, objects.values()))
            raise FrameTableError(
                f"class {class_name!r} in {root} has {len(objects)} objects, none with "
                f"all {len(SESSIONS)} clips (at most {most_clips}), but only objects "
                "that have them all are used. Complete the class, or move it away."
            )
        for number in complete_objects[:OBJECTS_PER_CLASS]:
            for session in SESSIONS:
                split = "test" if session in TEST_SESSIONS else "train"
                path_of_frame = objects[number][session]
                for frame, path in _first_frames_of_clip(path_of_frame, reference):
                    frames.append(
                        Frame(
                            path=path,
                            class_name=class_name,
                            object_name=f"{class_name}_{number:02d}",
                            session=session,
                            frame=frame,
                            split=split,
                        )
                    )
    # With `reference` a path may be repeated in its clip.
    return LAYOUT.table(frames, root, padded=reference)


def _first_frames_of_clip(
    path_of_frame: dict[int, str], reference: bool
) -> list[tuple[int, str]]:
    """Return number and path of the first 15 frames of a clip of Toybox, in order.

    Args:
        path_of_frame: Path of each frame by its number.
        reference: Whether a shorter clip goes on backwards from its last frame but one,
            as in the paper's published code.
    """
    frames = sorted(path_of_frame.items())
    if reference:
        last_number, _ = frames[-1]
        # Paths from the last frame but one to the first, under continued numbers.
        backwards = [path for _, path in frames[-2::-1]]
        frames += enumerate(backwards, last_number + 1)
    return frames[:FRAMES]


BENCHMARK = register(
    Benchmark(
        LAYOUT,
        ToyboxFrames,
        classes_per_experience=2,
        batch_size=21,
        budget_images=15,
        class_groups=class_groups,
    )
)


@shows_keywords
def Toybox(
    dataset_root: str | Path | None = None,
    *,
    reference: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make Toybox as an Avalanche benchmark of 6 experiences.

    Each has up to 6,090 training frames. See `Benchmark.stream`.
    """
    return BENCHMARK.stream(dataset_root, {"reference": reference}, **host)
