"""Answers while others teach; changes that fail, and that are taken back."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest
from http_lessons import form, names, post, teach
from photos import photo

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.serve import shared as shared_module
from crumb_avalanche.serve.shared import BusyError

# Answers while others teach


@pytest.fixture
def slow_lessons(monkeypatch):
    """Lessons wait before they are saved; gives the events of their start and end."""
    started = threading.Event()
    end = threading.Event()
    teach_learner = Learner.teach

    def slow(self, *arguments, **keywords):
        lesson = teach_learner(self, *arguments, **keywords)
        started.set()
        assert end.wait(120)
        return lesson

    monkeypatch.setattr(Learner, "teach", slow)
    return started, end


@pytest.fixture
def held_lesson(taught, slow_lessons):
    """A lesson of blue that was learned and waits before it is saved.

    It ends when the event is set; gives the pool, the lesson and the event.
    """
    started, end = slow_lessons
    with ThreadPoolExecutor() as pool:
        lesson = pool.submit(taught.post, "/teach?label=blue", files=form("blue"))
        assert started.wait(120)
        yield pool, lesson, end
        end.set()


def test_answers_come_from_the_state_before(taught, held_lesson):
    _, lesson, end = held_lesson
    answer = taught.post("/predict", content=photo("blue", 3)).json()
    assert answer["label"] != "blue"
    state = taught.get("/classes").json()
    assert state["learning"] == {"label": "blue", "images": 4, "done": 4}
    assert names(taught) == {"red": 4, "green": 4}
    end.set()
    assert lesson.result().status_code == 200
    answer = taught.post("/predict", content=photo("blue", 3)).json()
    assert answer["label"] == "blue"
    assert taught.get("/classes").json()["learning"] is None


def test_a_lesson_that_fails_is_not_in_progress(taught):
    assert taught.post("/teach?label=blue", content=b"no image").status_code == 400
    assert taught.get("/classes").json()["learning"] is None


def test_teachers_queue(taught, held_lesson, monkeypatch):
    monkeypatch.setattr(shared_module, "MOST_WAITING", 3)
    pool, lesson, end = held_lesson
    requests = [
        pool.submit(taught.post, "/teach?label=red", files=form("red", 2))
        for _ in range(6)
    ]
    refused = as_completed(requests, timeout=120)
    assert [next(refused).result().status_code for _ in range(4)] == [503] * 4
    end.set()
    assert lesson.result().status_code == 200
    statuses = [request.result().status_code for request in requests]
    assert sorted(statuses) == [200, 200] + [503] * 4
    assert names(taught) == {"red": 8, "green": 4, "blue": 4}


def test_a_stop_breaks_a_lesson_off(taught, shared, slow_lessons):
    started, end = slow_lessons
    content = shared.path.read_bytes()

    async def stopped():
        lesson = asyncio.create_task(shared.teach("blue", [("image", photo("blue"))]))
        await asyncio.to_thread(started.wait, 120)
        lesson.cancel()  # as uvicorn does
        with pytest.raises(BusyError, match="the server stops; nothing was changed"):
            await lesson

    asyncio.run(stopped())
    end.set()
    shared.close()
    assert shared.path.read_bytes() == content
    assert names(taught) == {"red": 4, "green": 4}


# Changes that fail, and that are taken back


def no_space(self, path, weights, pictures, locked):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("path", "options"),
    [("/teach?label=blue", {"files": form("blue")}), ("/forget?name=red", {})],
)
def test_a_change_that_cannot_be_saved(taught, shared, monkeypatch, path, options):
    question = photo("blue", 3)
    answer = taught.post("/predict", content=question).json()
    content = shared.path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Learner, "save", no_space)
        response = taught.post(path, **options)
    assert response.status_code == 507
    reason = "No space left on device"
    expected = f"{shared.path} cannot be written ({reason}); nothing was changed"
    assert response.json()["error"] == expected
    assert taught.post("/predict", content=question).json() == answer
    assert shared.path.read_bytes() == content


def test_a_lesson_that_cannot_be_solved(taught, shared, monkeypatch):
    content = shared.path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Learner, "predict", lambda self, source: int(""))
        response = taught.post("/teach?label=blue", files=form("blue"))
    assert response.status_code == 400
    assert shared.path.read_bytes() == content
    assert names(taught) == {"red": 4, "green": 4}


def test_after_a_change_that_failed(taught, shared, monkeypatch):
    networks = {id(shared._working.network), id(shared._answering.network)}
    with monkeypatch.context() as patched:
        patched.setattr(Learner, "save", no_space)
        taught.post("/forget?name=red")
    teach(taught, "blue")
    assert names(taught) == {"red": 4, "green": 4, "blue": 4}
    saved = {info.name: info.images for info in Learner.load(shared.path).classes}
    assert saved == names(taught)
    assert {id(shared._working.network), id(shared._answering.network)} == networks
    assert len(networks) == 2, "teaching and answering share a network"


@pytest.fixture
def state(taught, shared):
    """A function that gives all that a server says of its learner."""

    def read():
        classes = taught.get("/classes").json()
        answer = taught.post("/predict", content=photo("red", 9)).json()
        return {**classes, "version": 0}, shared.learner.lessons, answer

    return read


@pytest.mark.parametrize(
    "path", ["/forget?name=red", "/rename?old=red&new=crimson", "/undo"]
)
def test_a_change_is_taken_back_and_done_again(taught, shared, state, path):
    before = state()
    version = post(taught, path)["version"]
    after = state()
    assert after != before
    version = post(taught, f"/revert?version={version}")["version"]
    assert state() == before
    assert Learner.load(shared.path).lessons == before[1]
    post(taught, f"/revert?version={version}")
    assert state() == after


def test_only_the_last_change_is_taken_back(taught, state):
    version = post(taught, "/forget?name=red")["version"]
    after = state()
    response = taught.post("/revert", params={"version": version - 1})
    assert response.status_code == 400
    assert state() == after


def test_teaching_goes_on_after_a_revert(taught, shared):
    version = post(taught, "/undo")["version"]
    post(taught, f"/revert?version={version}")
    teach(taught, "blue")
    assert len(Learner.load(shared.path).lessons) == 3
    assert names(taught) == {"red": 4, "green": 4, "blue": 4}
