"""Pictures of what was taught: none unless asked for, few, and gone with their class."""

import io

import numpy as np
import pytest
from PIL import Image

from crumb_avalanche.cli import main
from crumb_avalanche.learner.file import read_header
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.thumbnails import MOST, SIDE
from crumb_avalanche.system.tensor_file import read_state

JPEG = b"\xff\xd8\xff"


def images(grey, count=3):
    return np.full((count, 120, 160, 3), grey, np.uint8)


@pytest.fixture
def learner():
    """A learner of two classes with a thumbnail of each."""
    made = Learner("ncm", "small_cnn", None, 32)
    made.teach(images(40), "dark", thumbnails=True)
    made.teach(images(200), "light", thumbnails=True)
    return made


def greys(learner, name):
    """The mean grey of each thumbnail of a class."""
    return [round(np.asarray(Image.open(io.BytesIO(jpeg))).mean(), -1) for jpeg in learner.thumbnails(name)]


def reloaded(learner, path):
    learner.save(path)
    return Learner.load(path)


def test_none_without_a_request(tmp_path):
    learner = Learner("ncm", "small_cnn", None, 32)
    learner.teach(images(40), "dark")
    learner.save(tmp_path / "a.safetensors")
    assert learner.thumbnails("dark") == [] and JPEG not in (tmp_path / "a.safetensors").read_bytes()
    assert read_header(tmp_path / "a.safetensors")["thumbnails"] == {}


def test_one_of_each_class_and_lesson_is_kept_in_the_file(learner, tmp_path):
    learner.teach(images(90), "dark", thumbnails=True)
    learner.teach(images(10), "dark")
    learner = reloaded(learner, tmp_path / "a.safetensors")
    assert greys(learner, "dark") == [40, 90] and greys(learner, "light") == [200]
    shape = Image.open(io.BytesIO(learner.thumbnails("dark")[0])).size
    assert shape == (SIDE, 3 * SIDE // 4)
    kept = read_header(tmp_path / "a.safetensors")["thumbnails"]
    assert kept == {
        name: {"count": count, "bytes": sum(map(len, learner.thumbnails(name)))}
        for name, count in (("dark", 2), ("light", 1))
    }


def test_their_number_is_bounded_and_undo_stays_exact(learner):
    for _ in range(MOST + 2):
        learner.teach(images(60, 1), "dark", thumbnails=True)
    assert greys(learner, "dark") == [40] + [60] * (MOST - 1)
    learner.undo()
    assert len(learner.thumbnails("dark")) == MOST  # the lesson that was taken back had left none


def test_undo_takes_the_pictures_of_the_last_lesson_back(learner, tmp_path):
    learner.teach(images(90), "dark", thumbnails=True)
    learner = reloaded(learner, tmp_path / "a.safetensors")
    learner.undo()
    assert greys(learner, "dark") == [40] and greys(learner, "light") == [200]


def test_forget_leaves_no_picture_also_for_undo(learner, tmp_path):
    learner.teach(images(90), "dark", thumbnails=True)
    learner.forget("dark")
    learner.save(tmp_path / "a.safetensors")
    state = read_state(tmp_path / "a.safetensors")[0]
    assert state["thumbnails"]["names"] == ["light"] and "dark" not in read_header(tmp_path / "a.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes().count(JPEG) == 1
    learner.undo()
    assert greys(learner, "light") == [200]
    with pytest.raises(ValueError, match="no class 'dark'"):
        learner.thumbnails("dark")


def test_rename_and_merge_keep_them(learner):
    other = Learner.__new__(Learner)
    other._set_up("ncm", learner.network, None)
    other.teach(images(120), "night", thumbnails=True)
    learner.rename("dark", "night")
    learner.merge(other)
    assert greys(learner, "night") == [40, 120] and greys(learner, "light") == [200]
    learner.teach(images(80), "night", thumbnails=True)
    learner.undo()
    assert greys(learner, "night") == [40, 120]


def test_a_lesson_that_fails_leaves_none(learner):
    frames = [images(70, 1)[0], "no such file.png"]
    with pytest.raises(OSError, match="no such file"):
        learner.teach(frames, "dark", thumbnails=True)
    assert greys(learner, "dark") == [40]


def test_the_command_keeps_and_lists_them(learner, tmp_path, capsys):
    model, photo = tmp_path / "a.safetensors", tmp_path / "photo.png"
    learner.save(model)
    Image.fromarray(images(150)[0]).save(photo)
    command = ["teach", model, photo, "--label", "light", "--thumbnails", "--progress", "false", "--threads", "1"]
    assert main([str(part) for part in command]) == 0
    assert greys(Learner.load(model), "light") == [200, 150]
    assert main(["learner", "show", str(model)]) == 0
    out = capsys.readouterr().out
    size = sum(map(len, Learner.load(model).thumbnails("light")))
    assert f"light: 4 images; thumbnails: 2, {size:,} bytes" in out
    assert "no other images and no paths" in out
