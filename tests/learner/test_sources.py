"""Photos, folders, videos and arrays as clips, with all that people have in their folders."""

import gc
import os
import re
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from fake_data import write_video
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from benchmarks_toybox_ilab.tables.frame import BadFrameError, natural_key
from crumb_avalanche.learner import folders, sources
from crumb_avalanche.learner.folders import check_name, labels_of
from crumb_avalanche.learner.pixels import batches
from crumb_avalanche.learner.sources import BadImage, Clip, clips_of

TREE = ("cup/blue/desk/1.png", "cup/blue/desk/2.png", "cup/red/sofa/1.png", "mug/a.png", "mug/b.png")


def save(path, value=0, size=(6, 4), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, (value,) * 3).convert(mode, palette=Image.Palette.ADAPTIVE)
    image.save(path, **options)
    return path


def write_tree(root, paths=TREE):
    for number, path in enumerate(paths):
        save(root / path, number)
    return root


def read(source, root=None, **options):
    """(path, label, paths of the frames) of each clip, relative to a folder, with forward slashes."""

    def short(path):
        return os.path.relpath(path, root).replace(os.sep, "/") if root else path

    clips = clips_of(source, **options)
    return [(short(clip.path), clip.label, [short(path) for path, _ in clip.frames]) for clip in clips]


def pixels(source, **options):
    """The images of all clips as arrays."""
    return [np.asarray(image) for clip in clips_of(source, **options) for _, image in clip.frames]


def test_a_photo_is_a_clip(tmp_path):
    path = save(tmp_path / "photo.PNG", 7)
    for source in (path, str(path)):
        (clip,) = clips_of(source, "mug")
        ((frame, image),) = clip.frames
        assert (clip.path, clip.label, frame) == (str(path), "mug", str(path))
        assert image.mode == "RGB" and image.size == (6, 4) and image.getpixel((0, 0)) == (7, 7, 7)


def test_a_folder_of_photos_is_one_clip_in_natural_order(tmp_path):
    for number in (10, 2, 1):
        save(tmp_path / f"frame{number}.png")
    for clutter in (".hidden.png", "Thumbs.db", "notes.txt", ".git/a.png", "__MACOSX/a.png"):
        (tmp_path / clutter).parent.mkdir(exist_ok=True)
        (tmp_path / clutter).write_bytes(b"no image")
    frames = ["frame1.png", "frame2.png", "frame10.png"]
    assert read(tmp_path, tmp_path) == [(".", None, frames)]
    assert read(tmp_path, tmp_path, label="mug") == [(".", "mug", frames)]
    assert labels_of(tmp_path) == ()


def test_class_folders_give_the_labels_at_any_depth(tmp_path):
    expected = [
        ("cup/blue/desk", "cup", ["cup/blue/desk/1.png", "cup/blue/desk/2.png"]),
        ("cup/red/sofa", "cup", ["cup/red/sofa/1.png"]),
        ("mug", "mug", ["mug/a.png", "mug/b.png"]),
    ]
    write_tree(tmp_path)
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    assert labels_of(tmp_path) == labels_of(str(tmp_path)) == ("cup", "mug")
    assert read(tmp_path, tmp_path) == expected
    assert read(tmp_path, tmp_path, label="both") == [(path, "both", frames) for path, _, frames in expected]


def test_photos_beside_folders_are_taken_without_labels(tmp_path):
    write_tree(tmp_path, (*TREE, "beside.png"))
    assert labels_of(tmp_path) == ()
    clips = read(tmp_path, tmp_path)
    assert {label for _, label, _ in clips} == {None}
    assert clips[0] == (".", None, ["beside.png"]) and sum(len(frames) for _, _, frames in clips) == 6


def test_only_a_folder_has_labels(tmp_path):
    write_tree(tmp_path)
    for source in (tmp_path / "mug" / "a.png", [tmp_path], Image.new("RGB", (2, 2)), str(tmp_path / "*"), "absent", 3):
        assert labels_of(source) == ()
    assert {label for _, label, _ in read([tmp_path])} == {None}


def test_patterns(tmp_path):
    write_tree(tmp_path)
    (tmp_path / "notes.txt").write_text("no image")
    save(tmp_path / ".hidden" / "1.png")
    frames = [[path] for path in TREE]
    assert [found for _, _, found in read(str(tmp_path / "**" / "*.png"), tmp_path)] == frames
    assert [path for path, _, _ in read(tmp_path / "cup" / "*" / "*" / "1.png", tmp_path)] == [TREE[0], TREE[2]]
    # Folders that match hold all that lies below, once, and their names are no labels.
    for pattern in ("*", "**/*"):
        clips = read(str(tmp_path / pattern), tmp_path)
        assert [path for path, _, _ in clips] == ["cup/blue/desk", "cup/red/sofa", "mug"]
        assert {label for _, label, _ in clips} == {None}
    assert read(str(tmp_path / "m*"), tmp_path, label="mug") == [("mug", "mug", ["mug/a.png", "mug/b.png"])]


def test_brackets_in_names_are_no_patterns(tmp_path, monkeypatch):
    write_tree(tmp_path, ("set[1]/a[2].png", "set[1]/b.png"))
    assert read(tmp_path / "set[1]" / "a[2].png", tmp_path)[0][2] == ["set[1]/a[2].png"]
    assert [path for path, _, _ in read(tmp_path / "set[1]" / "*.png", tmp_path)] == ["set[1]/a[2].png", "set[1]/b.png"]
    monkeypatch.chdir(tmp_path / "set[1]")
    assert [path for path, _, _ in read("*.png")] == ["a[2].png", "b.png"]


def test_the_home_folder_is_expanded(tmp_path, monkeypatch):
    save(tmp_path / "a.png")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert read("~/a.png", tmp_path) == [("a.png", None, ["a.png"])]


def test_lists_are_read_lazily_and_nest(tmp_path):
    write_tree(tmp_path)
    clip = Clip("camera 0", None, iter([("f", Image.new("RGB", (2, 2)))]))
    named = Clip("camera 1", "own", iter([]))

    def items():
        yield tmp_path / "mug"
        yield [np.zeros((2, 2, 2, 3), np.uint8), Image.new("L", (2, 2))]
        yield clip
        yield named
        raise AssertionError("read too far")

    clips = clips_of(items())
    found = [next(clips) for _ in range(5)]
    assert [clip.path for clip in found[1:]] == ["source[1][0]", "source[1][1]", "camera 0", "camera 1"]
    assert [path for path, _ in found[1].frames] == ["source[1][0][0]", "source[1][0][1]"]
    assert [clip.label for clip in found] == [None, None, None, None, "own"]
    assert [clip.label for clip in clips_of([clip, named], "mug")] == ["mug", "mug"]


@pytest.mark.parametrize(
    ("mode", "extension", "expected"),
    [
        ("L", "png", (80, 80, 80)),
        ("P", "png", (80, 80, 80)),
        ("RGBA", "png", (80, 80, 80)),
        ("CMYK", "jpg", (80, 80, 80)),
        ("1", "png", (0, 0, 0)),
        ("I;16", "png", (80, 80, 80)),
        ("RGB", "webp", (80, 80, 80)),
        ("RGB", "bmp", (80, 80, 80)),
        ("RGB", "tiff", (80, 80, 80)),
    ],
)
def test_all_modes_become_rgb(tmp_path, mode, extension, expected):
    path = tmp_path / f"a.{extension}"
    if mode == "I;16":
        Image.fromarray(np.full((4, 6), 80 * 256, np.uint16)).save(path)
    elif mode == "1":
        Image.new("1", (6, 4), 0).save(path)
    else:
        save(path, 80, mode=mode)
    with Image.open(path) as opened:
        (image,) = pixels(opened)
    (from_file,) = pixels(path)
    assert from_file.shape == (4, 6, 3) and np.array_equal(image, from_file)
    assert np.abs(from_file.astype(int) - expected).max() <= 2


def test_photos_are_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    Image.fromarray(np.repeat(np.uint8([[[0], [255]]]), 3, axis=2)).save(tmp_path / "a.png", exif=exif)
    assert [image[..., 0].tolist() for image in pixels(tmp_path)] == [[[0], [255]]]
    with Image.open(tmp_path / "a.png") as opened:
        ((path, image),) = next(clips_of(opened)).frames
        assert path == str(tmp_path / "a.png") and image.size == (1, 2)
        assert opened.size == (2, 1), "the caller's image is left as it is"


def test_images_given_are_not_changed_by_drawing_on_the_result():
    given_image = Image.new("RGB", (4, 4))
    ((_, image),) = next(clips_of(given_image)).frames
    ImageDraw.Draw(image).rectangle((0, 0, 4, 4), fill="white")
    assert given_image.getextrema() == ((0, 0),) * 3


EIGHT = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("dtype", "tensor"),
    [(">f4", False), *((dtype, tensor) for dtype in ("u1", "f2", "f4", "f8") for tensor in (False, True))],
)
def test_arrays_and_tensors_keep_their_eight_bits(dtype, tensor):
    values = EIGHT if dtype == "u1" else (EIGHT / 255).astype(dtype)
    if tensor:
        values = torch.from_numpy(values).permute(0, 3, 1, 2)
        values = values.requires_grad_() if values.is_floating_point() else values
    clips = list(clips_of(values, "mug"))
    assert [(clip.path, clip.label) for clip in clips] == [("source", "mug")]
    frames = list(clips[0].frames)
    assert [path for path, _ in frames] == ["source[0]", "source[1]"]
    assert np.array_equal([np.asarray(image) for _, image in frames], EIGHT)
    ((path, image),) = next(clips_of(values[1])).frames
    assert path == "source" and np.array_equal(np.asarray(image), EIGHT[1])


def test_a_bfloat16_tensor_is_read():
    (image,) = pixels(torch.tensor([0.0, 1.0, 0.5], dtype=torch.bfloat16).reshape(3, 1, 1))
    assert image.tolist() == [[[0, 255, 128]]]


@pytest.mark.parametrize(
    ("array", "facts"),
    [
        (np.zeros((4, 5), np.uint8), (r"array of shape \(4, 5\)", r"\(H, W, 3\)")),
        (np.zeros((3, 4, 5), np.uint8), (r"shape \(3, 4, 5\)",)),
        (np.zeros((0, 4, 5, 3), np.uint8), (r"shape \(0, 4, 5, 3\)", "not empty")),
        (np.zeros((1, 1, 4, 5, 3), np.uint8), (r"shape \(1, 1, 4, 5, 3\)",)),
        (np.zeros((4, 5, 3), np.int64), ("dtype int64", "uint8 or floating-point from 0 to 1")),
        (np.zeros((4, 5, 3), bool), ("dtype bool",)),
        (np.zeros((4, 5, 3), complex), ("dtype complex128",)),
        (torch.zeros((4, 5, 3)), (r"tensor of shape \(4, 5, 3\)", r"\(3, H, W\)")),
        (torch.zeros(()), (r"shape \(\)",)),
        (torch.zeros((3, 4, 5), dtype=torch.int8), ("dtype torch.int8",)),
    ],
)
@pytest.mark.parametrize("on_bad", ["raise", "skip"])
def test_arrays_that_break_the_rule(array, facts, on_bad):
    with pytest.raises(ValueError) as error:
        pixels(array, on_bad=on_bad)
    for fact in facts:
        error.match(fact)


@pytest.mark.parametrize(
    ("array", "facts"),
    [
        (np.full((4, 5, 3), np.nan), ("holds NaN", "from 0 to 1")),
        (np.float32([[[0, 0.5, np.nan]]]), ("holds NaN",)),
        (np.float32([[[0, 0.5, 255]]]), ("values from 0 to 255", "divide")),
        (torch.tensor([-2.0, 0.5, 2.0]).reshape(3, 1, 1), ("values from -2 to 2", "normalisation")),
        (np.float32([[[0, 0, np.inf]]]), ("values from 0 to inf",)),
    ],
)
def test_values_that_break_the_rule_are_refused_or_left_out(array, facts):
    with pytest.raises(ValueError) as error:
        pixels(array)
    left_out = []
    assert len(pixels(array, on_bad="skip", report=left_out.append)) == 0
    for fact in facts:
        error.match(fact)
        assert re.search(fact, left_out[0].reason) and left_out[0].path == "source" and len(left_out) == 1


def test_the_bad_image_of_a_batch_is_named():
    values = np.zeros((3, 2, 2, 3))
    values[2, 1, 1, 0] = 1.5
    frames = next(clips_of([values])).frames
    assert [next(frames)[0], next(frames)[0]] == ["source[0][0]", "source[0][1]"]
    with pytest.raises(ValueError, match=r"source\[0\]\[2\] holds values from 0 to 1.5"):
        next(frames)
    values, left_out = values[[0, 2, 1]], []
    frames = next(clips_of([values], on_bad="skip", report=left_out.append)).frames
    assert [path for path, _ in frames] == ["source[0][0]", "source[0][2]"]
    assert [bad.path for bad in left_out] == ["source[0][1]"]


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
    assert all(entry.reason and entry.path in str(entry) for entry in bad) and not recwarn.list
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
    assert [len(frames) for _, _, frames in clips] == [1, 0, 0]
    assert [entry.path for entry in bad] == [str(gone), str(video)]
    with pytest.raises(BadFrameError, match=r"gone\.png: No such file"):
        read([there, gone])
    for source in (gone, str(gone)):
        with pytest.raises(FileNotFoundError, match=r"no file or folder .*gone\.png"):
            clips_of(source)


def test_formats_that_are_not_read_are_reported_once_with_a_cure(tmp_path):
    save(tmp_path / "cup" / "a.jpg")
    for name in ("cup/IMG_1.HEIC", "cup/IMG_2.heic", "mug/IMG_3.heic", "IMG_4.dng", "mug/.hidden.avif"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    for source in (tmp_path, str(tmp_path / "**" / "*")):
        bad = []
        assert len(read(source, report=bad.append)) == 1
        assert sorted(os.path.basename(entry.path) for entry in bad) == ["IMG_1.HEIC", "IMG_4.dng"]
        assert all("convert them to JPEG or PNG" in entry.reason for entry in bad)
    with pytest.raises(BadFrameError, match=r"IMG_2.heic: .*convert them to JPEG or PNG"):
        read(tmp_path / "cup" / "IMG_2.heic")
    with pytest.warns(UserWarning, match="IMG_3.heic"), pytest.raises(ValueError, match=r"no photo.*\.heic.*convert"):
        read(tmp_path / "mug")


def test_empty_sources(tmp_path):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "notes.txt").write_text("no image")
    for source in (tmp_path, tmp_path / "deep", str(tmp_path / "*.jpg"), [], iter([]), [tmp_path / "deep"]):
        with pytest.raises(ValueError, match=r"holds no photo and no video.*\.jpg.*\.mp4"):
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
    assert len(read(str(root / "**" / "*.png"))) == 5
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

    def listed(folder, visible=folders.visible_entries):
        if folder.name == "red":
            raise PermissionError(13, "Permission denied", str(folder))
        return visible(folder)

    monkeypatch.setattr(folders, "visible_entries", listed)
    bad = []
    assert len(read(tmp_path, on_bad="skip", report=bad.append)) == 2
    assert [(entry.path, entry.reason) for entry in bad] == [
        (str(tmp_path / "cup" / "red"), "the folder cannot be read: Permission denied")
    ]
    with pytest.raises(BadFrameError, match="red: the folder cannot be read: Permission denied"):
        read(tmp_path)


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "frame", "b-"]), st.integers(0, 2000), st.integers(0, 2)), unique=True)
)
def test_natural_order_is_that_of_the_numbers(parts):
    names = [f"{text}{'0' * zeros}{number}.png" for text, number, zeros in parts]
    numbered = sorted(zip(parts, names), key=lambda pair: (pair[0][:2], pair[1]))
    assert sorted(names, key=natural_key) == [name for _, name in numbered]


@given(st.sets(st.integers(0, 300), min_size=1, max_size=8))
def test_photos_come_in_the_order_of_their_numbers(tmp_path_factory, numbers):
    folder = tmp_path_factory.mktemp("photos")
    for number in numbers:
        save(folder / f"IMG_{number}.png", size=(1, 1))
    assert read(folder, folder)[0][2] == [f"IMG_{number}.png" for number in sorted(numbers)]


@pytest.mark.parametrize("name", ["mug", "tea cup", "<b>mug & co", "カップ", "👩‍🚀", "x" * 200, "a.b", "..."])
def test_class_names(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("", "is blank"),
        ("  ", "is blank"),
        ("a\nb", r"contains '\\n'"),
        ("a\x00", r"contains '\\x00'"),
        ("a\x85", r"contains '\\x85'"),
        ("a\u2028b", r"contains '\\u2028'"),
        ("a\udcff", r"contains '\\udcff'"),
        ("a/b", "contains '/'"),
        ("a\\b", r"contains '\\\\'"),
        ("x" * 201, "has 201 characters"),
        (3, r"3 \(int\)"),
        (None, "None"),
    ],
)
def test_class_names_that_break_the_rule(name, fact):
    with pytest.raises(ValueError, match=fact) as error:
        check_name(name)
    assert "1 to 200 characters" in str(error.value) and len(str(error.value)) < 300


def test_names_that_look_the_same_are_the_same():
    assert check_name("cafe\u0301") == check_name("caf\u00e9") == "caf\u00e9"


@pytest.mark.skipif(os.name == "nt", reason="no such file names")
def test_class_folders_whose_name_breaks_the_rule(tmp_path):
    write_tree(tmp_path, ("cup/a.png", "line\nbreak/a.png"))
    for call in (labels_of, clips_of):
        with pytest.raises(ValueError, match=r"'line\\nbreak' contains .*rename the folder"):
            call(tmp_path)
    assert len(read(tmp_path, label="cup")) == 2


def test_batches_are_resized_as_in_a_run(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (5, 40, 60, 3), dtype=np.uint8)
    for number, image in enumerate(noise):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    (clip,) = clips_of(tmp_path)
    found = list(batches(clip.frames, 2, 24))
    assert [len(paths) for paths, _ in found] == [2, 2, 1]
    assert [os.path.basename(path) for paths, _ in found for path in paths] == [f"{i}.png" for i in range(5)]
    assert all(images.dtype == torch.uint8 and images.shape[1:] == (3, 24, 24) for _, images in found)
    expected = torch.stack([PixelTransform(24)(Image.fromarray(image)) for image in noise])
    assert torch.equal(torch.cat([images for _, images in found]), expected)
    assert list(batches([], 2, 24)) == []


@pytest.mark.parametrize("arguments", [(0, 24), (2, 0), (1.5, 24), (True, 24)])
def test_sizes_of_batches(arguments):
    with pytest.raises(ValueError, match=r"(size|image_size) is .*whole number of at least 1"):
        next(batches([], *arguments))


class Counted:
    """Replaces a function that decodes, and counts the images that are alive."""

    def __init__(self, function):
        self.function = function
        self.alive = self.most = self.calls = 0

    def __call__(self, *arguments, **options):
        image = self.function(*arguments, **options)
        weakref.finalize(image, self.end)
        self.alive += 1
        self.calls += 1
        self.most = max(self.most, self.alive)
        return image

    def end(self):
        self.alive -= 1


@pytest.fixture
def no_cycles():
    """Without the garbage collector, so that an image in a reference cycle would stay alive."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", ["folder", "pattern", "list", "tree"])
def test_one_image_at_a_time_is_decoded(tmp_path, monkeypatch, no_cycles, kind):
    for number in range(30):
        save(tmp_path / f"class{number % 3}" / f"{number}.png")
    root = tmp_path / "class0" if kind == "folder" else tmp_path
    pattern = str(tmp_path / "**" / "*.png")
    source = {"pattern": pattern, "list": sorted(tmp_path.rglob("*.png"))}.get(kind, root)
    counted = Counted(sources.read_image)
    monkeypatch.setattr(sources, "read_image", counted)
    total = sum(len(paths) for clip in clips_of(source) for paths, _ in batches(clip.frames, 8, 4))
    assert total == counted.calls == (10 if kind == "folder" else 30)
    assert counted.most == 1
    list(clips_of(source))  # clips alone decode nothing
    assert counted.calls == total


def test_one_image_of_a_batch_in_memory_is_converted_at_a_time(monkeypatch, no_cycles):
    counted = Counted(Image.fromarray)
    monkeypatch.setattr(Image, "fromarray", counted)
    for source in (np.zeros((20, 4, 4, 3)), torch.zeros((20, 3, 4, 4))):
        (clip,) = clips_of(source)
        assert sum(len(paths) for paths, _ in batches(clip.frames, 8, 4)) == 20
    assert counted.calls == 40 and counted.most == 1


def test_it_works_without_modules_of_linux_and_imports_nothing_heavy(tmp_path):
    save(tmp_path / "a.png")
    code = (
        "import sys\n"
        "for name in ('resource', 'fcntl'): sys.modules[name] = None\n"
        "from crumb_avalanche.learner.sources import clips_of\n"
        "print([path for clip in clips_of(sys.argv[1]) for path, _ in clip.frames])\n"
        "print(sorted({'torch', 'avalanche', 'matplotlib', 'av'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.splitlines() == [str([str(tmp_path / "a.png")]), "[]"], done.stderr


# Videos


def number_of(image):
    """The number that a frame of `write_video` shows."""
    width, height = image.size
    return round((np.asarray(image, float)[height * 5 // 8 : -2, width * 5 // 8 : -2].mean() - 10) / 3)


def numbers(source, **options):
    return [[number_of(image) for _, image in clip.frames] for clip in clips_of(source, **options)]


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """3 seconds at 10 frames per second."""
    pytest.importorskip("av")
    return write_video(tmp_path_factory.mktemp("video") / "clip.mp4", faststart=True)


def test_a_video_is_sampled(video):
    assert numbers(video, fps=1) == [[0, 10, 20]]
    assert numbers(video, fps=2.5) == [[0, 4, 8, 12, 16, 20, 24, 28]]
    assert numbers(video) == [[0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28]]  # short: 5 a second
    assert read(video, video.parent, fps=2)[0][2][:4] == [f"clip.mp4#t={time}" for time in ("0", "0.5", "1", "1.5")]
    assert os.listdir(video.parent) == ["clip.mp4"], "nothing is written beside a video"


@pytest.mark.parametrize(("seconds", "rate"), [(0, 5), (3, 5), (8, 2.5), (20, 1), (3600, 1)])
def test_the_rate_of_a_video_depends_on_its_length(monkeypatch, tmp_path, seconds, rate):
    monkeypatch.setattr(sources, "expected_frames", lambda video, fps, size: (int(seconds * fps) + 1, 1))
    assert sources._default_rate(tmp_path) == pytest.approx(rate, rel=0.01)


def test_no_frame_of_a_video_is_given_twice(video):
    assert numbers(video, fps=40) == [list(range(30))]


def test_frames_of_a_video_are_those_of_a_run(tmp_path):
    pytest.importorskip("av")
    write_video(tmp_path / "mug" / "a.mp4", seconds=4, size=(720, 540))
    write_video(tmp_path / "mug" / "b.mp4", seconds=4)
    found = [np.asarray(image) for clip in clips_of(tmp_path, fps=1) for _, image in clip.frames]
    assert found[0].shape == (512, 683, 3)
    table = ClipFolderFrames(tmp_path, held_out=0)
    assert len(table) == len(found) == 8
    assert all(np.array_equal(image, table.read(row)) for row, image in enumerate(found))


def test_videos_and_photos_of_a_folder_are_all_taken(video, tmp_path):
    for name in ("cup/10.mp4", "cup/2.MP4", "cup/.hidden.mp4", "mug/a/clip.mp4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(video.read_bytes())
    save(tmp_path / "cup" / "x.png")
    clips = read(tmp_path, tmp_path, fps=1)
    assert [(path, label, len(frames)) for path, label, frames in clips] == [
        ("cup", "cup", 1),
        ("cup/2.MP4", "cup", 3),
        ("cup/10.mp4", "cup", 3),
        ("mug/a/clip.mp4", "mug", 3),
    ]


def test_bad_videos(video, tmp_path):
    whole = video.read_bytes()
    cut = write_video(tmp_path / "1_cut.mp4", seconds=8, faststart=True)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 3 // 4])
    (tmp_path / "2_text.mp4").write_bytes(b"no video")
    (tmp_path / "3_empty.mov").write_bytes(b"")
    (tmp_path / "4.mp4").write_bytes(whole)
    bad = []
    found = numbers(tmp_path, fps=10, on_bad="skip", report=bad.append)
    assert 0 < len(found[0]) < 80 and found == [list(range(len(found[0]))), [], [], list(range(30))]
    assert [os.path.basename(entry.path) for entry in bad] == ["1_cut.mp4", "2_text.mp4", "3_empty.mov"]
    assert re.search(r"(truncated|cannot be decoded) after \d", bad[0].reason)
    assert "cannot be opened" in bad[1].reason and "0 bytes" in bad[2].reason
    for path in ("1_cut.mp4", "2_text.mp4", "3_empty.mov"):
        with pytest.raises(BadFrameError, match=rf"{path}: .*on_bad='skip'"):
            numbers(tmp_path / path)


def test_a_video_needs_pyav(tmp_path, monkeypatch):
    (tmp_path / "a.mp4").write_bytes(b"no video")
    save(tmp_path / "b.png")
    monkeypatch.setitem(sys.modules, "av", None)
    bad = []
    assert [len(frames) for _, _, frames in read(tmp_path, on_bad="skip", report=bad.append)] == [1, 0]
    assert "crumb-avalanche[video]" in bad[0].reason
    with pytest.raises(ImportError, match=r"crumb-avalanche\[video\]"):
        read(tmp_path)


def test_frames_of_a_video_are_decoded_one_at_a_time(video, monkeypatch, no_cycles):
    from benchmarks_toybox_ilab.video import sampling

    counted = Counted(sampling.picture)
    monkeypatch.setattr(sampling, "picture", counted)
    (clip,) = clips_of(video, fps=10)
    next(clip.frames)
    assert counted.calls == 1
    assert sum(len(paths) for paths, _ in batches(clip.frames, 4, 8)) == 29
    assert counted.calls == 30 and counted.most <= 2
