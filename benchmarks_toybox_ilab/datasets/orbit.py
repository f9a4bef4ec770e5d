"""ORBIT: objects that blind and low-vision people filmed with a phone.

Alone to teach, and among others to test. The benchmark has 17 test users with 158
objects; each user is a stream with the own objects as classes. Objects are taught by
the clean videos (the object alone on a cleared surface) and tested on the clutter
videos.

The users, their objects and the rules are those of
`data/orbit_benchmark_mode_splits.json`, `data/orbit_test_object_cluster_labels.json`,
`data/datasets.py` and the README in https://github.com/microsoft/ORBIT-Dataset.

Massiceti et al., "ORBIT: A Real-World Few-Shot Dataset for Teachable Object
Recognition", ICCV 2021, arXiv:2104.03841.
"""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import cast

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
    shows_keywords,
)
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.numbers import whole_number

# Number of objects of each test user.
# fmt: off
USERS = {
    "P177": 7, "P198": 10, "P204": 9, "P233": 6, "P271": 7, "P421": 10, "P452": 10,
    "P455": 9, "P485": 9, "P554": 5, "P609": 10, "P642": 13, "P753": 13, "P900": 8,
    "P901": 11, "P953": 10, "P999": 11,
}
# fmt: on
# Of a clean video, every 30th of the first 1,000 frames is taught.
MOST_TAUGHT = 1000
STEP = 30
# Frames of a clutter video; it is left out if it has fewer, and more are not used.
LEAST_TESTED = 50
MOST_TESTED = 200
KINDS = {"clean": "train", "clutter": "test"}
ANNOTATIONS = "annotations/test"
ABSENT = "object_not_present_issue"


def _key_of_image(image: re.Match[str]) -> tuple:
    """Return user, object, kind of video, and video with frame of an image of ORBIT."""
    user, object_name, kind, video, frame = image.groups()
    return user, object_name, kind, (video, int(frame))


def _unpacked_path(name: str) -> str | None:
    """Return where an image or a video's annotations of ORBIT go, below the root.

    Both archives have a folder `test`. None for other files.
    """
    annotations = re.search(r"(?:^|/)test/([^/]+\.json)$", name)
    if annotations:
        return f"{ANNOTATIONS}/{annotations[1]}"
    image = re.search(r"(?:^|/)(test/P\d+/.+\.jpg)$", name, re.IGNORECASE)
    return image and image[1]


def _objects_with_videos(root: Path, user: str, kind: str) -> set[str]:
    """Return the names of a test user's objects with videos, "clean" or "clutter"."""
    return {path.parent.name for path in root.glob(f"test/{user}/*/{kind}")}


def _incomplete_users(table: FrameTable) -> list[str]:
    """List the test users of ORBIT without all of their objects, a line each."""
    root = cast(Path, table.root)
    lines = []
    for user, count in USERS.items():
        clean = _objects_with_videos(root, user, "clean")
        clutter = _objects_with_videos(root, user, "clutter")
        n_complete = len(clean & clutter)
        if n_complete < count:
            lines.append(f"user {user}: {n_complete} of {count} objects")
    return lines


LAYOUT = Layout(
    name="orbit",
    title="ORBIT",
    tree="<root>/test/<user>/<object>/{clean,clutter}/<video>/<video>-<5 digits>.jpg "
    "with annotations/test/<video>.json, e.g. test/P177/bag/clutter/"
    "P177--bag--clutter--Zj_1/P177--bag--clutter--Zj_1-00001.jpg",
    source="https://city.figshare.com/articles/dataset/_/14294597 (test.zip with "
    "images of 224 pixels) and https://github.com/microsoft/ORBIT-Dataset: "
    "data/orbit_extra_annotations.zip",
    pattern=re.compile(
        rf"test/({'|'.join(USERS)})/([^/]+)/({'|'.join(KINDS)})/"
        r"([^/.][^/]*)/\4-(\d{5})\.(?i:jpg)",
        re.ASCII,
    ),
    rule=f"the test users are {', '.join(USERS)}, and the name of a frame begins with "
    "that of its video",
    key=_key_of_image,
    folders=("test",),
    inner_folders=("orbit_benchmark_224", "orbit_benchmark"),
    owner="the data set",
    lacks=_incomplete_users,
    compared_by_lacks=f"{sum(USERS.values())} objects of {len(USERS)} users",
    archived=_unpacked_path,
)


def ORBITFrames(root: str | Path, run: int = 0, user: str | None = None) -> FrameTable:
    """Make the table of a test user of ORBIT.

    Clean videos are the training split, clutter videos the test split. Every 30th of
    the first 1,000 frames of a clean video is used. Of a clutter video 200 frames are
    used, drawn by its name from those in which the object is visible according to the
    annotations. Clutter videos with fewer than 50 such frames are left out, and so are
    objects without a video of each kind. The official protocol draws the test frames 50
    times; here they are the same in every run. A session is a video.

    Args:
        root: Folder of the data set.
        run: Chooses the user: run 0 is P177, run 16 P999, run 17 P177 again.
        user: The name of a test user, instead.

    Raises:
        FrameTableError: If there is no data set, or annotations are missing or damaged.
        ValueError: If there is no such test user, or run is not a whole number of at
            least 0.
    """
    users = list(USERS)
    if user is None:
        user = users[whole_number("run", run, 0) % len(users)]
    if user not in users:
        raise ValueError(
            f"unknown user {user!r}; the test users are {', '.join(users)}."
        )
    folder = LAYOUT.folder(Path(root))
    return LAYOUT.table(_frames_of_user(folder, user), folder)


def all_users_table(root: str | Path) -> FrameTable:
    """Make the table of all test users of ORBIT that are there.

    A class is an object with its user, such as "P177 bag", since users have objects of
    the same names.

    Args:
        root: Folder of the data set.

    Raises:
        FrameTableError: If there is no data set, or annotations are missing or damaged.
    """
    folder = LAYOUT.folder(Path(root))
    frames = []
    for user in USERS:
        if (folder / "test" / user).is_dir():
            for frame in _frames_of_user(folder, user):
                class_name = f"{user} {frame.class_name}"
                frames.append(replace(frame, class_name=class_name))
    return LAYOUT.table(frames, folder)


def _frames_of_user(folder: Path, user: str) -> list[Frame]:
    """Return the rows of a test user of ORBIT; see `ORBITFrames`.

    Args:
        folder: The folder of the data set.
        user: Name of the user.
    """
    # Only the images of the user are listed.
    layout_of_user = replace(LAYOUT, folders=(f"test/{user}",))
    folder, images = layout_of_user.find_images(folder)
    frames: list[Frame] = []
    # Images are grouped by user here, not by class: each object is a class of its own.
    # `paths_of_kind` holds the path of each image by kind of video, and video with
    # number of the frame.
    for object_name, paths_of_kind in LAYOUT.clips(images).get(user, {}).items():
        clean_paths = paths_of_kind.get("clean", {})
        clutter_paths = paths_of_kind.get("clutter", {})
        clean = _frames_of_object(folder, object_name, "clean", clean_paths)
        clutter = _frames_of_object(folder, object_name, "clutter", clutter_paths)
        if clean and clutter:  # an object is taught and tested, or left out
            frames += clean + clutter
    return frames


def _frames_of_object(
    folder: Path, object_name: str, kind: str, paths: dict[tuple[str, int], str]
) -> list[Frame]:
    """Return the rows of an object of ORBIT: the frames that are used of its videos.

    Args:
        folder: The folder of the data set.
        object_name: The object, which is its own class.
        kind: Which of its videos: "clean" or "clutter".
        paths: Path of each image by video and number of the frame.
    """
    numbers_of_video: dict[str, list[int]] = {}
    for video, number in sorted(paths):
        numbers_of_video.setdefault(video, []).append(number)
    frames = []
    for video, numbers in numbers_of_video.items():
        if kind == "clean":  # every 30th of the first 1,000
            numbers = numbers[:MOST_TAUGHT:STEP]
        else:
            numbers = _drawn_test_frames(folder, video, numbers)
        for number in numbers:
            path = paths[video, number]
            frames.append(
                Frame(
                    path=path,
                    class_name=object_name,
                    object_name=object_name,
                    session=video,
                    frame=number,
                    split=KINDS[kind],  # clean is for training, clutter for testing
                )
            )
    return frames


def _drawn_test_frames(folder: Path, video: str, numbers: list[int]) -> list[int]:
    """Draw the frames of a clutter video of ORBIT that are tested.

    Args:
        folder: Folder of the data set.
        video: Name of the video, which seeds the draw: every run tests the same.
        numbers: Numbers of its frames.

    Returns:
        Numbers in ascending order; none if the object is visible in too few.
    """
    visible = _frames_with_object(folder, video, numbers)
    if len(visible) < LEAST_TESTED:
        return []
    count = min(len(visible), MOST_TESTED)
    return sorted(random.Random(video).sample(visible, count))


def _frames_with_object(folder: Path, video: str, numbers: list[int]) -> list[int]:
    """Return the numbers of the frames of a clutter video that show the object.

    Args:
        folder: Folder of the data set, with the annotations.
        video: Name of the video.
        numbers: Numbers of its frames.

    Raises:
        FrameTableError: If the annotations are missing or damaged.
    """
    file = folder / ANNOTATIONS / f"{video}.json"
    visible = []
    try:
        annotations = json.loads(file.read_text(encoding="utf-8"))
        for number in numbers:
            if annotations[f"{video}-{number:05d}.jpg"][ABSENT] is False:
                visible.append(number)
        return visible
    except FileNotFoundError:
        raise FrameTableError(
            f"there is no {file}, which says where the object is visible. Unpack "
            f"orbit_extra_annotations.zip to {folder / 'annotations'}: {LAYOUT.source}"
        ) from None
    except (ValueError, LookupError, RecursionError, TypeError) as error:
        raise FrameTableError(
            f"{file} does not say of every frame of its video whether {ABSENT} is true "
            f"or false ({error!r}). Unpack it again from orbit_extra_annotations.zip."
        ) from error


BENCHMARK = register(
    Benchmark(
        LAYOUT,
        ORBITFrames,
        classes_per_experience=1,
        batch_size=21,
        budget_images=15,
        whole_table=all_users_table,
    )
)


@shows_keywords
def ORBIT(
    dataset_root: str | Path | None = None,
    *,
    user: str | None = None,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make a test user of ORBIT as an Avalanche benchmark.

    It has an experience for each of 5 to 13 objects. See `Benchmark.stream`, and
    `ORBITFrames` for `user`.
    """
    return BENCHMARK.stream(dataset_root, {"user": user}, **host)
