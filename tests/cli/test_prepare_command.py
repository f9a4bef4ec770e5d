"""``crumb prepare``: flags, exit codes and messages."""

import re
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks_toybox_ilab.prepare.core import Report
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.cli import prepare as command
from crumb_avalanche.system.folder_lock import in_use, locked


@pytest.fixture
def core50(tmp_path):
    """Two objects of two classes of CORe50, in a training and a test session."""
    for session in (1, 3):
        for number in (1, 6):
            folder = tmp_path / "data" / f"s{session}" / f"o{number}"
            folder.mkdir(parents=True)
            for frame in (10, 30):
                Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(
                    folder / f"C_{session:02d}_{number:02d}_{frame:03d}.png"
                )
    return tmp_path / "data"


@pytest.fixture
def called(monkeypatch, tmp_path):
    """Record the arguments of the library's `check` and `prepare`, which find no fault here."""
    monkeypatch.chdir(tmp_path)
    calls = []
    monkeypatch.setattr(command, "check", lambda *given: calls.append(("check", *given)) or Report(["fine"], True))
    monkeypatch.setattr(command, "prepare", lambda *given: calls.append(("prepare", *given)) or [])
    return calls


def test_a_data_set_is_prepared(crumb, core50):
    code, out, err = crumb("prepare", "core50", "--dataset-root", core50)
    assert code == 0 and err == ""
    assert f"core50 in {core50}: 2 classes, 4 training and 4 test images; listed in {core50 / 'core50.csv'}" in out
    assert len(FrameTable.from_csv(core50 / "core50.csv", core50)) == 8


def test_missing_files_are_listed_on_standard_error_and_nothing_is_imported(core50):
    code = (
        "import sys; from crumb_avalanche.cli import main\n"
        f"code = main(['prepare', 'core50', '--dataset-root', {str(core50)!r}, '--check'])\n"
        "print(code, 'torch' in sys.modules, 'avalanche' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 False False\n" and not (core50 / "core50.csv").exists()
    title, *lines = done.stderr.splitlines()
    assert title == f"crumb prepare: core50 is not complete below {core50}:"
    assert "  4 training images; the paper has 6000" in lines and "  class can: all 5 objects are missing" in lines
    assert all(line.startswith("  ") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "checks"),
    [
        (["toybox", "--dataset-root", "D", "--check"], True),
        (["toybox", "--check", "--dataset-root", "D"], True),
        (["--check", "toybox", "--dataset-root", "D"], True),
        (["toybox", "--dataset_root", "D", "--check=true"], True),
        (["toybox", "--dataset-root", "D", "--check", "false"], False),
        (["toybox", "--dataset-root", "D"], False),
    ],
)
def test_every_spelling_of_check(crumb, called, arguments, checks):
    code, out, _ = crumb("prepare", *arguments)
    assert code == 0 and called[0][:3] == ("check" if checks else "prepare", "toybox", "D")
    assert out == ("fine\n" if checks else "")


def test_settings_reach_the_library(crumb, called, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    crumb("prepare", "icub", "--dataset-root", "D", "--source", "S")
    crumb("prepare", "icub", "--dataset-root", "D", "--workers", "3", "--progress", "false")
    assert called == [("prepare", "icub", "D", "S", 7, command.progress_bar), ("prepare", "icub", "D", None, 3, None)]


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


def test_a_root_that_cannot_be_locked_is_prepared_without_a_lock(crumb, called, monkeypatch):
    @contextmanager
    def refused(root, flag):
        raise OSError(30, "Read-only file system")
        yield

    monkeypatch.setattr(command, "locked", refused)
    assert crumb("prepare", "icub", "--dataset-root", "D")[0] == 0 and len(called) == 1


def test_errors_are_one_line_and_failures_a_list(crumb, monkeypatch, tmp_path):
    code, out, err = crumb("prepare", "core5", "--dataset-root", tmp_path)
    assert code == 1 and out == "" and err.count("\n") == 1
    assert "there is no data set 'core5' to prepare; there are cifar100, core50, eth80" in err
    code, _, err = crumb("prepare", "ilab", "--dataset-root", tmp_path / "root")
    assert code == 1 and err.count("\n") == 1 and "--source DOWNLOADED" in err and "iLab-2M-Light.tar.gz" in err
    assert not (tmp_path / "root").exists(), "a new root that stays empty"
    code, _, err = crumb("prepare", "ilab", "--dataset-root", tmp_path, "--workers", "-1")
    assert code == 1 and "workers is -1; give 0 or more" in err
    monkeypatch.setattr(command, "prepare", lambda *given: ["a.mp4: is cut off", "b.mp4: is no video"])
    code, _, err = crumb("prepare", "toybox", "--dataset-root", tmp_path)
    failed = "all is finished except for 2 that failed:\n  a.mp4: is cut off\n  b.mp4: is no video\n"
    assert (code, err) == (1, f"crumb prepare: {failed}")
    assert crumb("prepare", "ilab")[0] == 2 and crumb("prepare", "--dataset-root", tmp_path)[0] == 2
    assert "7" in crumb("prepare", "ilab", "--dataset-root", tmp_path, "--check=7")[2]


def test_a_progress_bar_shows_a_rate(crumb, core50, tmp_path):
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        for path in core50.rglob("*.png"):
            archive.write(path, path.relative_to(core50))
    code, _, err = crumb("prepare", "core50", "--dataset-root", tmp_path / "root", "--source", tmp_path / "mine.zip")
    assert code == 0 and re.search(r"unpacking mine.zip: .*8/8 .*files/s", err)
    arguments = ["--source", tmp_path / "mine.zip", "--progress", "false"]
    assert crumb("prepare", "core50", "--dataset-root", tmp_path / "other", *arguments)[2] == ""


def test_a_resumed_bar_counts_only_new_units(capsys):
    with command.progress_bar("fetching", "B") as step:
        step(5_000_000, 10_000_000)
        step(10_000_000, 10_000_000)
    assert "10.0M/10.0M" in capsys.readouterr().err
    with command.progress_bar("fetching", "B") as step:
        step(5, 0)  # a length that is not known
    with command.progress_bar("nothing to do", "B"):
        pass
    assert "nothing" not in capsys.readouterr().err


def test_the_help_lists_data_sets_without_importing_torch():
    code = (
        "import sys; from crumb_avalanche.cli import main\n"
        "try: main(['prepare', '--help'])\n"
        "except SystemExit: print('torch' in sys.modules, 'avalanche' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False False\n") and "--check [BOOL]" in done.stdout
    assert all(name in done.stdout for name in ("core50", "tiny_imagenet", "eth80"))
