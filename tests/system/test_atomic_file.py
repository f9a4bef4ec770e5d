"""Atomic writes: a file is complete or absent."""

import os
import stat
import subprocess
import sys
import time

import pytest
import torch

from crumb_avalanche.system.atomic_file import atomic_write
from crumb_avalanche.system.tensor_file import write_tensors


def test_the_file_appears_at_the_end(tmp_path):
    path = tmp_path / "new" / "folder" / "file.txt"
    with atomic_write(path) as unfinished:
        unfinished.write_text("first")
        assert not path.exists()
    assert path.read_text() == "first" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
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
        monkeypatch.setattr("os.getpid", lambda: -1)
        with atomic_write(path) as other:
            other.write_text("other")
        assert path.read_text() == "other"
    assert path.read_text() == "one"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_permissions_are_those_of_plain_files(tmp_path, umask):
    before = os.umask(umask)
    try:
        (tmp_path / "plain").write_text("text")
        write_tensors(tmp_path / "model.safetensors", {"rows": torch.ones(2)}, {})
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode for name in ("plain", "model.safetensors")]
    assert modes[0] == modes[1]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_permissions_are_not_those_of_a_leftover(tmp_path):
    (tmp_path / "plain").touch()
    left = tmp_path / f"file.txt.{os.getpid()}.part"
    left.write_text("left")
    left.chmod(0o600)
    with atomic_write(tmp_path / "file.txt") as unfinished:
        unfinished.write_text("new")
    assert (tmp_path / "file.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "file.txt").read_text() == "new" and not left.exists()


@pytest.mark.skipif(os.name != "posix", reason="numbers of processes of POSIX")
def test_old_leftovers_of_dead_processes_are_removed(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lives = os.getppid()
    old = [f"[a].txt.{gone.pid}.part", f"[a].txt.{lives}.part", f"a.txt.{gone.pid}.part", "[a].txt.mine.part"]
    for name in [*old, "[b].txt.part"]:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - 4000,) * 2)
    (tmp_path / f"[b].txt.{gone.pid}.part").touch()  # perhaps of another machine
    for name in ("[a].txt", "[b].txt"):
        with atomic_write(tmp_path / name) as unfinished:
            unfinished.touch()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {*old[1:], "[b].txt.part", f"[b].txt.{gone.pid}.part", "[a].txt", "[b].txt"}


@pytest.mark.skipif(os.name != "posix", reason="folders are opened on POSIX alone")
@pytest.mark.parametrize("refused", [False, True])
def test_the_folder_is_synced_where_the_file_system_can(tmp_path, monkeypatch, refused):
    path, kept, fsync = tmp_path / "file.txt", [], os.fsync

    def watched(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            kept.append((os.fstat(handle).st_ino, path.exists()))
            if refused:
                raise OSError(22, "Invalid argument")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    with atomic_write(path) as unfinished:
        unfinished.write_text("text")
    assert kept == [(tmp_path.stat().st_ino, True)] and path.read_text() == "text"
