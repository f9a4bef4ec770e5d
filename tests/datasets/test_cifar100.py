import zipfile

import pytest
from fake_data import image_tree_names, write_files, write_image
from real_data import TEST_DATA

from benchmarks_toybox_ilab.datasets import cifar100
from benchmarks_toybox_ilab.datasets.cifar100 import CIFAR100Frames, OnlineCIFAR100, missing
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError

DATA = TEST_DATA
ARCHIVE = DATA / "cifar100/cifar100_png.zip"
CLASSES = [f"class{number:02d}" for number in range(100)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    names = image_tree_names({"train": 2, "test": 1}, ("apple", "bed", "cup", "dog"))
    strays = ["README.txt", "meta.csv", "train/classes.txt", "train/apple/Thumbs.db", "train/apple/.hidden.png"]
    return write_files(tmp_path_factory.mktemp("cifar"), [*names, "test/bed/LOUD.PNG", *strays])


def test_the_two_folders_are_the_two_splits(root):
    table = CIFAR100Frames(root)
    assert table.classes == ("apple", "bed", "cup", "dog") and table.name == "cifar100" and len(table) == 8 + 5
    assert table[0] == Frame("train/apple/apple_0.png", "apple", "apple_0", "0", 0, "train")
    assert table.counts()["bed"] == {"train": 2, "test": 2}
    loud = table[table.path.index("test/bed/LOUD.PNG")]
    assert (loud.object_name, loud.session, loud.split) == ("LOUD", "1", "test")
    assert table.read(0).size == (12, 8)


def test_the_parent_folder_is_accepted(root, tmp_path):
    (tmp_path / "cifar100").symlink_to(root)
    assert CIFAR100Frames(tmp_path).content_hash() == CIFAR100Frames(root).content_hash()


def test_known_names_need_no_files(root):
    table = CIFAR100Frames(root)
    again = CIFAR100Frames("/nowhere", [*table.path, "train/apple/notes.txt", "test/.hidden.png"])
    assert list(again) == list(table)


def test_a_class_without_training_images_is_named(root):
    names = [*image_tree_names({"train": 1, "test": 1}, ("apple",)), "test/zebra/1.png"]
    with pytest.raises(
        FrameTableError, match=r"class 'zebra' of frame table 'cifar100' has 1 test frames and no training"
    ):
        CIFAR100Frames("/nowhere", names)


@pytest.mark.parametrize("name", ["train/1.png", "train/apple/deep/1.png"])
def test_an_image_at_the_wrong_depth_is_named(tmp_path, name):
    write_files(tmp_path, [*image_tree_names({"train": 1, "test": 1}, ("apple",)), name])
    with pytest.raises(
        FrameTableError, match=rf"image {name} lies at the wrong depth; the layout is <root>/{{train,test}}"
    ):
        CIFAR100Frames(tmp_path)


def test_wrong_roots_say_what_is_expected(tmp_path):
    with pytest.raises(
        FrameTableError, match=r"there is no folder .*nowhere.*<class>/<image>.png.*crumb prepare cifar100"
    ):
        CIFAR100Frames(tmp_path / "nowhere")
    write_image(tmp_path / "train/apple/1.png")
    with pytest.raises(FrameTableError, match="has no folder test, but holds train"):
        CIFAR100Frames(tmp_path)


def test_the_whole_data_set_lacks_nothing():
    names = image_tree_names({"train": 500, "test": 100}, CLASSES)
    assert missing(names) == [] and missing(reversed(names)) == []
    table = CIFAR100Frames("/nowhere", names)
    assert (len(table.classes), table.split.count("train"), table.split.count("test")) == (100, 50_000, 10_000)
    assert cifar100.COUNTS == {"classes": 100, "train": 50_000, "test": 10_000}


def test_what_is_missing_is_listed_by_class():
    names = image_tree_names({"train": 500, "test": 100}, CLASSES[:97])
    gone = {"train/class03/class03_7.png", "test/class03/class03_0.png", "test/class03/class03_1.png"}
    strays = ["train/class03/notes.txt", "train/class03/deep/1.png", "elsewhere/class98/1.png", "train/1.png"]
    kept = [name for name in names if name not in gone and not name.startswith("test/class05/")]
    assert missing([*kept, *strays]) == [
        "3 of 100 classes are missing altogether",
        "class class03: 499 of 500 images in train, 98 of 100 images in test",
        "class class05: 0 of 100 images in test",
    ]
    assert missing(["README.md"]) == ["all 100 classes are missing"]
    lines = missing(image_tree_names({"train": 499, "test": 100}, CLASSES))
    assert len(lines) == 21 and lines[19] == "class class19: 499 of 500 images in train"
    assert lines[20] == "80 more classes are incomplete"


def test_the_generator_passes_on_its_arguments(root):
    benchmark = OnlineCIFAR100(root, "class_iid", 3, lambda image: "train", lambda image: "eval", 3)
    assert benchmark.protocol == "class_iid" and benchmark.run == 3 and benchmark.n_classes_per_exp == [3, 1]
    assert benchmark.frame_table.content_hash() == CIFAR100Frames(root).content_hash()
    assert benchmark.train_stream[0].dataset[0][0] == "train" and benchmark.test_stream[0].dataset[0][0] == "eval"
    assert OnlineCIFAR100(root).n_classes_per_exp == [4]  # five a time, of four


@pytest.mark.skipif(not ARCHIVE.is_file(), reason="needs cifar100/cifar100_png.zip in CRUMB_TEST_DATA")
def test_the_real_names():
    with zipfile.ZipFile(ARCHIVE) as archive:
        names = [name.removeprefix("cifar100/") for name in archive.namelist() if name.endswith(".png")]
    assert missing(names) == []
    table = CIFAR100Frames("/nowhere", names)
    assert table.classes[0] == "apple" and "train" in table.classes and table.classes[-1] == "worm"
    assert all(count == {"train": 500, "test": 100} for count in table.counts().values())
