"""Trees of single images: CIFAR-100, ImageNet, Tiny-ImageNet and ETH-80."""

import shutil
import zipfile
from collections import Counter
from dataclasses import replace

import pytest
from fake_data import (
    ETH80_NUMBERS,
    image_tree_names,
    write_eth80,
    write_files,
    write_image,
    write_tiny_imagenet,
)
from real_data import TEST_DATA

from benchmarks_toybox_ilab.datasets import cifar100, imagenet, tiny_imagenet
from benchmarks_toybox_ilab.datasets.cifar100 import CIFAR100Frames
from benchmarks_toybox_ilab.datasets.eth80 import LAYOUT, ETH80Frames
from benchmarks_toybox_ilab.datasets.tiny_imagenet import TinyImageNetFrames
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from crumb_avalanche.runs.pretrain import open_images
from crumb_avalanche.runs.pretrain_settings import PretrainSettings

CIFAR100 = TEST_DATA / "cifar100/cifar100_png.zip"
TINY = TEST_DATA / "tiny_imagenet/tiny_imagenet.zip"
CLASSES = [f"n{number:08d}" for number in range(1000)]


@pytest.fixture
def official(tmp_path):
    return write_tiny_imagenet(
        tmp_path / "tiny-imagenet-200", CLASSES[:3], train=11, test=4
    )


def test_rows_are_sorted_by_split_class_and_name(tmp_path):
    images = (
        "test/b/x.PNG",
        "train/b/2.png",
        "train/a/10.jpeg",
        "train/a/1.jpg",
        "test/a/1.png",
    )
    write_files(
        tmp_path,
        [
            *images,
            "README.md",
            "train/labels.csv",
            "train/a/.hidden.png",
            "other/a/1.png",
        ],
    )
    assert list(CIFAR100Frames(tmp_path)) == [
        Frame("train/a/1.jpg", "a", "1", "0", 0, "train"),
        Frame("train/a/10.jpeg", "a", "10", "0", 0, "train"),
        Frame("train/b/2.png", "b", "2", "0", 0, "train"),
        Frame("test/a/1.png", "a", "1", "1", 0, "test"),
        Frame("test/b/x.PNG", "b", "x", "1", 0, "test"),
    ]


def cifar100_names(train, classes):
    return image_tree_names({"train": train, "test": 100}, classes)


def missing_of_cifar100(names):
    return cifar100.LAYOUT.missing(CIFAR100Frames("x", names))


# Three images of a class, and all test images of another.
GONE = (
    f"train/{CLASSES[3]}/{CLASSES[3]}_7.png",
    f"test/{CLASSES[3]}/{CLASSES[3]}_0.png",
    f"test/{CLASSES[3]}/{CLASSES[3]}_1.png",
    f"test/{CLASSES[5]}/",
)


def test_what_is_missing_is_listed_by_class():
    names = cifar100_names(500, CLASSES[:97])
    names = [name for name in names if not name.startswith(GONE)]
    assert missing_of_cifar100(names) == [
        "97 classes; the paper has 100",
        "48499 training images; the paper has 50000",
        "9598 test images; the paper has 10000",
        f"class {CLASSES[3]}: 499 of 500 training images, 98 of 100 test images",
        f"class {CLASSES[5]}: 0 of 100 test images",
    ]


def test_only_the_first_incomplete_classes_are_listed():
    lines = missing_of_cifar100(cifar100_names(499, CLASSES[:100]))
    assert lines[20:] == [
        f"class {CLASSES[19]}: 499 of 500 training images",
        "80 more classes are incomplete",
    ]


IMAGENET = image_tree_names({"train": 3, "val": 50}, CLASSES, ".JPEG")
TOTAL = "3000 training images; the paper has 1281167"


def missing_of_imagenet(names):
    return imagenet.LAYOUT.missing(imagenet.ImageNetFrames("x", names))


def test_the_training_images_of_imagenet_are_counted_together():
    assert missing_of_imagenet(IMAGENET) == [TOTAL]


def test_the_test_images_of_imagenet_are_counted_by_class():
    gone = f"val/{CLASSES[4]}/{CLASSES[4]}_9."
    names = [name for name in IMAGENET if not name.startswith(gone)]
    assert missing_of_imagenet(names) == [
        TOTAL,
        "49999 test images; the paper has 50000",
        f"class {CLASSES[4]}: 49 of 50 test images",
    ]


def test_training_images_of_the_official_layout(official):
    table = TinyImageNetFrames(official)
    assert table.name == "tiny_imagenet"
    assert table.classes == tuple(CLASSES[:3])
    assert len(table) == 3 * 11 + 3 * 4
    assert table.counts()["n00000002"] == {"train": 11, "test": 4}
    name = "train/n00000000/images/n00000000_0.JPEG"
    assert table[0] == Frame(name, "n00000000", "n00000000_0", "0", 0, "train")


def test_test_images_of_the_official_layout(official):
    table = TinyImageNetFrames(official)
    test = {row.path: row for row in table if row.split == "test"}
    # Test image n is of class n % 3.
    assert test["val/images/val_4.JPEG"].class_name == "n00000001"
    assert test["val/images/val_11.JPEG"].class_name == "n00000002"
    assert {row.session for row in test.values()} == {"1"}
    assert table.read(len(table) - 1).size == (12, 8)
    assert not any(path.startswith("test/") for path in table.path)


@pytest.fixture
def simple(official, tmp_path):
    """The same images in the simple layout."""
    table = TinyImageNetFrames(official)
    simple = tmp_path / "x" / "tiny_imagenet"
    for row in table:
        path = simple / row.split / row.class_name / f"{row.object_name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(table.root / row.path, path)
    return simple


def test_the_simple_layout_has_the_same_rows(official, simple):
    table = TinyImageNetFrames(simple.parent)
    expected = TinyImageNetFrames(official)
    assert table.path[0] == "train/n00000000/n00000000_0.jpg"
    assert table.path[-1].startswith("test/n00000002/val_")
    rows = [replace(row, path="") for row in table]
    assert rows == [replace(row, path="") for row in expected]


@pytest.mark.parametrize("layout", ["official", "simple"])
def test_pretraining_reads_both_layouts(request, layout):
    root = request.getfixturevalue(layout)
    settings = PretrainSettings(data=str(root / "train"), image_size=8)
    images = open_images(settings)
    assert images.classes == CLASSES[:3]
    assert images.targets == [0] * 11 + [1] * 11 + [2] * 11


# The first line of the annotations.
FIRST = "val_0.JPEG\tn00000000\t0\t0\t1\t1\n"


@pytest.mark.parametrize(
    ("text", "number", "line"),
    [
        ("val_0.JPEG n00000000\n", 1, "'val_0.JPEG n00000000'"),
        (f"{FIRST}\tn00000000\n", 2, r"'\\tn00000000'"),
        (f"{FIRST}val_1.JPEG\ttench\n", 2, r"'val_1.JPEG\\ttench'"),
        (f"{FIRST}val_0.JPEG\tn00000002\n", 2, r"'val_0.JPEG\\tn00000002'"),
    ],
)
def test_annotations_are_checked(official, text, number, line):
    (official / "val" / "val_annotations.txt").write_text(text)
    words = (
        f"line {number} of .*val_annotations.txt is {line}, but must begin with a file "
        "name, a tab and its one class .*tiny-imagenet-200.zip"
    )
    with pytest.raises(FrameTableError, match=words):
        TinyImageNetFrames(official)


def test_an_image_without_an_annotation(official):
    file = official / "val" / "val_annotations.txt"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:7] + lines[8:]))
    words = r"image val/images/val_7.JPEG has no line .*Unpack both .* or remove"
    with pytest.raises(FrameTableError, match=words):
        TinyImageNetFrames(official)


def test_annotations_are_needed(official):
    (official / "val" / "val_annotations.txt").unlink()
    words = r"no .*val_annotations.txt, which gives .*Unpack it .*or remove"
    with pytest.raises(FrameTableError, match=words):
        TinyImageNetFrames(official)


@pytest.mark.skipif(
    not CIFAR100.is_file(), reason="needs cifar100/cifar100_png.zip in CRUMB_TEST_DATA"
)
def test_the_real_names_of_cifar100():
    with zipfile.ZipFile(CIFAR100) as archive:
        names = [
            name.removeprefix("cifar100/")
            for name in archive.namelist()
            if name.endswith(".png")
        ]
    table = CIFAR100Frames("/nowhere", names)
    assert cifar100.LAYOUT.missing(table) == []
    assert (
        table.classes[0] == "apple"
        and "train" in table.classes
        and table.classes[-1] == "worm"
    )
    assert all(
        count == {"train": 500, "test": 100} for count in table.counts().values()
    )


@pytest.mark.skipif(
    not TINY.is_file(),
    reason="needs tiny_imagenet/tiny_imagenet.zip in CRUMB_TEST_DATA",
)
def test_a_part_of_the_real_images_of_tiny_imagenet(tmp_path):
    with zipfile.ZipFile(TINY) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg")]
        first = {
            name.rpartition("/")[0]: name for name in reversed(names)
        }  # of each class and split
        archive.extractall(tmp_path, first.values())
    table = TinyImageNetFrames(tmp_path)
    lines = tiny_imagenet.LAYOUT.missing(table)
    assert lines[2] == "class n01443537: 1 of 500 training images, 1 of 50 test images"
    assert lines[-1] == "180 more classes are incomplete"
    assert len(table.classes) == 200 and table.read(0).size == (64, 64)
    assert all(count == {"train": 1, "test": 1} for count in table.counts().values())


REAL = TEST_DATA / "eth80/eth80_128.zip"
CARS = [f"car{number}" for number in ETH80_NUMBERS["car"]]


def objects(table, split, class_name):
    """Names of the objects of a split and class, in table order."""
    return list(
        dict.fromkeys(table.object_name[row] for row in table.rows(split, class_name))
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_eth80(tmp_path_factory.mktemp("eth80"))


def test_a_clip_is_a_ring_by_azimuth(root):
    table = ETH80Frames(root)
    assert table.classes == ("apple", "car") and len(table) == 2 * 10 * 5
    clips = table.clips(table.rows(class_name="car"))
    assert len(clips) == 10 * 3
    ring = [f"car1/car1-045-{azimuth}.jpg" for azimuth in ("000", "090", "270")]
    assert [table.path[row] for row in clips[1]] == ring
    row = clips[1][1]
    assert (table.object_name[row], table.session[row], table.frame[row]) == (
        "car1",
        "045",
        90,
    )
    assert table.read(row).size == (12, 8)


@pytest.mark.parametrize(
    ("run", "numbers"),
    enumerate(
        [
            (1, 2),
            (3, 5),
            (6, 7),
            (9, 11),
            (12, 14),
            (1, 7),
            (2, 9),
            (3, 11),
            (5, 12),
            (6, 14),
            (1, 2),
        ]
    ),
)
def test_the_run_chooses_the_test_objects_by_position(root, run, numbers):
    table = ETH80Frames(root, run)
    cars = [f"car{number}" for number in numbers]
    apples = [f"apple{CARS.index(car) + 1}" for car in cars]
    assert objects(table, "test", "car") == cars
    assert objects(table, "train", "car") == [car for car in CARS if car not in cars]
    assert objects(table, "test", "apple") == apples


@pytest.mark.parametrize(("number", "different"), [(3, 3), (4, 4), (7, 10), (8, 8)])
def test_incomplete_classes_have_two_test_objects(tmp_path, number, different):
    write_eth80(tmp_path, {"cup": range(1, number + 1)}, ("000-000",))
    tables = [ETH80Frames(tmp_path, run) for run in range(10)]
    pairs = [tuple(objects(table, "test", "cup")) for table in tables]
    assert {len(pair) for pair in pairs} == {2}
    assert len(set(pairs)) == different


def test_masks_and_the_folder_of_the_whole_are_no_objects(tmp_path):
    write_eth80(tmp_path / "eth80", {"cup": range(1, 4)})
    expected = ETH80Frames(tmp_path / "eth80")
    write_image(tmp_path / "eth80" / "cup1" / "maps" / "cup1-000-000-map.png")
    (tmp_path / "core50/s1/o1").mkdir(parents=True)  # a folder of data sets
    assert (
        "class cup: 5 of 328 training images, 10 of 82 test images"
        in LAYOUT.missing(expected)
    )
    assert (
        len(expected) == 15
        and ETH80Frames(tmp_path).content_hash() == expected.content_hash()
    )


def test_objects_that_cannot_be_used(tmp_path):
    write_eth80(tmp_path, {"cup": (1, 2)})
    with pytest.raises(
        FrameTableError, match=r"class 'cup' .* only 2 objects \(cup1, cup2\)"
    ):
        ETH80Frames(tmp_path)
    with pytest.raises(
        ValueError, match="run is -1, but must be a whole number of at least 0"
    ):
        ETH80Frames(tmp_path, -1)


@pytest.mark.skipif(
    not REAL.is_file(), reason="needs eth80/eth80_128.zip in CRUMB_TEST_DATA"
)
def test_the_real_data(tmp_path):
    with zipfile.ZipFile(REAL) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    held_out = Counter()
    for run in range(10):
        table = ETH80Frames(tmp_path, run)
        assert len(table) == 3280 and table.classes == (
            "apple",
            "car",
            "cow",
            "cup",
            "dog",
            "horse",
            "pear",
            "tomato",
        )
        assert all(
            count == {"train": 328, "test": 82} for count in table.counts().values()
        )
        held_out.update(
            name
            for class_name in table.classes
            for name in objects(table, "test", class_name)
        )
    assert len(held_out) == 80 and set(held_out.values()) == {2}
    sizes = Counter(len(clip) for clip in table.clips(table.rows()))
    assert sizes == {1: 80, 4: 80 * 4, 8: 80, 16: 80}
    assert (
        ETH80Frames(tmp_path).frames_hash()
        == "485ff8f83a1616d95815ae9c557c240b0c604a38073fa2249f61f325dcdae15f"
    )
    assert [
        car
        for run in range(5)
        for car in objects(ETH80Frames(tmp_path, run), "test", "car")
    ] == CARS
