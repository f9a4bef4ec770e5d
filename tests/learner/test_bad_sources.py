"""Files and folders that cannot be read, links and pipes, with all that people have in their folders."""

import os

import numpy as np
import pytest
from clip_trees import TREE, read, save, write_tree
from PIL import Image

from benchmarks_toybox_ilab.tables import folders
from benchmarks_toybox_ilab.tables.frame import BadFrameError
from crumb_avalanche.learner.clips import BadImage, labels_of
from crumb_avalanche.learner.sources import clips_of


@pytest.mark.parametrize("source", [3, None, b"a.png", {"mug": "a.png"}, [1.5], [b"x"], open])
def test_other_types(source):
    with pytest.raises(TypeError, match=r"^source(\[0\])? is .*; give a path, a PIL image"):
        read(source)


def damage(folder):
    """Good photos among bad ones; the paths of the bad ones, each with a fact of the reason."""
    good = save(folder / "1.png", 1)
    save(folder / "5.png", 5)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8)).save(folder / "good.jpg")
    photo = (folder / "good.jpg").read_bytes()
    (folder / "2.jpg").write_bytes(photo[: len(photo) // 2])
    (folder / "3.png").write_bytes(b"no image")
    (folder / "4.png").write_bytes(b"")
    (folder / "6.png").write_bytes(good.read_bytes()[:40])
    Image.fromarray(np.float32([[0.5, 1.0]])).save(folder / "7.tif")
    reasons = {"2.jpg": "truncated", "3.png": "not an image", "4.png": "not an image", "6.png": "", "7.tif": "mode F"}
    return {str(folder / name): reason for name, reason in reasons.items()}


def test_bad_files_are_left_out_and_reported(tmp_path, recwarn):
    expected, bad = damage(tmp_path), []
    assert read(tmp_path, tmp_path, on_bad="skip", report=bad.append) == [(".", None, ["1.png", "5.png", "good.jpg"])]
    assert [entry.path for entry in bad] == list(expected)
    assert all(isinstance(entry, BadImage) and reason in entry.reason for entry, reason in zip(bad, expected.values()))
    assert all(entry.reason and entry.path in str(entry) for entry in bad)
    # Garbage of other tests may warn of a file that it leaves open.
    assert not [one for one in recwarn if one.category is not ResourceWarning]
    with pytest.warns(UserWarning, match=r"left out .*2\.jpg: .*truncated"):
        read(tmp_path, on_bad="skip")


def test_bad_files_raise(tmp_path):
    for path, reason in damage(tmp_path).items():
        with pytest.raises(BadFrameError) as error:
            read(path)
        assert path in str(error.value) and reason in str(error.value) and "on_bad='skip'" in str(error.value)
    frames = next(clips_of(tmp_path)).frames
    assert next(frames)[0].endswith("1.png")
    with pytest.raises(BadFrameError, match=r"2\.jpg"):
        next(frames)


def test_a_clip_of_bad_files_alone_gives_no_frames(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    bad = []
    assert read(tmp_path / "a.png", on_bad="skip", report=bad.append) == [(str(tmp_path / "a.png"), None, [])]
    assert len(bad) == 1


def test_items_that_do_not_exist_count_as_bad(tmp_path):
    there, gone, video = save(tmp_path / "a.png"), tmp_path / "gone.png", tmp_path / "gone.mp4"
    bad = []
    clips = read([there, gone, video, tmp_path / "no*.png"], tmp_path, on_bad="skip", report=bad.append)
    assert [len(frames) for _, _, frames in clips] == [1, 0]
    assert [entry.path for entry in bad] == [str(gone), str(video)]
    with pytest.raises(BadFrameError, match=r"gone\.png: No such file"):
        read([there, gone])
    for source in (gone, str(gone)):
        with pytest.raises(FileNotFoundError, match=r"no file or folder .*gone\.png"):
            clips_of(source)


def test_what_is_ignored_is_counted_and_classes_without_images_are_named(tmp_path):
    save(tmp_path / "cup" / "a.jpg")
    for name in ("cup/1.HEIC", "cup/2.heic", "mug/3.heic", "4.dng", "cup/labels.txt", "cup/@eaDir/a.jpg", "dog/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    ignored = r"ignored: 3 \.heic \(convert them to JPEG or PNG\), 2 \.txt, 1 \.dng .* and 1 hidden or system$"
    with pytest.warns(UserWarning, match=rf"no class, as there is no photo and no video in it: dog, mug; {ignored}"):
        assert len(read(tmp_path)) == 1
    with pytest.warns(UserWarning, match=rf"/\*: {ignored}"):
        assert len(read(str(tmp_path / "*"))) == 1
    with pytest.raises(BadFrameError, match=r"2.heic: .*convert it to JPEG or PNG"):
        read(tmp_path / "cup" / "2.heic")
    with pytest.raises(ValueError, match=r"no photo.*ignored: 1 \.heic .*convert"):
        read(tmp_path / "mug")


def test_empty_sources(tmp_path):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "notes.txt").write_text("no image")
    for source in (tmp_path, tmp_path / "deep", str(tmp_path / "*.jpg"), [], iter([]), [tmp_path / "deep"]):
        with pytest.raises(ValueError, match=r"holds no photo and no video.*JPEG.*MP4"):
            read(source)
    with pytest.raises(ValueError, match="path is empty"):
        clips_of("")


def test_arguments(tmp_path):
    path = save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"on_bad is 'ignore'.*'raise' or 'skip'"):
        clips_of(path, on_bad="ignore")
    for fps in (0, -1, float("nan"), float("inf"), "1"):
        with pytest.raises(ValueError, match=r"fps is .*above 0"):
            clips_of(path, fps=fps)
    with pytest.raises(ValueError, match=r"class name 'a/b' contains '/'"):
        clips_of(path, "a/b")


def link(path, target):
    try:
        path.symlink_to(target, target_is_directory=True)
    except OSError:
        pytest.skip("this file system has no symbolic links")


def test_links_in_circles_do_not_hang(tmp_path):
    root = write_tree(tmp_path / "root")
    save(tmp_path / "outside" / "x.png")
    link(root / "round", root)
    link(root / "cup" / "up", tmp_path)
    link(root / "cup" / "blue" / "self", root / "cup" / "blue")
    link(root / "itself", root / "itself")
    links = [root / "mug" / f"l{i}" for i in range(12)]
    for number, path in enumerate(links):  # folders that all link to each other
        save(tmp_path / "ring" / str(number) / "1.png")
        for other in range(12):
            link(tmp_path / "ring" / str(number) / f"to{other}", tmp_path / "ring" / str(other))
        link(path, tmp_path / "ring" / str(number))
    assert labels_of(root) == ("cup", "mug")
    clips = read(root, root)
    frames = [frame for _, _, frames in clips for frame in frames]
    assert frames[:5] == [TREE[0], TREE[1], TREE[2], TREE[3], TREE[4]] and len(frames) == 5 + 12
    assert [label for _, label, _ in clips] == ["cup"] * 2 + ["mug"] * 13
    assert sum(len(frames) for _, _, frames in read(str(root / "**" / "*.png"))) == 5
    with pytest.raises(BadFrameError, match="itself"):
        read(root / "itself")


def test_linked_folders_are_read(tmp_path):
    write_tree(tmp_path / "store", ("a/1.png",))
    (tmp_path / "root").mkdir()
    for name in ("cup", "mug"):
        link(tmp_path / "root" / name, tmp_path / "store" / "a")
    assert read(tmp_path / "root", tmp_path / "root") == [("cup", "cup", ["cup/1.png"]), ("mug", "mug", ["mug/1.png"])]


def test_a_broken_link_is_a_bad_file(tmp_path):
    save(tmp_path / "b.png")
    link(tmp_path / "a.png", tmp_path / "gone.png")
    bad = []
    assert read(tmp_path, tmp_path, on_bad="skip", report=bad.append)[0][2] == ["b.png"]
    assert [(os.path.basename(entry.path), entry.reason) for entry in bad] == [("a.png", "No such file or directory")]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_a_pipe_does_not_block(tmp_path):
    save(tmp_path / "b.png")
    os.mkfifo(tmp_path / "a.png")
    bad = []
    assert read(tmp_path, tmp_path, on_bad="skip", report=bad.append)[0][2] == ["b.png"]
    assert "not a regular file" in bad[0].reason
    with pytest.raises(BadFrameError, match=r"a\.png: is not a regular file.*camera"):
        read(tmp_path / "a.png")


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path, monkeypatch):
    write_tree(tmp_path)

    def listed(folder, entries_of=folders.entries_of):
        if folder.name == "red":
            raise PermissionError(13, "Permission denied", str(folder))
        return entries_of(folder)

    monkeypatch.setattr(folders, "entries_of", listed)
    bad = []
    assert len(read(tmp_path, on_bad="skip", report=bad.append)) == 2
    assert [(entry.path, entry.reason) for entry in bad] == [
        (str(tmp_path / "cup" / "red"), "the folder cannot be read: Permission denied")
    ]
    with pytest.raises(BadFrameError, match="red: the folder cannot be read: Permission denied"):
        read(tmp_path)
