"""Serve a learner over HTTP: a page for people, and a JSON API for programs.

The API describes itself at ``/openapi.json``.
"""

import base64
import hashlib
import hmac
import json
import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.security import APIKeyHeader
from pydantic import AfterValidator, BaseModel, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from benchmarks_toybox_ilab.tables.names import (
    LONGEST_NAME,
    DoubtfulNameError,
    check_name,
    check_near,
)
from crumb_avalanche.learner.predictor import NothingTaughtError
from crumb_avalanche.serve.messages import (
    Changed,
    Classes,
    Forgotten,
    Found,
    Learned,
    Listed,
)
from crumb_avalanche.serve.shared import BusyError, SaveError, SharedLearner
from crumb_avalanche.serve.uploads import TooLargeError

TOKEN_HEADER = "x-crumb-token"
MOST_BYTES = 20_000_000  # of a request
MOST_FILE_BYTES = 500_000_000  # of a learner that is opened
MOST_IMAGES = 1000  # of a lesson
MOST_ASKED = 32  # images of a clip that is asked about
PART = 1 << 16  # bytes of a download that are sent at a time
PAGE = Path(__file__).parent / "page"
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
    """Return the page with its style, script and texts in it, and its policy.

    The policy (Content-Security-Policy) allows this style and this script alone.
    """
    html = _part_of_page("page.html")
    style = _part_of_page("page.css")
    texts = json.dumps(json.loads(_part_of_page("texts.json")), ensure_ascii=False)
    script = _part_of_page("page.js").replace("/* texts.json */", texts)
    policy = {
        "default-src": "'none'",
        "style-src": _source_hash(style),
        "script-src": _source_hash(script),
        "connect-src": "'self'",
        "img-src": "data: blob:",
        "media-src": "blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    html = html.replace("/* page.css */", style).replace("/* page.js */", script)
    return html, "; ".join(f"{name} {value}" for name, value in policy.items())


def _part_of_page(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8").strip()


def _source_hash(text: str) -> str:
    """Return the hash of an inline style or script, as a policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


class Guard:
    """Refuses requests of other pages and programs before anything else sees them.

    It sets the headers of answers, too. Every request needs a Host header (against DNS
    rebinding) and, if it has one, an Origin header (against requests of other pages) of
    one of ``origins``. All but ``/health`` need the token, in the header
    ``X-Crumb-Token`` or, for the page itself, in its address. A request that states its
    length in two ways is refused, and its connection ends: what follows in it may be a
    request for one program and a body for another.

    Args:
        app: ASGI application.
        token: see above.
        origins: such as ``http://127.0.0.1:8000``.
        policy: Content-Security-Policy.
    """

    def __init__(self, app: Any, token: str, origins: list[str], policy: str):
        self.app = app
        self.token = token
        self.origins = origins
        self.hosts = [origin.partition("://")[2] for origin in origins]
        headers = {**HEADERS, "Content-Security-Policy": policy}
        self.headers = [
            (name.lower().encode(), value.encode()) for name, value in headers.items()
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

        refusal = self._refusal(scope)
        if refusal is not None:
            return await refusal(scope, receive, send_with_headers)
        if scope["method"] == "HEAD":  # the server leaves out the body of the answer
            scope = {**scope, "method": "GET"}
        return await self.app(scope, receive, send_with_headers)

    def _refusal(self, scope: Any) -> Response | None:
        """Return the answer to a request that is refused."""
        headers: dict[str, list[str]] = defaultdict(list)
        for name, value in scope["headers"]:
            headers[name.decode("latin-1")].append(value.decode("latin-1"))
        if headers["transfer-encoding"] and headers["content-length"]:
            return _error(
                400,
                "a request has either Transfer-Encoding or Content-Length, not both",
                {"Connection": "close"},
            )
        reason = self._wrong_origin(headers) or self._wrong_token(scope, headers)
        return None if reason is None else _error(403, reason)

    def _wrong_origin(self, headers: Mapping[str, list[str]]) -> str | None:
        """Return why a request is not one of the page or of a program of the user."""
        hosts = headers["host"]
        origins = headers["origin"]
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return f"this server answers at {self.origins[0]} only"
        if origins and (len(origins) != 1 or origins[0].lower() not in self.origins):
            return "requests of other pages are refused"
        return None

    def _wrong_token(self, scope: Any, headers: Mapping[str, list[str]]) -> str | None:
        """Return why the token of a request is wrong."""
        if scope["path"] == "/health":
            return None
        tokens = headers[TOKEN_HEADER]
        if scope["path"] == "/" and not tokens:
            query = parse_qs(scope["query_string"].decode("latin-1"))
            tokens = query.get("token", [])
        if len(tokens) == 1 and hmac.compare_digest(
            tokens[0].encode(), self.token.encode()
        ):
            return None
        return (
            "the token is missing or wrong. Open the whole address that crumb serve "
            "printed, with ?token=...; programs send the token in the header "
            "X-Crumb-Token"
        )


# Routes

# Describes the token, which ``Guard`` checks.
TOKEN = APIKeyHeader(
    name=TOKEN_HEADER, description="Printed by crumb serve.", auto_error=False
)
api = APIRouter(dependencies=[Security(TOKEN)])


async def _shared(request: Request) -> SharedLearner:
    return request.app.state.shared


def _name(text: str) -> str:
    if "\ufffd" in text:
        raise ValueError(
            "the name is not UTF-8; encode it as UTF-8 before it is quoted"
        )
    return check_name(text)


Shared = Annotated[SharedLearner, Depends(_shared)]
Name = Annotated[
    str,
    AfterValidator(_name),
    Query(
        description="name of a class",
        json_schema_extra={"minLength": 1, "maxLength": LONGEST_NAME},
    ),
]
NewClass = Annotated[
    bool, Query(description="take a name that is nearly that of another class")
]
Source = Annotated[
    str, Query(description="what the images are from, for the list of lessons")
]
Box = Annotated[
    list[float] | None,
    Query(
        min_length=4,
        max_length=4,
        description=(
            "where the object is in the only image: left, top, right, bottom in "
            "pixels, as box=10&box=20&..."
        ),
    ),
]
All = Annotated[
    bool, Query(description="name all classes as runners-up, not the next four alone")
]
Number = Annotated[int | None, Query(description="number of a lesson")]


@api.get("/classes", summary="The classes taught, and the lesson that is being learned")
async def classes(shared: Shared) -> Classes:
    """Describe what was learned."""
    return shared.classes()


@api.get(
    "/lessons", summary="The lessons, in order, without those that were taken back"
)
async def lessons(shared: Shared) -> list[Listed]:
    """List the lessons."""
    return shared.lessons()


@api.get("/picture", summary="A small picture of a lesson", response_class=Response)
async def picture(shared: Shared, lesson: int) -> Response:
    """Send a JPEG of up to four images side by side."""
    jpeg = shared.picture(lesson)
    if not jpeg:
        raise HTTPException(404, f"there is no picture of a lesson {lesson}")
    return Response(jpeg, media_type="image/jpeg")


def _body(most: int) -> dict[str, Any]:
    """Describe the body of a request with at most so many images."""
    image: dict[str, Any] = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": image, "maxItems": most}
    form = {"type": "object", "required": ["image"], "properties": {"image": files}}
    content = {"image/*": {"schema": image}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


@api.post(
    "/predict",
    summary="Answer what an image or the images of a clip show",
    openapi_extra=_body(MOST_ASKED),
)
async def predict(
    request: Request, shared: Shared, box: Box = None, all: All = False
) -> Found:
    """Answer for the images of the body."""
    images = await _images(request)
    if len(images) > MOST_ASKED:
        raise ValueError(
            f"predict takes at most {MOST_ASKED} images, of one clip, not {len(images)}"
        )
    return await shared.predict(images, box, all)


@api.post(
    "/teach",
    summary="Learn images of a class, as one lesson",
    openapi_extra=_body(MOST_IMAGES),
)
async def teach(
    request: Request,
    shared: Shared,
    label: Name,
    new_class: NewClass = False,
    source: Source = "",
    box: Box = None,
) -> Learned:
    """Learn the images of the body."""
    if not new_class:  # the label is checked before the upload is read
        check_near([label], [info.name for info in shared.learner.classes])
    return await shared.teach(label, await _images(request), new_class, source, box)


@api.post(
    "/nothing",
    summary="Learn images of the empty scene, as one lesson",
    openapi_extra=_body(MOST_IMAGES),
)
async def nothing(request: Request, shared: Shared, source: Source = "") -> Learned:
    """Learn the images of the body as showing nothing."""
    return await shared.teach(None, await _images(request), source=source)


@api.post("/rename", summary="Give a class another name")
async def rename(
    shared: Shared, old: Name, new: Name, new_class: NewClass = False
) -> Changed:
    """Rename a class."""
    return await shared.changed(lambda learner: learner.rename(old, new, new_class))


@api.post(
    "/forget",
    summary="Remove a class, which only /revert brings back, until the next change",
)
async def forget(shared: Shared, name: Name) -> Forgotten:
    """Remove a class."""
    return await shared.forget(name)


@api.post(
    "/undo", summary="Take a lesson back, the last one unless another number is given"
)
async def undo(shared: Shared, lesson: Number = None) -> Learned:
    """Take a lesson back."""
    return await shared.undo(lesson)


@api.post("/remove", summary="Remove one image of a lesson, by its number from 0")
async def remove(shared: Shared, lesson: int, image: int) -> Changed:
    """Remove an image."""
    return await shared.changed(lambda learner: learner.remove_image(lesson, image))


@api.post(
    "/move",
    summary="Make the images of a class, of one lesson or of all, those of another one",
)
async def move(
    shared: Shared,
    old: Name,
    new: Name,
    lesson: Number = None,
    new_class: NewClass = False,
) -> Changed:
    """Move images from one class to another."""
    return await shared.changed(
        lambda learner: learner.move(old, new, lesson, new_class)
    )


@api.post(
    "/revert",
    summary="Take the last change back, whatever it was, if it made this version",
)
async def revert(shared: Shared, version: int) -> Changed:
    """Put the learner back that was there before the last change."""
    return await shared.revert(version)


@api.get(
    "/download",
    summary="The learner's file, for crumb predict and Learner.load",
    response_class=Response,
)
async def download(shared: Shared) -> Response:
    """Send the learner's file, without the pictures of its lessons."""
    return _attachment(shared.path.name, await shared.copied())


@api.get(
    "/export",
    summary="The learner as an ONNX file, for other programs",
    response_class=Response,
)
async def export(shared: Shared) -> Response:
    """Send the learner as ``crumb export`` writes it; needs the extra ``onnx``."""
    try:
        content = await shared.exported()
    except ImportError as error:
        raise HTTPException(501, str(error)) from error
    return _attachment(shared.path.with_suffix(".onnx").name, content)


@api.post(
    "/open",
    summary="Put the learner of a file in the place of this one",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {
                    "schema": {"type": "string", "format": "binary"}
                }
            },
        }
    },
)
async def open_file(request: Request, shared: Shared) -> Changed:
    """Open the learner file of the body; ``/revert`` takes it back."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "opened.safetensors"
        with path.open("wb") as file:
            async for chunk in _bounded(request, MOST_FILE_BYTES):
                file.write(chunk)
        return await shared.open(path)


def _attachment(name: str, content: bytes) -> StreamingResponse:
    """Return a file that a browser saves under a name."""
    quoted = quote(name)
    headers = {
        "Content-Disposition": (
            f"attachment; filename=\"{quoted}\"; filename*=UTF-8''{quoted}"
        ),
        "Content-Length": str(len(content)),
    }
    return StreamingResponse(
        _parts(content), media_type="application/octet-stream", headers=headers
    )


async def _parts(content: bytes) -> AsyncGenerator[bytes, None]:
    """Yield a file in parts, so that the server sees how fast a client reads."""
    for start in range(0, len(content), PART):
        yield content[start : start + PART]


async def _images(request: Request) -> list[tuple[str, bytes]]:
    """Read the images of a request, with names for errors.

    They are its body, or all files of a multipart form.
    """
    stream = _bounded(request)
    content_type = request.headers.get("content-type", "").lower()
    if not content_type.startswith("multipart/form-data"):
        chunks = [chunk async for chunk in stream]
        return [("the image", b"".join(chunks))]
    parser = InMemory(request.headers, stream, max_files=MOST_IMAGES, max_fields=10)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from error
    files = [file for _, file in form.multi_items() if not isinstance(file, str)]
    if not files:
        raise ValueError("the form holds no image; add each as a file")
    images = [
        (f"image {number}", await file.read()) for number, file in enumerate(files, 1)
    ]
    await form.close()
    return images


class InMemory(MultiPartParser):
    """Reads a form without writing its images to the disk."""

    spool_max_size = MOST_BYTES


async def _bounded(
    request: Request, most: int = MOST_BYTES
) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a body of at most so many bytes.

    Raises:
        TooLargeError: as soon as it is known to be too large.
    """
    too_large = TooLargeError(
        f"a request may have {most:,} bytes; send smaller images, or several lessons"
    )
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise too_large
    read = 0
    async for chunk in request.stream():
        read += len(chunk)
        if read > most:
            raise too_large
        yield chunk


# Errors and the application

ERRORS = {
    400: "Something is wrong with the request.",
    403: "Host, Origin or token is wrong.",
    404: "The path is not one of these, or the lesson has no picture.",
    409: (
        "Nothing was taught yet, or a name is nearly that of another class: "
        "new_class=true makes a new one."
    ),
    413: "The request or an image is too large.",
    501: "An extra that this needs is not installed.",
    503: "Too many requests are waiting; try again in some seconds.",
    507: "The learner's file cannot be written; nothing was changed.",
}
STATUS = {
    NothingTaughtError: 409,
    TooLargeError: 413,
    ValueError: 400,
    BusyError: 503,
    SaveError: 507,
}


class Error(BaseModel):
    """Why a request was refused."""

    error: Annotated[str, Field(description="what is wrong, and what to do")]
    near: Annotated[
        str, Field(description="of 409: the class whose name is nearly the same")
    ] = ""


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": text} for status, text in ERRORS.items()
}
RESPONSES["default"] = {"model": Error, "description": "The server has a bug."}


class Health(BaseModel):
    """The server runs."""

    status: Literal["ok"] = "ok"


def application(shared: SharedLearner, token: str, origins: list[str]) -> Guard:
    """Return the ASGI application.

    Args:
        shared: what it serves.
        token: that requests must have.
        origins: addresses at which it is reached, such as ``http://127.0.0.1:8000``.
    """
    html, policy = page()
    app = FastAPI(
        title="crumb serve",
        version="1",
        description=(
            "Teach a learner and ask it what images show. Images are JPEG, PNG, WebP, "
            "GIF or BMP with at most 64 million pixels; a request has at most "
            f"{MOST_BYTES // 10**6} MB. Changes are made and saved one after the "
            "other; answers come from the last saved state, also while a lesson is "
            "being learned."
        ),
        docs_url=None,  # its page loads scripts from another host
        redoc_url=None,
        responses=RESPONSES,
    )
    app.state.shared = shared

    @app.get("/", summary="The page for people", response_class=HTMLResponse)
    async def index(
        token: Annotated[
            str, Query(description="the token of the printed address")
        ] = "",
    ) -> str:
        return html

    @app.get("/health", summary="Whether the server runs; needs no token")
    async def health() -> Health:
        return Health()

    app.include_router(api)
    framework_errors = (
        ClientDisconnect,
        StarletteHTTPException,
        RequestValidationError,
    )
    for kind in (*framework_errors, *STATUS, Exception):
        app.add_exception_handler(kind, _failed)
    return Guard(app, token, origins, policy)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer an error as JSON that says what is wrong."""
    if isinstance(error, ClientDisconnect):
        return _error(400, "the request was broken off")  # which nobody reads
    if isinstance(error, RequestValidationError):
        return _error(400, _wrong_argument(request, error))
    if isinstance(error, StarletteHTTPException):
        text = f"{request.method} {request.url.path}: {error.detail}"
        return _error(error.status_code, text, error.headers)
    if isinstance(error, DoubtfulNameError):
        question = str(error).partition(";")[0]
        advice = "if it is another one, add new_class=true to the address"
        return JSONResponse({"error": f"{question}; {advice}", "near": error.near}, 409)
    for kind, status in STATUS.items():
        if isinstance(error, kind):
            return _error(status, str(error))
    return _error(
        500,
        "the server has a bug; what it prints says more, and the learner is as it was",
    )


def _wrong_argument(request: Request, error: RequestValidationError) -> str:
    """Return which argument of an address is wrong, and why."""
    problem = error.errors()[0]
    _, name = problem["loc"][:2]  # "query", and the argument
    reason = problem["msg"].removeprefix("Value error, ")
    return f"{request.url.path} needs ?{name}=... in its address: {reason}"


def _error(
    status: int, text: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer that says what is wrong."""
    return JSONResponse({"error": text}, status, headers)
