"""``crumb prepare``: flags, exit codes and messages."""

import pytest
from fake_data import write_tiny

from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.cli import prepare as command
from crumb_avalanche.system.folder_lock import locked


@pytest.fixture
def core50(tmp_path):
    """Two objects of two classes of CORe50, in a training and a test session."""
    return write_tiny("core50", tmp_path / "data")


def test_a_data_set_is_prepared(done, core50):
    out = done("prepare", "core50", "--dataset-root", core50)
    assert f"core50 in {core50}: 2 classes, 4 training and 4 test images; listed in {core50 / 'core50.csv'}" in out
    assert len(FrameTable.from_csv(core50 / "core50.csv", core50)) == 8


def test_missing_files_are_listed_on_standard_error_also_while_others_write(refused, core50):
    with locked(core50):
        err = refused("is not complete below", "prepare", "core50", "--dataset-root", core50, "--check")
    assert not (core50 / "core50.csv").exists()
    title, *lines = err.splitlines()
    assert title == f"crumb prepare: core50 is not complete below {core50}:"
    assert (
        "  4 training images; the paper has 6000" in lines
        and "  class can: 0 of 600 training images, 0 of 225 test images" in lines
    )
    assert all(line.startswith("  ") for line in lines)


def test_errors_are_one_line_and_failures_a_list(refused, monkeypatch, tmp_path):
    for given, words in {
        ("core5", "--dataset-root", tmp_path): "there is no data set 'core5' to prepare; there are cifar100, clear10",
        ("ilab", "--dataset-root", tmp_path / "root"): "--source DOWNLOADED.*iLab-2M-Light.tar.gz",
        ("ilab", "--dataset-root", tmp_path, "--workers", "-1"): "workers is -1; give 0 or more",
    }.items():
        assert refused(words, "prepare", *given).count("\n") == 1
    assert not (tmp_path / "root").exists(), "a new root that stays empty"
    monkeypatch.setattr(command, "prepare", lambda *given: ["a.mp4: is cut off", "b.mp4: is no video"])
    failed = "^crumb prepare: all is finished except for 2 that failed:\n  a.mp4: is cut off\n  b.mp4: is no video\n$"
    refused(failed, "prepare", "toybox", "--dataset-root", tmp_path)
    refused("give --dataset-root", "prepare", "ilab")
    refused("required: NAME", "prepare", "--dataset-root", tmp_path)
