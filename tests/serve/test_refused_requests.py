"""Requests that a server refuses; they change nothing."""

import asyncio
import json
import re
import struct
import zlib

import pytest
from http_lessons import ORIGIN, TOKEN, form, names
from photos import encoded, photo
from PIL import Image

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from starlette.testclient import TestClient

from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.serve import uploads
from crumb_avalanche.serve.bodies import MOST_BYTES
from crumb_avalanche.serve.server import application


def with_side(png, side):
    """A PNG file whose header claims another side."""
    header = b"IHDR" + struct.pack(">II", side, side) + png[24:29]
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


MULTIPART = {"Content-Type": "multipart/form-data"}
SCANNED = encoded(Image.new("RGB", (2_000, 2_000)), "JPEG", progressive=True)
LAST_SCAN = SCANNED[SCANNED.rindex(b"\xff\xda") : -2]
SCANNED = SCANNED[:-2] + 300 * LAST_SCAN + SCANNED[-2:]


@pytest.mark.parametrize(
    ("path", "options", "status", "words"),
    [
        ("/teach", {"content": photo("red")}, 400, r"\?label=.*left out"),
        ("/teach?label=%ff", {"content": photo("red")}, 400, "UTF-8"),
        (
            "/teach?label=a%2Fb",
            {"content": photo("red")},
            400,
            "^label is 'a/b': it contains '/'; a class name is [^.]*$",
        ),
        ("/teach?label=", {"content": photo("red")}, 400, "^label is '': it is blank;"),
        (
            "/teach?label=x&new_class=maybe",
            {"content": photo("red")},
            400,
            "^new_class is 'maybe', but has to be true or false$",
        ),
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
        ("/undo?lesson=x", {}, 400, "^lesson is 'x', but has to be a whole number$"),
        ("/move?old=red&new=green&lesson=9", {}, 400, "no lesson 9"),
        ("/absent", {}, 404, "POST /absent: Not Found; GET /openapi.json lists"),
        ("/classes", {}, 405, "POST /classes: Method Not Allowed; send it as GET$"),
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


@pytest.mark.parametrize(
    ("method", "address", "words"),
    [
        (
            "POST",
            "/undo?lessons=1",
            "unknown parameter lessons; /undo takes lesson (did you mean lesson?)",
        ),
        (
            "POST",
            "/move?old=red&new=green&lessonn=1",
            "unknown parameter lessonn; /move takes old, new, lesson, new_class "
            "(did you mean lesson?)",
        ),
        (
            "POST",
            "/predict?boxes=1&boxes=2",
            "unknown parameter boxes; /predict takes box, all (did you mean box?)",
        ),
        (
            "POST",
            "/teach?lable=red",
            "unknown parameter lable; /teach takes label, new_class, source, box "
            "(did you mean label?)",
        ),
        ("GET", "/lessons?x", "unknown parameter x; /lessons takes none"),
        ("HEAD", "/lessons?x", None),
        ("GET", "/health?x=1", "unknown parameter x; /health takes none"),
        ("GET", "/openapi.json?x=1", "unknown parameter x; /openapi.json takes none"),
        ("GET", "/?tokens=1", "unknown parameter tokens; / takes token, lang"),
        (
            "POST",
            "/teach?label=red&label=green",
            "parameter label came 2 times; /teach takes it once",
        ),
    ],
)
def test_an_unknown_or_repeated_parameter_changes_nothing(
    served, method, address, words
):
    # Given a learner of two classes
    client, _, file = served
    content = file.read_bytes()
    # When a parameter is not one that the path takes, or comes twice
    response = client.request(method, address, content=photo("red"))
    # Then it is named, with those that the path takes, and nothing was done
    assert response.status_code == 400
    if words is not None:
        assert response.json()["error"].startswith(words)
    assert file.read_bytes() == content


def test_every_path_refuses_an_unknown_parameter(served):
    # Given all paths of the description
    client, _, file = served
    content = file.read_bytes()
    paths = client.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for method in methods:
            # When a request has a parameter of another name
            response = client.request(method, path, params={"strange": 1})
            # Then none of them does anything
            assert response.status_code == 400, path
            assert "unknown parameter strange" in response.json()["error"]
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/absent", 404), ("GET", "/undo", 405)]
)
def test_an_unknown_path_is_refused_as_such(served, method, path, status):
    response = served[0].request(method, path, params={"strange": 1})
    assert response.status_code == status


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


def test_a_large_learner_file_is_not_read(served):
    async def receive():
        pytest.fail("it is read")

    # When a learner file is sent that is too large
    headers = [(b"content-length", b"500000001")]
    start, body = asked(served[0].app, "/open", b"", receive, headers)
    # Then the answer says how to open it all the same
    assert start["status"] == 413
    assert json.loads(body["body"])["error"] == (
        "a request may have 500,000,000 bytes; end crumb serve, and start it with that "
        "file"
    )


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([(b"host", b"elsewhere.example")], "this server answers at"),
        (
            [
                (b"origin", b"http://127.0.0.1:8000"),
                (b"origin", b"http://elsewhere.example"),
            ],
            "requests of other pages are refused",
        ),
        ([(b"x-crumb-token", b"guess")], "token"),
    ],
    ids=["host", "origin", "token"],
)
def test_a_second_header_of_a_name_is_refused(served, headers, words):
    async def receive():
        return {"type": "http.request", "body": photo("red"), "more_body": False}

    start, body = asked(served[0].app, "/predict", b"", receive, headers)
    assert start["status"] == 403
    assert words in json.loads(body["body"])["error"]


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
