import pytest
from fake_data import write_image

from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.image_tree import image_tree_table

LAYOUT = "<root>/{train,test}/<class>/<image>.png"


def table(root, paths=None):
    return image_tree_table(root, ("train", "test"), "photos", LAYOUT, paths)


def test_rows_are_sorted_by_split_class_and_name(tmp_path):
    for path in ("test/b/x.PNG", "train/b/2.png", "train/a/10.jpeg", "train/a/1.jpg", "test/a/1.png"):
        write_image(tmp_path / path)
    for stray in ("README.md", "train/labels.csv", "train/a/.hidden.png", "train/a/notes.txt"):
        (tmp_path / stray).write_text("x")
    photos = table(tmp_path)
    assert list(photos) == [
        Frame("train/a/1.jpg", "a", "1", "0", 0, "train"),
        Frame("train/a/10.jpeg", "a", "10", "0", 0, "train"),
        Frame("train/b/2.png", "b", "2", "0", 0, "train"),
        Frame("test/a/1.png", "a", "1", "1", 0, "test"),
        Frame("test/b/x.PNG", "b", "x", "1", 0, "test"),
    ]
    assert photos.read(4).size == (12, 8)


def test_the_tree_may_be_one_folder_deeper(tmp_path):
    for split in ("train", "test"):
        write_image(tmp_path / "photos" / split / "a" / "1.png")
    assert table(tmp_path).root == tmp_path / "photos" and len(table(tmp_path)) == 2


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["train/1.png"], "image train/1.png lies at the wrong depth; the layout is <root>/{train,test}/<class>"),
        (["train/a/b/1.png"], "image train/a/b/1.png lies at the wrong depth"),
        (["train/a/1.png", "test/a/1.png", "test/b/1.png"], "class 'b' of frame table 'photos' has 1 test frames and"),
        (["train/a/1.txt"], "frame table 'photos' has no frames"),
    ],
)
def test_misplaced_images_are_named(paths, words):
    with pytest.raises(FrameTableError) as raised:
        table("/nowhere", paths)
    assert words in str(raised.value)


def test_an_error_for_a_wrong_root_says_what_is_expected_and_what_is_there(tmp_path):
    with pytest.raises(FrameTableError, match=r"no folder .*nowhere. photos is laid out as <root>/{train,test}"):
        table(tmp_path / "nowhere")
    with pytest.raises(FrameTableError, match="has no folder train and no folder test, but holds nothing"):
        table(tmp_path)
    for number in range(10):
        (tmp_path / f"d{number}").mkdir()
    (tmp_path / "train").mkdir()
    words = "has no folder test, but holds d0, d1, d2, d3, d4, d5, d6, d7 and 3 more.*or make it with `crumb"
    with pytest.raises(FrameTableError, match=words):
        table(tmp_path)
