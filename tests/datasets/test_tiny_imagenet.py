import shutil
import zipfile

import pytest
from fake_data import image_tree_names, write_files, write_tiny_imagenet
from real_data import TEST_DATA

from benchmarks_toybox_ilab import catalog
from benchmarks_toybox_ilab.datasets import tiny_imagenet
from benchmarks_toybox_ilab.datasets.tiny_imagenet import TinyImageNet, TinyImageNetFrames, missing
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError

ARCHIVE = TEST_DATA / "tiny_imagenet/tiny_imagenet.zip"
CLASSES = [f"n{number:08d}" for number in range(200)]


@pytest.fixture
def official(tmp_path):
    return write_tiny_imagenet(tmp_path / "tiny-imagenet-200", CLASSES[:3], train=11, test=4)


def simple_of(official, root):
    """The same images as `<split>/<wnid>/<image>.jpg`."""
    table = TinyImageNetFrames(official)
    for row in table:
        path = root / row.split / row.class_name / f"{row.object_name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(table.root / row.path, path)
    return root


def test_the_official_layout(official):
    table = TinyImageNetFrames(official)
    assert table.classes == tuple(CLASSES[:3]) and len(table) == 3 * 11 + 3 * 4 and table.name == "tiny_imagenet"
    assert table.counts()["n00000002"] == {"train": 11, "test": 4}
    name = "train/n00000000/images/n00000000_0.JPEG"
    assert table[0] == Frame(name, "n00000000", "n00000000_0", "0", 0, "train")
    test = {row.path: (row.class_name, row.session) for row in table if row.split == "test"}
    assert test["val/images/val_4.JPEG"] == ("n00000001", "1")  # test image n is of class n % 3
    assert test["val/images/val_11.JPEG"] == ("n00000002", "1") and table.read(len(table) - 1).size == (12, 8)
    assert not any(path.startswith("test/") for path in table.path)


def test_the_simple_layout_has_the_same_rows(official, tmp_path):
    simple, table = (
        TinyImageNetFrames(simple_of(official, tmp_path / "x" / "tiny_imagenet")),
        TinyImageNetFrames(official),
    )
    assert simple.path[0] == "train/n00000000/n00000000_0.jpg" and simple.path[-1].startswith("test/n00000002/val_")
    assert [column for column in simple._columns()[1:]] == [column for column in table._columns()[1:]]


def test_roots(official, tmp_path):
    parent = TinyImageNetFrames(tmp_path)
    assert parent.root == official and parent.content_hash() == TinyImageNetFrames(str(official), 7).content_hash()
    simple_of(official, tmp_path / "other" / "tiny_imagenet")
    assert TinyImageNetFrames(tmp_path / "other").root == tmp_path / "other" / "tiny_imagenet"
    with pytest.raises(ValueError, match="run is -1, but must be a whole number of at least 0"):
        TinyImageNetFrames(official, -1)
    with pytest.raises(FrameTableError, match=r"there is no folder .*nowhere.*val_annotations.*crumb prepare tiny_ima"):
        TinyImageNetFrames(tmp_path / "nowhere")
    shutil.rmtree(official / "train")
    with pytest.raises(FrameTableError, match="has no folder train, but holds test, val"):
        TinyImageNetFrames(official)


def test_annotations_are_needed_and_checked(official):
    file = official / "val" / "val_annotations.txt"
    lines = file.read_text().splitlines(keepends=True)
    for text, line, found in (
        ("val_0.JPEG n00000000\n", 1, "'val_0.JPEG n00000000'"),
        (lines[0] + "\tn00000000\n", 2, r"'\\tn00000000'"),
        (lines[0] + "val_1.JPEG\ttench\n", 2, r"'val_1.JPEG\\ttench'"),
    ):
        file.write_text(text)
        rule = "must begin with a file name, a tab and a class .*tiny-imagenet-200.zip"
        with pytest.raises(FrameTableError, match=f"line {line} of .*val_annotations.txt is {found}, but {rule}"):
            TinyImageNetFrames(official)
    file.write_text("".join(lines[:7] + lines[8:]))
    with pytest.raises(FrameTableError, match=r"image val/images/val_7.JPEG has no line .*Unpack both .* or remove"):
        TinyImageNetFrames(official)
    file.unlink()
    with pytest.raises(
        FrameTableError, match=r"no .*val_annotations.txt, which gives the classes .*Unpack it .*or remove val and give"
    ):
        TinyImageNetFrames(official)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train/tench/images/1.JPEG", "lies in folder tench, which is not named like a class of ImageNet: n and 8 dig"),
        ("train/1.JPEG", "image train/1.JPEG lies at the wrong depth; the layout is <root>/train/<wnid>/images"),
        ("train/n00000000/images/deep/1.JPEG", "lies at the wrong depth"),
        ("val/n00000009/1.JPEG", "class 'n00000009' of frame table 'tiny_imagenet' has 1 test frames and no training"),
    ],
)
def test_an_image_out_of_place_is_named(official, name, words):
    write_files(official, [name])
    with pytest.raises(FrameTableError) as raised:
        TinyImageNetFrames(official)
    assert words in str(raised.value)


def test_unlabelled_test_images_are_no_test_split(official):
    shutil.rmtree(official / "val")
    with pytest.raises(
        FrameTableError, match=r"test/images/test_0.JPEG lies in folder images, which is not named like"
    ):
        TinyImageNetFrames(official)


def test_what_is_missing():
    simple = image_tree_names({"train": 500, "test": 50}, CLASSES, ".jpg")
    official = [f"train/{wnid}/images/{wnid}_{number}.JPEG" for wnid in CLASSES for number in range(500)]
    official += [*(f"val/images/val_{number}.JPEG" for number in range(10_000)), "val/val_annotations.txt"]
    assert missing(simple) == missing(official) == [] and len(simple) == len(official) - 1 == 110_000
    assert tiny_imagenet.COUNTS == {"classes": 200, "train": 100_000, "test": 10_000}
    assert missing(official[1:-2]) == [
        "class n00000000: 499 of 500 images in train",
        "9999 of 10000 images in val/images",
        "val/val_annotations.txt, which gives the classes of val/images",
    ]
    assert missing(simple[500:]) == ["class n00000000: 0 of 500 images in train"]
    assert missing([]) == ["all 200 classes are missing"]


def test_the_generator_and_the_catalog(official):
    benchmark = TinyImageNet(official, run=3, train_transform=lambda image: "train", classes_per_experience=2)
    assert benchmark.protocol == "class_iid" and benchmark.run == 3 and benchmark.n_classes_per_exp == [2, 1]
    assert benchmark.train_stream[0].dataset[0][0] == "train"
    assert TinyImageNet(official).n_classes_per_exp == [3]  # ten a time, of three
    assert catalog.get_benchmark("tiny_imagenet").table(str(official), 1).content_hash() == (
        TinyImageNetFrames(official).content_hash()
    )


def test_pretraining_reads_the_training_images_of_both_layouts(official, tmp_path):
    from crumb_avalanche.runs.command_settings import PretrainSettings
    from crumb_avalanche.runs.pretrain import open_images

    simple = simple_of(official, tmp_path / "simple")
    for root in (official, simple):
        images = open_images(PretrainSettings(data=str(root / "train"), image_size=8))
        assert images.classes == CLASSES[:3] and images.targets == [label for label in range(3) for _ in range(11)]


@pytest.mark.skipif(not ARCHIVE.is_file(), reason="needs tiny_imagenet/tiny_imagenet.zip in CRUMB_TEST_DATA")
def test_a_part_of_the_real_images(tmp_path):
    with zipfile.ZipFile(ARCHIVE) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg")]
        first = {name.rpartition("/")[0]: name for name in reversed(names)}  # of each class and split
        archive.extractall(tmp_path, first.values())
    lines = missing(name.removeprefix("tiny_imagenet/") for name in names)
    assert lines[0] == "class n01443537: 80 of 500 images in train, 20 of 50 images in test"
    assert lines[-1] == "180 more classes are incomplete"
    table = TinyImageNetFrames(tmp_path)
    assert len(table.classes) == 200 and table.read(0).size == (64, 64)
    assert all(count == {"train": 1, "test": 1} for count in table.counts().values())
    assert TinyImageNet(tmp_path).n_classes_per_exp == [10] * 20
