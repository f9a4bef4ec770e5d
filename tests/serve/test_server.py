"""The server of a learner: what it answers and learns."""

import pytest
from http_lessons import form, names, post, teach
from photos import encoded, opened, photo
from PIL import Image

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from crumb_avalanche.learner.record_fit import STRICT


def test_nothing_was_taught(client):
    response = client.post("/predict", content=photo("red"))
    assert response.status_code == 409
    assert "nothing was taught yet; send images" in response.json()["error"]


def test_a_form_is_a_lesson(client):
    assert teach(client, "red", 5) == {
        "number": 1,
        "images": {"red": 5},
        "nothing": 0,
        "repeated": 0,
        "notes": [],
        "doubts": [],
        "version": 1,
    }


def test_a_body_is_a_lesson(client):
    body = photo("green", kind="JPEG")
    response = client.post("/teach", params={"label": "green"}, content=body)
    assert response.json()["images"] == {"green": 1}


def test_changes_are_made_one_after_the_other(client):
    teach(client, "red", 5)
    teach(client, "green", 1)
    teach(client, "blue")
    assert names(client) == {"red": 5, "green": 1, "blue": 4}
    post(client, "/rename?old=red&new=crimson")
    assert client.post("/predict", files=form("red", 1)).json()["label"] == "crimson"
    state = client.get("/classes").json()
    assert (state["can_undo"], state["strict"]) == (True, STRICT)
    assert set(state["rates"]) == {"refused", "named", "named_alike"}
    assert state["missing_clips"] == 5
    assert post(client, "/undo")["images"] == {"blue": 4}
    teach(client, "blue")
    assert post(client, "/forget?name=green")["version"] == 7
    assert names(client) == {"crimson": 5, "blue": 4}


BOTH = Image.new("RGB", (80, 40))  # red at the left, green at the right
BOTH.paste(opened(photo("red", 5)), (0, 0))
BOTH.paste(opened(photo("green", 5)), (40, 0))


@pytest.mark.parametrize(("left", "colour"), [(4, "red"), (56, "green")])
def test_a_box_is_the_part_that_counts(taught, left, colour):
    box = {"box": [left, 10, left + 20, 30]}
    answer = taught.post("/predict", params=box, content=encoded(BOTH))
    assert answer.json()["label"] == colour
    taught.post("/teach", params={"label": colour, **box}, content=encoded(BOTH))
    assert names(taught)[colour] == 5


@pytest.mark.parametrize(
    ("box", "words"),
    [
        ([1, 2, 3], "box is 1, 2, 3, but has to be four"),
        (["a"] * 4, "box is a, a, a, a, but has to be four numbers: left, top"),
        ([9, 9, 9, 9], "empty"),
        ([-1e308, 0, 1e308, 9], "too large"),
        ([90, 0, 95, 5], "lies outside"),
    ],
)
def test_a_wrong_box(served, box, words):
    response = served[0].post("/predict", params={"box": box}, content=encoded(BOTH))
    assert response.status_code == 400
    assert words in response.json()["error"]


def test_images_of_a_clip_are_answered_together(taught, shared):
    clip = form("red", 6)
    answer = taught.post("/predict", files=clip).json()
    images = [opened(data) for _, (_, data, _) in clip]
    expected = shared.learner.predict(images)
    assert answer["label"] == "red"
    assert answer["confidence"] == pytest.approx(expected.confidence, abs=1e-5)


def test_images_after_the_first_are_not_used(taught):
    first = Image.new("RGB", (8, 8), "red")
    white = Image.new("RGB", (8, 8), "white")
    animation = encoded(
        first, "WEBP", save_all=True, append_images=[white], lossless=True, duration=100
    )
    answer = taught.post("/predict", content=animation).json()
    (note,) = answer["notes"]
    assert note.startswith("the image: only the first of its images is used")
    alone = taught.post("/predict", content=encoded(first)).json()
    assert answer == alone | {"notes": [note]}
    lesson = taught.post("/teach?label=white", content=animation).json()
    assert lesson["notes"][-1] == note


@pytest.mark.parametrize(("params", "number"), [({}, 5), ({"all": True}, 7)])
def test_all_classes_on_request(client, params, number):
    for label in "abcdefg":
        client.post("/teach", params={"label": label}, files=form("red", 1))
    answer = client.post("/predict", params=params, content=photo("red", 9))
    assert 1 + len(answer.json()["runners_up"]) == number


@pytest.mark.parametrize(
    ("path", "params", "options"),
    [
        ("/teach", {"label": "Red"}, {"files": form("blue")}),
        ("/rename", {"old": "green", "new": "ｒｅｄ"}, {}),
    ],
)
def test_a_near_name_is_asked_about(taught, path, params, options):
    response = taught.post(path, params=params, **options)
    assert response.status_code == 409
    assert response.json()["near"] == "red"
    assert "nearly the name of class 'red'" in response.json()["error"]
    assert names(taught) == {"red": 4, "green": 4}


def test_a_near_name_is_taken(taught):
    params = {"label": "Red", "new_class": "true"}
    assert taught.post("/teach", params=params, files=form("blue")).status_code == 200
    assert names(taught) == {"red": 4, "green": 4, "Red": 4}
