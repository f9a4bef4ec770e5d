"""Photos, folders, patterns and lists as clips."""

import numpy as np
import pytest
from clip_trees import TREE, read, save, write_tree
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from benchmarks_toybox_ilab.tables.frame import BadFrameError, natural_key
from crumb_avalanche.images.clips import Clip, class_folders
from crumb_avalanche.images.sources import clips_of, clips_to_ask
from crumb_avalanche.learner.answer import ClassInfo

# The frames of each clip of TREE.
CLIPS = {"cup/blue/desk": TREE[:2], "cup/red/sofa": TREE[2:3], "mug": TREE[3:]}
ARRAY = np.zeros((2, 2, 3), np.uint8)


def clips_labelled(label):
    """The clips of TREE with a label each."""
    return [(path, label, list(frames)) for path, frames in CLIPS.items()]


def frames_by_clip(clips):
    return [(path, frames) for path, _, frames in clips]


# Paths and patterns


@pytest.fixture
def tree(tmp_path):
    """TREE, with files and folders in between that are no photos."""
    write_tree(tmp_path)
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / "mug" / "__MACOSX").mkdir()
    for name in (
        "notes.txt",
        ".hidden.png",
        "Thumbs.db",
        ".git/a.png",
        "mug/__MACOSX/a.png",
    ):
        (tmp_path / name).write_bytes(b"no image")
    return tmp_path


PATH_TYPE = pytest.mark.parametrize("path_type", [str, lambda path: path])
IGNORE_WARNINGS = pytest.mark.filterwarnings("ignore")  # of ignored files


@IGNORE_WARNINGS
@PATH_TYPE
def test_class_folders_are_labels(tree, path_type):
    labels = {path: label for path, label, _ in read(path_type(tree), tree)}
    assert labels == {"cup/blue/desk": "cup", "cup/red/sofa": "cup", "mug": "mug"}
    assert list(class_folders(path_type(tree)).values()) == ["cup", "mug"]


@IGNORE_WARNINGS
@PATH_TYPE
def test_photos_of_class_folders(tree, path_type):
    clips = read(path_type(tree), tree)
    assert frames_by_clip(clips) == frames_by_clip(clips_labelled(None))


@IGNORE_WARNINGS
@PATH_TYPE
def test_a_label_for_all_folders(tree, path_type):
    clips = read(path_type(tree), tree, label="both")
    assert clips == clips_labelled("both")


@IGNORE_WARNINGS
@PATH_TYPE
@pytest.mark.parametrize("label", [None, "mug"])
@pytest.mark.parametrize("source", ["mug", "m*"])
def test_a_folder_of_photos(tree, path_type, source, label):
    path = path_type(tree / source)
    assert read(path, tree, label=label) == [("mug", label, list(TREE[3:]))]
    assert class_folders(path) == {}


@IGNORE_WARNINGS
@PATH_TYPE
@pytest.mark.parametrize("label", [None, "mug"])
def test_a_photo(tree, path_type, label):
    path = path_type(tree / "mug" / "a.png")
    assert read(path, tree, label=label) == [("mug/a.png", label, ["mug/a.png"])]
    assert class_folders(path) == {}


@IGNORE_WARNINGS
@PATH_TYPE
@pytest.mark.parametrize("pattern", ["**/*.png", "*", "**/*"])
def test_a_pattern_has_no_labels(tree, path_type, pattern):
    # Folders that match hold all that lies below, once.
    path = path_type(tree / pattern)
    assert read(path, tree) == clips_labelled(None)
    assert class_folders(path) == {}


@IGNORE_WARNINGS
@PATH_TYPE
def test_a_pattern_of_photos(tree, path_type):
    clips = read(path_type(tree / "cup" / "*" / "*" / "1.png"), tree)
    assert frames_by_clip(clips) == [
        ("cup/blue/desk", ["cup/blue/desk/1.png"]),
        ("cup/red/sofa", ["cup/red/sofa/1.png"]),
    ]


def test_photos_beside_class_folders(tmp_path):
    write_tree(tmp_path, (*TREE, "beside.png"))
    clips = read(tmp_path, tmp_path)
    assert clips == [(".", None, ["beside.png"]), *clips_labelled(None)]


def test_a_photo_beside_folders_makes_no_classes(tmp_path):
    write_tree(tmp_path, (*TREE, "beside.png"))
    assert class_folders(tmp_path) == {}


@pytest.mark.parametrize("source", [Image.new("RGB", (2, 2)), "absent", 3])
def test_no_folder_has_no_classes(source):
    assert class_folders(source) == {}


def test_a_list_of_folders_has_no_classes(tree):
    assert class_folders([tree]) == {}


# Names


@pytest.fixture
def brackets(tmp_path):
    """A folder whose names look like patterns."""
    write_tree(tmp_path, ("set[1]/a[2].png", "set[1]/b.png"))
    return tmp_path / "set[1]"


def test_brackets_of_a_file(brackets):
    assert read(brackets / "a[2].png", brackets) == [("a[2].png", None, ["a[2].png"])]


def test_brackets_before_a_pattern(brackets):
    assert read(brackets / "*.png", brackets) == [(".", None, ["a[2].png", "b.png"])]


def test_a_pattern_of_the_current_folder(brackets, monkeypatch):
    monkeypatch.chdir(brackets)
    assert read("*.png") == [(".", None, ["a[2].png", "b.png"])]


def test_the_home_folder(brackets, monkeypatch):
    monkeypatch.setenv("HOME", str(brackets))
    monkeypatch.setenv("USERPROFILE", str(brackets))
    assert read("~/b.png", brackets) == [("b.png", None, ["b.png"])]


PARTS_OF_NAMES = st.tuples(
    st.sampled_from(["", "a", "frame", "b-"]),
    st.integers(0, 2000),  # a number
    st.integers(0, 2),  # zeros before it
)


@given(st.lists(PARTS_OF_NAMES, unique=True))
def test_natural_order_is_that_of_the_numbers(parts):
    order = {}
    for text, number, zeros in parts:
        name = f"{text}{'0' * zeros}{number}.png"
        order[name] = (text, number, name)
    assert sorted(order, key=natural_key) == sorted(order, key=order.get)


@pytest.mark.parametrize("source", [".", "*.png", "**/*"])
def test_photos_come_in_natural_order(tmp_path, source):
    write_tree(tmp_path, ["frame10.png", "frame2.png", "frame1.png"])
    ((_, _, frames),) = read(tmp_path / source, tmp_path)
    assert frames == ["frame1.png", "frame2.png", "frame10.png"]


@pytest.mark.parametrize(
    ("taught", "label"),
    [
        (["mug", "cup"], "mug"),
        (["Mug", "cup"], "Mug"),
        (["ｍｕｇ"], "ｍｕｇ"),
        (["Mug", "mug"], "mug"),
        (["Mug", "MUG", "cup"], "mug"),  # may be either
        (["Mug", "MUG"], None),
        (["plate"], None),
    ],
)
def test_the_class_of_a_folder_that_is_asked_about(tmp_path, taught, label):
    # Given folders mug and cup
    write_tree(tmp_path, ["mug/1.png", "cup/1.png"])
    # When a learner of some classes is asked about them
    classes = [ClassInfo(name, 1) for name in taught]
    clips = list(clips_to_ask(tmp_path, classes))
    # Then the label is the class of the same name, or the only one of nearly the same
    assert clips[1].label == label


# Lists and iterators

EVERY_KIND = pytest.mark.parametrize("kind", [list, tuple, iter])


@EVERY_KIND
def test_images_of_a_list_are_one_clip(tmp_path, kind):
    photo = save(tmp_path / "a.png")
    source = kind([photo, str(photo), Image.new("L", (2, 2)), ARRAY])
    frames = [str(photo), str(photo), "source[2]", "source[3]"]
    assert read(source, label="mug") == [("source", "mug", frames)]


@EVERY_KIND
def test_a_list_or_batch_ends_a_clip(tmp_path, kind):
    photo = save(tmp_path / "a.png")
    inner = kind([ARRAY, ARRAY])
    clips = read(kind([inner, ARRAY, ARRAY[None], photo, photo]))
    assert [(path, len(frames)) for path, _, frames in clips] == [
        ("source[0]", 2),
        ("source", 1),
        ("source[2]", 1),
        ("source", 2),
    ]


@pytest.mark.parametrize("kind", [list, tuple])
def test_clips_of_a_list_in_any_order(kind):
    clips = list(clips_of(kind([ARRAY, ARRAY[None], ARRAY])))
    assert [len(list(clip.frames)) for clip in reversed(clips)] == [1, 1, 1]


def test_an_iterator_is_read_lazily(tmp_path):
    photo = save(tmp_path / "a.png")

    def items():
        yield ARRAY[None]
        yield photo
        raise AssertionError("read too far")

    clips = clips_of(items())
    assert next(clips).path == "source[0]"
    assert next(clips).path == "source"


def test_lists_nest():
    batch = np.stack([ARRAY, ARRAY])
    clips = read([[ARRAY[None]], [batch, Image.new("L", (2, 2))]])
    assert frames_by_clip(clips) == [
        ("source[0][0]", ["source[0][0][0]"]),
        ("source[1][0]", ["source[1][0][0]", "source[1][0][1]"]),
        ("source[1]", ["source[1][1]"]),
    ]


def test_a_folder_of_a_list_has_no_label(tmp_path):
    write_tree(tmp_path)
    ((path, label, frames),) = read([tmp_path / "mug"], tmp_path)
    assert (path, label, len(frames)) == ("mug", None, 2)


@pytest.fixture
def ready_clips():
    """A clip without label and one with."""
    return [Clip("camera 0", None, iter([])), Clip("camera 1", "own", iter([]))]


def test_clips_have_their_paths_and_labels(ready_clips):
    clips = [(clip.path, clip.label) for clip in clips_of(ready_clips)]
    assert clips == [("camera 0", None), ("camera 1", "own")]


def test_a_label_replaces_those_of_clips(ready_clips):
    assert [clip.label for clip in clips_of(ready_clips, "mug")] == ["mug", "mug"]


# Images of the caller


@pytest.fixture
def turned(tmp_path):
    """The path of a photo of 2 x 1 pixels that a viewer turns by a quarter."""
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.new("RGB", (2, 1))
    image.save(tmp_path / "a.png", exif=exif)
    return tmp_path / "a.png"


def test_an_opened_file_is_turned_in_a_copy(turned):
    with Image.open(turned) as opened:
        ((path, image),) = next(clips_of(opened)).frames
        assert path == str(turned)
        assert image.size == (1, 2)
        assert opened.size == (2, 1)


def test_an_image_is_left_as_it_is():
    black = Image.new("RGB", (2, 2))
    ((_, image),) = next(clips_of(black)).frames
    ImageDraw.Draw(image).rectangle((0, 0, 4, 4), fill="white")
    assert black.getextrema() == ((0, 0),) * 3


# Links


def link(path, target):
    try:
        path.symlink_to(target, target_is_directory=True)
    except OSError:
        pytest.skip("this file system has no symbolic links")


def write_ring(root, number=12):
    """Write folders with a photo each that all link to each other."""
    folders = [root / str(index) for index in range(number)]
    for folder in folders:
        save(folder / "1.png")
        for target in folders:
            link(folder / f"to{target.name}", target)
    return folders


@pytest.fixture
def linked(tmp_path):
    """TREE with links to itself, to what is above it, and to a ring of 12 folders."""
    root = write_tree(tmp_path / "root")
    save(tmp_path / "outside" / "x.png")
    link(root / "round", root)
    link(root / "cup" / "up", tmp_path)
    link(root / "cup" / "blue" / "self", root / "cup" / "blue")
    link(root / "itself", root / "itself")
    ring = write_ring(tmp_path / "ring")
    for folder in ring:
        link(root / "mug" / f"l{folder.name}", folder)
    link(root / "cup" / "far", ring[0])  # is read for this class as well
    return root


@IGNORE_WARNINGS
def test_links_are_followed_once(linked):
    frames = []
    for _, _, paths in read(linked, linked):
        frames += paths
    assert set(TREE) < set(frames)
    assert len(frames) == 5 + 12 + 12


@IGNORE_WARNINGS
def test_labels_of_linked_folders(linked):
    labels = [label for _, label, _ in read(linked, linked)]
    assert labels == ["cup"] * 14 + ["mug"] * 13


@IGNORE_WARNINGS
def test_a_pattern_does_not_follow_links(linked):
    frames = [frames for _, _, frames in read(str(linked / "**" / "*.png"))]
    assert sum(map(len, frames)) == 5


def test_a_link_to_itself(linked):
    with pytest.raises(BadFrameError, match="itself"):
        read(linked / "itself")
