"""Names that a class may have."""

import os

import pytest
from clip_trees import TREE, read, write_tree

from crumb_avalanche.learner.folders import check_name, labels_of, only_class_folder
from crumb_avalanche.learner.sources import clips_of


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


def test_a_name_of_any_alphabet_is_readable_in_errors():
    with pytest.raises(ValueError, match=r"class name 'Straße/カップ' contains '/'"):
        check_name("Straße/カップ")
    with pytest.raises(ValueError, match=r"class name 'Straße\\x1b\[2J' contains '\\x1b'"):
        check_name("Straße\x1b[2J")


def test_names_that_look_the_same_are_the_same():
    assert check_name("cafe\u0301") == check_name("caf\u00e9") == "caf\u00e9"
    assert check_name(" tea cup\u3000") == "tea cup"


@pytest.mark.skipif(os.name == "nt", reason="no such file names")
def test_class_folders_whose_name_breaks_the_rule(tmp_path):
    write_tree(tmp_path, ("cup/a.png", "line\nbreak/a.png"))
    for call in (labels_of, clips_of):
        with pytest.raises(ValueError, match=r"'line\\nbreak' contains .*rename the folder"):
            call(tmp_path)
    assert len(read(tmp_path, label="cup")) == 2


def test_folders_that_may_be_the_classes_one_level_below(tmp_path):
    top = write_tree(tmp_path / "top", [f"data/{path}" for path in TREE])
    assert only_class_folder(top) == only_class_folder(str(top)) == (top / "data", ["cup", "mug"])
    beside = write_tree(tmp_path / "beside", ["cup/blue/1.png", "cup/red/2.png", "cup/3.png"])
    single = write_tree(tmp_path / "single", ["cup/blue/1.png"])
    for source in (top / "data", top / "data" / "mug", beside, single, "absent", str(top / "*"), [top], 3):
        assert only_class_folder(source) is None, source
