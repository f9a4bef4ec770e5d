"""Serve a learner over HTTP: a page for people, and a JSON API for programs.

The API describes itself at ``/openapi.json``.
"""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.security import APIKeyHeader
from pydantic import AfterValidator, BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from benchmarks_toybox_ilab.tables.names import (
    LONGEST_NAME,
    NAME_RULE,
    check_name,
    check_near,
    problem_of_name,
)
from crumb_avalanche.serve.bodies import (
    MOST_BYTES,
    MOST_IMAGES,
    attachment,
    body_of_images,
    read_images,
    read_parts,
)
from crumb_avalanche.serve.disk import temporary_folder
from crumb_avalanche.serve.error_answers import RESPONSES, STATUS_BY_ERROR, answer_to
from crumb_avalanche.serve.guard import TOKEN_HEADER, Guard
from crumb_avalanche.serve.messages import (
    ChangeResult,
    Classes,
    ForgetResult,
    LessonEntry,
    LessonResult,
    PredictionResult,
)
from crumb_avalanche.serve.page_source import page
from crumb_avalanche.serve.parameters import KnownParameters
from crumb_avalanche.serve.shared import SharedLearner

MOST_FILE_BYTES = 500_000_000  # of a learner that is opened
START_WITH_FILE = "end crumb serve, and start it with that file"
MOST_ASKED = 32  # images of a clip that is asked about


# Routes

# Describes the token, which ``Guard`` checks.
TOKEN = APIKeyHeader(
    name=TOKEN_HEADER, description="Printed by crumb serve.", auto_error=False
)
api = APIRouter(dependencies=[Security(TOKEN)])


async def _served_learner(request: Request) -> SharedLearner:
    """Return the learner that a request asks or changes."""
    return request.app.state.shared


def _class_name(text: str) -> str:
    """Return the name of a class in a request's address, if a class may have it."""
    has_replaced_bytes = "\ufffd" in text
    if has_replaced_bytes:
        raise ValueError("it is not UTF-8; encode it as UTF-8 before it is quoted")
    problem = problem_of_name(text)
    if problem:
        raise ValueError(f"it {problem}; {NAME_RULE}")
    return check_name(text)


Shared = Annotated[SharedLearner, Depends(_served_learner)]
Name = Annotated[
    str,
    AfterValidator(_class_name),
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
Version = Annotated[
    int | None, Query(description="of the lessons that the numbers are from")
]


@api.get("/classes", summary="The classes taught, and the lesson that is being learned")
async def classes(shared: Shared) -> Classes:
    """Describe what was learned."""
    return shared.classes()


@api.get(
    "/lessons", summary="The lessons, in order, without those that were taken back"
)
async def lessons(shared: Shared) -> list[LessonEntry]:
    """List the lessons."""
    return shared.lessons()


@api.get("/picture", summary="A small picture of a lesson", response_class=Response)
async def picture(shared: Shared, lesson: int) -> Response:
    """Send a JPEG of up to four images side by side."""
    jpeg = shared.picture(lesson)
    if not jpeg:
        raise HTTPException(404, f"there is no picture of a lesson {lesson}")
    return Response(jpeg, media_type="image/jpeg")


@api.post(
    "/predict",
    summary="Answer what an image or the images of a clip show",
    openapi_extra=body_of_images(MOST_ASKED),
)
async def predict(
    request: Request, shared: Shared, box: Box = None, all: All = False
) -> PredictionResult:
    """Answer for the images of the body."""
    images = await read_images(request)
    if len(images) > MOST_ASKED:
        raise ValueError(
            f"predict takes at most {MOST_ASKED} images, of one clip, not {len(images)}"
        )
    return await shared.predict(images, box, all_classes=all)


@api.post(
    "/teach",
    summary="Learn images of a class, as one lesson",
    openapi_extra=body_of_images(MOST_IMAGES),
)
async def teach(
    request: Request,
    shared: Shared,
    label: Name,
    new_class: NewClass = False,
    source: Source = "",
    box: Box = None,
) -> LessonResult:
    """Learn the images of the body as one lesson of a class."""
    if not new_class:  # raises before the upload is read
        check_near([label], [info.name for info in shared.learner.classes])
    images = await read_images(request)
    return await shared.teach(
        label, images, new_class=new_class, source=source, box=box
    )


@api.post(
    "/nothing",
    summary="Learn images of the empty scene, as one lesson",
    openapi_extra=body_of_images(MOST_IMAGES),
)
async def nothing(
    request: Request, shared: Shared, source: Source = ""
) -> LessonResult:
    """Learn the images of the body as showing nothing."""
    return await shared.teach(None, await read_images(request), source=source)


@api.post("/rename", summary="Give a class another name")
async def rename(
    shared: Shared, old: Name, new: Name, new_class: NewClass = False
) -> ChangeResult:
    """Rename a class."""
    return await shared.changed(lambda learner: learner.rename(old, new, new_class))


@api.post(
    "/forget",
    summary="Remove a class, which only /revert brings back, until the next change",
)
async def forget(shared: Shared, name: Name) -> ForgetResult:
    """Remove a class."""
    return await shared.forget(name)


@api.post(
    "/undo", summary="Take a lesson back, the last one unless another number is given"
)
async def undo(shared: Shared, lesson: Number = None) -> LessonResult:
    """Take a lesson back."""
    return await shared.undo(lesson)


@api.post(
    "/remove",
    summary=(
        "Remove one image of a lesson, by its number from 0; with a version only if no "
        "change came after it"
    ),
)
async def remove(
    shared: Shared, lesson: int, image: int, version: Version = None
) -> ChangeResult:
    """Remove an image."""
    return await shared.remove_image(lesson, image, version)


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
) -> ChangeResult:
    """Move images from one class to another."""
    return await shared.changed(
        lambda learner: learner.move(old, new, lesson=lesson, new_class=new_class)
    )


@api.post(
    "/revert",
    summary="Take the last change back, whatever it was, if it made this version",
)
async def revert(shared: Shared, version: int) -> ChangeResult:
    """Put the learner back that was there before the last change."""
    return await shared.revert(version)


@api.get(
    "/download",
    summary="The learner's file, for crumb predict and Learner.load",
    response_class=Response,
)
async def download(shared: Shared) -> Response:
    """Send the learner's file, without the pictures of its lessons."""
    return attachment(shared.path.name, await shared.copied())


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
    return attachment(shared.path.with_suffix(".onnx").name, content)


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
async def open_file(request: Request, shared: Shared) -> ChangeResult:
    """Open the learner file of the body; ``/revert`` takes it back."""
    with temporary_folder() as folder:
        path = folder / "opened.safetensors"
        with path.open("wb") as file:
            async for chunk in read_parts(request, MOST_FILE_BYTES, START_WITH_FILE):
                file.write(chunk)
        return await shared.open(path)


# The application


class Health(BaseModel):
    """The server runs."""

    status: Literal["ok"] = "ok"


def application(shared: SharedLearner, token: str, origins: list[str]) -> Guard:
    """Return the ASGI application of ``crumb serve``.

    Args:
        shared: the learner that it serves.
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
        # It describes the token in the API; ``Guard`` reads and checks it.
        token: Annotated[
            str, Query(description="the token of the printed address")
        ] = "",
        # The page itself reads it.
        lang: Annotated[str, Query(description="language of the page, en or de")] = "",
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
    errors_of_routes = STATUS_BY_ERROR.keys()
    for error_class in (*framework_errors, *errors_of_routes, Exception):
        app.add_exception_handler(error_class, answer_to)
    app.add_middleware(KnownParameters, describe=app.openapi)
    # It refuses requests without the token, or from pages of other origins.
    return Guard(app, token, origins, policy)
