"""A folder lock is exclusive, free after its holder is killed, and its error says who holds it."""

import os
import subprocess
import sys
import threading
import time

import pytest
from filelock import FileLock

from crumb_avalanche.cli import main
from crumb_avalanche.system import folder_lock
from crumb_avalanche.system.folder_lock import LOCK, FolderInUseError, in_use, locked


def test_one_holder_at_a_time(tmp_path):
    with locked(tmp_path):
        assert in_use(tmp_path)
        holder = (tmp_path / LOCK).read_text().strip()
        assert holder.startswith(f"{os.getpid()} ")
        words = f"{tmp_path} is in use by process {holder.replace(' ', ' on ')}"
        with pytest.raises(FolderInUseError, match=words), locked(tmp_path):
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


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    code = "import sys; from crumb_avalanche.system.folder_lock import *; "
    code += "exec('with locked(Path(sys.argv[1])): print(flush=True); time.sleep(60)')"
    holder = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE)
    assert holder.stdout.read(1) == b"\n" and in_use(tmp_path)
    with pytest.raises(FolderInUseError, match=f"in use by process {holder.pid} "), locked(tmp_path):
        pass
    holder.kill()
    holder.communicate()
    assert (tmp_path / LOCK).exists() and not in_use(tmp_path)
    with locked(tmp_path):
        assert in_use(tmp_path)


@pytest.fixture
def patience(monkeypatch):
    """More patience than a busy machine needs: a thread may start late there."""
    monkeypatch.setattr(folder_lock, "PATIENCE", 3)


def test_locked_waits_for_in_use(tmp_path, patience):
    """``in_use`` holds the lock for a moment itself."""
    with FileLock(tmp_path / LOCK, thread_local=False) as asking:
        timer = threading.Timer(0.05, asking.release)
        timer.start()
        with locked(tmp_path):
            assert in_use(tmp_path)
        timer.join()


def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path, monkeypatch, patience):
    folder, real, tries = tmp_path / "folder", os.open, []

    def removed(path, *arguments):
        if str(path) == str(folder / LOCK):
            if not tries:
                folder.rmdir()
            tries.append(path)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", removed)
    with locked(folder):
        assert len(tries) > 1 and in_use(folder)


def test_a_file_instead_of_a_folder_is_refused(tmp_path):
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
