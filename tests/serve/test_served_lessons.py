"""The list of lessons, and changes of a lesson."""

import pytest
from http_lessons import form, names, post, teach
from photos import opened, photo

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from crumb_avalanche.learner import lesson as lesson_module
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.lesson_record import Doubt


@pytest.fixture
def three_lessons(client):
    teach(client, "red", source="a/first.mp4")
    teach(client, "green", source="")
    teach(client, "red", source="\x1b[31m")
    return client


def test_lessons_are_listed(three_lessons):
    first, second, third = three_lessons.get("/lessons").json()
    assert (first["number"], first["images"]) == (1, {"red": 4})
    assert first["source"] == "first.mp4"
    assert first["picture"] and first["can_undo"]
    assert second["source"] == "4 images"
    assert "\x1b" not in third["source"]
    # The third one shows the photos of the first one again.
    assert (third["repeated"], third["answered"]) == (1, 0)


def test_a_lesson_that_was_asked(taught):
    # Given a learner of red and green
    # When other photos of red are taught
    files = [("image", (f"{seed}.png", photo("red", seed))) for seed in (7, 8)]
    taught.post("/teach", params={"label": "red"}, files=files)
    # Then they were asked before
    last = taught.get("/lessons").json()[-1]
    assert (last["repeated"], last["answered"], last["right"]) == (0, 1, 1)


def test_the_same_photos_again(taught):
    # Given a learner of red and green
    rates = taught.get("/classes").json()["rates"]
    # When the same photos are taught again
    answer = teach(taught, "red")
    # Then the answer says so, and they are no evidence
    assert answer["repeated"] == 1
    assert taught.get("/classes").json()["rates"] == rates


def test_a_lesson_has_a_picture(three_lessons):
    picture = three_lessons.get("/picture", params={"lesson": 1})
    assert picture.headers["content-type"] == "image/jpeg"
    assert opened(picture.content).height == 64


def test_a_lesson_is_moved(three_lessons):
    post(three_lessons, "/move?old=red&new=crimson&lesson=3")
    assert names(three_lessons) == {"red": 4, "green": 4, "crimson": 4}


def test_a_lesson_is_taken_back(three_lessons, shared):
    assert post(three_lessons, "/undo?lesson=1")["number"] == 1
    numbers = [lesson["number"] for lesson in three_lessons.get("/lessons").json()]
    assert numbers == [2, 3]
    response = three_lessons.get("/picture", params={"lesson": 1})
    assert response.status_code == 404
    pictures = [bool(lesson.picture) for lesson in Learner.load(shared.path).lessons]
    assert pictures == [True, True]


def test_an_image_is_removed(three_lessons):
    first = three_lessons.get("/lessons").json()[0]
    assert first["pictured"] == [0, 1, 2, 3]
    post(three_lessons, "/remove?lesson=1&image=2")
    first = three_lessons.get("/lessons").json()[0]
    assert (first["images"], first["pictured"]) == ({"red": 3}, [0, 1, 2])


@pytest.mark.parametrize(("version", "remaining"), [(2, 4), (3, 3)])
def test_an_image_is_removed_of_the_last_version_alone(
    three_lessons, version, remaining
):
    # Given a learner that was changed three times
    params = {"lesson": 1, "image": 2, "version": version}
    # When an image is removed by its number in a version
    answer = three_lessons.post("/remove", params=params)
    # Then this is refused unless it is the last one
    assert answer.is_success == (version == 3)
    lesson = three_lessons.get("/lessons").json()[0]
    assert lesson["images"] == {"red": remaining}


def test_a_copy_is_without_pictures(three_lessons, shared):
    post(three_lessons, "/rename?old=green&new=lawn")
    path = shared.path.with_name("copy.safetensors")
    path.write_bytes(three_lessons.get("/download").content)
    assert [lesson.picture for lesson in Learner.load(path).lessons] == [b""] * 3


def test_the_empty_scene_is_a_lesson(taught):
    params = {"source": "table.mp4"}
    lesson = taught.post("/nothing", params=params, files=form("blue")).json()
    assert (lesson["images"], lesson["nothing"]) == ({}, 4)
    assert taught.get("/classes").json()["nothing"] == 4
    listed = taught.get("/lessons").json()[-1]
    assert (listed["nothing"], listed["source"]) == (4, "table.mp4")
    assert listed["picture"]
    assert post(taught, f"/undo?lesson={lesson['number']}")["nothing"] == 4
    assert names(taught) == {"red": 4, "green": 4}
    assert taught.get("/classes").json()["nothing"] == 0


def test_a_doubt_about_a_label(taught, monkeypatch):
    doubt = Doubt("green", 4, 0, "red", 4)
    monkeypatch.setattr(lesson_module, "doubt_of", lambda label, seen: doubt)
    lesson = taught.post("/teach?label=green", files=form("red")).json()
    text = "0 of 4 images looked like green, 4 like red: is the label right?"
    counts = {"frames": 4, "as_label": 0, "as_other": 4, "unknown": 0}
    expected = [{"text": text, "label": "green", "other": "red", **counts}]
    assert lesson["doubts"] == expected
    assert taught.get("/lessons").json()[-1]["doubts"] == expected


def test_a_doubt_follows_its_class(taught, monkeypatch):
    doubt = Doubt("green", 4, 0, "red", 4)
    monkeypatch.setattr(lesson_module, "doubt_of", lambda label, seen: doubt)
    taught.post("/teach?label=green", files=form("red"))
    post(taught, "/rename?old=red&new=rose")
    (renamed,) = taught.get("/lessons").json()[-1]["doubts"]
    assert renamed["other"] == "rose"
    post(taught, "/forget?name=rose")
    assert taught.get("/lessons").json()[-1]["doubts"] == []
