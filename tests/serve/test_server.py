"""The server of a learner: what it answers, what it refuses, and answers while others teach."""

import asyncio
import io
import json
import re
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from starlette.testclient import TestClient

from crumb_avalanche.learner import lesson as lesson_module
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.lesson import Doubt
from crumb_avalanche.serve import shared as shared_module
from crumb_avalanche.serve import uploads
from crumb_avalanche.serve.server import MOST_BYTES, PAGE, application, page
from crumb_avalanche.serve.shared import BusyError, SharedLearner

DOCS = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
ORIGIN, TOKEN = "http://127.0.0.1:8000", "the-token"
COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def photo(colour, seed=0, kind="PNG"):
    """Bytes of an image of one noisy colour."""
    noisy = np.random.default_rng(seed).normal(0, 20, (40, 40, 3)) + np.array(
        COLOURS[colour]
    )
    return encoded(Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)), kind)


def with_side(png, side):
    """A PNG file whose header claims another side."""
    header = b"IHDR" + struct.pack(">II", side, side) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def form(colour, count=4):
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
    with TestClient(
        application(shared, TOKEN, [ORIGIN]), ORIGIN, headers={"X-Crumb-Token": TOKEN}
    ) as client:
        yield client


@pytest.fixture
def taught(client):
    for colour in ("red", "green"):
        assert (
            client.post(
                "/teach", params={"label": colour}, files=form(colour)
            ).status_code
            == 200
        )
    return client


def names(client):
    return {
        one["name"]: one["images"] for one in client.get("/classes").json()["classes"]
    }


def test_teach_ask_change_and_download(client, shared, tmp_path):
    response = client.post("/predict", content=photo("red"))
    assert (
        response.status_code == 409 and "nothing was taught" in response.json()["error"]
    )
    done = client.post("/teach", params={"label": "red"}, files=form("red", 5)).json()
    assert done == {
        "number": 1,
        "images": {"red": 5},
        "nothing": 0,
        "notes": [],
        "doubts": [],
        "version": 1,
    }
    client.post(
        "/teach", params={"label": "green"}, content=photo("green", kind="JPEG")
    )
    client.post("/teach", params={"label": "blue"}, files=form("blue"))
    assert names(client) == {"red": 5, "green": 1, "blue": 4}
    assert (
        client.post("/rename", params={"old": "red", "new": "crimson"}).status_code
        == 200
    )
    assert client.post("/predict", files=form("red", 1)).json()["label"] == "crimson"
    known = client.get("/classes").json()
    assert known["can_undo"] and known["clips_missing"] == 5
    assert client.post("/undo").json()["images"] == {"blue": 4}
    client.post("/teach", params={"label": "blue"}, files=form("blue"))
    assert client.post("/forget", params={"name": "green"}).json()["version"] == 7
    assert names(client) == {"crimson": 5, "blue": 4}
    download = client.get("/download")
    assert 'filename="mine.safetensors"' in download.headers["content-disposition"]
    (tmp_path / "copy.safetensors").write_bytes(download.content)
    learner = Learner.load(tmp_path / "copy.safetensors")
    for colour in ("red", "blue"):
        data = photo(colour, 11)
        expected = learner.predict(Image.open(io.BytesIO(data))).as_dict()
        expected.pop("path")
        answer = client.post(
            "/predict", content=data, headers={"Content-Type": "image/png"}
        )
        assert answer.json() == expected | {"notes": []}
    shared.path.unlink()  # what is sent is what is known
    assert len(client.get("/download").content) == len(download.content)


def test_a_box_is_the_part_of_an_image_that_is_asked_about_and_learned(taught):
    both = Image.new("RGB", (80, 40))
    for place, colour in enumerate(("red", "green")):
        both.paste(Image.open(io.BytesIO(photo(colour, 5))), (40 * place, 0))
    for left, colour in ((4, "red"), (56, "green")):
        params = {"box": [left, 10, left + 20, 30]}
        assert (
            taught.post("/predict", params=params, content=encoded(both)).json()[
                "label"
            ]
            == colour
        )
        taught.post("/teach", params=params | {"label": colour}, content=encoded(both))
    assert names(taught) == {"red": 5, "green": 5}
    wrong = [
        ([1, 2, 3], "needs ?box="),
        (["a"] * 4, "needs ?box="),
        ([9, 9, 9, 9], "empty"),
    ]
    for box, says in (
        *wrong,
        ([-1e308, 0, 1e308, 9], "too large"),
        ([90, 0, 95, 5], "lies outside"),
    ):
        found = taught.post("/predict", params={"box": box}, content=encoded(both))
        assert found.status_code == 400 and says in found.json()["error"]


def test_lessons_are_listed_with_pictures_and_taken_back_or_moved_one_by_one(
    client, shared
):
    for colour, source in (("red", "a/first.mp4"), ("green", ""), ("red", "\x1b[31m")):
        assert (
            client.post(
                "/teach", params={"label": colour, "source": source}, files=form(colour)
            ).status_code
            == 200
        )
    first, second, third = client.get("/lessons").json()
    assert (first["number"], first["images"], first["source"]) == (
        1,
        {"red": 4},
        "first.mp4",
    )
    assert second["source"] == "4 images" and "\x1b" not in third["source"]
    assert (
        third["answered"] == third["right"] == 1
        and first["picture"]
        and first["can_undo"]
    )
    sent = client.get("/picture", params={"lesson": 1})
    assert (
        sent.headers["content-type"] == "image/jpeg"
        and Image.open(io.BytesIO(sent.content)).height == 64
    )
    assert client.post("/move?old=red&new=crimson&lesson=3").status_code == 200
    assert names(client) == {"red": 4, "green": 4, "crimson": 4}
    assert client.post("/undo?lesson=1").json()["number"] == 1
    assert [one["number"] for one in client.get("/lessons").json()] == [2, 3]
    assert client.get("/picture", params={"lesson": 1}).status_code == 404
    assert [bool(lesson.picture) for lesson in Learner.load(shared.path).lessons] == [
        True,
        True,
    ]
    client.post("/rename?old=green&new=lawn")
    path = shared.path.with_name("copy.safetensors")
    path.write_bytes(client.get("/download").content)
    assert [lesson.picture for lesson in Learner.load(path).lessons] == [b"", b""], (
        "a copy is for others"
    )


def test_the_empty_scene_is_a_lesson_that_can_be_taken_back(taught, shared):
    done = taught.post(
        "/nothing", params={"source": "table.mp4"}, files=form("blue")
    ).json()
    assert (done["images"], done["nothing"]) == ({}, 4) and taught.get(
        "/classes"
    ).json()["nothing"] == 4
    told = taught.get("/lessons").json()[-1]
    assert (told["nothing"], told["source"], told["picture"]) == (4, "table.mp4", True)
    assert (
        taught.post("/undo", params={"lesson": done["number"]}).json()["nothing"] == 4
    )
    assert (
        names(taught) == {"red": 4, "green": 4}
        and taught.get("/classes").json()["nothing"] == 0
    )


def test_a_doubt_about_a_label_is_told(taught, monkeypatch):
    monkeypatch.setattr(
        lesson_module, "doubt_of", lambda label, seen: Doubt(label, 4, 0, "red", 4)
    )
    for told in (
        taught.post("/teach", params={"label": "green"}, files=form("red")).json(),
        taught.get("/lessons").json()[-1],
    ):
        says = "0 of 4 images looked like green, 4 like red: is the label right?"
        assert told["doubts"] == [{"text": says, "label": "green", "other": "red"}]
    taught.post("/rename?old=red&new=rose")
    assert [one["other"] for one in taught.get("/lessons").json()[-1]["doubts"]] == [
        "rose"
    ]
    taught.post("/forget?name=rose")
    assert taught.get("/lessons").json()[-1]["doubts"] == []


def test_images_after_the_first_are_not_used_and_said(taught):
    first, white = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "white")
    data = encoded(
        first, "WEBP", save_all=True, append_images=[white], lossless=True, duration=100
    )
    answer, alone = (
        taught.post("/predict", content=one).json() for one in (data, encoded(first))
    )
    assert answer["notes"][0].startswith(
        "the image: only the first of its images is used"
    )
    assert answer == alone | {"notes": answer["notes"]}
    assert (
        taught.post("/teach?label=white", content=data).json()["notes"][-1]
        == answer["notes"][0]
    )


MULTIPART = {"Content-Type": "multipart/form-data"}
SCANNED = encoded(Image.new("RGB", (2_000, 2_000)), "JPEG", progressive=True)
SCANNED = SCANNED[:-2] + 300 * SCANNED[SCANNED.rindex(b"\xff\xda") : -2] + SCANNED[-2:]


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
def test_bad_requests_say_what_is_wrong_and_change_nothing(
    served, path, options, status, words
):
    client, _, file = served
    before, content = names(client), file.read_bytes()
    response = client.post(path, **options)
    assert response.status_code == status and re.search(
        words, response.json()["error"]
    ), response.text
    assert file.read_bytes() == content and names(client) == before


def test_images_that_take_long_to_decode_are_refused(served, monkeypatch):
    slow = photo("red", kind="BMP")
    monkeypatch.setattr(uploads, "SECONDS_TO_DECODE", -1.0)
    response = served[0].post("/predict", content=slow)
    assert response.status_code == 413 and "to decode" in response.json()["error"]
    monkeypatch.setattr(
        uploads, "open_image", lambda *_, **how: 1 / 0
    )  # Pillow raises more than OSError
    assert served[0].post("/predict", content=slow).status_code == 400


ROUTES = [
    ("GET", path)
    for path in (
        "/",
        "/openapi.json",
        "/classes",
        "/lessons",
        "/picture?lesson=1",
        "/download",
    )
]
ROUTES += [
    ("POST", path)
    for path in (
        "/predict",
        "/teach?label=x",
        "/rename?old=a&new=b",
        "/forget?name=a",
        "/undo",
    )
]
ROUTES += [
    ("POST", "/revert?version=0"),
    ("POST", "/move?old=a&new=b"),
    ("POST", "/nothing"),
]
WRONG = [("X-Crumb-Token", value) for value in ("", "wrong")]
WRONG += [
    ("Host", value) for value in ("evil.example:8000", "127.0.0.1:8001", "127.0.0.1")
]
WRONG += [
    ("Origin", f"{value}")
    for value in ("http://evil.example", "null", f"{ORIGIN}1", "https://127.0.0.1:8000")
]


def test_wrong_token_host_and_origin(served):
    client = served[0]
    for method, path in ROUTES:
        for name, value in WRONG:
            response = client.request(method, path, headers={name: value})
            assert response.status_code == 403 and response.json()["error"], (
                path,
                name,
                value,
            )
            assert response.headers["x-frame-options"] == "DENY"
    without = {"X-Crumb-Token": ""}
    assert (
        client.get("/", params={"token": TOKEN}, headers=without).status_code == 403
    )  # both, of which one is wrong
    with TestClient(client.app, ORIGIN) as bare:
        assert bare.get("/", params={"token": TOKEN}).status_code == 200
        assert bare.get("/", params={"token": "other"}).status_code == 403
        assert (
            bare.get("/classes", params={"token": TOKEN}).status_code
            == bare.get("/absent").status_code
            == 403
        )
        assert bare.get("/health", headers={"Origin": ORIGIN}).json() == {
            "status": "ok"
        }
        assert bare.get("/health", headers={"Host": "evil.example"}).status_code == 403


def asked(app, path, query, receive, headers=()):
    """What the application sends for a request whose body ``receive`` gives."""
    sent = []

    async def send(message):
        sent.append(message)

    headers = [
        (b"host", b"127.0.0.1:8000"),
        (b"x-crumb-token", TOKEN.encode()),
        *headers,
    ]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": query,
        "headers": headers,
    }
    asyncio.run(app({**scope, "root_path": "", "scheme": "http"}, receive, send))
    return sent


@pytest.mark.parametrize(
    "length", [[(b"content-length", b"200000000")], []], ids=["stated", "chunked"]
)
@pytest.mark.parametrize("kind", [b"image/png", b"multipart/form-data; boundary=x"])
def test_a_large_upload_is_refused_without_reading_it(served, length, kind):
    read = []
    part = b"x" * 1_000_000
    start = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'

    async def receive():
        read.append(1)
        body = start + part if len(read) == 1 else part
        return {"type": "http.request", "body": body, "more_body": len(read) < 200}

    sent = asked(
        served[0].app, "/teach", b"label=x", receive, [(b"content-type", kind), *length]
    )
    assert sent[0]["status"] == 413 and len(read) <= (
        0 if length else MOST_BYTES / len(part) + 1
    )
    assert "20,000,000 bytes" in json.loads(sent[1]["body"])["error"]


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
def test_a_request_that_is_broken_off_is_no_error_of_the_server(served, path, query):
    parts = [{"type": "http.request", "body": b"half", "more_body": True}]

    async def receive():
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    assert asked(served[0].app, path, query, receive)[0]["status"] == 400


def test_a_bug_is_json(shared, monkeypatch):
    headers = {"X-Crumb-Token": TOKEN}
    app = application(shared, TOKEN, [ORIGIN])
    monkeypatch.setattr(Learner, "predict", lambda *_: 1 / 0)
    with TestClient(
        app, ORIGIN, raise_server_exceptions=False, headers=headers
    ) as client:
        response = client.post("/predict", content=photo("red"))
    assert response.status_code == 500 and "a bug" in response.json()["error"]
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def hold_lessons(monkeypatch):
    """Make ``Learner.teach`` learn and then wait; return events: a lesson has started, it may end."""
    started, end, teach = threading.Event(), threading.Event(), Learner.teach

    def slow(self, *arguments, **keywords):
        lesson = teach(self, *arguments, **keywords)
        started.set()
        assert end.wait(120)
        return lesson

    monkeypatch.setattr(Learner, "teach", slow)
    return started, end


def test_answers_during_a_lesson_come_from_the_state_before_it_and_teachers_queue(
    taught, monkeypatch
):
    monkeypatch.setattr(shared_module, "MOST_WAITING", 3)
    data = photo("blue", 3)
    before = taught.post("/predict", content=data).json()
    started, end = hold_lessons(monkeypatch)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(
            taught.post, "/teach", params={"label": "blue"}, files=form("blue")
        )
        assert started.wait(120)
        assert (
            taught.post("/predict", content=data).json() == before
            and before["label"] != "blue"
        )
        assert taught.get("/classes").json()["learning"] == {
            "label": "blue",
            "images": 4,
            "done": 4,
        }
        assert names(taught) == {"red": 4, "green": 4}
        others = [
            pool.submit(
                taught.post, "/teach", params={"label": "red"}, files=form("red", 2)
            )
            for _ in range(6)
        ]
        refused = as_completed(others, timeout=120)
        assert [next(refused).result().status_code for _ in range(4)] == [503] * 4
        end.set()
    assert first.result().status_code == 200
    assert (
        sorted(other.result().status_code for other in others) == [200, 200] + [503] * 4
    )
    assert names(taught) == {"red": 8, "green": 4, "blue": 4}
    assert taught.post("/predict", content=data).json()["label"] == "blue"


def test_a_lesson_that_a_stop_breaks_off_is_refused_and_not_learned(
    taught, shared, monkeypatch
):
    started, end = hold_lessons(monkeypatch)
    kept = shared.path.read_bytes()

    async def stopped():
        lesson = asyncio.create_task(shared.teach("blue", [("image", photo("blue"))]))
        await asyncio.to_thread(started.wait, 120)
        lesson.cancel()  # as uvicorn does
        with pytest.raises(BusyError, match="the server stops; nothing was changed"):
            await lesson

    asyncio.run(stopped())
    end.set()
    shared.close()
    assert shared.path.read_bytes() == kept and names(taught) == {"red": 4, "green": 4}


def test_a_change_that_cannot_be_saved_is_taken_back(taught, shared, monkeypatch):
    data, networks = (
        photo("blue", 3),
        (shared._teaching_network, shared._asking_network),
    )
    before, kept = (
        taught.post("/predict", content=data).json(),
        shared.path.read_bytes(),
    )

    def full(self, path, weights, pictures, locked):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "save", full)
        response = taught.post("/teach", params={"label": "blue"}, files=form("blue"))
        assert (
            response.status_code == 507 and "No space left" in response.json()["error"]
        )
        assert taught.post("/forget", params={"name": "red"}).status_code == 507
        patch.undo()
        patch.setattr(
            Learner, "predict", lambda self, source: int("")
        )  # as statistics that cannot be solved
        assert (
            taught.post(
                "/teach", params={"label": "blue"}, files=form("blue")
            ).status_code
            == 400
        )
    assert (
        taught.post("/predict", content=data).json() == before
        and shared.path.read_bytes() == kept
    )
    assert (
        taught.post("/teach", params={"label": "blue"}, files=form("blue")).status_code
        == 200
    )
    assert names(taught) == {"red": 4, "green": 4, "blue": 4}
    assert names(taught) == {
        info.name: info.images for info in Learner.load(shared.path).classes
    }
    assert (shared._taught.network, shared._asked.network) == networks, (
        "a change copies a network"
    )
    assert networks[0] is not networks[1], "teaching and answering share a network"


def test_any_change_is_taken_back_and_done_again(taught, shared):
    def state():
        told = taught.get("/classes").json()
        return (
            {**told, "version": 0},
            shared.learner.lessons,
            taught.post("/predict", content=photo("red", 9)).json(),
        )

    before = state()
    for path in ("/forget?name=red", "/rename?old=red&new=crimson", "/undo"):
        version = taught.post(path).json()["version"]
        after = state()
        assert after != before
        assert (
            taught.post("/revert", params={"version": version - 1}).status_code == 400
            and state() == after
        )
        version = taught.post("/revert", params={"version": version}).json()["version"]
        assert state() == before and Learner.load(shared.path).lessons == before[1], (
            path
        )
        version = taught.post("/revert", params={"version": version}).json()["version"]
        assert state() == after
        taught.post("/revert", params={"version": version})
    taught.post("/teach", params={"label": "blue"}, files=form("blue"))
    assert len(Learner.load(shared.path).lessons) == 3 and names(taught) == {
        "red": 4,
        "green": 4,
        "blue": 4,
    }


def test_images_of_a_clip_are_answered_together(taught, shared):
    clip = form("red", 6)
    answer = taught.post("/predict", files=clip).json()
    expected = shared.learner.predict(
        [Image.open(io.BytesIO(file[1])) for _, file in clip]
    )
    assert answer["label"] == "red" and answer["confidence"] == pytest.approx(
        expected.confidence, abs=1e-5
    )


def test_a_near_twin_of_a_name_is_asked_about(taught):
    for path, query in (
        ("/teach", {"label": "Red"}),
        ("/rename", {"old": "green", "new": "ｒｅｄ"}),
    ):
        files = {"files": form("blue")} if path == "/teach" else {}
        response = taught.post(path, params=query, **files)
        assert response.status_code == 409 and response.json()["near"] == "red"
        assert "nearly the name of class 'red'" in response.json()["error"]
        assert names(taught) == {"red": 4, "green": 4}
    assert (
        taught.post(
            "/teach", params={"label": "Red", "new_class": "true"}, files=form("blue")
        ).status_code
        == 200
    )
    assert names(taught) == {"red": 4, "green": 4, "Red": 4}


def test_the_description_names_what_the_page_about_it_does(served):
    described = served[0].get("/openapi.json").json()
    rows = re.findall(r"^\| `(GET|POST) (/\w*)", DOCS, re.MULTILINE)
    paths = {
        (method.upper(), path)
        for path, methods in described["paths"].items()
        for method in methods
    }
    assert paths == {*rows, ("GET", "/")} - {("GET", "/openapi")}
    teach = described["paths"]["/teach"]["post"]
    statuses = set(re.findall(r"^\| (\d{3}) \|", DOCS, re.MULTILINE))
    assert (
        teach["responses"].keys() == statuses | {"200", "default"} and teach["security"]
    )
    assert teach["requestBody"]["content"].keys() == {"image/*", "multipart/form-data"}
    taken = {one["name"]: one for one in teach["parameters"]}
    assert (
        not taken["new_class"]["required"]
        and taken["label"]["required"]
        and not taken["box"]["required"]
    )
    assert taken["label"]["schema"]["maxLength"] == 200
    assert "security" not in described["paths"]["/health"]["get"]


def test_the_page_needs_nothing_from_elsewhere_and_runs_its_own_script_only(served):
    response = served[0].get("/")
    assert response.headers["content-type"].startswith("text/html")
    policy = dict(
        part.strip().split(" ", 1)
        for part in response.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
    assert (
        policy["frame-ancestors"]
        == policy["base-uri"]
        == policy["form-action"]
        == "'none'"
    )
    assert re.fullmatch(r"'sha256-[\w+/=]{44}'", policy["script-src"])
    assert (
        response.headers["x-content-type-options"] == "nosniff"
        and response.headers["cache-control"] == "no-store"
    )
    assert response.headers["referrer-policy"] == "no-referrer"
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(
            r"https?://|\bsrc=|@import|url\(|innerHTML|insertAdjacent|eval\(", text
        ), file
    html = page()[0]
    assert (
        html == response.text and "/* page." not in html and html.count("<script") == 1
    )
    assert not re.search(r"<[^>]+\s(style|on\w+)=", html), (
        "the policy blocks style attributes and handlers"
    )
    used, there = (
        set(re.findall(r'at\("([\w-]+)"\)', html)),
        set(re.findall(r'\bid="([\w-]+)"', html)),
    )
    assert len(used) > 15 and used <= there
    labelled = re.findall(
        r'(?:for|list|aria-labelledby|aria-describedby)="([\w-]+)"', html
    )
    assert labelled and set(labelled) <= there
