"""Trees of single images: CIFAR-100, ImageNet, Tiny-ImageNet and ETH-80."""

import shutil
import zipfile
from collections import Counter
from dataclasses import replace

import pytest
from fake_data import (
    ETH80_NUMBERS,
    eth80_clone_names,
    image_tree_names,
    values_of,
    write_eth80,
    write_files,
    write_image,
    write_tiny_imagenet,
)
from real_data import TEST_DATA

from benchmarks_toybox_ilab.datasets import cifar100, imagenet, tiny_imagenet
from benchmarks_toybox_ilab.datasets.cifar100 import CIFAR100Frames
from benchmarks_toybox_ilab.datasets.eth80 import LAYOUT, ETH80Frames
from benchmarks_toybox_ilab.datasets.tiny_imagenet import (
    TinyImageNet,
    TinyImageNetFrames,
)
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


def test_val_may_have_a_folder_of_each_class(simple, official):
    (simple / "test").rename(simple / "val")
    table = TinyImageNetFrames(simple)
    assert table.path[-1].startswith("val/n00000002/val_")
    assert table.counts() == TinyImageNetFrames(official).counts()


@pytest.mark.parametrize("layout", ["official", "simple"])
@pytest.mark.parametrize("inner", ["", "tiny-imagenet-200"])
def test_a_part_of_a_download_is_named(request, tmp_path, layout, inner):
    folder = tmp_path / "root" / inner
    shutil.copytree(request.getfixturevalue(layout) / "train", folder / "train")
    missing = "val" if layout == "official" else "test"
    words = rf"^{folder} has no folder {missing}, but holds train\."
    with pytest.raises(FrameTableError, match=words):
        TinyImageNetFrames(tmp_path / "root")


def test_the_official_test_images_are_no_test_split(official):
    shutil.rmtree(official / "val")
    with pytest.raises(FrameTableError, match="has no folder val, but holds test, tr"):
        TinyImageNetFrames(official)


def test_the_order_of_avalanche_needs_its_list_of_classes(official):
    (official / "wnids.txt").unlink()
    with pytest.warns(UserWarning, match=r"no .*/wnids.txt, so the classes of seed 3"):
        TinyImageNet(official, seed=3, classes_per_experience=1)


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
        names = archive.namelist()
    images = [name.removeprefix("cifar100/") for name in names if name.endswith(".png")]
    table = CIFAR100Frames("/nowhere", images)
    assert cifar100.LAYOUT.missing(table) == []
    assert table.classes[0] == "apple"
    assert "train" in table.classes
    assert table.classes[-1] == "worm"
    assert numbers_of(table) == {(500, 100)}


def numbers_of(table):
    """Return the different pairs of numbers of training and test images of a class."""
    return {(count["train"], count["test"]) for count in table.counts().values()}


@pytest.mark.skipif(
    not TINY.is_file(),
    reason="needs tiny_imagenet/tiny_imagenet.zip in CRUMB_TEST_DATA",
)
def test_a_part_of_the_real_images_of_tiny_imagenet(tmp_path):
    first = {}  # image by folder: one of each class and split
    with zipfile.ZipFile(TINY) as archive:
        for name in archive.namelist():
            if name.endswith(".jpg"):
                first.setdefault(name.rpartition("/")[0], name)
        archive.extractall(tmp_path, first.values())
    table = TinyImageNetFrames(tmp_path)
    lines = tiny_imagenet.LAYOUT.missing(table)
    assert lines[2] == "class n01443537: 1 of 500 training images, 1 of 50 test images"
    assert lines[-1] == "180 more classes are incomplete"
    assert len(table.classes) == 200
    assert table.read(0).size == (64, 64)
    assert numbers_of(table) == {(1, 1)}


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
    clips = table.clips(table.rows(class_name="car"))
    assert table.classes == ("apple", "car")
    assert len(table) == 2 * 10 * 5
    assert len(clips) == 10 * 3
    assert [table.path[row] for row in clips[1]] == [
        "car1/car1-045-000.jpg",
        "car1/car1-045-090.jpg",
        "car1/car1-045-270.jpg",
    ]


def test_a_view_of_a_ring(root):
    table = ETH80Frames(root)
    row = table.path.index("car1/car1-045-090.jpg")
    assert table.object_name[row] == "car1"
    assert table.session[row] == "045"
    assert table.frame[row] == 90
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
    assert set(map(len, pairs)) == {2}
    assert len(set(pairs)) == different


@pytest.fixture
def cups(tmp_path):
    """Three cups."""
    return write_eth80(tmp_path / "eth80", {"cup": range(1, 4)})


def test_masks_are_no_images(cups):
    content = ETH80Frames(cups).content_hash()
    write_image(cups / "cup1" / "maps" / "cup1-000-000-map.png")
    assert ETH80Frames(cups).content_hash() == content


def test_a_folder_of_data_sets_is_no_object(cups, tmp_path):
    (tmp_path / "core50/s1/o1").mkdir(parents=True)
    assert ETH80Frames(tmp_path).content_hash() == ETH80Frames(cups).content_hash()


@pytest.fixture
def clone(tmp_path):
    """Three cups as the repository of ETH-80 has them, with their masks."""
    return write_files(tmp_path / "ETH-80-master", eth80_clone_names())


@pytest.mark.parametrize("inner", ["", "ETH-80-master"])
def test_the_repository_of_eth80_is_read_as_it_is(tmp_path, clone, inner):
    table = ETH80Frames(clone if inner else tmp_path)
    assert len(table) == 15
    assert table.path[0] == "5/1/cup1-000-000.png"
    assert objects(table, "test", "cup") == ["cup1", "cup2"]


def test_what_eth80_lacks(cups):
    table = ETH80Frames(cups)
    assert len(table) == 15
    line = "class cup: 5 of 328 training images, 10 of 82 test images"
    assert line in LAYOUT.missing(table)


def test_too_few_objects(tmp_path):
    write_eth80(tmp_path, {"cup": (1, 2)})
    words = r"class 'cup' .* only 2 objects \(cup1, cup2\)"
    with pytest.raises(FrameTableError, match=words):
        ETH80Frames(tmp_path)


def test_a_run_below_0(tmp_path):
    words = "run is -1, but must be a whole number of at least 0"
    with pytest.raises(ValueError, match=words):
        ETH80Frames(tmp_path, -1)


needs_eth80 = pytest.mark.skipif(
    not REAL.is_file(), reason="needs eth80/eth80_128.zip in CRUMB_TEST_DATA"
)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The files of the real data, empty."""
    root = tmp_path_factory.mktemp("real")
    with zipfile.ZipFile(REAL) as archive:
        names = archive.namelist()
    for name in names:
        if not name.endswith("/"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
    return root


@needs_eth80
@pytest.mark.parametrize("run", range(10))
def test_a_split_of_the_real_data(real, run):
    table = ETH80Frames(real, run)
    assert len(table) == 3280
    assert table.classes == (
        "apple",
        "car",
        "cow",
        "cup",
        "dog",
        "horse",
        "pear",
        "tomato",
    )
    assert numbers_of(table) == {(328, 82)}


@needs_eth80
def test_each_object_of_the_real_data_is_held_out_twice(real):
    held_out = Counter()
    for run in range(10):
        table = ETH80Frames(real, run)
        test = table.rows("test")
        held_out.update(values_of(table.object_name, test))
    assert len(held_out) == 80
    assert set(held_out.values()) == {2}


@needs_eth80
def test_clips_of_the_real_data(real):
    table = ETH80Frames(real)
    sizes = Counter(map(len, table.clips(table.rows())))
    assert sizes == {1: 80, 4: 80 * 4, 8: 80, 16: 80}
    content = "485ff8f83a1616d95815ae9c557c240b0c604a38073fa2249f61f325dcdae15f"
    assert table.frames_hash() == content


@needs_eth80
def test_the_cars_of_the_real_data(real):
    held_out = []
    for run in range(5):
        held_out += objects(ETH80Frames(real, run), "test", "car")
    assert held_out == CARS
