"""Requests to a server of a learner: damaged images, wrong tokens, odd names, broken forms."""

import asyncio
import io
import json
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

from PIL import Image
from support.faults.case import Kind
from support.faults.damage import damaged
from support.faults.material import pixels, write_weights

from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.server import application
from crumb_avalanche.learner.shared import SharedLearner

ORIGIN, TOKEN = "http://127.0.0.1:8000", "the-token"
NAMES = ("cup", "dog", "new", "", "..", "a/b", "x" * 300, "\0", "<b>", "=1+1", "ü", "\u202e", " ", "nan", "cup ")
PATHS = ("/predict", "/teach", "/rename", "/forget", "/undo", "/classes", "/download", "/", "/health", "/openapi.json")
PATHS += ("/nothing", "//", "/../etc/passwd", "/predict/", "/%00", "/teach?label")
METHODS = ("POST", "POST", "POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW")
FINE = {200, 307, 400, 403, 404, 405, 409, 413, 503, 507}
BOUND = "boundary"


def photo(seed: int, kind: str = "PNG") -> bytes:
    """Bytes of an image file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels(seed)).save(buffer, kind)
    return buffer.getvalue()


def form(images: list[bytes]) -> bytes:
    """A multipart form of images."""
    head = f'--{BOUND}\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'.encode()
    return b"".join(head + image + b"\r\n" for image in images) + f"--{BOUND}--\r\n".encode()


class Request(NamedTuple):
    """A request."""

    method: str
    path: str
    query: str = ""
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class Answer(NamedTuple):
    """The answer to one."""

    status: int
    body: bytes


async def answer(app: Any, request: Request, cut: bool = False) -> Answer:
    """Send a request to an ASGI application."""
    headers = {"host": "127.0.0.1:8000", "x-crumb-token": TOKEN, **dict(request.headers)}
    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""},
        **{"method": request.method, "path": request.path, "raw_path": request.path.encode("utf-8", "replace")},
        "query_string": request.query.encode(),
        "headers": [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers.items()],
    }
    parts = [{"type": "http.request", "body": request.body, "more_body": cut}]
    sent: list[dict] = []

    async def receive() -> dict:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return Answer(sent[0]["status"] if sent else 0, body)


def shared_of(path: Path) -> tuple[SharedLearner, Any]:
    """A shared learner of a file, and its application."""
    shared = SharedLearner(Learner.load(path), path)
    return shared, application(shared, TOKEN, [ORIGIN])


class Requests(Kind):
    """Every request has an answer of a known status; one that fails changes nothing."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.path = folder / "mine.safetensors"
        learner = Learner("ncm", "small_cnn", write_weights(folder / "weights.safetensors"), 32)
        for number, name in enumerate(("cup", "dog")):
            learner.teach(pixels(number)[None], name)
        learner.save(self.path)
        self.saved = self.path.read_bytes()
        self.shared, self.app = shared_of(self.path)
        self.predict = Request("POST", "/predict", body=photo(0))
        self.expected = asyncio.run(answer(self.app, self.predict))
        assert self.expected.status == 200, self.expected

    def damage(self, random: Random) -> str:
        self.requests = [self.drawn(random) for _ in range(random.randint(1, 3))]
        self.cut = random.random() < 0.05
        shown = [
            f"{one.method} {one.path}?{one.query[:60]} {len(one.body)} bytes {one.headers}" for one in self.requests
        ]
        return ("cut: " if self.cut else "") + "; ".join(shown)

    def drawn(self, random: Random) -> Request:
        """Draw a request, half of the time one that would be fine but for its body."""
        image = photo(random.randrange(20), random.choice(("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")))
        if random.random() < 0.6:
            image = damaged(image, random)[1]
        several, headers = random.random() < 0.3, {}
        body = form([image] * random.randint(0, 3)) if several else image
        if several:
            headers["content-type"] = f"multipart/form-data; boundary={BOUND}"
            if random.random() < 0.3:
                body = damaged(body, random)[1]
        if random.random() < 0.15:
            names = ("host", "origin", "x-crumb-token", "content-type", "content-length", "transfer-encoding")
            values = ("", "evil.example", ORIGIN, "multipart/form-data", "-1", "9" * 30, "\xff", "chunked", "nan")
            headers[random.choice(names)] = random.choice(values)
        path = random.choice(PATHS[:5] if random.random() < 0.7 else PATHS)
        fields = random.choices(("label", "name", "old", "new", "token", "x"), k=random.randint(0, 3))
        if random.random() < 0.6:
            fields = {"/teach": ["label"], "/forget": ["name"], "/rename": ["old", "new"]}.get(path, fields)
        query = "&".join(f"{name}={quote(random.choice(NAMES))}" for name in fields)
        query += random.choice(("", "", "", "&%ff=%", "&&&", "=", "&label"))
        method = "POST" if random.random() < 0.7 else random.choice(METHODS)
        return Request(method, path, query, body, tuple(headers.items()))

    def act(self) -> list[str]:
        return asyncio.run(self.all_of())

    async def all_of(self) -> list[str]:
        wrong = []
        for request in self.requests:
            before, file = self.known(), self.path.read_bytes()
            found = await answer(self.app, request, self.cut)
            if found.status not in FINE and not (found.status == 0 and self.cut):
                wrong.append(f"status {found.status}")
            if found.status >= 400 and request.method != "HEAD" and not json.loads(found.body).get("error"):
                wrong.append("no words")
            if found.status >= 400 and (self.known() != before or self.path.read_bytes() != file):
                wrong.append(f"status {found.status}, but it was done")
            if found.status == 200 and request.path == "/teach" and self.known() == before:
                wrong.append("status 200, but nothing was learned")
        if self.path.read_bytes() == self.saved and await answer(self.app, self.predict) != self.expected:
            wrong.append("another answer")
        return wrong

    def known(self) -> list:
        learner = self.shared.learner
        return [(info.name, info.images) for info in learner.classes]

    def right(self, found: list[str]) -> bool:
        return not found

    def restore(self) -> None:
        if self.path.read_bytes() != self.saved:
            self.shared.close()
            self.path.write_bytes(self.saved)
            self.shared, self.app = shared_of(self.path)

    def close(self) -> None:
        self.shared.close()
