"""Locks of folders and files, which a killed holder frees."""

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
from filelock import FileLock

from crumb_avalanche.system import folder_lock
from crumb_avalanche.system.folder_lock import (
    LOCK,
    NO_FLOCK,
    FolderInUseError,
    in_use,
    locked,
    locked_file,
)


@pytest.fixture(params=["flock", NO_FLOCK[0]])
def mechanism(request, monkeypatch):
    """What the file system offers: ``flock``, or an error of it; returns code that does the same in a process."""
    if request.param == "flock":
        return ""
    code = f"import fcntl\ndef flock(file, operation):\n raise OSError({request.param}, 'no locks')\nfcntl.flock = flock\n"
    monkeypatch.setattr("fcntl.flock", lambda *_: None)  # undone at the end
    exec(code)
    return code


def test_one_holder_at_a_time(tmp_path, mechanism):
    folder = tmp_path / "folder"
    with locked(folder):
        assert in_use(folder)
        words = f"{folder} is in use by another process, which holds {folder / LOCK}.*; wait for its end"
        with pytest.raises(FolderInUseError, match=words), locked(folder):
            pass
    assert not in_use(folder) and not os.listdir(folder)
    (folder / LOCK).touch()  # of one that was killed
    assert not in_use(folder)
    with locked(folder):
        assert in_use(folder)
    (tmp_path / "link").symlink_to("folder/file")
    with (
        locked_file(tmp_path / "link"),
        pytest.raises(FolderInUseError, match="changed by"),
    ):
        locked_file(folder / "file").__enter__()
    assert not os.listdir(folder)


def test_many_contenders_never_share_a_folder(tmp_path):
    inside, seen = [], []

    def contend():
        for _ in range(50):
            with suppress(FolderInUseError), locked(tmp_path):
                inside.append(1)
                seen.append(len(inside))
                time.sleep(0)
                inside.pop()

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {1}


def test_the_lock_of_a_killed_process_is_free(tmp_path, mechanism):
    code = mechanism + "import sys; from crumb_avalanche.system.folder_lock import *; "
    code += "exec('with locked(Path(sys.argv[1])): print(flush=True); time.sleep(60)')"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE
    )
    assert holder.stdout.read(1) == b"\n" and in_use(tmp_path)
    with (
        pytest.raises(FolderInUseError, match="in use by another process"),
        locked(tmp_path),
    ):
        pass
    holder.kill()
    holder.communicate()
    assert os.listdir(tmp_path) and not in_use(tmp_path)
    with locked(tmp_path):
        assert in_use(tmp_path)


def test_locked_waits_for_in_use(tmp_path, monkeypatch):
    """``in_use`` holds the lock for a moment itself."""
    monkeypatch.setattr(
        folder_lock, "PATIENCE", 60
    )  # a thread may start late on a busy machine
    with FileLock(tmp_path / LOCK, thread_local=False) as asking:
        timer = threading.Timer(0.05, asking.release)
        timer.start()
        with locked(tmp_path):
            assert in_use(tmp_path)
        timer.join()


def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path, monkeypatch):
    folder, real, tries = tmp_path / "folder", os.open, []

    def removed(path, *arguments):
        if str(path) == str(folder / LOCK):
            if not tries:
                folder.rmdir()
            tries.append(path)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", removed)
    with locked(folder):
        assert in_use(folder)
