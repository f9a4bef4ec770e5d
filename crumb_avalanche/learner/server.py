"""Serve a learner over HTTP: a page for people, and a JSON API that ``page/openapi.json`` describes."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import parse_qs

from crumb_avalanche.learner.answer import Lesson
from crumb_avalanche.learner.folders import check_name
from crumb_avalanche.learner.learner import NothingTaughtError
from crumb_avalanche.learner.listening import load_server
from crumb_avalanche.learner.shared import BusyError, SaveError, SharedLearner, TooLargeError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

PAGE = Path(__file__).parent / "page"
TOKEN_HEADER = "x-crumb-token"
MOST_BYTES = 20_000_000  # of a request
MOST_IMAGES = 1000  # of a lesson
MOST_UPLOADS = 16  # that are received at the same time
SECONDS_TO_SEND = 600.0  # an upload: the largest one at 33 kB a second
HEADERS = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def page() -> tuple[str, str]:
    """Return the page with its style and script in it, and its Content-Security-Policy."""
    html, style, script = (
        (PAGE / f"page.{kind}").read_text(encoding="utf-8").strip() for kind in ("html", "css", "js")
    )
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.replace("/* page.css */", style).replace("/* page.js */", script), policy


class Guard:
    """Refuses requests of other pages and programs before anything else sees them, and sets the headers of answers.

    Every request needs a Host header (against DNS rebinding) and, if it has one, an Origin header (against requests of
    other pages) of one of ``origins``. All but ``/health`` need the token, in the header ``X-Crumb-Token`` or, for the
    page itself, in its address.

    Args:
        app: ASGI application.
        token: see above.
        origins: such as ``http://127.0.0.1:8000``.
        policy: Content-Security-Policy.
    """

    def __init__(self, app: Any, token: str, origins: list[str], policy: str):
        self.app, self.token, self.origins = app, token, origins
        self.hosts = [origin.partition("://")[2] for origin in origins]
        self.headers = [
            (name.lower().encode(), value.encode())
            for name, value in {**HEADERS, "Content-Security-Policy": policy}.items()
        ]

    async def __call__(self, scope: Any, receive: Callable, send: Callable) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = message | {"headers": [*message["headers"], *self.headers]}
            await send(message)

        wrong = self.refusal(scope)
        if wrong is None:
            return await self.app(scope, receive, send_with_headers)
        return await _error(403, wrong)(scope, receive, send_with_headers)

    def refusal(self, scope: Any) -> str | None:
        """Why a request is refused, if it is."""
        given: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        host, origin, tokens = (given.get(name, []) for name in ("host", "origin", TOKEN_HEADER))
        if len(host) != 1 or host[0].lower() not in self.hosts:
            return f"this server answers at {self.origins[0]} only"
        if origin and (len(origin) != 1 or origin[0].lower() not in self.origins):
            return "requests of other pages are refused"
        if scope["path"] == "/health":
            return None
        if scope["path"] == "/":
            tokens = tokens or parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if len(tokens) == 1 and hmac.compare_digest(tokens[0].encode(), self.token.encode()):
            return None
        return (
            "the token is missing or wrong. Open the whole address that crumb serve printed, with ?token=...; programs "
            "send the token in the header X-Crumb-Token"
        )


def application(shared: SharedLearner, token: str, origins: list[str], most_bytes: int = MOST_BYTES) -> Guard:
    """Return the ASGI application.

    Args:
        shared: what it serves.
        token: that requests must have.
        origins: addresses at which it is reached, such as ``http://127.0.0.1:8000``.
        most_bytes: largest upload.

    Raises:
        ImportError: starlette or python-multipart is not installed; says how to install it.
    """
    load_server()
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
    from starlette.routing import Route

    html, policy = page()
    uploads = asyncio.Semaphore(MOST_UPLOADS)

    async def images_of(request: "Request") -> list[tuple[str, bytes]]:
        if uploads.locked():
            raise BusyError(f"{MOST_UPLOADS} uploads are under way; try again in some seconds")
        async with uploads:
            try:
                return await asyncio.wait_for(_images(request, most_bytes), SECONDS_TO_SEND)
            except asyncio.TimeoutError as error:
                raise HTTPException(408, f"the upload took more than {SECONDS_TO_SEND:g} s; send less") from error

    async def index(request: "Request") -> "Response":
        return HTMLResponse(html)

    async def health(request: "Request") -> "Response":
        return JSONResponse({"status": "ok"})

    async def openapi(request: "Request") -> "Response":
        return JSONResponse(json.loads((PAGE / "openapi.json").read_text(encoding="utf-8")))

    async def classes(request: "Request") -> "Response":
        learner = shared.learner
        found = [{"name": info.name, "images": info.images} for info in learner.classes]
        used = {"bytes": learner.bytes, "budget_bytes": learner.budget_bytes, "lessons": len(learner.lessons)}
        return JSONResponse(
            {"classes": found, **used, "can_undo": learner.can_undo, "clips_missing": learner.clips_missing}
        )

    async def predict(request: "Request") -> "Response":
        images = await images_of(request)
        if len(images) != 1:
            raise ValueError(f"predict takes one image, not {len(images)}")
        found, notes = await shared.predict(images[0][1])
        answer = found.as_dict() | {"notes": notes}
        answer.pop("path")
        return JSONResponse(answer)

    async def teach(request: "Request") -> "Response":
        label = check_name(_given(request, "label"))  # before the upload is read
        return JSONResponse(_lesson(await shared.teach(label, await images_of(request))))

    async def rename(request: "Request") -> "Response":
        old, new = _given(request, "old"), _given(request, "new")
        await shared.change(lambda learner: learner.rename(old, new))
        return JSONResponse({"old": old, "new": new})

    async def forget(request: "Request") -> "Response":
        name = _given(request, "name")
        remains = await shared.change(lambda learner: learner.forget(name))
        return JSONResponse({"name": name, "remains": remains})

    async def undo(request: "Request") -> "Response":
        return JSONResponse(_lesson(await shared.change(lambda learner: learner.undo())))

    async def download(request: "Request") -> "Response":
        path = shared.path
        if not path.is_file():
            wrong = "is not a file any more; move away what is there" if os.path.lexists(path) else "was removed"
            return _error(404, f"{path} {wrong}; the next change of the learner writes it again")
        try:
            file = path.open("rb")  # which `_parts` closes
        except OSError as error:
            return _error(404, f"{path} cannot be read ({error.strerror or error}); change its permissions")
        name = shared.path.name.encode("ascii", "replace").decode().replace('"', "_")
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "Content-Length": str(os.fstat(file.fileno()).st_size),
        }
        return StreamingResponse(_parts(file), media_type="application/octet-stream", headers=headers)

    async def failed_unexpectedly(request: "Request", error: Exception) -> "Response":
        return _error(500, "the server has a bug; what it prints says more, and the learner is as it was")

    async def failed(request: "Request", error: Exception) -> "Response":
        kinds = {NothingTaughtError: 409, TooLargeError: 413, ValueError: 400, BusyError: 503, SaveError: 507}
        if isinstance(error, ClientDisconnect):
            return _error(400, "the request was broken off")  # which nobody reads
        if isinstance(error, HTTPException):
            allowed = (error.headers or {}).get("Allow")
            says = {404: "is not here", 405: f"takes {allowed}, not {request.method}"}.get(error.status_code)
            text = f"{request.url.path} {says}; GET /openapi.json describes what is" if says else str(error.detail)
            return _error(error.status_code, text, {"Allow": allowed} if allowed else None)
        return _error(next(code for kind, code in kinds.items() if isinstance(error, kind)), str(error))

    routes = [Route(f"/{one.__name__}", one, methods=["POST"]) for one in (predict, teach, rename, forget, undo)]
    routes += [Route(f"/{one.__name__}", one, methods=["GET"]) for one in (health, classes, download)]
    routes += [Route("/", index, methods=["GET"]), Route("/openapi.json", openapi, methods=["GET"])]
    handlers: Any = dict.fromkeys((ClientDisconnect, HTTPException, ValueError, BusyError, SaveError), failed)
    handlers[Exception] = failed_unexpectedly
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, origins, policy)


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> "Response":
    from starlette.responses import JSONResponse

    return JSONResponse({"error": text}, status, headers)


def _given(request: "Request", name: str) -> str:
    """The value of a query parameter."""
    values = request.query_params.getlist(name)
    if len(values) != 1:
        raise ValueError(f"{request.url.path} needs ?{name}=... in its address, once; it is there {len(values)} times")
    return values[0]


def _lesson(lesson: Lesson) -> dict[str, Any]:
    return {"images": lesson.images, "notes": list(lesson.notes)}


async def _images(request: "Request", most_bytes: int) -> list[tuple[str, bytes]]:
    """Read the images of a request, with names for errors: its body, or all files of a multipart form."""
    from starlette.exceptions import HTTPException
    from starlette.formparsers import MultiPartException, MultiPartParser

    stream = _bounded(request, most_bytes)
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return [("the image", b"".join([part async for part in stream]))]

    class InMemory(MultiPartParser):
        spool_max_size = most_bytes  # images are never written to the disk

    try:
        form = await InMemory(request.headers, stream, max_files=MOST_IMAGES, max_fields=10).parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from error
    files = [file for _, file in form.multi_items() if not isinstance(file, str)]
    if not files:
        raise ValueError("the form holds no image; add each as a file")
    return [(f"image {number}", await file.read()) for number, file in enumerate(files, 1)]


async def _bounded(request: "Request", most_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a body; raise TooLargeError as soon as it is known to be too large."""
    too_large = TooLargeError(f"a request may have {most_bytes:,} bytes; send smaller images, or several lessons")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most_bytes:
        raise too_large
    read = 0
    async for part in request.stream():
        read += len(part)
        if read > most_bytes:
            raise too_large
        yield part


def _parts(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file in parts, each of which a client has to take in time, and close it."""
    with file:
        while part := file.read(1 << 16):
            yield part
