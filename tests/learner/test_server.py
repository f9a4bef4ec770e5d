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

from crumb_avalanche.learner import server as server_module
from crumb_avalanche.learner import shared as shared_module
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.server import MOST_BYTES, PAGE, application, page
from crumb_avalanche.learner.shared import BusyError, SharedLearner

ROOT = Path(__file__).parents[2]
ORIGIN = "http://127.0.0.1:8000"
TOKEN = "the-token"
COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}


def photo(colour, seed=0, kind="PNG"):
    """Bytes of an image of one noisy colour."""
    noisy = np.random.default_rng(seed).normal(0, 20, (40, 40, 3)) + np.array(COLOURS[colour])
    buffer = io.BytesIO()
    Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def with_side(png, side):
    """A PNG file whose header claims another side."""
    header = b"IHDR" + struct.pack(">II", side, side) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def form(colour, count=4):
    return [("image", (f"{seed}.png", photo(colour, seed), "image/png")) for seed in range(count)]


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
    with TestClient(application(shared, TOKEN, [ORIGIN]), ORIGIN, headers={"X-Crumb-Token": TOKEN}) as client:
        yield client


@pytest.fixture
def taught(client):
    for colour in ("red", "green"):
        assert client.post("/teach", params={"label": colour}, files=form(colour)).status_code == 200
    return client


def names(client):
    return {one["name"]: one["images"] for one in client.get("/classes").json()["classes"]}


def test_teach_ask_change_and_download(client, tmp_path):
    assert client.get("/classes").json()["classes"] == []
    response = client.post("/predict", content=photo("red"))
    assert response.status_code == 409 and "nothing was taught" in response.json()["error"]
    done = client.post("/teach", params={"label": "red"}, files=form("red", 5)).json()
    assert done == {"images": {"red": 5}, "notes": []}
    client.post("/teach", params={"label": "green"}, content=photo("green", kind="JPEG"))
    client.post("/teach", params={"label": "blue"}, files=form("blue"))
    assert names(client) == {"red": 5, "green": 1, "blue": 4}
    for colour in COLOURS:
        answer = client.post("/predict", content=photo(colour, 9), headers={"Content-Type": "image/png"}).json()
        assert answer["label"] == colour and 0 < answer["confidence"] <= 1 and isinstance(answer["known"], bool)
        assert len(answer["runners_up"]) == 2
    assert client.post("/rename", params={"old": "red", "new": "crimson"}).status_code == 200
    assert client.post("/predict", files=form("red", 1)).json()["label"] == "crimson"
    known = client.get("/classes").json()
    assert known["can_undo"] and known["clips_missing"] == 5
    assert client.post("/undo").json()["images"] == {"blue": 4}
    assert not client.get("/classes").json()["can_undo"]
    assert client.post("/undo").status_code == 400
    client.post("/teach", params={"label": "blue"}, files=form("blue"))
    assert client.post("/forget", params={"name": "green"}).json()["name"] == "green"
    assert names(client) == {"crimson": 5, "blue": 4}
    download = client.get("/download")
    assert 'filename="mine.safetensors"' in download.headers["content-disposition"]
    (tmp_path / "copy.safetensors").write_bytes(download.content)
    learner = Learner.load(tmp_path / "copy.safetensors")
    for colour in ("red", "blue"):
        data = photo(colour, 11)
        expected = learner.predict(Image.open(io.BytesIO(data))).as_dict()
        expected.pop("path")
        assert client.post("/predict", content=data).json() == expected | {"notes": []}
    (tmp_path / "mine.safetensors").unlink()
    gone = client.get("/download")
    assert gone.status_code == 404 and "writes it again" in gone.json()["error"]
    client.post("/undo")
    assert client.get("/download").status_code == 200


def test_hidden_colours_and_images_after_the_first_do_not_count(taught):
    """A transparent image is white, whatever its colours, and an animation its first image."""
    answers, white = [], Image.new("RGBA", (8, 8), "white")
    for colour in COLOURS:
        first, file = Image.new("RGBA", (8, 8), colour), io.BytesIO()
        first.putalpha(0)
        first.save(file, "WEBP", save_all=True, append_images=[white], lossless=True, exact=True, duration=100)
        answers.append(taught.post("/predict", content=file.getvalue()).json())
    assert answers[0]["notes"][0].startswith("the image: only the first of its 2 images is used")
    assert answers == answers[:1] * len(COLOURS)
    notes = taught.post("/teach?label=white", content=file.getvalue()).json()["notes"]
    assert notes[-1] == answers[0]["notes"][0]


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("/teach", {"content": photo("red")}, r"\?label=.*required"),
        ("/teach?label=x&label=y", {"content": photo("red")}, r"\?label=.*2 times"),
        ("/teach?label=%ff", {"content": photo("red")}, "UTF-8"),
        ("/teach?label=a/b", {"content": photo("red")}, "class name"),
        ("/teach?label=x", {"content": b""}, "0 bytes.*not an image"),
        ("/teach?label=x", {"content": b"no image"}, "not an image.*JPEG"),
        ("/teach?label=x", {"files": [*form("red", 2), ("image", ("3.png", b"bad"))]}, "image 3.*not an image"),
        ("/teach?label=x", {"content": photo("red")[:-900]}, "damaged"),
        ("/teach?label=x", {"files": {"image": (None, "text")}}, "holds no image"),
        ("/teach?label=x", {"content": b"", "headers": {"Content-Type": "multipart/form-data"}}, "boundary"),
        ("/predict", {"files": form("red", 2)}, "one image, not 2"),
        ("/rename?old=red&new=green", {}, "a class 'green' already"),
        ("/rename?old=red", {}, r"\?new="),
        ("/forget?name=nobody", {}, "no class 'nobody'"),
    ],
)
def test_bad_requests_say_what_is_wrong_and_change_nothing(taught, shared, path, options, words):
    before = shared.path.read_bytes()
    response = taught.post(path, **options)
    assert response.status_code == 400 and re.search(words, response.json()["error"])
    assert shared.path.read_bytes() == before and names(taught) == {"red": 4, "green": 4}
    assert taught.post("/predict", content=photo("red", 5)).json()["label"] == "red"


ROUTES = [("GET", path) for path in ("/", "/openapi.json", "/classes", "/download")]
ROUTES += [("POST", path) for path in ("/predict", "/teach?label=x", "/rename?old=a&new=b", "/forget?name=a", "/undo")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {"X-Crumb-Token": ""},
        {"X-Crumb-Token": "wrong"},
        {"Host": "evil.example:8000"},
        {"Host": "127.0.0.1:8001"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8001"},
        {"Origin": "https://127.0.0.1:8000"},
    ],
    ids=str,
)
def test_wrong_token_host_and_origin(client, method, path, headers):
    response = client.request(method, path, headers=headers)
    assert response.status_code == 403 and response.json()["error"]
    assert response.headers["x-frame-options"] == "DENY"


def test_the_token_is_in_the_address_of_the_page_alone(client):
    headers = {"X-Crumb-Token": ""}
    del client.headers["X-Crumb-Token"]
    assert client.get("/", params={"token": TOKEN}).status_code == 200
    assert client.get("/", params={"token": "other"}).status_code == 403
    assert client.get("/classes", params={"token": TOKEN}).status_code == 403
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/health", headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/health", headers=headers | {"Origin": ORIGIN}).status_code == 200
    assert client.get("/absent").status_code == 403


def test_unknown_paths_and_methods_are_json(client):
    response = client.get("/absent")
    assert response.status_code == 404 and "/absent is not here; GET /openapi.json" in response.json()["error"]
    response = client.get("/teach")
    assert response.status_code == 405 and response.headers["allow"] == "POST"
    assert "/teach takes POST, not GET" in response.json()["error"]


@pytest.mark.parametrize("length", [b"200000000", None], ids=["stated", "chunked"])
@pytest.mark.parametrize("kind", [b"image/png", b"multipart/form-data; boundary=x"])
def test_a_large_upload_is_refused_without_reading_it(shared, length, kind):
    read, sent = [], []
    part = b"x" * 1_000_000
    start = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'

    async def receive():
        read.append(1)
        body = start + part if len(read) == 1 else part
        return {"type": "http.request", "body": body, "more_body": len(read) < 200}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8000"), (b"x-crumb-token", TOKEN.encode()), (b"content-type", kind)]
    headers += [(b"content-length", length)] if length else []
    path = {"path": "/teach", "raw_path": b"/teach", "query_string": b"label=x", "root_path": ""}
    scope = {"type": "http", "method": "POST", "headers": headers, "http_version": "1.1", "scheme": "http", **path}
    asyncio.run(application(shared, TOKEN, [ORIGIN])(scope, receive, send))
    assert sent[0]["status"] == 413 and len(read) <= (0 if length else MOST_BYTES / len(part) + 1)
    assert "20,000,000 bytes" in json.loads(sent[1]["body"])["error"]


def test_a_request_that_is_broken_off_is_no_error_of_the_server(taught):
    before, sent = names(taught), []

    async def receive():
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8000"), (b"x-crumb-token", TOKEN.encode())]
    for path, query in (("/predict", b""), ("/teach", b"label=red")):
        parts = [{"type": "http.request", "body": b"half", "more_body": True}]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": query, "headers": headers}
        asyncio.run(taught.app({**scope, "root_path": "", "scheme": "http"}, receive, send))
    assert [one["status"] for one in sent if one["type"] == "http.response.start"] == [400, 400]
    assert names(taught) == before


def test_images_of_too_many_pixels_are_refused(client, monkeypatch):
    for side in (9_000, 30_000):  # Pillow refuses to open the second
        response = client.post("/predict", content=with_side(photo("red"), side))
        assert response.status_code == 413 and "64,000,000 pixels" in response.json()["error"]
    monkeypatch.setattr(shared_module, "MOST_PIXELS", 40 * 40 - 1)
    assert client.post("/teach", params={"label": "x"}, content=photo("red")).status_code == 413
    assert names(client) == {}


def test_images_that_take_long_to_decode_are_refused(client, monkeypatch):
    row = Image.new("L", (1, 70_000))
    scanned = io.BytesIO()
    Image.new("RGB", (2_000, 2_000)).save(scanned, "JPEG", progressive=True)
    data = scanned.getvalue()
    repeated = data[:-2] + 300 * data[data.rindex(b"\xff\xda") : -2] + data[-2:]
    slow, buffer = photo("red", kind="BMP"), io.BytesIO()
    row.save(buffer, "PNG")
    for image, words in ((buffer.getvalue(), "a side of more than 65,535"), (repeated, "too many scans")):
        response = client.post("/predict", content=image)
        assert response.status_code == 413 and words in response.json()["error"]
    monkeypatch.setattr(shared_module, "SECONDS_TO_DECODE", -1.0)
    response = client.post("/predict", content=slow)
    assert response.status_code == 413 and "to decode" in response.json()["error"]


def test_uploads_are_bounded_in_number_and_time(shared, monkeypatch):
    monkeypatch.setattr(server_module, "SECONDS_TO_SEND", 0.05)
    sent = []

    async def receive():
        await asyncio.sleep(20)

    async def send(message):
        sent.append(message)

    async def ask(app):
        await app(scope, receive, send)

    headers = [(b"host", b"127.0.0.1:8000"), (b"x-crumb-token", TOKEN.encode())]
    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "headers": headers}
    scope |= {"root_path": "", "scheme": "http"}
    asyncio.run(ask(application(shared, TOKEN, [ORIGIN])))
    monkeypatch.setattr(server_module, "MOST_UPLOADS", 0)
    asyncio.run(ask(application(shared, TOKEN, [ORIGIN])))
    assert [one["status"] for one in sent if "status" in one] == [408, 503]


def test_a_download_of_no_file_and_a_bug_are_json(shared, monkeypatch, tmp_path):
    with TestClient(application(shared, TOKEN, [ORIGIN]), ORIGIN, raise_server_exceptions=False) as client:
        client.headers["X-Crumb-Token"] = TOKEN
        shared.path.unlink()
        shared.path.mkdir()
        response = client.get("/download")
        assert response.status_code == 404 and "is not a file any more" in response.json()["error"]
        monkeypatch.setattr(Learner, "predict", lambda *_: 1 / 0)
        response = client.post("/predict", content=photo("red"))
        assert response.status_code == 500 and "a bug" in response.json()["error"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"


def hold_lessons(monkeypatch):
    """Make ``Learner.teach`` learn and then wait; return events: a lesson has started, it may end."""
    started, end, teach = threading.Event(), threading.Event(), Learner.teach

    def slow(self, *arguments, **keywords):
        lesson = teach(self, *arguments, **keywords)
        started.set()
        assert end.wait(20)
        return lesson

    monkeypatch.setattr(Learner, "teach", slow)
    return started, end


def test_answers_during_a_lesson_come_from_the_state_before_it(taught, monkeypatch):
    data = photo("blue", 3)
    before = taught.post("/predict", content=data).json()
    started, end = hold_lessons(monkeypatch)
    with ThreadPoolExecutor() as pool:
        lesson = pool.submit(taught.post, "/teach", params={"label": "blue"}, files=form("blue"))
        assert started.wait(20)
        assert taught.post("/predict", content=data).json() == before and before["label"] != "blue"
        assert names(taught) == {"red": 4, "green": 4}
        end.set()
        assert lesson.result().status_code == 200
    assert taught.post("/predict", content=data).json()["label"] == "blue"


def test_teachers_queue_and_too_many_are_refused(taught, monkeypatch):
    monkeypatch.setattr(shared_module, "MOST_WAITING", 3)
    started, end = hold_lessons(monkeypatch)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(taught.post, "/teach", params={"label": "red"}, files=form("red", 1))
        assert started.wait(20)
        others = [pool.submit(taught.post, "/teach", params={"label": "blue"}, files=form("blue", 2)) for _ in range(6)]
        refused = as_completed(others, timeout=20)
        assert [next(refused).result().status_code for _ in range(4)] == [503] * 4
        end.set()
    assert first.result().status_code == 200
    assert sorted(other.result().status_code for other in others) == [200, 200] + [503] * 4
    assert names(taught) == {"red": 5, "green": 4, "blue": 4}


def test_a_lesson_that_a_stop_breaks_off_is_refused_and_not_learned(taught, shared, monkeypatch):
    started, end = hold_lessons(monkeypatch)
    kept = shared.path.read_bytes()

    async def stopped():
        lesson = asyncio.create_task(shared.teach("blue", [("image", photo("blue"))]))
        await asyncio.to_thread(started.wait, 20)
        lesson.cancel()  # as uvicorn does
        with pytest.raises(BusyError, match="the server stops; nothing was changed"):
            await lesson

    asyncio.run(stopped())
    end.set()
    shared.close()
    assert shared.path.read_bytes() == kept and names(taught) == {"red": 4, "green": 4}


def test_a_change_that_cannot_be_saved_is_taken_back(taught, shared, monkeypatch):
    data = photo("blue", 3)
    before, kept = taught.post("/predict", content=data).json(), shared.path.read_bytes()

    def full(self, path, weights):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "save", full)
        response = taught.post("/teach", params={"label": "blue"}, files=form("blue"))
        assert response.status_code == 507 and "No space left" in response.json()["error"]
        assert taught.post("/forget", params={"name": "red"}).status_code == 507
    assert taught.post("/predict", content=data).json() == before and shared.path.read_bytes() == kept
    assert taught.post("/teach", params={"label": "blue"}, files=form("blue")).status_code == 200
    assert names(taught) == {"red": 4, "green": 4, "blue": 4}
    assert names(taught) == {info.name: info.images for info in Learner.load(shared.path).classes}


def test_teaching_and_answering_never_share_a_network(taught, shared):
    assert taught.post("/forget", params={"name": "nobody"}).status_code == 400
    taught.post("/teach", params={"label": "blue"}, files=form("blue", 1))
    networks = shared._taught.network, shared._asked.network
    assert networks[0] is not networks[1] and networks == shared._networks, "a change copies a network"


def test_the_description_names_what_the_page_about_it_does(client):
    described = client.get("/openapi.json").json()
    rows = re.findall(r"^\| `(GET|POST) (/\w*)", (ROOT / "docs/serve.md").read_text(), re.MULTILINE)
    paths = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert paths == {*rows, ("GET", "/")} - {("GET", "/openapi")}
    statuses = set(re.findall(r"^\| (\d{3}) \|", (ROOT / "docs/serve.md").read_text(), re.MULTILINE))
    teach = described["paths"]["/teach"]["post"]
    assert teach["responses"].keys() == statuses | {"200", "default"} and teach["security"]
    assert teach["requestBody"]["content"].keys() == {"image/*", "multipart/form-data"}
    label, new_class = teach["parameters"]
    assert not new_class["required"] and label["required"] and label["schema"]["maxLength"] == 200
    assert "security" not in described["paths"]["/health"]["get"]


def test_a_near_twin_of_a_name_is_asked_about(taught):
    for path, given in (("/teach", {"label": "Red"}), ("/rename", {"old": "green", "new": "ｒｅｄ"})):
        files = {"files": form("blue")} if path == "/teach" else {}
        response = taught.post(path, params=given, **files)
        assert response.status_code == 409 and response.json()["near"] == "red"
        assert "nearly the name of class 'red'" in response.json()["error"]
        assert names(taught) == {"red": 4, "green": 4}
        assert taught.post(path, params=given | {"new_class": "maybe"}, **files).status_code == 400
    assert taught.post("/teach", params={"label": "Red", "new_class": "true"}, files=form("blue")).status_code == 200
    assert taught.post("/teach", params={"label": "Red"}, files=form("blue")).status_code == 200
    assert names(taught) == {"red": 4, "green": 4, "Red": 8}


def test_the_page_needs_nothing_from_elsewhere_and_runs_its_own_script_only(client):
    response = client.get("/")
    assert response.headers["content-type"].startswith("text/html")
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/=]{44}'", policy["script-src"])
    assert response.headers["x-content-type-options"] == "nosniff" and response.headers["cache-control"] == "no-store"
    assert response.headers["referrer-policy"] == "no-referrer"
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"https?://|\bsrc=|@import|url\(|innerHTML|insertAdjacent|eval\(", text), file
    html = page()[0]
    assert html == response.text and "/* page." not in html and html.count("<script") == 1
    assert not re.search(r"<[^>]+\s(style|on\w+)=", html), "the policy blocks style attributes and handlers"


def test_every_element_that_the_script_uses_is_in_the_page():
    script, html = ((PAGE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("js", "html"))
    used, there = set(re.findall(r'at\("([\w-]+)"\)', script)), set(re.findall(r'\bid="([\w-]+)"', html))
    assert len(used) > 15 and used <= there
    labelled = re.findall(r'(?:for|list|aria-labelledby|aria-describedby)="([\w-]+)"', html)
    assert labelled and set(labelled) <= there
