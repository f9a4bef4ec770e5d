"""Photos, folders and patterns as clips."""

import subprocess
import sys

import numpy as np
import pytest
from clip_trees import TREE, pixels, read, save, write_tree
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from benchmarks_toybox_ilab.tables.frame import BadFrameError, natural_key
from crumb_avalanche.learner.clips import Clip, labels_of
from crumb_avalanche.learner.sources import clips_of


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
    clips = [("cup/blue/desk", TREE[:2]), ("cup/red/sofa", TREE[2:3]), ("mug", TREE[3:])]
    found = read(str(tmp_path / "**" / "*.png"), tmp_path)
    assert [(path, tuple(frames)) for path, _, frames in found] == clips
    found = read(tmp_path / "cup" / "*" / "*" / "1.png", tmp_path)
    assert [frames for _, _, frames in found] == [[TREE[0]], [TREE[2]]]
    # Folders that match hold all that lies below, once, and their names are no labels.
    for pattern in ("*", "**/*"):
        clips = read(str(tmp_path / pattern), tmp_path)
        assert [path for path, _, _ in clips] == ["cup/blue/desk", "cup/red/sofa", "mug"]
        assert {label for _, label, _ in clips} == {None}
    assert read(str(tmp_path / "m*"), tmp_path, label="mug") == [("mug", "mug", ["mug/a.png", "mug/b.png"])]


def test_brackets_in_names_are_no_patterns(tmp_path, monkeypatch):
    write_tree(tmp_path, ("set[1]/a[2].png", "set[1]/b.png"))
    assert read(tmp_path / "set[1]" / "a[2].png", tmp_path)[0][2] == ["set[1]/a[2].png"]
    frames = ["set[1]/a[2].png", "set[1]/b.png"]
    assert read(tmp_path / "set[1]" / "*.png", tmp_path) == [("set[1]", None, frames)]
    monkeypatch.chdir(tmp_path / "set[1]")
    assert read("*.png") == [(".", None, ["a[2].png", "b.png"])]


def test_the_home_folder_is_expanded(tmp_path, monkeypatch):
    save(tmp_path / "a.png")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert read("~/a.png", tmp_path) == [("a.png", None, ["a.png"])]


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_single_images_of_a_list_are_one_clip(tmp_path, kind):
    photo, array = save(tmp_path / "a.png"), np.zeros((2, 2, 3), np.uint8)
    ((path, label, frames),) = read(kind([photo, str(photo), Image.new("L", (2, 2)), array]), label="mug")
    assert (path, label, frames) == ("source", "mug", [str(photo)] * 2 + ["source[2]", "source[3]"])
    clips = read(kind([kind([array, array]), array, array[None], photo, photo]))
    assert [(path, len(frames)) for path, _, frames in clips] == [
        *[("source[0]", 2), ("source", 1), ("source[2]", 1), ("source", 2)],
    ]
    if kind is not iter:  # any order
        clips = list(clips_of(kind([array, array[None], array])))
        assert [len(list(clip.frames)) for clip in reversed(clips)] == [1, 1, 1]


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
    assert [clip.path for clip in found[1:]] == ["source[1][0]", "source[1]", "camera 0", "camera 1"]
    assert [path for path, _ in found[1].frames] == ["source[1][0][0]", "source[1][0][1]"]
    assert [path for path, _ in found[2].frames] == ["source[1][1]"]
    assert [clip.label for clip in found] == [None, None, None, None, "own"]
    assert [clip.label for clip in clips_of([clip, named], "mug")] == ["mug", "mug"]


def test_cmyk_becomes_rgb(tmp_path):
    (image,) = pixels(save(tmp_path / "a.jpg", 80, mode="CMYK"))
    assert image.shape == (4, 6, 3) and np.abs(image.astype(int) - 80).max() <= 2


def test_photos_are_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    Image.fromarray(np.repeat(np.uint8([[[0], [255]]]), 3, axis=2)).save(tmp_path / "a.png", exif=exif)
    assert [image[..., 0].tolist() for image in pixels(tmp_path)] == [[[0], [255]]]
    with Image.open(tmp_path / "a.png") as opened:
        ((path, image),) = next(clips_of(opened)).frames
        assert path == str(tmp_path / "a.png") and image.size == (1, 2)
        assert opened.size == (2, 1), "the caller's image is left as it is"


def test_an_image_without_pixels_is_refused():
    with pytest.raises(BadFrameError, match="it has 0 x 5 pixels"):
        list(next(clips_of(Image.new("RGB", (0, 5)))).frames)


def test_images_given_are_not_changed_by_drawing_on_the_result():
    given_image = Image.new("RGB", (4, 4))
    ((_, image),) = next(clips_of(given_image)).frames
    ImageDraw.Draw(image).rectangle((0, 0, 4, 4), fill="white")
    assert given_image.getextrema() == ((0, 0),) * 3


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
