"""Members of archives that are links, devices, or outside the target: refused, ignored, or copied."""

import io
import stat
import tarfile

import pytest
from made_archives import below, write_tar, write_zip, zip_with

from benchmarks_toybox_ilab.prepare.archives import unpack
from benchmarks_toybox_ilab.tables.frame import FrameTableError


@pytest.mark.parametrize("writer", [write_zip, write_tar])
@pytest.mark.parametrize(
    "name", ["../evil.txt", "a/../../evil.txt", "/evil.txt", "..\\evil.txt", "\\evil.txt", "C:\\evil.txt", "C:evil.txt"]
)
def test_members_outside_the_target_are_refused_before_anything_is_written(tmp_path, writer, name):
    archive = writer(tmp_path / "x", {"good.txt": b"good", name: b"evil"})
    with pytest.raises(FrameTableError) as raised:
        unpack(archive, tmp_path / "out")
    words = f"archive {archive} is refused, and nothing was unpacked: its member {name!r} lies outside"
    assert words in str(raised.value) and "unpack it yourself and give the folder" in str(raised.value)
    assert set(below(tmp_path)) == {"x"}


def test_a_folder_outside_the_target_is_refused_too(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        info = tarfile.TarInfo("../outside")
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    with pytest.raises(FrameTableError, match=r"its member '../outside' lies outside"):
        unpack(tmp_path / "x.tar", tmp_path / "out")


@pytest.mark.parametrize("name", [".", "./", "a/.."])
def test_a_file_without_a_name_below_the_target_is_refused(tmp_path, name):
    archive = write_tar(tmp_path / "x.tar", {"good.txt": b"good", name.rstrip("/"): b"evil"})
    with pytest.raises(FrameTableError, match=rf"its member '{name.rstrip('/')}' (has no name below|lies outside)"):
        unpack(archive, tmp_path / "out")
    assert set(below(tmp_path)) == {"x.tar"}


def tar_with(path, name, kind, link=""):
    with tarfile.open(path, "w") as archive:
        for member, content in (("a/good.txt", b"good"), ("b.txt", b"b")):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        archive.addfile(info)
    return path


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "../../b.txt"),
        (tarfile.SYMTYPE, ".."),
        (tarfile.SYMTYPE, "nowhere.txt"),
        (tarfile.LNKTYPE, "../b.txt"),
        (tarfile.LNKTYPE, "/etc/passwd"),
    ],
)
def test_links_out_of_a_tar_file_are_refused(tmp_path, kind, link):
    archive = tar_with(tmp_path / "x.tar", "a/link.txt", kind, link)
    with pytest.raises(FrameTableError, match=r"'a/link.txt' is a link to '.*', which is no file of the archive"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_that_are_not_wanted_are_ignored(tmp_path):
    tar_with(tmp_path / "x.tar", "latest", tarfile.SYMTYPE, "a")  # a folder
    zip_with(tmp_path / "x.zip", "latest", stat.S_IFLNK, "a")
    for name, words in (("x.tar", "is a link to 'a', which is no file of the archive"), ("x.zip", "is a link, not a")):
        assert unpack(tmp_path / name, tmp_path / "out" / name, only=lambda member: member.endswith(".txt")) == 2
        with pytest.raises(FrameTableError, match=f"'latest' {words}"):
            unpack(tmp_path / name, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_links_inside_a_tar_file_become_copies(tmp_path):
    tar_with(tmp_path / "soft.tar", "a/link.txt", tarfile.SYMTYPE, "../b.txt")
    tar_with(tmp_path / "hard.tar", "a/link.txt", tarfile.LNKTYPE, "b.txt")
    for name in ("soft.tar", "hard.tar"):
        unpack(tmp_path / name, tmp_path / "out" / name)
        assert below(tmp_path / "out" / name) == {"a/good.txt": b"good", "b.txt": b"b", "a/link.txt": b"b"}, name
        assert not (tmp_path / "out" / name / "a/link.txt").is_symlink()


def test_devices_are_refused(tmp_path):
    for archive in (
        tar_with(tmp_path / "pipe.tar", "pipe", tarfile.FIFOTYPE),
        tar_with(tmp_path / "device.tar", "pipe", tarfile.CHRTYPE),
        zip_with(tmp_path / "pipe.zip", "pipe", stat.S_IFIFO),
    ):
        with pytest.raises(FrameTableError, match="its member 'pipe' is a device, not a file"):
            unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()
