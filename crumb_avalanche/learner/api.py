"""The routes of ``crumb serve``: what they take, what they answer, and the limits of what is uploaded."""

from collections.abc import AsyncGenerator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Security
from fastapi.responses import Response
from fastapi.security import APIKeyHeader
from pydantic import AfterValidator
from starlette.formparsers import MultiPartException, MultiPartParser

from benchmarks_toybox_ilab.tables.names import LONGEST_NAME, check_name, check_near
from crumb_avalanche.learner.messages import Changed, Classes, Forgotten, Found, Learned, Listed
from crumb_avalanche.learner.shared import SharedLearner, TooLargeError

TOKEN_HEADER = "x-crumb-token"
MOST_BYTES = 20_000_000  # of a request
MOST_IMAGES = 1000  # of a lesson
MOST_ASKED = 32  # images of a clip that is asked about

# Describes the token, which ``server.Guard`` checks.
TOKEN = APIKeyHeader(name=TOKEN_HEADER, description="Printed by crumb serve.", auto_error=False)
api = APIRouter(dependencies=[Security(TOKEN)])


async def _shared(request: Request) -> SharedLearner:
    return request.app.state.shared


def _name(text: str) -> str:
    if "\ufffd" in text:
        raise ValueError("the name is not UTF-8; encode it as UTF-8 before it is quoted")
    return check_name(text)


Shared = Annotated[SharedLearner, Depends(_shared)]
Name = Annotated[
    str,
    AfterValidator(_name),
    Query(description="name of a class", json_schema_extra={"minLength": 1, "maxLength": LONGEST_NAME}),
]
NewClass = Annotated[bool, Query(description="take a name that is nearly that of another class")]
Source = Annotated[str, Query(description="what the images are from, for the list of lessons")]
Part = Annotated[
    list[float] | None,
    Query(
        min_length=4,
        max_length=4,
        description="where the object is in the only image: left, top, right, bottom in pixels, as box=10&box=20&...",
    ),
]
Number = Annotated[int | None, Query(description="number of a lesson")]


@api.get("/classes", summary="The classes taught, and the lesson that is being learned")
async def classes(shared: Shared) -> Classes:
    """Describe what was learned."""
    return shared.classes()


@api.get("/lessons", summary="The lessons, in order, without those that were taken back")
async def lessons(shared: Shared) -> list[Listed]:
    """List the lessons."""
    return shared.lessons()


@api.get("/picture", summary="A small picture of a lesson", response_class=Response)
async def picture(shared: Shared, lesson: int) -> Response:
    """Send a JPEG of up to four images side by side."""
    found = shared.picture(lesson)
    if not found:
        raise HTTPException(404, f"there is no picture of a lesson {lesson}")
    return Response(found, media_type="image/jpeg")


def _body(most: int) -> dict[str, Any]:
    """Describe the body of a request with at most so many images."""
    image: dict[str, Any] = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": image, "maxItems": most}
    form = {"type": "object", "required": ["image"], "properties": {"image": files}}
    content = {"image/*": {"schema": image}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


@api.post("/predict", summary="Answer what an image or the images of a clip show", openapi_extra=_body(MOST_ASKED))
async def predict(request: Request, shared: Shared, box: Part = None) -> Found:
    """Answer for the images of the body."""
    images = await _images(request)
    if len(images) > MOST_ASKED:
        raise ValueError(f"predict takes at most {MOST_ASKED} images, of one clip, not {len(images)}")
    return await shared.predict(images, box)


@api.post("/teach", summary="Learn images of a class, as one lesson", openapi_extra=_body(MOST_IMAGES))
async def teach(
    request: Request,
    shared: Shared,
    label: Name,
    new_class: NewClass = False,
    source: Source = "",
    box: Part = None,
) -> Learned:
    """Learn the images of the body."""
    if not new_class:  # the label is checked before the upload is read
        check_near([label], [info.name for info in shared.learner.classes])
    return await shared.teach(label, await _images(request), new_class, source, box)


@api.post("/nothing", summary="Learn images of the empty scene, as one lesson", openapi_extra=_body(MOST_IMAGES))
async def nothing(request: Request, shared: Shared, source: Source = "") -> Learned:
    """Learn the images of the body as showing nothing."""
    return await shared.teach(None, await _images(request), source=source)


@api.post("/rename", summary="Give a class another name")
async def rename(shared: Shared, old: Name, new: Name, new_class: NewClass = False) -> Changed:
    """Rename a class."""
    return await shared.rename(old, new, new_class)


@api.post("/forget", summary="Remove a class, which only /revert brings back, until the next change")
async def forget(shared: Shared, name: Name) -> Forgotten:
    """Remove a class."""
    return await shared.forget(name)


@api.post("/undo", summary="Take a lesson back, the last one unless another number is given")
async def undo(shared: Shared, lesson: Number = None) -> Learned:
    """Take a lesson back."""
    return await shared.undo(lesson)


@api.post("/move", summary="Make the images of a class, of one lesson or of all, those of another one")
async def move(shared: Shared, old: Name, new: Name, lesson: Number = None, new_class: NewClass = False) -> Changed:
    """Move images from one class to another."""
    return await shared.move(old, new, lesson, new_class)


@api.post("/revert", summary="Take the last change back, whatever it was, if it made this version")
async def revert(shared: Shared, version: int) -> Changed:
    """Put the learner back that was there before the last change."""
    return await shared.revert(version)


@api.get("/download", summary="The learner's file, for crumb predict and Learner.load", response_class=Response)
async def download(shared: Shared) -> Response:
    """Send the learner's file, without the pictures of its lessons."""
    name = quote(shared.path.name)
    headers = {"Content-Disposition": f"attachment; filename=\"{name}\"; filename*=UTF-8''{name}"}
    return Response(await shared.copied(), media_type="application/octet-stream", headers=headers)


async def _images(request: Request) -> list[tuple[str, bytes]]:
    """Read the images of a request, with names for errors: its body, or all files of a multipart form."""
    stream = _bounded(request)
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return [("the image", b"".join([part async for part in stream]))]

    class InMemory(MultiPartParser):
        spool_max_size = MOST_BYTES  # images are never written to the disk

    try:
        form = await InMemory(request.headers, stream, max_files=MOST_IMAGES, max_fields=10).parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from error
    files = [file for _, file in form.multi_items() if not isinstance(file, str)]
    if not files:
        raise ValueError("the form holds no image; add each as a file")
    images = [(f"image {number}", await file.read()) for number, file in enumerate(files, 1)]
    await form.close()
    return images


async def _bounded(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a body; raise TooLargeError as soon as it is known to be too large."""
    too_large = TooLargeError(f"a request may have {MOST_BYTES:,} bytes; send smaller images, or several lessons")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MOST_BYTES:
        raise too_large
    read = 0
    async for part in request.stream():
        read += len(part)
        if read > MOST_BYTES:
            raise too_large
        yield part
