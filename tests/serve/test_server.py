"""The server of a learner: what it answers, what it refuses, and answers meanwhile."""

import asyncio
import json
import re
import struct
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest
from photos import encoded, opened, photo
from PIL import Image

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from starlette.testclient import TestClient

from crumb_avalanche.learner import lesson as lesson_module
from crumb_avalanche.learner.confidence import STRICT
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.lesson_record import Doubt
from crumb_avalanche.serve import shared as shared_module
from crumb_avalanche.serve import uploads
from crumb_avalanche.serve.bodies import MOST_BYTES
from crumb_avalanche.serve.page_source import PAGE, page
from crumb_avalanche.serve.server import application
from crumb_avalanche.serve.shared import BusyError, SharedLearner

DOCS = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
ORIGIN = "http://127.0.0.1:8000"
TOKEN = "the-token"


def with_side(png, side):
    """A PNG file whose header claims another side."""
    header = b"IHDR" + struct.pack(">II", side, side) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def form(colour, count=4):
    """A form of photos."""
    return [
        ("image", (f"{seed}.png", photo(colour, seed), "image/png"))
        for seed in range(count)
    ]


@pytest.fixture
def shared(weights_file, tmp_path):
    path = tmp_path / "mine.safetensors"
    learner = Learner("recommended", "small_cnn", weights_file, 32)
    learner.save(path)
    shared = SharedLearner(learner, path)
    yield shared
    shared.close()


@pytest.fixture
def client(shared):
    """A client that has the token."""
    app = application(shared, TOKEN, [ORIGIN])
    with TestClient(app, ORIGIN, headers={"X-Crumb-Token": TOKEN}) as client:
        yield client


@pytest.fixture
def taught(client):
    """A client of a server that was taught red and green, four images each."""
    teach(client, "red")
    teach(client, "green")
    return client


def teach(client, label, count=4, **arguments):
    """Teach photos of a colour, and return the answer."""
    params = {"label": label, **arguments}
    response = client.post("/teach", params=params, files=form(label, count))
    assert response.status_code == 200, response.text
    return response.json()


def post(client, address):
    """Make a change, and return the answer."""
    response = client.post(address)
    assert response.status_code == 200, response.text
    return response.json()


def names(client):
    """The number of images of each class."""
    classes = client.get("/classes").json()["classes"]
    return {info["name"]: info["images"] for info in classes}


# Asking and teaching


def test_nothing_was_taught(client):
    response = client.post("/predict", content=photo("red"))
    assert response.status_code == 409
    assert "nothing was taught" in response.json()["error"]


def test_a_form_is_a_lesson(client):
    assert teach(client, "red", 5) == {
        "number": 1,
        "images": {"red": 5},
        "nothing": 0,
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
    assert set(state["rates"]) == {"refused", "named"}
    assert post(client, "/undo")["images"] == {"blue": 4}
    teach(client, "blue")
    assert post(client, "/forget?name=green")["version"] == 7
    assert names(client) == {"crimson": 5, "blue": 4}


@pytest.mark.parametrize("colour", ["red", "green"])
def test_a_download_answers_alike(taught, tmp_path, colour):
    download = taught.get("/download")
    assert 'filename="mine.safetensors"' in download.headers["content-disposition"]
    path = tmp_path / "copy.safetensors"
    path.write_bytes(download.content)
    data = photo(colour, 11)
    expected = Learner.load(path).predict(opened(data)).as_dict()
    expected.pop("path")
    headers = {"Content-Type": "image/png"}
    answer = taught.post("/predict", content=data, headers=headers)
    assert answer.json() == expected | {"notes": []}


def test_a_download_is_what_is_known(taught, shared):
    download = taught.get("/download")
    shared.path.unlink()
    assert len(taught.get("/download").content) == len(download.content)
    assert download.headers["content-length"] == str(len(download.content))


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
        ([1, 2, 3], "needs ?box="),
        (["a"] * 4, "needs ?box="),
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


# Lessons


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
    assert third["answered"] == third["right"] == 1


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
    expected = [{"text": text, "label": "green", "other": "red"}]
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


# Refusals

MULTIPART = {"Content-Type": "multipart/form-data"}
SCANNED = encoded(Image.new("RGB", (2_000, 2_000)), "JPEG", progressive=True)
LAST_SCAN = SCANNED[SCANNED.rindex(b"\xff\xda") : -2]
SCANNED = SCANNED[:-2] + 300 * LAST_SCAN + SCANNED[-2:]


@pytest.mark.parametrize(
    ("path", "options", "status", "words"),
    [
        ("/teach", {"content": photo("red")}, 400, r"\?label=.*required"),
        ("/teach?label=%ff", {"content": photo("red")}, 400, "UTF-8"),
        ("/teach?label=a/b", {"content": photo("red")}, 400, "class name"),
        ("/teach?label=x&new_class=maybe", {"content": photo("red")}, 400, "new_class"),
        ("/teach?label=x", {"content": b""}, 400, "0 bytes.*not an image.*JPEG"),
        (
            "/teach?label=x",
            {"files": [*form("red", 2), ("image", ("3.png", b"bad"))]},
            400,
            "image 3.*not an image",
        ),
        ("/teach?label=x", {"content": photo("red")[:-900]}, 400, "damaged"),
        ("/teach?label=x", {"files": {"image": (None, "text")}}, 400, "holds no image"),
        ("/teach?label=x", {"content": b"", "headers": MULTIPART}, 400, "boundary"),
        ("/predict", {"files": form("red", 33)}, 400, "at most 32 images.*not 33"),
        ("/revert?version=0", {}, 400, "something else was changed"),
        ("/rename?old=red&new=green", {}, 400, "a class 'green' already"),
        ("/forget?name=nobody", {}, 400, "no class 'nobody'"),
        ("/undo?lesson=9", {}, 400, "no lesson 9"),
        ("/move?old=red&new=green&lesson=9", {}, 400, "no lesson 9"),
        ("/absent", {}, 404, "POST /absent: Not Found"),
        ("/classes", {}, 405, "Method Not Allowed"),
        (
            "/predict",
            {"content": with_side(photo("red"), 9_000)},
            413,
            "64,000,000 pixels",
        ),
        (
            "/predict",
            {"content": with_side(photo("red"), 30_000)},
            413,
            "64,000,000 pixels",
        ),  # Pillow refuses to open
        (
            "/predict",
            {"content": encoded(Image.new("L", (1, 70_000)))},
            413,
            "a side of more than 65,535",
        ),
        ("/predict", {"content": SCANNED}, 413, "too many scans"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_request_changes_nothing(served, path, options, status, words):
    client, _, file = served
    names_before = names(client)
    content = file.read_bytes()
    response = client.post(path, **options)
    assert response.status_code == status, response.text
    assert re.search(words, response.json()["error"])
    assert file.read_bytes() == content
    assert names(client) == names_before


def test_an_image_that_takes_long_to_decode(served, monkeypatch):
    monkeypatch.setattr(uploads, "SECONDS_TO_DECODE", -1.0)
    response = served[0].post("/predict", content=photo("red", kind="BMP"))
    assert response.status_code == 413
    assert "to decode" in response.json()["error"]


def test_any_error_of_pillow_is_damage(served, monkeypatch):
    monkeypatch.setattr(uploads, "open_image", lambda *_, **__: 1 / 0)
    response = served[0].post("/predict", content=photo("red"))
    assert response.status_code == 400


ROUTES = [
    ("GET", "/"),
    ("GET", "/openapi.json"),
    ("GET", "/classes"),
    ("GET", "/lessons"),
    ("GET", "/picture?lesson=1"),
    ("GET", "/download"),
    ("POST", "/predict"),
    ("POST", "/teach?label=x"),
    ("POST", "/rename?old=a&new=b"),
    ("POST", "/forget?name=a"),
    ("POST", "/undo"),
    ("POST", "/revert?version=0"),
    ("POST", "/move?old=a&new=b"),
    ("POST", "/nothing"),
]
WRONG_HEADERS = [
    ("X-Crumb-Token", ""),
    ("X-Crumb-Token", "wrong"),
    ("Host", "evil.example:8000"),
    ("Host", "127.0.0.1:8001"),
    ("Host", "127.0.0.1"),
    ("Origin", "http://evil.example"),
    ("Origin", "null"),
    ("Origin", f"{ORIGIN}1"),
    ("Origin", "https://127.0.0.1:8000"),
]


@pytest.mark.parametrize(("name", "value"), WRONG_HEADERS)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_wrong_header(served, method, path, name, value):
    response = served[0].request(method, path, headers={name: value})
    assert response.status_code == 403
    assert response.json()["error"]
    assert response.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    ("path", "token", "headers", "status"),
    [
        ("/", TOKEN, {}, 200),
        ("/", "other", {}, 403),
        ("/", TOKEN, {"X-Crumb-Token": ""}, 403),  # both, of which one is wrong
        ("/classes", TOKEN, {}, 403),
        ("/absent", None, {}, 403),
        ("/health", None, {}, 200),
        ("/health", None, {"Origin": ORIGIN}, 200),
        ("/health", None, {"Host": "evil.example"}, 403),
    ],
)
def test_a_token_in_the_address(served, path, token, headers, status):
    params = {} if token is None else {"token": token}
    with TestClient(served[0].app, ORIGIN) as client:
        response = client.get(path, params=params, headers=headers)
    assert response.status_code == status


def asked(app, path, query, receive, headers=()):
    """What the application sends for a request whose body ``receive`` gives."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "root_path": "",
        "scheme": "http",
        "query_string": query,
        "headers": [
            (b"host", b"127.0.0.1:8000"),
            (b"x-crumb-token", TOKEN.encode()),
            *headers,
        ],
    }
    asyncio.run(app(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    ("length", "most_bodies"),
    [([(b"content-length", b"200000000")], 0), ([], MOST_BYTES / 1_000_000 + 1)],
    ids=["stated", "chunked"],
)
@pytest.mark.parametrize("kind", [b"image/png", b"multipart/form-data; boundary=x"])
def test_a_large_upload_is_not_read(served, length, most_bodies, kind):
    bodies = []
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'

    async def receive():
        body = b"x" * 1_000_000
        bodies.append(body)
        if len(bodies) == 1:
            body = head + body
        return {"type": "http.request", "body": body, "more_body": len(bodies) < 200}

    headers = [(b"content-type", kind), *length]
    start, body = asked(served[0].app, "/teach", b"label=x", receive, headers)
    assert start["status"] == 413
    assert len(bodies) <= most_bodies
    assert "20,000,000 bytes" in json.loads(body["body"])["error"]


def test_a_length_in_two_ways_is_refused(served):
    async def receive():
        return {"type": "http.request", "body": photo("red"), "more_body": False}

    lengths = [(b"transfer-encoding", b"chunked"), (b"content-length", b"9")]
    start, body = asked(served[0].app, "/predict", b"", receive, lengths)
    assert start["status"] == 400
    assert (b"connection", b"close") in start["headers"]
    assert "not both" in json.loads(body["body"])["error"]


@pytest.mark.parametrize(
    ("path", "query"), [("/predict", b""), ("/teach", b"label=red")]
)
def test_a_broken_request_is_no_bug(served, path, query):
    messages = [{"type": "http.request", "body": b"half", "more_body": True}]

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    assert asked(served[0].app, path, query, receive)[0]["status"] == 400


def test_a_bug_is_json(shared, monkeypatch):
    monkeypatch.setattr(Learner, "predict_all", lambda *_, **__: 1 / 0)
    app = application(shared, TOKEN, [ORIGIN])
    headers = {"X-Crumb-Token": TOKEN}
    with TestClient(
        app, ORIGIN, raise_server_exceptions=False, headers=headers
    ) as client:
        response = client.post("/predict", content=photo("red"))
    assert response.status_code == 500
    assert "a bug" in response.json()["error"]
    assert response.headers["X-Content-Type-Options"] == "nosniff"


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


# Answers while others teach


@pytest.fixture
def held_lesson(taught, monkeypatch):
    """A lesson of blue that was learned and waits before it is saved.

    It ends when the event is set; gives the pool, the lesson and the event.
    """
    started = threading.Event()
    end = threading.Event()
    teach_learner = Learner.teach

    def slow(self, *arguments, **keywords):
        lesson = teach_learner(self, *arguments, **keywords)
        started.set()
        assert end.wait(120)
        return lesson

    monkeypatch.setattr(Learner, "teach", slow)
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


def test_a_stop_breaks_a_lesson_off(taught, shared, monkeypatch):
    started = threading.Event()
    end = threading.Event()

    def slow(self, *_, **__):
        started.set()
        assert end.wait(120)

    monkeypatch.setattr(Learner, "teach", slow)
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
    assert "No space left" in response.json()["error"]
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


# The description and the page


@pytest.fixture
def described(served):
    return served[0].get("/openapi.json").json()


def test_the_documentation_names_every_path(described):
    rows = re.findall(r"^\| `(GET|POST) (/\w*)", DOCS, re.MULTILINE)
    paths = {
        (method.upper(), path)
        for path, methods in described["paths"].items()
        for method in methods
    }
    assert paths == {*rows, ("GET", "/")} - {("GET", "/openapi")}


def test_the_documentation_names_every_status(described):
    statuses = set(re.findall(r"^\| (\d{3}) \|", DOCS, re.MULTILINE))
    responses = described["paths"]["/teach"]["post"]["responses"]
    assert responses.keys() == statuses | {"200", "default"}


def test_teaching_is_described(described):
    teach = described["paths"]["/teach"]["post"]
    assert teach["security"]
    assert teach["requestBody"]["content"].keys() == {"image/*", "multipart/form-data"}
    parameters = {parameter["name"]: parameter for parameter in teach["parameters"]}
    required = [name for name in parameters if parameters[name]["required"]]
    assert required == ["label"]
    assert parameters.keys() == {"label", "new_class", "source", "box"}
    assert parameters["label"]["schema"]["maxLength"] == 200
    assert "security" not in described["paths"]["/health"]["get"]


def open_file(client, content):
    return client.post("/open", content=content)


def test_a_learner_file_is_opened(taught, weights_file, tmp_path):
    path = tmp_path / "other.safetensors"
    other = Learner("recommended", "small_cnn", weights_file, 32)
    other.teach(Image.new("RGB", (32, 32), "navy"), "sea")
    other.save(path)
    version = open_file(taught, path.read_bytes()).json()["version"]
    assert names(taught) == {"sea": 1}
    post(taught, f"/revert?version={version}")
    assert names(taught) == {"red": 4, "green": 4}


def test_teaching_goes_on_in_an_opened_file(taught):
    content = taught.get("/download").content
    post(taught, "/forget?name=red")
    assert open_file(taught, content).status_code == 200
    teach(taught, "red")
    assert names(taught) == {"red": 8, "green": 4}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: b"no learner", "is no complete .safetensors file"),
        (lambda content: content[:-1], "is no complete .safetensors file"),
    ],
)
def test_a_file_that_is_no_learner(taught, damage, words):
    answer = open_file(taught, damage(taught.get("/download").content))
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert names(taught) == {"red": 4, "green": 4}


def test_a_file_with_another_network(taught, tmp_path):
    path = tmp_path / "other.safetensors"
    Learner("recommended", "small_cnn", None, 32).save(path)
    answer = open_file(taught, path.read_bytes())
    assert answer.status_code == 400
    assert "start it with that file" in answer.json()["error"]


@pytest.mark.parametrize(("params", "number"), [({}, 5), ({"all": True}, 7)])
def test_all_classes_on_request(client, params, number):
    for label in "abcdefg":
        client.post("/teach", params={"label": label}, files=form("red", 1))
    answer = client.post("/predict", params=params, content=photo("red", 9))
    assert 1 + len(answer.json()["runners_up"]) == number


def test_the_learner_is_exported(taught):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    answer = taught.get("/export")
    assert 'filename="mine.onnx"' in answer.headers["content-disposition"]
    assert len(answer.content) > 1000


def test_export_without_the_extra(taught, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    answer = taught.get("/export")
    assert answer.status_code == 501
    assert "onnx" in answer.json()["error"]


TEXTS = json.loads((PAGE / "texts.json").read_text(encoding="utf-8"))
PLACES = re.compile(r"\{\w+\}")


def places(text):
    """The places for values in a text, or in the two that a count decides between."""
    return set(PLACES.findall(str(text)))


@pytest.mark.parametrize("language", TEXTS)
def test_each_language_has_the_same_names(language):
    assert TEXTS[language].keys() == TEXTS["en"].keys()


@pytest.mark.parametrize("name", TEXTS["en"])
@pytest.mark.parametrize("language", TEXTS)
def test_each_text_has_the_same_values(language, name):
    assert places(TEXTS[language][name]) == places(TEXTS["en"][name])


def test_the_page_uses_texts_that_exist():
    script = (PAGE / "page.js").read_text(encoding="utf-8")
    html = (PAGE / "page.html").read_text(encoding="utf-8")
    used = set(re.findall(r'\btext\("(\w+)"', script))
    used |= set(re.findall(r'counted\([^()]*(?:\([^()]*\))?[^()]*, "(\w+)"\)', script))
    used |= set(re.findall(r'data-(?:text|label|example)="(\w+)"', html))
    assert len(used) > 80
    assert used <= TEXTS["en"].keys()


def test_the_headers_of_the_page(served):
    headers = served[0].get("/").headers
    assert headers["content-type"].startswith("text/html")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    policy = dict(
        rule.strip().split(" ", 1)
        for rule in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["base-uri"] == "'none'"
    assert policy["form-action"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/=]{44}'", policy["script-src"])


@pytest.mark.parametrize("file", PAGE.iterdir(), ids=lambda path: path.name)
def test_the_page_needs_nothing_from_elsewhere(file):
    foreign = r"https?://|\bsrc=|@import|url\(|innerHTML|insertAdjacent|eval\("
    assert not re.search(foreign, file.read_text(encoding="utf-8"))


def test_the_page_is_sent_whole(served):
    html = page()[0]
    assert html == served[0].get("/").text
    assert "/* page." not in html
    assert html.count("<script") == 1
    # The policy blocks style attributes and handlers.
    assert not re.search(r"<[^>]+\s(style|on\w+)=", html)


def test_the_page_has_the_elements_it_names():
    html = page()[0]
    ids = set(re.findall(r'\bid="([\w-]+)"', html))
    used = set(re.findall(r'at\("([\w-]+)"\)', html))
    references = r'(?:for|list|aria-labelledby|aria-describedby)="([\w-]+)"'
    labelled = set(re.findall(references, html))
    assert len(used) > 15
    assert labelled
    assert used | labelled <= ids
