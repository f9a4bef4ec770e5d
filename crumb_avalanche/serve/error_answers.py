"""Answers to requests that cannot be served: a status, and what to do, as JSON."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from benchmarks_toybox_ilab.tables.names import DoubtfulNameError
from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.learner.predictor import NothingTaughtError
from crumb_avalanche.serve.disk import SaveError
from crumb_avalanche.serve.shared import BusyError
from crumb_avalanche.serve.uploads import TooLargeError

NOT_FOUND = HTTPStatus.NOT_FOUND.phrase  # the framework's text for an unknown path
ERRORS = {
    400: "Something is wrong with the request.",
    403: "Host, Origin or token is wrong.",
    404: "The path is not one of these, or the lesson has no picture.",
    405: "The path takes another method, which the answer names.",
    409: (
        "Nothing was taught yet, or a name is nearly that of another class: "
        "new_class=true makes a new one."
    ),
    413: "The request or an image is too large.",
    501: "An extra that this needs is not installed.",
    503: "Too many requests are waiting; try again in some seconds.",
    507: "The learner's file or a temporary one cannot be written; nothing changed.",
}
NOTHING_TAUGHT = (
    "nothing was taught yet; send images of a class to POST /teach?label=NAME first"
)
# What an argument takes, by the type of the framework's error, which has texts of its
# own.
VALUES_BY_ERROR = {
    "bool_parsing": "true or false",
    "float_parsing": "numbers",
    "int_parsing": "a whole number",
}
MOST_SHOWN = 100  # characters of a wrong argument
BOX = (
    "four numbers: left, top, right and bottom in pixels, as "
    "box=10&box=20&box=110&box=220"
)
STATUS_BY_ERROR = {
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


async def answer_to(request: Request, error: Exception) -> Response:
    """Return the HTTP answer to a request that raised an error.

    Its body is JSON, ``{"error": text}``; the class of the error gives the status.
    """
    if isinstance(error, ClientDisconnect):
        return error_answer(400, "the request was broken off")  # which nobody reads
    if isinstance(error, RequestValidationError):
        return error_answer(400, _wrong_argument(request, error))
    if isinstance(error, StarletteHTTPException):
        text = f"{request.method} {request.url.path}: {_reason_of_refusal(error)}"
        return error_answer(error.status_code, text, error.headers)
    if isinstance(error, NothingTaughtError):
        return error_answer(409, NOTHING_TAUGHT)
    if isinstance(error, DoubtfulNameError):
        question, _, _ = str(error).partition(";")  # behind it is advice for Python
        advice = "if it is another one, add new_class=true to the address"
        return JSONResponse({"error": f"{question}; {advice}", "near": error.near}, 409)
    for error_class, status in STATUS_BY_ERROR.items():
        if isinstance(error, error_class):
            return error_answer(status, str(error))
    return error_answer(
        500,
        "the server has a bug; what it prints says more, and the learner is as it was",
    )


def _wrong_argument(request: Request, error: RequestValidationError) -> str:
    """Return which argument of a request's address is wrong, and why."""
    problem = error.errors()[0]
    kind = problem["type"]
    _, name = problem["loc"][:2]  # "query", and the argument
    if kind == "missing":
        return f"{request.url.path} needs ?{name}=... in its address, which is left out"
    if name == "box":
        values = request.query_params.getlist(name)
        return f"box is {_shown(', '.join(values))}, but has to be {BOX}"
    came = f"{name} is {_shown(problem['input'])!r}"
    if kind in VALUES_BY_ERROR:
        return f"{came}, but has to be {VALUES_BY_ERROR[kind]}"
    return f"{came}: {problem['msg'].removeprefix('Value error, ')}"


def _shown(argument: str) -> str:
    """Return the beginning of a wrong argument, safe to print."""
    return printable(argument)[:MOST_SHOWN]


def _reason_of_refusal(error: StarletteHTTPException) -> str:
    """Return why the framework or a route refused a request, and what to do."""
    if error.status_code == 405:
        methods = (error.headers or {}).get("Allow", "")
        return f"{error.detail}; send it as {methods}"
    if error.detail == NOT_FOUND:
        return f"{error.detail}; GET /openapi.json lists the paths"
    return error.detail


def error_answer(
    status: int, text: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer to a request that says as JSON what is wrong."""
    return JSONResponse({"error": text}, status, headers)
