"""``crumb prepare``: flags, exit codes and messages."""

import re
from pathlib import Path

import pytest
from fake_data import write_tiny

from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.cli import prepare as command
from crumb_avalanche.system.folder_lock import in_use, locked


@pytest.fixture
def core50(tmp_path):
    """Two objects of two classes of CORe50, in a training and a test session."""
    return write_tiny("core50", tmp_path / "data")


def test_a_data_set_is_prepared(crumb, core50):
    code, out, err = crumb("prepare", "core50", "--dataset-root", core50)
    assert code == 0 and err == ""
    assert f"core50 in {core50}: 2 classes, 4 training and 4 test images; listed in {core50 / 'core50.csv'}" in out
    assert len(FrameTable.from_csv(core50 / "core50.csv", core50)) == 8


def test_missing_files_are_listed_on_standard_error(crumb, core50):
    code, out, err = crumb("prepare", "core50", "--dataset-root", core50, "--check")
    assert code == 1 and not out and not (core50 / "core50.csv").exists()
    title, *lines = err.splitlines()
    assert title == f"crumb prepare: core50 is not complete below {core50}:"
    assert (
        "  4 training images; the paper has 6000" in lines
        and "  class can: 0 of 600 training images, 0 of 225 test images" in lines
    )
    assert all(line.startswith("  ") for line in lines)


def test_a_second_process_in_one_root_is_refused(crumb, core50, monkeypatch):
    with locked(core50):
        code, out, err = crumb("prepare", "core50", "--dataset-root", core50)
        assert code == 1 and out == "" and not (core50 / "core50.csv").exists()
        assert f"{core50} is in use by another process" in err
        assert "wait for its end, or choose another --dataset-root" in err
        assert "is not complete below" in crumb("prepare", "core50", "--dataset-root", core50, "--check")[2]
    held = []
    monkeypatch.setattr(command, "prepare", lambda name, root, *given: held.append(in_use(Path(root))) or [])
    assert crumb("prepare", "core50", "--dataset-root", core50)[0] == 0
    assert held == [True] and not (core50 / "lock").exists()


def test_errors_are_one_line_and_failures_a_list(crumb, monkeypatch, tmp_path):
    for given, words in {
        ("core5", "--dataset-root", tmp_path): "there is no data set 'core5' to prepare; there are cifar100, clear10",
        ("ilab", "--dataset-root", tmp_path / "root"): "--source DOWNLOADED.*iLab-2M-Light.tar.gz",
        ("ilab", "--dataset-root", tmp_path, "--workers", "-1"): "workers is -1; give 0 or more",
    }.items():
        code, out, err = crumb("prepare", *given)
        assert code == 1 and out == "" and err.count("\n") == 1 and re.search(words, err)
    assert not (tmp_path / "root").exists(), "a new root that stays empty"
    monkeypatch.setattr(command, "prepare", lambda *given: ["a.mp4: is cut off", "b.mp4: is no video"])
    code, _, err = crumb("prepare", "toybox", "--dataset-root", tmp_path)
    failed = "all is finished except for 2 that failed:\n  a.mp4: is cut off\n  b.mp4: is no video\n"
    assert (code, err) == (1, f"crumb prepare: {failed}")
    assert crumb("prepare", "ilab")[0] == 2 and crumb("prepare", "--dataset-root", tmp_path)[0] == 2
