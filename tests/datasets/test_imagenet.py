import time

import pytest
from fake_data import image_tree_names, write_files

from benchmarks_toybox_ilab.datasets import imagenet
from benchmarks_toybox_ilab.datasets.imagenet import ImageNetFrames, OnlineImageNet, missing
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError

CLASSES = [f"n{number:08d}" for number in range(1000)]


def full_size():
    """As many names as ImageNet has: 1281 or 1282 training images per class."""
    return [
        *image_tree_names({"train": 1282}, CLASSES[:167], ".JPEG"),
        *image_tree_names({"train": 1281}, CLASSES[167:], ".JPEG"),
        *image_tree_names({"val": 50}, CLASSES, ".JPEG", "ILSVRC2012_val_{class_name}{number}"),
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    names = image_tree_names({"train": 2, "val": 1}, CLASSES[:3], ".JPEG")
    strays = ["LOC_val_solution.csv", "train/README.md", "val/.DS_Store", "val/valprep.sh", "train/n00000000/._x.JPEG"]
    return write_files(tmp_path_factory.mktemp("imagenet"), [*names, "val/n00000001/quiet.jpg", *strays])


def test_train_is_for_training_and_val_for_testing(root):
    table = ImageNetFrames(root)
    assert table.classes == ("n00000000", "n00000001", "n00000002") and len(table) == 6 + 4
    assert table[0] == Frame("train/n00000000/n00000000_0.JPEG", "n00000000", "n00000000_0", "0", 0, "train")
    assert table.counts()["n00000001"] == {"train": 2, "test": 2}
    assert table[len(table) - 1].session == "1" and table[len(table) - 1].split == "test"
    assert table.read(0).size == (12, 8) and table.name == "imagenet"
    assert ImageNetFrames(root, reference=True).content_hash() == table.content_hash()


def test_the_parent_folder_is_accepted(root, tmp_path):
    (tmp_path / "imagenet").symlink_to(root)
    assert ImageNetFrames(tmp_path).content_hash() == ImageNetFrames(root).content_hash()


@pytest.mark.slow
def test_the_whole_data_set_is_quickly_a_table():
    names = full_size()
    assert len(names) == 1_281_167 + 50_000
    start = time.process_time()
    table = ImageNetFrames("/nowhere", names)
    assert time.process_time() - start < 60
    assert (len(table.classes), table.split.count("train"), table.split.count("test")) == (1000, 1_281_167, 50_000)
    assert imagenet.COUNTS == {"classes": 1000, "train": 1_281_167, "test": 50_000}
    assert missing(names) == []
    assert missing(names[1:]) == ["1281166 of 1281167 training images"]


def test_a_thousand_classes_of_few_images():
    names = image_tree_names({"train": 3, "val": 50}, CLASSES, ".JPEG")
    table = ImageNetFrames("/nowhere", names)
    assert (len(table.classes), table.split.count("train"), table.split.count("test")) == (1000, 3000, 50_000)
    assert missing(names) == ["3000 of 1281167 training images"]


def test_what_is_missing_is_listed_by_class():
    names = image_tree_names({"train": 1, "val": 50}, CLASSES[:998], ".JPEG")
    gone = {"train/n00000003/n00000003_0.JPEG", "val/n00000003/n00000003_0.JPEG", "val/n00000004/n00000004_9.JPEG"}
    assert missing(name for name in names if name not in gone) == [
        "2 of 1000 classes are missing altogether",
        "class n00000003: no images in train, 49 of 50 images in val",
        "class n00000004: 49 of 50 images in val",
        "997 of 1281167 training images",
    ]
    assert missing([]) == ["all 1000 classes are missing", "0 of 1281167 training images"]


def test_a_validation_set_that_is_not_sorted_is_explained(tmp_path):
    names = [
        *image_tree_names({"train": 1}, CLASSES[:2], ".JPEG"),
        "val/ILSVRC2012_val_00000001.JPEG",
        "val/ILSVRC2012_val_00000002.JPEG",
    ]
    words = (
        r"images such as val/ILSVRC2012_val_00000001.JPEG lie in val itself, but must lie in one folder per class"
        r'.*development kit.*torchvision.datasets.ImageNet\(root, split="val"\) sorts them.*ILSVRC2012_devkit_t12'
    )
    for arguments in ((write_files(tmp_path, names),), ("/nowhere", names)):
        with pytest.raises(FrameTableError, match=words):
            ImageNetFrames(*arguments)
    assert missing(names)[0].startswith("2 images lie in val itself, but must lie in one folder per class")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "train/tench/1.JPEG",
            "image train/tench/1.JPEG lies in folder tench, which is not named like a class of ImageNet",
        ),
        ("val/n0144076/1.JPEG", "lies in folder n0144076, which is not named like a class"),
        ("train/1.JPEG", "image train/1.JPEG lies at the wrong depth"),
        ("train/n00000000/images/1.JPEG", "image train/n00000000/images/1.JPEG lies at the wrong depth"),
        (
            "val/n00000009/1.JPEG",
            "class 'n00000009' of frame table 'imagenet' has 1 test frames and no training frames",
        ),
    ],
)
def test_an_image_out_of_place_is_named(name, words):
    names = image_tree_names({"train": 1, "val": 1}, CLASSES[:2], ".JPEG")
    with pytest.raises(FrameTableError) as raised:
        ImageNetFrames("/nowhere", [*names, name])
    assert words in str(raised.value)


def test_wrong_roots_say_what_is_expected(tmp_path):
    with pytest.raises(FrameTableError, match=r"there is no folder .*nowhere.*<wnid>/<image>.JPEG"):
        ImageNetFrames(tmp_path / "nowhere")
    (tmp_path / "train").mkdir()
    with pytest.raises(FrameTableError, match="has no folder val, but holds train"):
        ImageNetFrames(tmp_path)


def test_the_generator_passes_on_its_arguments(root):
    benchmark = OnlineImageNet(root, "class_iid", 3, lambda image: "train", lambda image: "eval", 2)
    assert benchmark.protocol == "class_iid" and benchmark.run == 3 and benchmark.n_classes_per_exp == [2, 1]
    assert benchmark.frame_table.content_hash() == ImageNetFrames(root).content_hash()
    assert benchmark.train_stream[0].dataset[0][0] == "train" and benchmark.test_stream[0].dataset[0][0] == "eval"
    assert OnlineImageNet(root).n_classes_per_exp == [3]  # a hundred a time, of three
