"""Tiny copies of the layouts of the real data sets, and tables without files."""

import hashlib
import io
import json
import pickle
import tarfile
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
from fake_videos import write_video
from PIL import Image

from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

# The cars of ETH-80 are numbered with gaps, all other classes from 1 to 10.
ETH80_NUMBERS = {"car": (1, 2, 3, 5, 6, 7, 9, 11, 12, 14), "apple": range(1, 11)}
ETH80_VIEWS = ("000-000", "045-090", "045-000", "045-270", "090-022")


def write_image(
    path: Path,
    colour: tuple[int, int, int] = (10, 120, 230),
    size: tuple[int, int] = (12, 8),
) -> None:
    """Write an image of one colour and create its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def write_eth80(
    root: Path, numbers: dict = ETH80_NUMBERS, views: tuple[str, ...] = ETH80_VIEWS
) -> Path:
    """ETH-80 with fewer classes and views: `root/car14/car14-045-090.jpg`."""
    names = []
    for class_name, objects in numbers.items():
        for number in objects:
            names.append(f"{class_name}{number}")
    for name, view in product(names, views):
        write_image(root / name / f"{name}-{view}.jpg")
    return root


def eth80_clone_names(numbers: Iterable[int] = (1, 2, 3)) -> list[str]:
    """Names of cups as the repository of ETH-80 has them, with their masks."""
    names = []
    for number, view in product(numbers, ETH80_VIEWS):
        names.append(f"5/{number}/cup{number}-{view}.png")
        names.append(f"5/{number}/maps/cup{number}-{view}-map.png")
    return names


def write_clip_folder(
    root: Path, classes: int = 2, objects: int = 3, clips: int = 2, frames: int = 3
) -> Path:
    """`root/class0/object0/clip0/frame0.png`, numbered without leading zeros."""
    for c, o, k, f in product(*map(range, (classes, objects, clips, frames))):
        write_image(root / f"class{c}" / f"object{o}" / f"clip{k}" / f"frame{f}.png")
    return root


def held_out(table):
    """`object/clip` of the test split, in table order, by class."""
    names_by_class = {}
    for class_name in table.classes:
        names = []
        for first_row, *_ in table.clips(table.rows("test", class_name)):
            names.append(f"{table.object_name[first_row]}/{table.session[first_row]}")
        names_by_class[class_name] = names
    return names_by_class


def number_reader(path: str) -> Image.Image:
    """A noisy image of the brightness that the path names.

    `.../7` has a mean of about 7.
    """
    number = int(path.rpartition("/")[2])
    noise = np.random.default_rng(number).integers(0, 2, (8, 8, 3))
    return Image.fromarray((number + noise).astype(np.uint8))


def make_table(
    classes: int = 5, objects: int = 2, sessions: int = 3, frames: int = 4
) -> FrameTable:
    """A table of images drawn when read.

    The last session of each object is the test split, paths end in the row.
    """
    rows = []
    for c, o, s, f in product(*map(range, (classes, objects, sessions, frames))):
        split = "test" if s == sessions - 1 else "train"
        rows.append(
            Frame(
                f"class{c}/{o}/{s}/{len(rows)}", f"class{c}", f"o{o}", f"s{s}", f, split
            )
        )
    return FrameTable(rows, reader=number_reader, name="made up")


def write_files(root: Path, names: Iterable[str]) -> Path:
    """Write a tiny image for each name of an image, and one byte for any other name."""
    for name in names:
        path = root / name
        hidden = path.name.startswith(".")
        if name.lower().endswith((".png", ".jpg", ".jpeg")) and not hidden:
            write_image(path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
    return root


TOYBOX_FOLDERS = {
    "cup": "households",
    "mug": "households",
    "spoon": "households",
    "ball": "households",
    "duck": "animals",
    "cat": "animals",
    "horse": "animals",
    "giraffe": "animals",
    "car": "vehicles",
    "truck": "vehicles",
    "airplane": "vehicles",
    "helicopter": "vehicles",
}
# fmt: off
TOYBOX_CLIPS = (
    "rxplus", "ryplus", "rzplus", "rxminus", "ryminus", "rzminus",
    "tx", "ty", "tz", "hodgepodge", "present", "absent",
)
# fmt: on


def toybox_clip(
    class_name: str,
    number: int,
    clip: str,
    frames: Iterable[int],
    ending: str = "{}.png",
) -> list[str]:
    """Names of the frames of a clip of Toybox."""
    name = f"{class_name}_{number:02d}_pivothead"
    prefix = f"images/{TOYBOX_FOLDERS[class_name]}/{name}/{name}_{clip}_"
    return [prefix + ending.format(frame) for frame in frames]


def toybox_names(
    classes=tuple(TOYBOX_FOLDERS), objects=range(1, 31), frames: int = 20
) -> list[str]:
    """Names of complete objects of Toybox.

    All twelve clips have equal numbers of frames.
    """
    names = []
    for class_name, number, clip in product(classes, objects, TOYBOX_CLIPS):
        names += toybox_clip(class_name, number, clip, range(1, frames + 1))
    return names


def odd_toybox_names() -> list[str]:
    """Names of three objects of Toybox, and other files.

    A cup with a long clip, a gap and upper-case names; a cup without tz; a duck with a
    short clip.
    """
    names = []
    for clip in TOYBOX_CLIPS:
        if clip not in ("rzplus", "tz", "hodgepodge"):
            names += toybox_clip("cup", 1, clip, (1, 2))
        if clip != "tz":
            names += toybox_clip("cup", 2, clip, (1, 2))
        if clip != "rxplus":
            names += toybox_clip("duck", 12, clip, (1, 2))
    return [
        *names,
        *toybox_clip("cup", 1, "rzplus", range(1, 18)),
        *toybox_clip("cup", 1, "tz", (1, 2, 4), "{:03d}.jpeg"),
        *toybox_clip("cup", 1, "hodgepodge", (1, 2), "{:03d}.PNG"),
        *toybox_clip("duck", 12, "rxplus", range(1, 10), "{}.JPG"),
        "README.md",
        "images/Thumbs.db",
        "images/households/boxes.csv",
        "images/households/cup_01_pivothead/cup_01_pivothead_tx.mp4",
        "images/households/cup_01_pivothead/._cup_01_pivothead_tx_1.png",
    ]


# fmt: off
ILAB_CLASSES = (
    "boat", "bus", "car", "equip", "f1car", "heli", "mil", "monster",
    "pickup", "plane", "semi", "tank", "train", "ufo", "van",
)
# fmt: on
ILAB_VIEWS = list(product((0, 2, 4, 7, 9), (1, 2, 3, 4, 6, 7)))  # camera and rotation


def ilab_session(
    class_name: str, number: int, background: int, views: int = 15, ending="-l0-f2.jpg"
) -> list[str]:
    """Names of the images of an object of iLab with a background, up to 30 views."""
    clip = f"train_img/{class_name}-i{number:04d}-b{background:04d}"
    return [
        f"{clip}-c{camera:02d}-r{rotation:02d}{ending}"
        for camera, rotation in ILAB_VIEWS[:views]
    ]


def ilab_names(
    classes=ILAB_CLASSES,
    objects=range(1, 31),
    backgrounds=range(1, 11),
    views: int = 30,
) -> list[str]:
    """Names of complete objects of iLab, including "semi"."""
    names = []
    for class_name, number, background in product(classes, objects, backgrounds):
        names += ilab_session(class_name, number, background, views)
    return names


def odd_ilab_names() -> list[str]:
    """Names of objects of iLab, and other files.

    A boat with a short session, one with too few, a van with upper-case names, and an
    unused class.
    """
    names = []
    for background in (1, 3, 4, 5, 6, 7, 8, 9, 10):
        names += ilab_session("boat", 1, background)
    names += ilab_session("boat", 1, 2, views=14)
    names += ilab_names(["boat"], [2], range(1, 8), 15)
    for background in range(11, 19):
        names += ilab_session("van", 7, background, 17, "-l0.JPG")
    names += ilab_names(["semi"], [1], range(1, 9), 15)
    return [
        *names,
        "README.txt",
        "train_img/Thumbs.db",
        "train_img/boat-i0001-b0001.xml",
        "test_img/any.jpg",
        "train_img/._boat-i0001-b0001-c00-r01-l0-f2.jpg",
        "test_img/boat-i0001-b0001-c00-r01-l0-f2.jpg",
    ]


def core50_clip(
    session: int, number: int, frames: Iterable[int], ending: str = ".png"
) -> list[str]:
    """Names of the frames of an object of CORe50 in a session."""
    return [
        f"s{session}/o{number}/C_{session:02d}_{number:02d}_{frame:03d}{ending}"
        for frame in frames
    ]


def core50_names(
    sessions=range(1, 12), objects=range(1, 51), frames: Iterable[int] = range(300)
) -> list[str]:
    """Names of complete sessions of CORe50."""
    names = []
    for session, number in product(sessions, objects):
        names += core50_clip(session, number, frames)
    return names


def odd_core50_names() -> list[str]:
    """Six objects of three classes, and other files.

    o2 is loud and lacks s3, o4 has gaps in s1, o11 has s1 alone, of which o12 has only
    frames that are not used.
    """
    used = range(10, 300, 20)
    return [
        *core50_names((1, 3, 10), (1,), used),
        *core50_clip(1, 2, used, ".PNG"),
        *core50_clip(10, 2, used),
        *core50_clip(1, 4, [4, 9, 10, 11, 29, 50, 289, 290, 299]),
        *core50_names((3, 10), (4,), used),
        *core50_names((1,), (11,), used),
        *core50_names((1,), (12,), (0, 4)),
        *core50_names((3, 10), (12,), used),
        *core50_names((1, 3, 10), (50,), used),
        "README.md",
        "s1/Thumbs.db",
        "s1/o1/._C_01_01_010.png",
        "s1/o1/boxes.csv",
    ]


ICUB_PARTS = {
    "part1": ("book", "cellphone", "mouse", "pencilcase", "ringbinder"),
    "part2": ("hairbrush", "hairclip", "perfume", "sunglasses", "wallet"),
    "part3": ("flower", "glass", "mug", "remote", "soapdispenser"),
    "part4": ("bodylotion", "ovenglove", "sodabottle", "sprayer", "squeezer"),
}
ICUB_CLIPS = ("MIX", "ROT2D", "ROT3D", "SCALE", "TRANSL")


def icub_clip(
    folder: str,
    day: int,
    frames: Iterable[int],
    camera: str = "left",
    ending: str = ".jpg",
) -> list[str]:
    """Names of the frames of a clip of iCubWorld Transformations.

    Folder is like part3/mug/mug1/MIX.
    """
    return [f"{folder}/day{day}/{camera}/{frame:08d}{ending}" for frame in frames]


def icub_names(parts=ICUB_PARTS, objects=range(1, 11), frames: int = 21) -> list[str]:
    """Names of complete objects of iCubWorld Transformations.

    Five clips on two days, of two cameras.
    """
    left = []
    right = []
    for split, categories in parts.items():
        for category, number, clip in product(categories, objects, ICUB_CLIPS):
            folder = f"{split}/{category}/{category}{number}/{clip}"
            for day in (2, 10):
                left += icub_clip(folder, day, range(frames))
                right += icub_clip(folder, day, range(2), "right")
    return left + right


def odd_icub_names() -> list[str]:
    """Names of two mugs and a book, which is in the wrong part, and other files.

    There are gaps, short and missing clips, and upper-case names.
    """
    mug = "part3/mug/mug"
    book = "part2/book/book"
    return [
        *icub_clip(f"{mug}2/MIX", 4, range(11)),
        # Without 7, so at the positions 0, 10 and 20 are 5, 16 and 26.
        *icub_clip(f"{mug}2/ROT2D", 2, [5, 6, *range(8, 31)]),
        *icub_clip(f"{mug}2/ROT2D", 10, [100, 90]),
        *icub_clip(f"{mug}2/SCALE", 3, range(10), ending=".JPG"),
        *icub_clip(f"{mug}2/TRANSL", 3, range(2), "right"),
        *icub_clip(f"{mug}2/TRANSL", 12, [7]),
        *icub_clip(f"{mug}10/MIX", 3, range(4, 7)),
        *icub_clip(f"{mug}10/ROT3D", 3, range(4, 7), "right"),
        *icub_clip(f"{mug}10/SCALE", 3, [30, 20, 10]),
        *icub_clip(f"{book}1/MIX", 1, range(3)),
        *icub_clip(f"{book}1/ROT2D", 1, range(3)),
        *icub_clip(f"{book}1/ROT3D", 1, range(3)),
        *icub_clip(f"{book}1/SCALE", 1, range(3)),
        *icub_clip(f"{book}1/TRANSL", 1, range(3)),
        "README.txt",
        f"{book}1/MIX/day1/left/00000000.xml",
        f"{book}1/MIX/day1/left/._00000000.jpg",
        f"{book}1/MIX/day1/Thumbs.db",
        "boxes/anything.csv",
    ]


def write_toybox_videos(
    root: Path, clips: Iterable[tuple[str, int, str]], seconds: float = 2, rate: int = 5
) -> Path:
    """Write videos of Toybox, such as ("cup", 1, "tx").

    That is `root/households/cup_01_pivothead/cup_01_pivothead_tx.mp4`.
    """
    for class_name, number, clip in clips:
        name = f"{class_name}_{number:02d}_pivothead"
        folder = root / TOYBOX_FOLDERS[class_name] / name
        write_video(folder / f"{name}_{clip}.mp4", seconds, rate)
    return root


def cifar100_pixels(number: int) -> np.ndarray:
    """The pixels of an image of `write_cifar100_archive`: `(32, 32, 3)` uint8."""
    return np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def write_cifar100_archive(path: Path) -> str:
    """Write two classes of CIFAR-100 in its distributed form.

    Three training and two test images each. Image n of both splits together has
    `cifar100_pixels(n)`, and is called `<class>_s_<n>.png`; labels take turns.

    Returns:
        The MD5 checksum of the archive.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    classes = ["apple", "train"]
    contents = {"meta": {"fine_label_names": classes}}
    for split, numbers in (("train", range(6)), ("test", range(6, 10))):
        pixels = []
        labels = []
        names = []
        for number in numbers:
            label = number % 2
            pixels.append(cifar100_pixels(number).transpose(2, 0, 1).reshape(-1))
            labels.append(label)
            names.append(f"{classes[label]}_s_{number:06d}.png")
        contents[split] = {
            "data": np.array(pixels),
            "fine_labels": labels,
            "filenames": names,
        }
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            pickled = pickle.dumps(content, protocol=2)
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(pickled)
            archive.addfile(info, io.BytesIO(pickled))
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def image_tree_names(
    folders: dict[str, int], classes: Iterable[str], ending: str = ".png"
) -> list[str]:
    """Names of a tree of single images: `train/apple/apple_0.png`.

    `folders` gives the number of images of a class.
    """
    classes = list(classes)
    names = []
    for folder, count in folders.items():
        for name, number in product(classes, range(count)):
            names.append(f"{folder}/{name}/{name}_{number}{ending}")
    return names


def write_tiny_imagenet(
    root: Path, classes: Iterable[str], train: int = 2, test: int = 1
) -> Path:
    """Write the official layout of Tiny-ImageNet with fewer classes and images.

    Test image n is of class n % classes.
    """
    classes = list(classes)
    names = ["test/images/test_0.JPEG", "wnids.txt", "words.txt"]
    for wnid in classes:
        names.append(f"train/{wnid}/{wnid}_boxes.txt")
        for number in range(train):
            names.append(f"train/{wnid}/images/{wnid}_{number}.JPEG")
    lines = []
    for number in range(test * len(classes)):
        name = f"val_{number}.JPEG"
        names.append(f"val/images/{name}")
        lines.append(f"{name}\t{classes[number % len(classes)]}\t0\t32\t44\t62\n")
    write_files(root, names)
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return root


def openloris_names(
    objects=("bottle_01", "cup_10"),
    factors=("clutter",),
    segments=range(1, 10),
    images=2,
) -> list[str]:
    """Names of OpenLORIS-Object: `train/clutter/segment1/bottle_01/1.jpg`.

    Images are numbered without leading zeros.
    """
    names = []
    for split, factor, segment in product(("train", "test"), factors, segments):
        for name, image in product(objects, range(9, 9 + images)):
            names.append(f"{split}/{factor}/segment{segment}/{name}/{image}.jpg")
    return names


def clear_names(classes=("baseball", "bus"), buckets=range(11), images=1) -> list[str]:
    """Names of CLEAR: `train/labeled_images/1/bus/0.jpg`."""
    images = product(("train", "test"), buckets, classes, range(images))
    return [
        f"{split}/labeled_images/{bucket}/{name}/{image}.jpg"
        for split, bucket, name, image in images
    ]


def write_stream51(root: Path, classes=("airplane", "bear")) -> Path:
    """Write Stream-51 with its lists.

    Two clips of three frames and two test images of each class; boxes are whole images.
    """
    size = [12, 8]
    box = [12, 0, 8, 0]
    train = []
    test = []
    for number, name in enumerate(classes):
        for clip, frame in product(range(2), range(3)):
            path = f"train/{number + 1}-{name}/{clip:03d}_000_{frame:05d}.jpg"
            train.append([number, clip, 0, frame, size, box, path])
        for image in range(2):
            test.append([number, size, box, f"test/{2 * number + image:06d}.jpg"])
    for image in range(2):
        test.append([51, size, box, f"test/{900 + image:06d}.jpg"])
    write_files(root, [entry[-1] for entry in train + test])
    (root / "Stream-51_meta_train.json").write_text(json.dumps(train))
    (root / "Stream-51_meta_test.json").write_text(json.dumps(test))
    return root


def orbit_video(
    user: str, thing: str, kind: str, frames: int, name: str = "Zj_1"
) -> list[str]:
    """Names of the frames of a video of ORBIT, which count from 1."""
    video = f"{user}--{thing}--{kind}--{name}"
    return [
        f"test/{user}/{thing}/{kind}/{video}/{video}-{frame:05d}.jpg"
        for frame in range(1, frames + 1)
    ]


def write_orbit(
    root: Path,
    things=("bag", "front door"),
    frames=(2, 52),
    absent: int = 2,
    users=("P177", "P198", "P233"),
) -> Path:
    """Write ORBIT with a clean and a clutter video of each object.

    It is not visible in the last frames of the latter.
    """
    clean, clutter = frames
    for user, name in product(users, things):
        tested = orbit_video(user, name, "clutter", clutter)
        write_files(root, [*orbit_video(user, name, "clean", clean), *tested])
        notes = {}
        for number, path in enumerate(tested):
            is_absent = number >= clutter - absent
            notes[Path(path).name] = {"object_not_present_issue": is_absent}
        file = root / "annotations/test" / f"{Path(tested[0]).parent.name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(notes))
    return root


# Two classes of every benchmark, a few images each, with training and test frames.
TINY: dict[str, list[str] | None] = {
    "core50": core50_names((1, 3), (1, 6), (10, 30)),
    "toybox": toybox_names(["cup", "duck"], [1], 2),
    "ilab": ilab_names(["boat", "bus"], [1], range(1, 9), 15),
    "icub": icub_names({"part1": ("book", "mouse")}, (1,), 1),
    "ilab_core50": [
        *(
            f"iLab-2M-Light/{name}"
            for name in ilab_names(["boat"], [1], range(1, 9), 15)
        ),
        *(f"core50/{name}" for name in core50_names((1, 3), (1,), (10, 30))),
    ],
    "cifar100": [
        "train/apple/1.png",
        "train/bed/1.png",
        "test/apple/1.png",
        "test/bed/1.png",
    ],
    "imagenet": [
        "train/n00000001/1.JPEG",
        "train/n00000002/1.JPEG",
        "val/n00000001/1.JPEG",
        "val/n00000002/1.JPEG",
    ],
    "openloris_illumination": openloris_names(factors=["illumination"]),
    "openloris_occlusion": openloris_names(factors=["occlusion"]),
    "openloris_pixel": openloris_names(factors=["pixel"]),
    "openloris_clutter": openloris_names(factors=["clutter"]),
    "openloris_sequence": openloris_names(
        factors=("clutter", "illumination"), segments=(1, 9), images=1
    ),
    "clear10": clear_names(buckets=(0, 2, 10)),
    "clear100": clear_names(("bus", "watch"), (1, 2)),
    "stream51": None,
    "orbit": None,
    "eth80": None,
    "tiny_imagenet": [
        "train/n00000001/1.JPEG",
        "train/n00000002/1.JPEG",
        "test/n00000001/1.JPEG",
        "test/n00000002/1.JPEG",
    ],
    "clip_folder": None,
    "toy_shapes": None,
    "toy_shapes_short": None,
    "toy_dots": None,
}


def write_tiny(name: str, root: Path) -> Path:
    """Write the tiny form of a benchmark; nothing for one without files."""
    writers = {
        "eth80": write_eth80,
        "clip_folder": write_clip_folder,
        "stream51": write_stream51,
        "orbit": write_orbit,
    }
    if name in writers:
        return writers[name](root)
    return write_files(root, TINY[name] or [])


def frames_by_clip(table):
    """Frames of each (object, session), in table order."""
    frames = {}
    for row in table:
        frames.setdefault((row.object_name, row.session), []).append(row.frame)
    return frames


def image_sizes(table) -> set[tuple[int, int]]:
    """Read all frames of a table, and return their sizes."""
    return {table.read(row).size for row in range(len(table))}


def values_of(column, rows) -> set:
    """Return the values of a column of a table in some rows."""
    return {column[row] for row in rows}
