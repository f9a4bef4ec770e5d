import pytest
from fake_data import (
    core50_names,
    icub_names,
    image_tree_names,
    write_files,
    write_image,
)
from prepare_runs import files

from benchmarks_toybox_ilab.prepare.core import NAMES, Report, check

CIFAR100 = image_tree_names({"train": 2, "test": 1}, ("apple", "train"))


def test_check_of_the_paper_s_data_set(tmp_path):
    for name in core50_names(frames=range(10, 300, 20)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    heading = f"core50 in {tmp_path}: 10 classes, 6000 training and 2250 test images"
    assert check("core50", tmp_path) == Report([heading, "complete: everything that the paper uses"], True)
    (tmp_path / "s3/o7/C_03_07_050.png").unlink()
    assert check("core50", str(tmp_path)) == Report(
        [heading.replace("2250", "2249"), "2249 test images; the paper has 2250", "o7: clip s3 has 14 of 15 frames"],
        False,
    )


def test_check_counts_clips_of_unknown_length(tmp_path):
    write_files(tmp_path, [name for name in icub_names(frames=1) if "/day2/left/" in name])
    heading = f"icub in {tmp_path}: 20 classes, 800 training and 200 test images"
    assert check("icub", tmp_path) == Report([heading, "complete: everything that the paper uses"], True)
    (tmp_path / "part1/book/book4/MIX/day2/left/00000000.jpg").unlink()
    report = check("icub", tmp_path)
    assert not report.complete and "199 test clips; the paper has 200" in report.lines
    assert "book4: no clip MIX" in report.lines


def test_check_changes_nothing_and_lists_every_gap(tmp_path):
    write_files(tmp_path / "root", CIFAR100)
    before = files(tmp_path)
    report = check("cifar100", tmp_path / "root")
    assert not report.complete and files(tmp_path) == before
    assert report.lines == [
        f"cifar100 in {tmp_path / 'root'}: 2 classes, 4 training and 2 test images",
        "2 classes; the paper has 100",
        "4 training images; the paper has 50000",
        "2 test images; the paper has 10000",
        "98 of 100 classes are missing altogether",
        "class apple: 2 of 500 images in train, 1 of 100 images in test",
        "class train: 2 of 500 images in train, 1 of 100 images in test",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_check_of_nothing(tmp_path, name):
    report = check(name, tmp_path / "nowhere")
    assert not report.complete and len(report.lines) == 1 and "nowhere" in report.lines[0]
    assert not check(name, tmp_path).complete


def test_check_if_no_table_can_be_made(tmp_path):
    write_files(tmp_path, ["train/apple/1.png"])
    report = check("cifar100", tmp_path)
    assert not report.complete and "has no folder test, but holds train" in report.lines[0]
    assert report.lines[1:] == [
        "99 of 100 classes are missing altogether",
        "class apple: 1 of 500 images in train, 0 of 100 images in test",
    ]
    write_image(tmp_path / "s1/o1/wrong.png")
    report = check("core50", tmp_path)
    assert not report.complete and len(report.lines) == 1 and "s1/o1/wrong.png does not fit" in report.lines[0]
