"""Files and sources that give no image: refused, or left out on request."""

import os
import re

import numpy as np
import pytest
from clip_trees import read, save, write_tree
from PIL import Image

from benchmarks_toybox_ilab.tables import folders
from benchmarks_toybox_ilab.tables.frame import BadFrameError
from crumb_avalanche.images.sources import clips_of

BLACK = Image.new("RGB", (2, 2))


def skipped(source, root=None):
    """The clips of a source, and the bad files that were left out."""
    bad = []
    return read(source, root, on_bad="skip", report=bad.append), bad


# Bad photos


def write_noise(path):
    noise = np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8)
    Image.fromarray(noise).save(path)


def write_half_a_jpeg(path):
    write_noise(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def write_text(path):
    path.write_bytes(b"no image")


def write_nothing(path):
    path.write_bytes(b"")


def write_half_a_png(path):
    save(path, 1)
    path.write_bytes(path.read_bytes()[:40])


def write_floats(path):
    Image.fromarray(np.float32([[0.5, 1.0]])).save(path)


def link_to_nothing(path):
    try:
        path.symlink_to(path.with_name("gone.png"))
    except OSError:
        pytest.skip("this file system has no symbolic links")


def make_pipe(path):
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(path)


BAD_FILES = pytest.mark.parametrize(
    ("name", "write", "reason"),
    [
        ("2.jpg", write_half_a_jpeg, "is damaged: .*truncated.*; copy it again"),
        ("2.png", write_text, "not an image.*convert it to JPEG or PNG"),
        ("2.png", write_nothing, "not an image"),
        ("2.png", write_half_a_png, "."),
        ("2.tif", write_floats, "mode F"),
        ("2.png", link_to_nothing, "No such file"),
        ("2.png", make_pipe, "not a regular file.*camera"),
    ],
    ids=["half-jpeg", "text", "empty", "half-png", "floats", "link", "pipe"],
)


@BAD_FILES
def test_a_bad_file_is_refused(tmp_path, name, write, reason):
    path = tmp_path / name
    write(path)
    words = rf"{re.escape(str(path))}: .*{reason}.*on_bad='skip'"
    with pytest.raises(BadFrameError, match=words):
        read(path)


def test_an_image_with_a_hole_is_damaged_once(tmp_path):
    # Given a JPEG whose second half an interrupted copy left as zeros
    path = tmp_path / "2.jpg"
    write_noise(path)
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + bytes(len(content) - half))
    # When it is left out
    _, (bad,) = skipped(path)
    # Then the reason says once what is wrong, and what to do
    words = "is damaged: at least .* copy leaves; copy it again from its source"
    assert re.fullmatch(words, bad.reason)
    assert bad.reason.count("copy it again") == 1


@BAD_FILES
def test_a_bad_file_is_left_out(tmp_path, name, write, reason):
    path = tmp_path / name
    write(path)
    clips, (bad,) = skipped(path)
    assert clips == [(str(path), None, [])]
    assert bad.path == str(path)
    assert re.search(reason, bad.reason)


@BAD_FILES
def test_photos_beside_a_bad_file(tmp_path, name, write, reason):
    save(tmp_path / "1.png")
    write(tmp_path / name)
    save(tmp_path / "3.png")
    clips, bad = skipped(tmp_path, tmp_path)
    assert clips == [(".", None, ["1.png", "3.png"])]
    assert [image.path for image in bad] == [str(tmp_path / name)]


def test_nothing_is_warned_but_the_report(tmp_path, recwarn):
    write_half_a_jpeg(tmp_path / "2.jpg")
    skipped(tmp_path)
    # Garbage of other tests may warn of a file that it leaves open.
    warned = [entry for entry in recwarn if entry.category is not ResourceWarning]
    assert warned == []


def test_a_file_that_is_left_out_is_warned_of(tmp_path):
    write_half_a_jpeg(tmp_path / "2.jpg")
    with pytest.warns(UserWarning, match=r"left out .*2\.jpg: .*truncated"):
        read(tmp_path, on_bad="skip")


def test_a_report_names_the_file(tmp_path):
    write_half_a_jpeg(tmp_path / "2.jpg")
    _, (bad,) = skipped(tmp_path)
    assert str(bad) == f"{tmp_path / '2.jpg'}: {bad.reason}"


def test_photos_before_a_bad_file_are_read(tmp_path):
    save(tmp_path / "1.png")
    write_half_a_jpeg(tmp_path / "2.jpg")
    frames = next(clips_of(tmp_path)).frames
    assert next(frames)[0].endswith("1.png")
    with pytest.raises(BadFrameError, match=r"2\.jpg"):
        next(frames)


# Files and folders that are not there


def test_files_that_are_gone_count_as_bad(tmp_path):
    photo = save(tmp_path / "a.png")
    missing = [tmp_path / "gone.png", tmp_path / "gone.mp4"]
    clips, bad = skipped([photo, *missing, tmp_path / "no*.png"], tmp_path)
    assert [len(frames) for _, _, frames in clips] == [1, 0]
    assert [file.path for file in bad] == list(map(str, missing))


def test_a_photo_of_a_list_that_is_gone(tmp_path):
    photo = save(tmp_path / "a.png")
    with pytest.raises(BadFrameError, match=r"gone\.png: No such file"):
        read([photo, tmp_path / "gone.png"])


@pytest.fixture
def unlisted(tmp_path, monkeypatch):
    """A tree whose folder cup/red cannot be listed."""
    write_tree(tmp_path)
    entries_of = folders.entries_of

    def denied(folder):
        if folder.name == "red":
            raise PermissionError(13, "Permission denied", str(folder))
        return entries_of(folder)

    monkeypatch.setattr(folders, "entries_of", denied)
    return tmp_path


def test_a_folder_that_cannot_be_listed_is_left_out(unlisted):
    clips, (bad,) = skipped(unlisted)
    assert len(clips) == 2
    assert bad.path == str(unlisted / "cup" / "red")
    assert bad.reason == "the folder cannot be read: Permission denied"


def test_a_folder_that_cannot_be_listed_is_refused(unlisted):
    words = "red: the folder cannot be read: Permission denied"
    with pytest.raises(BadFrameError, match=words):
        read(unlisted)


# Files that are ignored


@pytest.fixture
def ignored_files(tmp_path):
    """A photo of a cup beside files that cannot be read."""
    save(tmp_path / "cup" / "a.jpg")
    for name in (
        "cup/1.HEIC",
        "cup/2.heic",
        "mug/3.heic",
        "4.dng",
        "cup/labels.txt",
        "cup/@eaDir/a.jpg",
        "dog/a.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return tmp_path


IGNORED = (
    r"ignored: 3 \.heic \(convert them to JPEG or PNG\), 2 \.txt, 1 \.dng .* "
    "and 1 hidden or system$"
)


def test_ignored_files_and_empty_classes(ignored_files):
    empty = "no class, as there is no photo and no video in it: dog, mug"
    with pytest.warns(UserWarning, match=f"{empty}; {IGNORED}"):
        clips = read(ignored_files)
    assert len(clips) == 1


def test_ignored_files_of_a_pattern(ignored_files):
    with pytest.warns(UserWarning, match=rf"/\*: {IGNORED}"):
        clips = read(str(ignored_files / "*"))
    assert len(clips) == 1


def test_a_folder_of_ignored_files_alone(ignored_files):
    with pytest.raises(ValueError, match=r"no photo.*ignored: 1 \.heic .*convert"):
        read(ignored_files / "mug")


# Sources of another kind


@pytest.fixture
def folder_without_images(tmp_path, monkeypatch):
    """The current folder, with a folder of text."""
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "notes.txt").write_text("no image")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("source", [3, b"a.png", {"a": 1}, [1.5], [b"x"]])
def test_a_source_of_another_type(source):
    words = r"^source(\[0\])? is .*; give a path, a PIL image"
    with pytest.raises(TypeError, match=words):
        read(source)


def test_an_item_of_another_type_is_named():
    with pytest.raises(TypeError, match=r"^source\[0\] is float"):
        read([1.5])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("deep", "holds no photo and no video, in folders at any depth"),
        ("*.jpg", "matches no photo.*Check the pattern"),
        ([], "the source holds no photo, no video and no image. Give at least one"),
        (iter([]), "the source holds no photo, no video and no image"),
    ],
)
@pytest.mark.usefixtures("folder_without_images")
def test_a_source_without_images(source, words):
    with pytest.raises(ValueError, match=rf"{words}.*JPEG.*MP4"):
        read(source)


def test_an_empty_path():
    with pytest.raises(ValueError, match="path is empty"):
        read("")


@pytest.mark.usefixtures("folder_without_images")
def test_a_path_that_is_not_there():
    with pytest.raises(FileNotFoundError, match=r"no file or folder .*gone\.png"):
        read("gone.png")


def test_an_unknown_on_bad():
    with pytest.raises(ValueError, match=r"on_bad is 'ignore'.*'raise' or 'skip'"):
        read(BLACK, on_bad="ignore")


def test_a_class_name_that_is_refused():
    with pytest.raises(ValueError, match="class name 'a/b' contains '/'"):
        read(BLACK, label="a/b")


def test_an_image_without_pixels():
    with pytest.raises(BadFrameError, match="it has 0 x 5 pixels"):
        read(Image.new("RGB", (0, 5)))
