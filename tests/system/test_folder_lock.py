"""Locks of folders and files: one holder at a time, and a killed holder frees them."""

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
    output_file,
)

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked")
IMPORTS = """
import os, sys, time
from pathlib import Path
from crumb_avalanche.system.folder_lock import in_use, locked
folder = Path(sys.argv[1])
"""
HOLD = """
with locked(folder):
    print(flush=True)
    time.sleep(60)
"""
# The forked process leaves the block at once.
FORK_AND_LEAVE = """
with locked(folder):
    child = os.fork()
    if child == 0:
        sys.exit()
    os.waitpid(child, 0)
    assert in_use(folder)
assert not in_use(folder)
"""
# The forked process lives on after its parent.
FORK_AND_STAY = """
with locked(folder):
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        os.close(1)
        time.sleep(20)
        os._exit(0)
    time.sleep(60)
"""
NO_LOCKS = f"""
import fcntl
def flock(file, operation):
    raise OSError({NO_FLOCK[0]}, "no locks")
fcntl.flock = flock
"""


@pytest.fixture(params=["flock", "no flock"])
def mechanism(request, monkeypatch):
    """What the file system offers; returns code that does the same in a process."""
    if request.param == "flock":
        return ""

    def flock(file, operation):
        raise OSError(NO_FLOCK[0], "no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    return NO_LOCKS


@pytest.fixture
def started():
    """Start a program in a process, and wait for the first line that it prints."""
    processes = []

    def start(program, folder):
        code = [sys.executable, "-c", program, folder]
        process = subprocess.Popen(code, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process, process.stdout.readline()

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_folder_has_one_holder(tmp_path, mechanism):
    folder = tmp_path / "folder"
    words = f"{folder} is in use by another process, which holds {folder / LOCK}.*; "
    words += "wait for its end, or choose another --output"
    with (
        locked(folder),
        pytest.raises(FolderInUseError, match=words),
        locked(folder),
    ):
        pass


def test_a_released_lock_leaves_no_file(tmp_path, mechanism):
    folder = tmp_path / "folder"
    with locked(folder):
        assert in_use(folder)
    assert not in_use(folder)
    assert not os.listdir(folder)


def test_a_lock_file_of_nobody(tmp_path, mechanism):
    (tmp_path / LOCK).touch()  # of a process that was killed
    assert not in_use(tmp_path)
    with locked(tmp_path):
        assert in_use(tmp_path)


def test_a_file_and_its_link_share_a_lock(tmp_path, mechanism):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    with (
        locked_file(tmp_path / "link"),
        pytest.raises(
            FolderInUseError,
            match=r"is being changed by another process.*; wait for its end, or stop "
            "it if it is crumb serve or crumb connect",
        ),
        locked_file(tmp_path / "folder" / "file"),
    ):
        pass
    assert not os.listdir(tmp_path / "folder")


def test_hard_links_are_warned_of(tmp_path):
    (tmp_path / "file").touch()
    os.link(tmp_path / "file", tmp_path / "other")
    with pytest.warns(UserWarning, match=r"has other names \(hard links\)"):
        locked_file(tmp_path / "file").__enter__()


def test_what_no_file_replaces_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError), locked_file(tmp_path):
        pass


@pytest.mark.parametrize(
    ("content", "is_refused"), [("", False), ("page", False), ("diary", True)]
)
def test_output_replaces_its_own_kind(tmp_path, content, is_refused):
    path = tmp_path / "file"
    path.write_text(content)
    output = output_file(path, "a page", lambda path: path.read_text() == "page")
    if not is_refused:
        with output:
            return
    with pytest.raises(FileExistsError, match="is not a page, so it stays"), output:
        pass


def test_contenders_never_share_a_folder(tmp_path):
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


def test_the_lock_of_a_killed_process(tmp_path, mechanism, started):
    holder, _ = started(mechanism + IMPORTS + HOLD, tmp_path)
    assert in_use(tmp_path)
    with pytest.raises(FolderInUseError), locked(tmp_path):
        pass
    holder.kill()
    holder.wait()
    assert os.listdir(tmp_path)
    assert not in_use(tmp_path)
    assert os.listdir(tmp_path) == []
    with locked(tmp_path):
        assert in_use(tmp_path)


@forks
def test_a_forked_process_that_leaves(tmp_path):
    """Its parent still holds the lock."""
    code = [sys.executable, "-c", IMPORTS + FORK_AND_LEAVE, tmp_path]
    subprocess.run(code, check=True)


@forks
def test_a_forked_process_that_stays(tmp_path, started):
    """It does not hold the lock of a parent that was killed."""
    holder, child = started(IMPORTS + FORK_AND_STAY, tmp_path)
    try:
        assert in_use(tmp_path)
        holder.kill()
        holder.wait()
        assert not in_use(tmp_path)
    finally:
        os.kill(int(child), 9)


def test_locked_waits_for_in_use(tmp_path, monkeypatch):
    """``in_use`` holds the lock for a moment itself."""
    # A thread may start late on a busy machine.
    monkeypatch.setattr(folder_lock, "PATIENCE", 10)
    with FileLock(tmp_path / LOCK, thread_local=False) as asking:
        timer = threading.Timer(0.05, asking.release)
        timer.start()
        with locked(tmp_path):
            assert in_use(tmp_path)
        timer.join()


def test_a_folder_removed_meanwhile_is_made_again(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    real_open = os.open
    opened = []

    def open_removed(path, *arguments, **options):
        if str(path) == str(folder / LOCK):
            if not opened:
                folder.rmdir()
            opened.append(path)
        return real_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_removed)
    with locked(folder):
        assert in_use(folder)
