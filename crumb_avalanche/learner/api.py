"""The routes of ``crumb serve``: what they take, what they answer, and the limits of what is uploaded."""

from collections.abc import AsyncGenerator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Security
from fastapi.responses import Response
from fastapi.security import APIKeyHeader
from pydantic import AfterValidator, BaseModel, Field
from starlette.formparsers import MultiPartException, MultiPartParser

from benchmarks_toybox_ilab.tables.names import LONGEST_NAME, check_name, check_near
from crumb_avalanche.learner.lesson import Lesson
from crumb_avalanche.learner.shared import Learning, SharedLearner, TooLargeError

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
Number = Annotated[int | None, Query(description="number of a lesson")]
Version = Annotated[int, Field(description="number of changes since the server started, with this one")]


class RunnerUp(BaseModel):
    """A less likely class."""

    label: str
    confidence: Annotated[float, Field(ge=0, le=1, description="probability")]


class Found(BaseModel):
    """What an image or a clip shows."""

    label: Annotated[str, Field(description="the most likely class")]
    confidence: Annotated[float, Field(ge=0, le=1, description="its probability, if a class taught is shown")]
    known: Annotated[bool, Field(description="whether a class taught explains the image; if not, label is the nearest")]
    runners_up: Annotated[list[RunnerUp], Field(description="the next classes, most likely first")]
    notes: Annotated[list[str], Field(description="what of the file was not used: of an animation all but one image")]


class Doubted(BaseModel):
    """What speaks against the label of a lesson."""

    text: Annotated[str, Field(description="how many of its images looked like what, before they were learned")]
    label: Annotated[str, Field(description="the class given")]
    other: Annotated[str, Field(description="the class that most of the others looked like")]


class OfLesson(BaseModel):
    """What a lesson learned."""

    number: Annotated[int, Field(description="stays the same when other lessons are taken back")]
    images: Annotated[dict[str, int], Field(description="number of images by class name")]
    nothing: Annotated[int, Field(description="images that show nothing")]
    doubts: Annotated[list[Doubted], Field(description="what speaks against the label; at most one for each class")]


class Listed(OfLesson):
    """A lesson of the list."""

    source: Annotated[str, Field(description="what was shown, such as the name of a video; may be empty")]
    when: Annotated[str, Field(description="date and time, ISO 8601 in UTC")]
    answered: Annotated[int, Field(description="clips that were predicted before they were learned")]
    right: Annotated[int, Field(description="the right ones among them")]
    picture: Annotated[bool, Field(description="whether /picture shows it")]
    can_undo: Annotated[bool, Field(description="whether it can be taken back")]


class Learned(OfLesson):
    """A lesson that was learned, or taken back."""

    notes: Annotated[list[str], Field(description="what the learner gave up for its budget, and what was not used")]
    version: Version


class Class(BaseModel):
    """A class that was taught."""

    name: str
    images: Annotated[int, Field(description="number of images learned")]


class Classes(BaseModel):
    """What was taught."""

    classes: Annotated[list[Class], Field(description="in order of arrival")]
    bytes: Annotated[int, Field(description="what was learned takes")]
    budget_bytes: Annotated[int, Field(description="what it may take")]
    lessons: Annotated[int, Field(description="number of lessons")]
    can_undo: Annotated[bool, Field(description="whether there is a lesson to take back")]
    nothing: Annotated[int, Field(description="images that were shown as nothing")]
    clips_missing: Annotated[
        int,
        Field(
            description="lessons with other objects of known classes to be learned, once there are two classes, until "
            "images of other things are called unknown"
        ),
    ]
    version: Annotated[int, Field(description="number of changes since the server started")]
    learning: Annotated[Learning | None, Field(description="the lesson that is being learned")]


class Changed(BaseModel):
    """A change was made and saved."""

    version: Version


class Forgotten(Changed):
    """A class was removed."""

    remains: Annotated[str, Field(description="of its images in what classes share; may be empty")]


@api.get("/classes", summary="The classes taught, and the lesson that is being learned")
async def classes(shared: Shared) -> Classes:
    """Describe what was learned."""
    learner = shared.learner
    return Classes(
        classes=[Class(name=info.name, images=info.images) for info in learner.classes],
        bytes=learner.bytes,
        budget_bytes=learner.budget_bytes,
        lessons=len(learner.lessons),
        can_undo=bool(learner.undoable),
        nothing=learner.nothing,
        clips_missing=learner.clips_missing,
        version=shared.version,
        learning=shared.learning,
    )


@api.get("/lessons", summary="The lessons, in order, without those that were taken back")
async def lessons(shared: Shared) -> list[Listed]:
    """List the lessons."""
    undoable = set(shared.learner.undoable)
    return [
        Listed(
            **_of(lesson),
            source=lesson.source,
            when=lesson.when,
            answered=lesson.answered,
            right=lesson.right,
            picture=bool(lesson.picture),
            can_undo=lesson.number in undoable,
        )
        for lesson in shared.learner.lessons
    ]


@api.get("/picture", summary="A small picture of a lesson", response_class=Response)
async def picture(shared: Shared, lesson: int) -> Response:
    """Send a JPEG of up to four images side by side."""
    found = next((one.picture for one in shared.learner.lessons if one.number == lesson), b"")
    if not found:
        raise HTTPException(404, f"there is no picture of a lesson {lesson}")
    return Response(found, media_type="image/jpeg")


def _of(lesson: Lesson) -> dict[str, Any]:
    """Return the values of ``OfLesson``."""
    doubts = [Doubted(text=str(one), label=one.label, other=one.other) for one in lesson.doubts]
    return {"number": lesson.number, "images": lesson.images, "nothing": lesson.nothing, "doubts": doubts}


def _learned(lesson: Lesson, version: int) -> Learned:
    return Learned(**_of(lesson), notes=list(lesson.notes), version=version)


def _body(most: int) -> dict[str, Any]:
    """Describe the body of a request with at most so many images."""
    image: dict[str, Any] = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": image, "maxItems": most}
    form = {"type": "object", "required": ["image"], "properties": {"image": files}}
    content = {"image/*": {"schema": image}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


@api.post("/predict", summary="Answer what an image or the images of a clip show", openapi_extra=_body(MOST_ASKED))
async def predict(request: Request, shared: Shared) -> Found:
    """Answer for the images of the body."""
    images = await _images(request)
    if len(images) > MOST_ASKED:
        raise ValueError(f"predict takes at most {MOST_ASKED} images, of one clip, not {len(images)}")
    answer, notes = await shared.predict(images)
    return Found(notes=notes, **answer.as_dict())


@api.post("/teach", summary="Learn images of a class, as one lesson", openapi_extra=_body(MOST_IMAGES))
async def teach(
    request: Request,
    shared: Shared,
    label: Name,
    new_class: NewClass = False,
    source: Source = "",
) -> Learned:
    """Learn the images of the body."""
    if not new_class:  # the label is checked before the upload is read
        check_near([label], [info.name for info in shared.learner.classes])
    return _learned(*await shared.teach(label, await _images(request), new_class, source))


@api.post("/nothing", summary="Learn images of the empty scene, as one lesson", openapi_extra=_body(MOST_IMAGES))
async def nothing(request: Request, shared: Shared, source: Source = "") -> Learned:
    """Learn the images of the body as showing nothing."""
    return _learned(*await shared.teach(None, await _images(request), source=source))


@api.post("/rename", summary="Give a class another name")
async def rename(shared: Shared, old: Name, new: Name, new_class: NewClass = False) -> Changed:
    """Rename a class."""
    return Changed(version=(await shared.change(lambda learner: learner.rename(old, new, new_class)))[1])


@api.post("/forget", summary="Remove a class, which only /revert brings back, until the next change")
async def forget(shared: Shared, name: Name) -> Forgotten:
    """Remove a class."""
    remains, version = await shared.change(lambda learner: learner.forget(name))
    return Forgotten(remains=remains, version=version)


@api.post("/undo", summary="Take a lesson back, the last one unless another number is given")
async def undo(shared: Shared, lesson: Number = None) -> Learned:
    """Take a lesson back."""
    return _learned(*await shared.change(lambda learner: learner.undo(lesson)))


@api.post("/move", summary="Make the images of a class, of one lesson or of all, those of another one")
async def move(shared: Shared, old: Name, new: Name, lesson: Number = None, new_class: NewClass = False) -> Changed:
    """Move images from one class to another."""
    _, version = await shared.change(lambda learner: learner.move(old, new, lesson, new_class))
    return Changed(version=version)


@api.post("/revert", summary="Take the last change back, whatever it was, if it made this version")
async def revert(shared: Shared, version: int) -> Changed:
    """Put the learner back that was there before the last change."""
    return Changed(version=await shared.revert(version))


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
