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
    names = [
        f"{class_name}{number}"
        for class_name, objects in numbers.items()
        for number in objects
    ]
    for name, view in product(names, views):
        write_image(root / name / f"{name}-{view}.jpg")
    return root


def write_clip_folder(
    root: Path, classes: int = 2, objects: int = 3, clips: int = 2, frames: int = 3
) -> Path:
    """`root/class0/object0/clip0/frame0.png`, numbered without leading zeros."""
    for c, o, k, f in product(*map(range, (classes, objects, clips, frames))):
        write_image(root / f"class{c}" / f"object{o}" / f"clip{k}" / f"frame{f}.png")
    return root


def held_out(table):
    """`object/clip` of the test split, in table order, by class."""
    clips = {name: table.clips(table.rows("test", name)) for name in table.classes}
    return {
        name: [
            f"{table.object_name[clip[0]]}/{table.session[clip[0]]}"
            for clip in of_class
        ]
        for name, of_class in clips.items()
    }


def number_reader(path: str) -> Image.Image:
    """A noisy image of the brightness that the path names: `.../7` has a mean of about 7."""
    number = int(path.rpartition("/")[2])
    noise = np.random.default_rng(number).integers(0, 2, (8, 8, 3))
    return Image.fromarray((number + noise).astype(np.uint8))


def make_table(
    classes: int = 5, objects: int = 2, sessions: int = 3, frames: int = 4
) -> FrameTable:
    """A table of images drawn when read; the last session of each object is the test split, paths end in the row."""
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
        if name.lower().endswith((".png", ".jpg", ".jpeg")) and not name.rpartition(
            "/"
        )[2].startswith("."):
            write_image(root / name)
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(b"x")
    return root


TOYBOX_FOLDERS = {
    **{name: "households" for name in ("cup", "mug", "spoon", "ball")},
    **{name: "animals" for name in ("duck", "cat", "horse", "giraffe")},
    **{name: "vehicles" for name in ("car", "truck", "airplane", "helicopter")},
}
TOYBOX_CLIPS = (
    *("rxplus", "ryplus", "rzplus", "rxminus", "ryminus", "rzminus"),
    *("tx", "ty", "tz", "hodgepodge", "present", "absent"),
)


def toybox_clip(
    class_name: str,
    number: int,
    clip: str,
    frames: Iterable[int],
    ending: str = "{}.png",
) -> list[str]:
    """Names of the frames of a clip of Toybox."""
    thing = f"{class_name}_{number:02d}_pivothead"
    return [
        f"images/{TOYBOX_FOLDERS[class_name]}/{thing}/{thing}_{clip}_{ending.format(frame)}"
        for frame in frames
    ]


def toybox_names(
    classes=tuple(TOYBOX_FOLDERS), objects=range(1, 31), frames: int = 20
) -> list[str]:
    """Names of complete objects of Toybox: all twelve clips with equal numbers of frames."""
    clips = product(classes, objects, TOYBOX_CLIPS)
    return [name for clip in clips for name in toybox_clip(*clip, range(1, frames + 1))]


def odd_toybox_names() -> list[str]:
    """A cup with a long clip, a gap and upper-case names; a cup without tz; a duck with a short clip; other files."""
    usual = [
        ("cup", 1, clip)
        for clip in TOYBOX_CLIPS
        if clip not in ("rzplus", "tz", "hodgepodge")
    ]
    usual += [("cup", 2, clip) for clip in TOYBOX_CLIPS if clip != "tz"]
    usual += [("duck", 12, clip) for clip in TOYBOX_CLIPS if clip != "rxplus"]
    return [
        *(name for clip in usual for name in toybox_clip(*clip, (1, 2))),
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


ILAB_CLASSES = (
    *("boat", "bus", "car", "equip", "f1car", "heli", "mil", "monster"),
    *("pickup", "plane", "semi", "tank", "train", "ufo", "van"),
)
ILAB_VIEWS = [
    (camera, rotation) for camera in (0, 2, 4, 7, 9) for rotation in (1, 2, 3, 4, 6, 7)
]


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
    sessions = product(classes, objects, backgrounds)
    return [name for session in sessions for name in ilab_session(*session, views)]


def odd_ilab_names() -> list[str]:
    """A boat with a short session, one with too few, a van with upper-case names, an unused class; other files."""
    return [
        *(
            name
            for number in (1, 3, 4, 5, 6, 7, 8, 9, 10)
            for name in ilab_session("boat", 1, number)
        ),
        *ilab_session("boat", 1, 2, views=14),
        *ilab_names(["boat"], [2], range(1, 8), 15),
        *(
            name
            for number in range(11, 19)
            for name in ilab_session("van", 7, number, 17, "-l0.JPG")
        ),
        *ilab_names(["semi"], [1], range(1, 9), 15),
        *(
            "README.txt",
            "train_img/Thumbs.db",
            "train_img/boat-i0001-b0001.xml",
            "test_img/any.jpg",
        ),
        *(
            f"{folder}boat-i0001-b0001-c00-r01-l0-f2.jpg"
            for folder in ("train_img/._", "test_img/")
        ),
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
    return [
        name
        for clip in product(sessions, objects)
        for name in core50_clip(*clip, frames)
    ]


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
    """Names of the frames of a clip of iCubWorld Transformations; folder is like part3/mug/mug1/MIX."""
    return [f"{folder}/day{day}/{camera}/{frame:08d}{ending}" for frame in frames]


def icub_names(parts=ICUB_PARTS, objects=range(1, 11), frames: int = 21) -> list[str]:
    """Names of complete objects of iCubWorld Transformations: five clips, two days, two cameras."""
    kinds = [
        f"{part}/{category}/{category}"
        for part, categories in parts.items()
        for category in categories
    ]
    folders = [
        f"{kind}{number}/{clip}"
        for kind, number, clip in product(kinds, objects, ICUB_CLIPS)
    ]
    clips = list(product(folders, (2, 10)))
    left = (name for clip in clips for name in icub_clip(*clip, range(frames)))
    right = (name for clip in clips for name in icub_clip(*clip, range(2), "right"))
    return [*left, *right]


def odd_icub_names() -> list[str]:
    """Two mugs and a book, the book in the wrong part: gaps, short and missing clips, upper-case names; other files."""
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
        *(
            name
            for clip in ICUB_CLIPS
            for name in icub_clip(f"{book}1/{clip}", 1, range(3))
        ),
        "README.txt",
        f"{book}1/MIX/day1/left/00000000.xml",
        f"{book}1/MIX/day1/left/._00000000.jpg",
        f"{book}1/MIX/day1/Thumbs.db",
        "boxes/anything.csv",
    ]


def write_toybox_videos(
    root: Path, clips: Iterable[tuple[str, int, str]], seconds: float = 2, rate: int = 5
) -> Path:
    """Videos of Toybox, such as ("cup", 1, "tx"): `root/households/cup_01_pivothead/cup_01_pivothead_tx.mp4`."""
    for class_name, number, clip in clips:
        thing = f"{class_name}_{number:02d}_pivothead"
        write_video(
            root / TOYBOX_FOLDERS[class_name] / thing / f"{thing}_{clip}.mp4",
            seconds,
            rate,
        )
    return root


def cifar100_pixels(number: int) -> np.ndarray:
    """The pixels of an image of `write_cifar100_archive`: `(32, 32, 3)` uint8."""
    return np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def write_cifar100_archive(path: Path) -> str:
    """Write two classes of CIFAR-100 in its distributed form, three training and two test images each.

    Image n of both splits together has `cifar100_pixels(n)`, and is called
    `<class>_s_<n>.png`; labels take turns.

    Returns:
        The MD5 checksum of the archive.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    classes = ("apple", "train")
    contents = {"meta": {"fine_label_names": list(classes)}}
    for split, numbers in (("train", range(6)), ("test", range(6, 10))):
        pixels = [
            cifar100_pixels(number).transpose(2, 0, 1).reshape(-1) for number in numbers
        ]
        contents[split] = {
            "data": np.array(pixels),
            "fine_labels": [number % 2 for number in numbers],
        }
        contents[split]["filenames"] = [
            f"{classes[number % 2]}_s_{number:06d}.png" for number in numbers
        ]
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
    """Names of a tree of single images: `train/apple/apple_0.png`, `folders` gives the number per class."""
    names = [
        (folder, name, number)
        for folder, count in folders.items()
        for name in classes
        for number in range(count)
    ]
    return [
        f"{folder}/{name}/{name}_{number}{ending}" for folder, name, number in names
    ]


def write_tiny_imagenet(
    root: Path, classes: Iterable[str], train: int = 2, test: int = 1
) -> Path:
    """The official layout of Tiny-ImageNet with fewer classes and images; test image n is of class n % classes."""
    classes = list(classes)
    names = [f"val_{number}.JPEG" for number in range(test * len(classes))]
    write_files(
        root,
        [
            *(
                f"train/{wnid}/images/{wnid}_{number}.JPEG"
                for wnid in classes
                for number in range(train)
            ),
            *(f"train/{wnid}/{wnid}_boxes.txt" for wnid in classes),
            *(f"val/images/{name}" for name in names),
            *("test/images/test_0.JPEG", "wnids.txt", "words.txt"),
        ],
    )
    lines = [
        f"{name}\t{classes[n % len(classes)]}\t0\t32\t44\t62\n"
        for n, name in enumerate(names)
    ]
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return root


def openloris_names(
    objects=("bottle_01", "cup_10"),
    factors=("clutter",),
    segments=range(1, 10),
    images=2,
) -> list[str]:
    """Names of OpenLORIS-Object: `train/clutter/segment1/bottle_01/1.jpg`, numbered without leading zeros."""
    folders = product(
        ("train", "test"), factors, segments, objects, range(9, 9 + images)
    )
    return [
        f"{split}/{factor}/segment{segment}/{thing}/{image}.jpg"
        for split, factor, segment, thing, image in folders
    ]


def clear_names(classes=("baseball", "bus"), buckets=range(11), images=1) -> list[str]:
    """Names of CLEAR: `train/labeled_images/1/bus/0.jpg`."""
    images = product(("train", "test"), buckets, classes, range(images))
    return [
        f"{split}/labeled_images/{bucket}/{name}/{image}.jpg"
        for split, bucket, name, image in images
    ]


def write_stream51(root: Path, classes=("airplane", "bear")) -> Path:
    """Stream-51 with its lists: two clips of three frames and two test images of each class; boxes are whole images."""
    box = [12, 0, 8, 0]
    train = []
    test = []
    for number, name in enumerate(classes):
        for clip, frame in product(range(2), range(3)):
            path = f"train/{number + 1}-{name}/{clip:03d}_000_{frame:05d}.jpg"
            train.append([number, clip, 0, frame, [12, 8], box, path])
        test += [
            [number, [12, 8], box, f"test/{2 * number + image:06d}.jpg"]
            for image in range(2)
        ]
    test += [[51, [12, 8], box, f"test/{900 + image:06d}.jpg"] for image in range(2)]
    write_files(root, [entry[-1] for entry in train + test])
    for split, entries in (("train", train), ("test", test)):
        (root / f"Stream-51_meta_{split}.json").write_text(json.dumps(entries))
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
    """ORBIT with a clean and a clutter video of each object, which is not visible in the last frames of the latter."""
    for user, thing in product(users, things):
        clutter = orbit_video(user, thing, "clutter", frames[1])
        write_files(root, [*orbit_video(user, thing, "clean", frames[0]), *clutter])
        notes = {
            Path(name).name: {"object_not_present_issue": False} for name in clutter
        }
        notes |= {
            Path(name).name: {"object_not_present_issue": True}
            for name in clutter[len(clutter) - absent :]
        }
        file = root / "annotations/test" / f"{Path(clutter[0]).parent.name}.json"
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
        f"{split}/{name}/1.png"
        for split in ("train", "test")
        for name in ("apple", "bed")
    ],
    "imagenet": [
        f"{split}/n0000000{number}/1.JPEG"
        for split in ("train", "val")
        for number in (1, 2)
    ],
    **{
        f"openloris_{one}": openloris_names(factors=[one])
        for one in ("illumination", "occlusion", "pixel", "clutter")
    },
    "openloris_sequence": openloris_names(
        factors=("clutter", "illumination"), segments=(1, 9), images=1
    ),
    "clear10": clear_names(buckets=(0, 2, 10)),
    "clear100": clear_names(("bus", "watch"), (1, 2)),
    "stream51": None,
    "orbit": None,
    "eth80": None,
    "tiny_imagenet": [
        f"{split}/n0000000{number}/1.JPEG"
        for split in ("train", "test")
        for number in (1, 2)
    ],
    "clip_folder": None,
    "toy_shapes": None,
    "toy_shapes_short": None,
    "toy_dots": None,
}


def write_tiny(name: str, root: Path) -> Path:
    """Write the tiny form of a benchmark; nothing for one without files."""
    own = {
        "eth80": write_eth80,
        "clip_folder": write_clip_folder,
        "stream51": write_stream51,
        "orbit": write_orbit,
    }
    if name in own:
        return own[name](root)
    return write_files(root, TINY[name] or [])


def frames_by_clip(table):
    """Frames of each (object, session), in table order."""
    found = {}
    for row in table:
        found.setdefault((row.object_name, row.session), []).append(row.frame)
    return found
