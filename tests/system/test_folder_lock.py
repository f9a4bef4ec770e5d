"""One folder, one process: whoever comes second is told."""

import os
import threading
import time

import pytest

from crumb_avalanche.cli import main
from crumb_avalanche.system import folder_lock
from crumb_avalanche.system.folder_lock import LOCK, FolderInUseError, in_use, locked


def test_a_folder_is_one_workers_at_a_time(tmp_path):
    with locked(tmp_path):
        assert in_use(tmp_path)
        holder = (tmp_path / LOCK).read_text().strip()
        assert holder.startswith(f"{os.getpid()} ")
        with pytest.raises(FolderInUseError, match=f"{tmp_path} is in use by process {holder}"), locked(tmp_path):
            pass
    assert not in_use(tmp_path) and not (tmp_path / LOCK).exists()
    (tmp_path / LOCK).write_text("1 elsewhere\n")  # of one that was killed
    assert not in_use(tmp_path)
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{holder}\n"


def test_many_contenders_never_share_a_folder(tmp_path):
    inside, seen, wins = [], [], []

    def contend():
        for _ in range(100):
            try:
                with locked(tmp_path):
                    inside.append(1)
                    seen.append(len(inside))
                    time.sleep(0)
                    inside.pop()
                    wins.append(1)
            except FolderInUseError:
                pass

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {1} and wins


def test_who_only_asks_is_not_taken_for_a_holder(tmp_path):
    (tmp_path / LOCK).write_text("1 elsewhere\n")  # of one that was killed
    fcntl = folder_lock.fcntl
    with open(tmp_path / LOCK) as asks:
        fcntl.flock(asks, fcntl.LOCK_SH)
        timer = threading.Timer(0.05, lambda: fcntl.flock(asks, fcntl.LOCK_UN))
        timer.start()
        with locked(tmp_path):
            assert in_use(tmp_path)
        timer.join()


def test_a_folder_that_is_taken_away_meanwhile_is_made_again(tmp_path, monkeypatch):
    folder, real, tries = tmp_path / "folder", open, []

    def taken_away(path, *mode):
        if not tries:
            folder.rmdir()
        tries.append(path)
        return real(path, *mode)

    monkeypatch.setattr(folder_lock, "open", taken_away, raising=False)
    with locked(folder):
        assert len(tries) == 2 and in_use(folder)


def test_a_file_in_its_place_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError), locked(tmp_path / "file"):
        pass


def test_the_option_to_change_is_named(tmp_path):
    words = "wait for its end, or choose another --dataset-root"
    with locked(tmp_path), pytest.raises(FolderInUseError, match=words), locked(tmp_path, "--dataset-root"):
        pass


@pytest.mark.parametrize("several", [False, True])
def test_a_run_does_not_write_where_another_does(tmp_path, capsys, several):
    output = tmp_path / "out"
    with locked(output / "run3" if several else output):
        flags = ["--runs", "3"] if several else []
        assert main(["run", "--benchmark", "toy_shapes", "--weights", "none", "--output", str(output), *flags]) == 1
    assert f"is in use by process {os.getpid()} " in (said := capsys.readouterr().err)
    assert "wait for its end, or choose another --output" in said
    assert not [path for path in output.rglob("*") if path.is_file()]


def test_a_system_without_locks_locks_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "fcntl", None)
    with locked(tmp_path), locked(tmp_path):
        assert not in_use(tmp_path)
