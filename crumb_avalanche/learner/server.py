"""Serve a learner over HTTP: a page for people, and a JSON API that describes itself at ``/openapi.json``."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from benchmarks_toybox_ilab.tables.names import DoubtfulNameError
from crumb_avalanche.learner.api import MOST_BYTES, TOKEN_HEADER, api
from crumb_avalanche.learner.predictor import NothingTaughtError
from crumb_avalanche.learner.shared import BusyError, SaveError, SharedLearner, TooLargeError

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
    """Return the page with its style and script in it, and its Content-Security-Policy."""
    html, style, script = (
        (PAGE / f"page.{kind}").read_text(encoding="utf-8").strip() for kind in ("html", "css", "js")
    )
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; connect-src 'self'; "
        "img-src data: blob:; media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
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
        headers = {**HEADERS, "Content-Security-Policy": policy}
        self.headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

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
            # The server leaves the body of an answer to HEAD out.
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            return await self.app({**scope, "method": method}, receive, send_with_headers)
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


ERRORS = {
    400: "Something is wrong with the request.",
    403: "Host, Origin or token is wrong.",
    404: "The path is not one of these, or the lesson has no picture.",
    409: "Nothing was taught yet, or a name is nearly that of another class: new_class=true makes a new one.",
    413: "The request or an image is too large.",
    503: "Too many requests are waiting; try again in some seconds.",
    507: "The learner's file cannot be written; nothing was changed.",
}
STATUS = {NothingTaughtError: 409, TooLargeError: 413, ValueError: 400, BusyError: 503, SaveError: 507}


class Error(BaseModel):
    """Why a request was refused."""

    error: Annotated[str, Field(description="what is wrong, and what to do")]
    near: Annotated[str, Field(description="of 409: the class whose name is nearly the same")] = ""


RESPONSES: dict[int | str, dict[str, Any]] = {
    **{status: {"model": Error, "description": text} for status, text in ERRORS.items()},
    "default": {"model": Error, "description": "The server has a bug."},
}


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
        description="Teach a learner and ask it what images show. Images are JPEG, PNG, WebP, GIF or BMP with at most "
        f"64 million pixels; a request has at most {MOST_BYTES // 10**6} MB. Changes are made and saved one after the "
        "other; answers come from the last saved state, also while a lesson is being learned.",
        docs_url=None,  # its page loads scripts from another host
        redoc_url=None,
        responses=RESPONSES,
    )
    app.state.shared = shared

    @app.get("/", summary="The page for people", response_class=HTMLResponse)
    async def index(token: Annotated[str, Query(description="the token of the printed address")] = "") -> str:
        return html

    @app.get("/health", summary="Whether the server runs; needs no token")
    async def health() -> Health:
        return Health()

    app.include_router(api)
    for kind in (ClientDisconnect, StarletteHTTPException, RequestValidationError, *STATUS, Exception):
        app.add_exception_handler(kind, _failed)
    return Guard(app, token, origins, policy)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer an error as JSON that says what is wrong."""
    if isinstance(error, ClientDisconnect):
        return _error(400, "the request was broken off")  # which nobody reads
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        name, says = first["loc"][-1], first["msg"].removeprefix("Value error, ")
        return _error(400, f"{request.url.path} needs ?{name}=... in its address: {says}")
    if isinstance(error, StarletteHTTPException):
        return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}", error.headers)
    if isinstance(error, DoubtfulNameError):
        question = f"{str(error).partition(';')[0]}; if it is another one, add new_class=true to the address"
        return JSONResponse({"error": question, "near": error.near}, 409)
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
    bug = "the server has a bug; what it prints says more, and the learner is as it was"
    return _error(status, bug if status == 500 else str(error))


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status, headers)
