"""Names that a class may have."""

import pytest
from clip_trees import write_tree
from small_lessons import images, taught

from benchmarks_toybox_ilab.tables.names import (
    DoubtfulNameError,
    check_name,
    check_near,
)
from crumb_avalanche.images.clips import Clip, check_class_folders


@pytest.mark.parametrize(
    "name", ["mug", "tea cup", "<b>mug & co", "カップ", "👩‍🚀", "x" * 200, "a.b", "..."]
)
def test_class_names(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("", "is blank"),
        ("  ", "class name '  ' is blank"),
        ("a\nb", r"contains '\\n'"),
        ("a\x00", r"contains '\\x00'"),
        ("a\u2028b", r"contains '\\u2028'"),
        ("a\udcff", r"contains '\\udcff'"),
        ("a/b", "contains '/'"),
        ("a\\b", r"contains '\\\\'"),
        ("x" * 201, "has 201 characters"),
        (3, r"3 \(int\)"),
        ("Straße/カップ", "class name 'Straße/カップ' contains '/'"),
        ("Straße\x1b[2J", r"class name 'Straße\\x1b\[2J' contains '\\x1b'"),
    ],
)
def test_class_names_that_break_the_rule(name, fact):
    with pytest.raises(ValueError, match=fact) as error:
        check_name(name)
    assert "1 to 200 characters" in str(error.value)
    assert len(str(error.value)) < 300


def test_a_name_that_is_no_folder_names_none():
    # Given a name that came with a call or a request
    # When it breaks the rule
    with pytest.raises(ValueError, match=r"Choose another name\.$"):
        check_name("a/b")


def test_a_folder_can_be_renamed():
    # Given the name of a folder
    # When it breaks the rule
    # Then the folder is what to rename
    with pytest.raises(ValueError, match="or rename the folder"):
        check_name("a\\b", is_folder=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cafe\u0301", "caf\u00e9"),
        ("caf\u00e9", "caf\u00e9"),
        (" tea cup\u3000", "tea cup"),
    ],
)
def test_names_that_look_the_same(name, expected):
    assert check_name(name) == expected


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda learner, name: learner.forget(name), id="forget"),
        pytest.param(lambda learner, name: learner.rename(name, "bar"), id="rename"),
        pytest.param(lambda learner, name: learner.move(name, "bar"), id="move"),
    ],
)
def test_a_name_in_another_form_is_that_of_its_class(make, change):
    # Given a class whose name was given in a decomposed form
    name = "cafe\u0301"
    learner = make()
    learner.teach(images(0), name)
    # When the class is changed by the same name
    change(learner, name)
    # Then it is no longer there
    assert "caf\u00e9" not in [info.name for info in learner.classes]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Cup", "cup"),
        ("ｃｕｐ", "cup"),
        ("tea  cup", "tea cup"),
        ("tea\u00a0cup", "tea cup"),
        ("STRASSE", "Straße"),
        ("CAFE\u0301", "café"),
        ("ﬁsh", "fish"),
        ("❤\ufe0f", "❤"),
    ],
)
def test_near_twins(name, near):
    line = r"is nearly the name of class .*new_class=True"
    with pytest.raises(DoubtfulNameError, match=line) as error:
        check_near([check_name(name)], [check_name(near)])
    assert error.value.near == near


@pytest.fixture
def cups(make):
    """A learner of the class cup, and another one of the class Cup."""
    learner = make()
    learner.teach(images(0), "cup")
    second = make()
    second.teach(images(1), "Cup")
    return learner, second


def names(learner):
    return [info.name for info in learner.classes]


def test_teaching_a_near_twin(cups):
    learner, _ = cups
    with pytest.raises(DoubtfulNameError):
        learner.teach(images(1), "Cup")


def test_merging_a_near_twin(cups):
    learner, second = cups
    with pytest.raises(DoubtfulNameError):
        learner.merge(second)


def test_near_twins_in_one_lesson(cups):
    learner, _ = cups
    clips = [Clip("a", "mug", iter([])), Clip("b", "CUP", iter([]))]
    with pytest.raises(DoubtfulNameError):
        learner.teach(clips)


def test_renaming_to_a_near_twin(cups):
    learner, _ = cups
    learner.rename("cup", "CUP")  # the class itself
    learner.teach(images(1), "mug")
    with pytest.raises(DoubtfulNameError):
        learner.rename("mug", "Cup")
    assert names(learner) == ["CUP", "mug"]


def test_near_twins_that_are_meant(cups):
    learner, second = cups
    learner.teach(images(1), "mug")
    learner.rename("mug", "Cup", new_class=True)
    assert names(learner) == ["cup", "Cup"]
    second.merge(learner, new_class=True)
    assert names(second) == ["Cup", "cup"]


@pytest.mark.parametrize(
    ("files", "fact"),
    [
        (["tea  cup/1.png", "tea cup/1.png"], "'tea cup' is nearly"),
        (
            ["train/cup/1.png", "valid/cup/1.png", "TEST_SET/cup/1.png"],
            "TEST_SET, train, valid",
        ),
        (["train/cup/1.png", "train/mug/1.png"], "train"),
        (["images/train/1.png", "images/val/1.png"], "val"),
    ],
)
def test_doubtful_class_folders(tmp_path, files, fact):
    """They are near twins, or look like splits."""
    source = write_tree(tmp_path / "tree", files)
    with pytest.raises(DoubtfulNameError, match=rf"{fact}.*new_class=True"):
        check_class_folders(str(source))


def test_a_class_folder_near_a_known_class(tmp_path):
    source = write_tree(tmp_path / "known", ["images/1.png"])
    line = "'images' is nearly the name of class 'Images'"
    with pytest.raises(DoubtfulNameError, match=line):
        check_class_folders(source, ["Images"])


def test_class_folders_of_which_one_looks_like_a_split(tmp_path):
    files = ["train/1.png", "car/1.png", "test car/1.png"]
    check_class_folders(write_tree(tmp_path / "vehicles", files), ["cup"])


def test_sources_without_doubtful_folders(tmp_path):
    files = ["train/cup/1.png", "valid/cup/1.png"]
    splits = write_tree(tmp_path / "splits", files)
    check_class_folders(splits / "train", ["cup"])
    check_class_folders(tmp_path / "absent", ["cup"])
    check_class_folders([splits], ["cup"])
    check_class_folders(None, ["cup"])


@pytest.mark.parametrize("name", ["unknown", " Unknown", "NOTHING"])
@pytest.mark.parametrize(
    "change",
    [
        lambda learner, name: learner.teach(images(3), name),
        lambda learner, name: learner.teach(images(3), name, new_class=True),
        lambda learner, name: learner.rename("c0", name),
        lambda learner, name: learner.move("c0", name, lesson=1),
    ],
    ids=["teach", "insist", "rename", "move"],
)
def test_words_of_answers_are_no_names(make, change, name):
    learner = taught(make(), 2)
    words = (
        f"'{name.strip()}' stands for what is none .* choose .*{name.strip()} object"
    )
    with pytest.raises(ValueError, match=words):
        change(learner, name)
    assert names(learner) == ["c0", "c1"]


def test_class_folders_named_as_answers(tmp_path, make):
    source = write_tree(tmp_path / "tree", ["cup/1.png", "nothing/1.png"])
    with pytest.raises(ValueError, match="'nothing' stands for what is none"):
        make().teach(source)


def test_an_empty_scene_needs_no_name(make):
    assert make().teach_nothing(images(3)).images == {}
