import shutil

import pytest
from fake_data import write_clip_folder, write_image

from benchmarks_toybox_ilab.clip_folder import ClipFolder, ClipFolderFrames
from benchmarks_toybox_ilab.frame_table import FrameTableError


def held_out(table):
    """`object/clip` of the test split, in table order, by class."""
    clips = {name: table.clips(table.rows("test", name)) for name in table.classes}
    return {
        name: [f"{table.object_name[clip[0]]}/{table.session[clip[0]]}" for clip in of_class]
        for name, of_class in clips.items()
    }


def test_frames_are_numbered_by_their_place_in_natural_order(tmp_path):
    for name in ("f10.png", "f9.JPG", "f1.jpeg", "f2.webp", "f3.bmp"):
        write_image(tmp_path / "cup" / "red" / "kitchen" / name)
    write_image(tmp_path / "cup" / "red" / "garden" / "0.png")
    table = ClipFolderFrames(tmp_path)
    assert table.path[:2] == ("cup/red/garden/0.png", "cup/red/kitchen/f1.jpeg")
    kitchen = [(path.rpartition("/")[2], frame) for path, frame in zip(table.path[1:], table.frame[1:])]
    assert kitchen == [("f1.jpeg", 0), ("f2.webp", 1), ("f3.bmp", 2), ("f9.JPG", 3), ("f10.png", 4)]
    assert all(table.read(row).size == (12, 8) for row in range(len(table)))


def test_whole_objects_are_held_out_where_there_are_enough(tmp_path):
    write_clip_folder(tmp_path, classes=1, objects=3)
    write_image(tmp_path / "class1" / "a" / "x" / "0.png")
    write_image(tmp_path / "class1" / "b" / "x" / "0.png")
    assert [held_out(ClipFolderFrames(tmp_path, run)) for run in range(4)] == [
        {"class0": ["object0/clip0", "object0/clip1"], "class1": ["a/x"]},
        {"class0": ["object1/clip0", "object1/clip1"], "class1": ["b/x"]},
        {"class0": ["object2/clip0", "object2/clip1"], "class1": ["a/x"]},
        {"class0": ["object0/clip0", "object0/clip1"], "class1": ["b/x"]},
    ]


def test_several_objects_at_once(tmp_path):
    write_clip_folder(tmp_path, classes=1, objects=5, clips=1, frames=1)
    splits = [held_out(ClipFolderFrames(tmp_path, run, held_out=2))["class0"] for run in range(3)]
    assert splits == [
        ["object0/clip0", "object1/clip0"],
        ["object2/clip0", "object3/clip0"],
        ["object0/clip0", "object4/clip0"],
    ]


def test_clips_are_held_out_where_a_class_has_too_few_objects(tmp_path):
    write_clip_folder(tmp_path, classes=1, objects=2, clips=3, frames=1)
    write_clip_folder(tmp_path / "more", classes=1, objects=1, clips=2, frames=1)
    shutil.move(tmp_path / "more" / "class0", tmp_path / "class1")
    (tmp_path / "more").rmdir()
    assert [held_out(ClipFolderFrames(tmp_path, run)) for run in (0, 2)] == [
        {"class0": ["object0/clip0", "object1/clip0"], "class1": ["object0/clip0"]},
        {"class0": ["object0/clip2", "object1/clip2"], "class1": ["object0/clip0"]},
    ]


def test_too_little_to_hold_out(tmp_path):
    write_clip_folder(tmp_path, classes=2, objects=1, clips=1)
    words = r"class0 has 1 object\(s\) and object .*object0 has 1 clip\(s\).*every class needs at least 2 objects, or"
    with pytest.raises(FrameTableError, match=words):
        ClipFolderFrames(tmp_path)


def test_all_runs_list_the_same_frames(tmp_path):
    write_clip_folder(tmp_path)
    tables = [ClipFolderFrames(tmp_path, run) for run in range(3)]
    assert len({table.frames_hash() for table in tables}) == 1
    assert len({table.content_hash() for table in tables}) == 3


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("stray.png", "lies where class folders are expected"),
        ("class0/stray.png", "lies where object folders are expected"),
        ("class0/object0/stray.PNG", "lies where clip folders are expected"),
        ("class0/object0/clip0/deep/stray.jpg", "lies too deep"),
        ("class0/object0/clip0/deep/deeper/stray.jpg", "lies too deep"),
    ],
)
def test_an_image_at_the_wrong_depth_is_named(tmp_path, path, words):
    write_clip_folder(tmp_path)
    write_image(tmp_path / path)
    with pytest.raises(FrameTableError, match=f"{path} {words}; the layout is <root>/<class>/<object>/<clip>"):
        ClipFolderFrames(tmp_path)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("empty", "empty holds no object folders"),
        ("class0/empty", "empty holds no clip folders"),
        ("class0/object0/empty", r"empty holds no images \(.jpg"),
    ],
)
def test_an_empty_folder_is_named(tmp_path, path, words):
    write_clip_folder(tmp_path)
    (tmp_path / path).mkdir()
    with pytest.raises(FrameTableError, match=words):
        ClipFolderFrames(tmp_path)


def test_what_is_not_an_image_is_passed_over(tmp_path):
    write_clip_folder(tmp_path)
    before = ClipFolderFrames(tmp_path).content_hash()
    clip = "class0/object0/clip0"
    for name in ("README.md", "class0/labels.csv", f"{clip}/Thumbs.db", f"{clip}/.hidden.png"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "class0/object0/clip0/notes").mkdir()
    assert ClipFolderFrames(tmp_path).content_hash() == before


def test_missing_and_empty_roots(tmp_path):
    with pytest.raises(FrameTableError, match=r"no folder .*nowhere"):
        ClipFolderFrames(tmp_path / "nowhere")
    with pytest.raises(FrameTableError, match="holds no class folders"):
        ClipFolderFrames(tmp_path)


def test_numbers_out_of_range(tmp_path):
    with pytest.raises(ValueError, match="held_out is 0, but must be a whole number of at least 1"):
        ClipFolderFrames(tmp_path, held_out=0)
    with pytest.raises(ValueError, match="run is -1"):
        ClipFolderFrames(tmp_path, run=-1)


def test_the_generator_passes_everything_on(tmp_path):
    write_clip_folder(tmp_path, objects=4)
    benchmark = ClipFolder(tmp_path, "offline", 1, held_out=2)
    assert benchmark.protocol == "offline" and benchmark.run == 1
    assert benchmark.frame_table.content_hash() == ClipFolderFrames(tmp_path, 1, 2).content_hash()
