import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from benchmarks_toybox_ilab.tables.disk import atomic_write, check_room, readable_size
from benchmarks_toybox_ilab.tables.frame import FrameTableError


@pytest.mark.skipif(os.name != "posix", reason="links and permissions of POSIX")
def test_a_link_is_followed_and_permissions_are_kept(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/a")
    (tmp_path / "folder" / "a").touch(0o640)
    with atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "folder" / "a").read_bytes() == b"new"
    assert (tmp_path / "folder" / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "no space left")])
def test_an_error_keeps_the_old_file_and_leaves_no_other(tmp_path, bulk, error):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(type(error) if isinstance(error, OSError) else error), atomic_write(path, bulk=bulk) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]


def test_room_is_checked_where_the_folder_will_be(tmp_path, monkeypatch):
    asked = []
    usage = namedtuple("usage", "total used free")(10**6, 0, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(Path(path)) or usage)
    check_room(tmp_path / "a/b", 1000, "writing")
    with pytest.raises(FrameTableError, match=r"^writing needs 1\.0 kB more, but only 1\.0 kB are free at .*a/b"):
        check_room(tmp_path / "a/b", 1001, "writing")
    assert asked == [tmp_path] * 2


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (2_345_678, "2.3 MB"), (10**12, "1000.0 GB")],
)
def test_sizes_with_units(count, words):
    assert readable_size(count) == words
