"""What `prepare` says of a source in which nothing of the data set is found."""

import shutil

import pytest
from fake_data import core50_names, ilab_names, write_files
from made_downloads import pack, write_tar, write_zip

from benchmarks_toybox_ilab.tables.frame import FrameTableError

CORE50 = core50_names((1, 3), (1, 6), (10, 11))
ILAB = ilab_names(("boat", "van"), (1,), range(1, 3), 2)


@pytest.fixture
def refused(run, tmp_path):
    """Return the message of a call that is refused."""

    def call(name, source):
        with pytest.raises(FrameTableError) as raised:
            run(name, tmp_path / "root", source)
        return str(raised.value)

    return call


def images(folder, names):
    """Write images, and pack them as a .zip file beside their folder."""
    write_files(folder, names)
    return pack(folder.with_suffix(".zip"), folder)


def test_an_archive_in_an_archive(tmp_path, refused):
    inner = images(tmp_path / "batch1", ILAB)
    outer = write_zip(tmp_path / "all.zip", {"data/batch1.zip": inner.read_bytes()})
    message = refused("ilab", outer)
    assert "all.zip holds nothing of ilab. It holds archives in an archive" in message
    assert "(data/batch1.zip): unpack the outer one, and give the folder" in message


@pytest.mark.parametrize("ending", [".7z", ".rar", ".tar.gz"])
def test_another_archive_in_a_tar_file(tmp_path, refused, ending):
    outer = write_tar(tmp_path / "all.tar", {f"videos{ending}": b"packed"})
    assert f"archives in an archive (videos{ending})" in refused("toybox", outer)


@pytest.mark.parametrize("depth", ["x", "x/y", "x/y/z", "w/x/y/z"])
def test_a_folder_too_high(tmp_path, refused, depth):
    inner = tmp_path / "downloads" / depth / "core50_128x128"
    write_files(inner, CORE50)
    message = refused("core50", tmp_path / "downloads")
    assert f"But {inner.parent} has its layout: give that folder." in message


def test_a_root_too_high(tmp_path, run):
    write_files(tmp_path / "data" / "mine" / "iLab-2M-Light", ILAB)
    with pytest.raises(FrameTableError, match=f"But {tmp_path}/data/mine has its lay"):
        run("ilab", tmp_path / "data")


def test_archives_in_a_folder_too_high(tmp_path, refused):
    images(tmp_path / "downloads" / "parts" / "batch1", ILAB)
    folder = tmp_path / "downloads"
    shutil.rmtree(folder / "parts" / "batch1")
    message = refused("ilab", folder)
    assert (
        f"Archives lie deeper in it (parts/batch1.zip): give {folder}/parts" in message
    )


@pytest.mark.parametrize("name", ["videos.7z", "videos.RAR", "videos.zip.001", "a.xz"])
def test_archives_that_are_not_read(tmp_path, refused, name):
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / name).write_bytes(b"packed")
    message = refused("toybox", tmp_path / "downloads")
    assert f"archives of kinds that are not read ({name}): unpack them" in message


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (
            b"7z\xbc\xaf\x27\x1c\0\4",
            "is a 7-Zip archive, which is not read.*`7z x a.zip`",
        ),
        (b"Rar!\x1a\x07\1\0", "is a RAR archive, which is not read.*`unrar x a.zip`"),
        (b"\x28\xb5\x2f\xfd\4", "is compressed by Zstandard.*`tar --zstd -xf a.zip`"),
        (b"<!DOCTYPE html>", "is no archive .*it may be a web page"),
    ],
)
def test_the_content_tells_what_it_is(tmp_path, run, start, words):
    (tmp_path / "a.zip").write_bytes(start + bytes(600))
    with pytest.raises(FrameTableError, match=f"(?is){words}"):
        run("ilab", tmp_path / "root", tmp_path / "a.zip")


@pytest.mark.parametrize("packed", [True, False])
def test_names_in_upper_case(tmp_path, refused, packed):
    names = [name.upper() for name in CORE50]
    archive = images(tmp_path / "made", names)
    message = refused("core50", archive if packed else tmp_path / "made")
    assert (
        "differ from the layout in upper and lower case (S1/O1/C_01_01_010" in message
    )
    assert "rename them" in message


def test_other_files_are_named(tmp_path, refused):
    archive = images(tmp_path / "made", [f"photo {number}.txt" for number in range(5)])
    message = refused("ilab", archive)
    assert "It holds photo 0.txt, photo 1.txt, photo 2.txt and 2 more." in message


def test_an_empty_folder(tmp_path, refused):
    (tmp_path / "downloads").mkdir()
    assert "nothing of toybox. It is empty." in refused(
        "toybox", tmp_path / "downloads"
    )
