"""Names that a class may have."""

from dataclasses import replace

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
        ("  ", "is blank"),
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
    assert "1 to 200 characters" in str(error.value) and len(str(error.value)) < 300


def test_names_that_look_the_same_are_the_same():
    assert check_name("cafe\u0301") == check_name("caf\u00e9") == "caf\u00e9"
    assert check_name(" tea cup\u3000") == "tea cup"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        *(
            ("Cup", "cup"),
            ("ｃｕｐ", "cup"),
            ("tea  cup", "tea cup"),
            ("tea\u00a0cup", "tea cup"),
        ),
        *(
            ("STRASSE", "Straße"),
            ("CAFE\u0301", "café"),
            ("ﬁsh", "fish"),
            ("❤\ufe0f", "❤"),
        ),
    ],
)
def test_near_twins_are_asked_about(name, near):
    with pytest.raises(
        DoubtfulNameError, match=r"is nearly the name of class .*new_class=True"
    ) as error:
        check_near([check_name(name)], [check_name(near)])
    assert error.value.near == near


def test_near_twins_come_by_no_other_road(make):
    learner, other = make(), make()
    learner.teach(images(0), "cup")
    with pytest.raises(DoubtfulNameError):
        learner.teach(images(1), "Cup")
    other.teach(images(1), "Cup")
    with pytest.raises(DoubtfulNameError):
        learner.merge(other)
    with pytest.raises(DoubtfulNameError):
        learner.teach([Clip("a", "mug", iter([])), Clip("b", "CUP", iter([]))])
    learner.rename("cup", "CUP")  # the class itself
    learner.teach(images(1), "mug")
    with pytest.raises(DoubtfulNameError):
        learner.rename("mug", "Cup")
    assert [info.name for info in learner.classes] == ["CUP", "mug"]
    learner.rename("mug", "Cup", new_class=True)
    other.merge(learner, new_class=True)
    assert [info.name for info in other.classes] == ["Cup", "CUP"]


def test_class_folders_that_are_twins_or_look_like_splits_are_asked_about(tmp_path):
    twins = write_tree(tmp_path / "twins", ["tea  cup/1.png", "tea cup/1.png"])
    splits = write_tree(
        tmp_path / "splits",
        ["train/cup/1.png", "valid/cup/1.png", "TEST_SET/cup/1.png"],
    )
    one = write_tree(tmp_path / "one", ["train/cup/1.png", "train/mug/1.png"])
    inner = write_tree(tmp_path / "inner", ["images/train/1.png", "images/val/1.png"])
    for source, fact in (
        (twins, "'tea cup' is nearly"),
        (splits, "TEST_SET, train, valid"),
        (one, "train"),
        (inner, "val"),
    ):
        with pytest.raises(DoubtfulNameError, match=rf"{fact}.*new_class=True"):
            check_class_folders(str(source))
    with pytest.raises(
        DoubtfulNameError, match="'images' is nearly the name of class 'Images'"
    ):
        check_class_folders(
            write_tree(tmp_path / "known", ["images/1.png"]), ["Images"]
        )
    vehicles = write_tree(
        tmp_path / "vehicles", ["train/1.png", "car/1.png", "test car/1.png"]
    )
    for source in (vehicles, splits / "train", tmp_path / "absent", [splits], None):
        check_class_folders(source, ["cup"])


def test_a_class_named_unknown(make):
    """It is told from an unknown image by ``known``, in answers and in JSON."""
    learner = taught(make(), 3)
    learner.rename("c0", "unknown")
    answer = learner.predict(images(0, 1, seed=5))
    assert answer.label == answer.shown == "unknown"
    assert answer.as_dict()["label"] == "unknown"
    assert answer.as_dict()["known"] is True
    stranger = replace(answer, known=False)
    assert stranger.shown == "unknown (nearest: unknown)"
    assert stranger.as_dict()["known"] is False
