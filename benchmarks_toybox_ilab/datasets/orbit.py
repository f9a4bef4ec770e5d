"""ORBIT: objects that blind and low-vision people filmed with a phone, alone to teach and among others to test.

The benchmark has 17 test users with 158 objects; each user is a stream with the own
objects as classes. Objects are taught by the clean videos (the object alone on a
cleared surface) and tested on the clutter videos.

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

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
)
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError, whole_number
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

# Number of objects of each test user.
USERS = {
    **{
        "P177": 7,
        "P198": 10,
        "P204": 9,
        "P233": 6,
        "P271": 7,
        "P421": 10,
        "P452": 10,
        "P455": 9,
        "P485": 9,
    },
    **{
        "P554": 5,
        "P609": 10,
        "P642": 13,
        "P753": 13,
        "P900": 8,
        "P901": 11,
        "P953": 10,
        "P999": 11,
    },
}
MOST, STEP = (
    1000,
    30,
)  # of a clean video, every 30th of the first 1,000 frames is taught
TESTED = range(
    50, 201
)  # frames of a clutter video: it is left out if it has fewer, and more are not used
KINDS = {"clean": "train", "clutter": "test"}
ANNOTATIONS = "annotations/test"
ABSENT = "object_not_present_issue"


def _key(image: re.Match[str]) -> tuple:
    user, thing, kind, video, frame = image.groups()
    return user, thing, kind, (video, int(frame))


def _archived(name: str) -> str | None:
    """Path of an image or of the annotations of a video below the root; both archives have a folder `test`."""
    note = re.search(r"(?:^|/)test/([^/]+\.json)$", name)
    image = re.search(r"(?:^|/)(test/P\d+/.+\.jpg)$", name, re.IGNORECASE)
    return f"{ANNOTATIONS}/{note[1]}" if note else image and image[1]


def _lacks(table: FrameTable) -> list[str]:
    """The test users without all of their objects."""
    lines = []
    for user, count in USERS.items():
        folders = [
            {one.parent.name for one in table.root.glob(f"test/{user}/*/{kind}")}
            for kind in KINDS
        ]
        if len(both := set.intersection(*folders)) < count:
            lines.append(f"user {user}: {len(both)} of {count} objects")
    return lines


LAYOUT = Layout(
    name="orbit",
    title="ORBIT",
    tree="<root>/test/<user>/<object>/{clean,clutter}/<video>/<video>-<5 digits>.jpg with annotations/test/<video>.json"
    ", e.g. test/P177/bag/clutter/P177--bag--clutter--Zj_1/P177--bag--clutter--Zj_1-00001.jpg",
    source="https://city.figshare.com/articles/dataset/_/14294597 (test.zip with images of 224 pixels) and "
    "https://github.com/microsoft/ORBIT-Dataset: data/orbit_extra_annotations.zip",
    pattern=re.compile(
        rf"test/({'|'.join(USERS)})/([^/]+)/({'|'.join(KINDS)})/([^/.][^/]*)/\4-(\d{{5}})\.(?i:jpg)",
        re.ASCII,
    ),
    rule=f"the test users are {', '.join(USERS)}, and the name of a frame begins with that of its video",
    key=_key,
    folders=("test",),
    places=("orbit_benchmark_224", "orbit_benchmark"),
    owner="the data set",
    lacks=_lacks,
    archived=_archived,
)


def ORBITFrames(root: str | Path, run: int = 0, user: str | None = None) -> FrameTable:
    """The table of a test user of ORBIT: clean videos are the training split, clutter videos the test split.

    Every 30th of the first 1,000 frames of a clean video is used. Of a clutter video
    200 frames are used, drawn by its name from those in which the object is visible
    according to the annotations. Clutter videos with fewer than 50 such frames are left
    out, and so are objects without a video of each kind. The official protocol draws
    the test frames 50 times; here they are the same in every run. A session is a video.

    Args:
        root: See `Layout.read`.
        run: Chooses the user: run 0 is P177, run 16 P999, run 17 P177 again.
        user: The name of a test user, instead.

    Raises:
        FrameTableError: Also if annotations are missing or damaged.
        ValueError: If there is no such test user, or run is not a whole number of at
            least 0.
    """
    user = (
        list(USERS)[whole_number("run", run, 0) % len(USERS)] if user is None else user
    )
    if user not in USERS:
        raise ValueError(
            f"unknown user {user!r}; the test users are {', '.join(USERS)}."
        )
    folder = LAYOUT.folder(Path(root))
    folder, images = replace(LAYOUT, folders=(f"test/{user}",)).read(folder)
    frames = []
    for thing, kinds in LAYOUT.clips(images).get(user, {}).items():
        found: dict[str, list[Frame]] = {split: [] for split in KINDS.values()}
        for kind, files in kinds.items():
            videos: dict[str, list[int]] = {}
            for video, number in sorted(files):
                videos.setdefault(video, []).append(number)
            for video, numbers in videos.items():
                chosen = (
                    numbers[:MOST:STEP]
                    if kind == "clean"
                    else _tested(folder, video, numbers)
                )
                found[KINDS[kind]] += [
                    Frame(
                        files[video, number], thing, thing, video, number, KINDS[kind]
                    )
                    for number in chosen
                ]
        if all(found.values()):
            frames += [frame for some in found.values() for frame in some]
    return LAYOUT.table(frames, folder)


def _tested(folder: Path, video: str, numbers: list[int]) -> list[int]:
    """The frames of a clutter video to test, ascending; none if there are too few."""
    file = folder / ANNOTATIONS / f"{video}.json"
    try:
        notes = json.loads(file.read_text(encoding="utf-8"))
        visible = [
            number
            for number in numbers
            if notes[f"{video}-{number:05d}.jpg"][ABSENT] is False
        ]
    except FileNotFoundError:
        raise FrameTableError(
            f"there is no {file}, which says where the object is visible. Unpack orbit_extra_annotations.zip to "
            f"{folder / 'annotations'}: {LAYOUT.source}"
        ) from None
    except (ValueError, LookupError, RecursionError, TypeError) as error:
        raise FrameTableError(
            f"{file} does not say of every frame of its video whether {ABSENT} is true or false ({error!r}). Unpack it "
            "again from orbit_extra_annotations.zip."
        ) from error
    if len(visible) < TESTED.start:
        return []
    return sorted(
        random.Random(video).sample(visible, min(len(visible), TESTED.stop - 1))
    )


BENCHMARK = register(Benchmark(LAYOUT, ORBITFrames, 1, 21, 15))


def ORBIT(
    dataset_root: str | Path | None = None,
    *,
    user: str | None = None,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """A test user of ORBIT as an Avalanche benchmark: an experience for each of 5 to 13 objects.

    See `Benchmark.stream`, and `ORBITFrames` for `user`.
    """
    return BENCHMARK.stream(dataset_root, {"user": user}, **host)
