"""Atomic writes, after which a file is complete or absent, and locks, which a killed holder frees."""

import os
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
import torch
from filelock import FileLock

from crumb_avalanche.system import atomic_file, folder_lock
from crumb_avalanche.system.atomic_file import atomic_write
from crumb_avalanche.system.folder_lock import (
    LOCK,
    NO_FLOCK,
    FolderInUseError,
    in_use,
    locked,
    locked_file,
)
from crumb_avalanche.system.tensor_file import write_tensors


def test_the_file_appears_at_the_end_and_its_contents_are_on_the_disk_before(
    tmp_path, monkeypatch
):
    path, synced = tmp_path / "new" / "folder" / "file.txt", []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda descriptor: synced.append((os.fstat(descriptor).st_size, path.exists())),
    )
    with atomic_write(path) as unfinished:
        unfinished.write_text("first")
        assert not path.exists()
    assert synced[0] == (len("first"), False)
    assert path.read_text() == "first" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()]
)
def test_an_error_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("first")
    with pytest.raises(type(error)), atomic_write(path) as unfinished:
        unfinished.write_text("sec")
        raise error
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]


def test_two_writers_do_not_interfere(tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    with atomic_write(path) as one:
        one.write_text("one")
        monkeypatch.setattr("threading.get_native_id", lambda: 7)  # another thread
        with atomic_write(path) as other:
            other.write_text("other")
        assert path.read_text() == "other"
    assert path.read_text() == "one"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_new_file_has_usual_permissions_and_an_existing_one_keeps_its_own(
    tmp_path, monkeypatch
):
    path, asked = tmp_path / "mine.safetensors", []
    left = tmp_path / f"{path.name}.{threading.get_native_id()}.part"
    left.touch(0o600)
    before = os.umask(0o027)
    write_tensors(path, {"rows": torch.ones(2)}, {})
    os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and not left.exists()
    with atomic_write(path) as unfinished:
        assert stat.S_IMODE(unfinished.stat().st_mode) == 0o600
        unfinished.write_text("mine")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with atomic_write(path, 0o600) as unfinished:
        assert stat.S_IMODE(unfinished.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    real = os.stat_result

    def of_others(path, owner, group):
        """Refuse owners, as systems do to all but root, and groups that one is not in."""
        asked.append((owner, group))
        if owner != -1 or group == 77:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", of_others)
    for group, mode in ((66, 0o640), (77, 0o600)):
        before = real([stat.S_IFREG | 0o640, 0, 0, 1, 55, group, 0, 0, 0, 0])
        monkeypatch.setattr(
            atomic_file, "replaceable", lambda path, before=before: before
        )
        write_tensors(path, {"rows": torch.ones(2)}, {})
        assert stat.S_IMODE(path.stat().st_mode) == mode and asked[-2:] == [
            (55, group),
            (-1, group),
        ]


@pytest.mark.skipif(os.name != "posix", reason="links and devices of POSIX")
def test_a_link_is_followed_and_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("middle")
    (tmp_path / "middle").symlink_to("other/file")
    for text in ("new", "newer"):  # the target is absent, then there
        with atomic_write(tmp_path / "link") as unfinished:
            unfinished.write_text(text)
        assert (tmp_path / "other" / "file").read_text() == text and (
            tmp_path / "link"
        ).is_symlink()
        assert os.listdir(tmp_path / "other") == ["file"]
    with (tmp_path / "link").open() as begun:
        with atomic_write(tmp_path / "link") as unfinished:
            unfinished.write_text("newest")
        assert begun.read() == "newer", (
            "who reads meanwhile has the old file, not a part of the new one"
        )
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for name, words in (
        ("loop", "loop|Too many levels"),
        ("other", "a directory"),
        ("pipe", "a pipe or a device"),
    ):
        with pytest.raises(OSError, match=words), atomic_write(tmp_path / name):
            pass
    assert sorted(os.listdir(tmp_path)) == ["link", "loop", "middle", "other", "pipe"]


def test_old_leftovers_are_removed(tmp_path):
    old = ["[a].txt.7.part", "a.txt.7.part", "[a].txt.mine.part", "[b].txt.part"]
    for name in old:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - 4000,) * 2)
    (tmp_path / "[b].txt.7.part").touch()  # perhaps of a process that is at work
    for name in ("[a].txt", "[b].txt"):
        with atomic_write(tmp_path / name) as unfinished:
            unfinished.touch()
    assert set(os.listdir(tmp_path)) == {
        *old[1:],
        "[b].txt.7.part",
        "[a].txt",
        "[b].txt",
    }


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
