"""Bodies of requests, which are read up to a limit, and of files that are sent."""

from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote

from fastapi import HTTPException, Request
from fastapi.responses import StreamingResponse
from starlette.formparsers import MultiPartException, MultiPartParser

from crumb_avalanche.serve.uploads import TooLargeError

MOST_BYTES = 20_000_000  # of a request
MOST_IMAGES = 1000  # of a lesson
SMALLER_LESSONS = "send smaller images, or several lessons"
PART = 1 << 16  # bytes of a download that are sent at a time


def body_of_images(most: int) -> dict[str, Any]:
    """Describe the body of a request with at most ``most`` images, as OpenAPI does."""
    image: dict[str, Any] = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": image, "maxItems": most}
    form = {"type": "object", "required": ["image"], "properties": {"image": files}}
    content = {"image/*": {"schema": image}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


async def read_images(request: Request) -> list[tuple[str, bytes]]:
    """Read the images of a request: a name for errors, and the bytes of the file.

    They are its body, or all files of a multipart form.

    Raises:
        HTTPException: the form cannot be read.
        ValueError: the form holds no file.
        TooLargeError: see ``read_parts``.
    """
    body_parts = read_parts(request)
    content_type = request.headers.get("content-type", "").lower()
    if not content_type.startswith("multipart/form-data"):
        chunks = [chunk async for chunk in body_parts]
        return [("the image", b"".join(chunks))]
    parser = InMemoryParser(
        request.headers, body_parts, max_files=MOST_IMAGES, max_fields=10
    )
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


class InMemoryParser(MultiPartParser):
    """Reads a form without writing its images to the disk."""

    spool_max_size = MOST_BYTES


async def read_parts(
    request: Request, most: int = MOST_BYTES, cure: str = SMALLER_LESSONS
) -> AsyncGenerator[bytes, None]:
    """Yield the parts of the body of a request as they come.

    Args:
        request: whose body is read.
        most: bytes of the body at most.
        cure: what the error says is to be done with a larger body.

    Raises:
        TooLargeError: as soon as the body is known to have more.
    """
    too_large = TooLargeError(f"a request may have {most:,} bytes; {cure}")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise too_large
    bytes_read = 0
    async for chunk in request.stream():
        bytes_read += len(chunk)
        if bytes_read > most:
            raise too_large
        yield chunk


def attachment(name: str, content: bytes) -> StreamingResponse:
    """Return the answer with a file, which a browser saves under a name."""
    quoted_name = quote(name)
    headers = {
        "Content-Disposition": (
            f"attachment; filename=\"{quoted_name}\"; filename*=UTF-8''{quoted_name}"
        ),
        "Content-Length": str(len(content)),
    }
    return StreamingResponse(
        _sent_parts(content), media_type="application/octet-stream", headers=headers
    )


async def _sent_parts(content: bytes) -> AsyncGenerator[bytes, None]:
    """Yield a file in parts, so that the server sees how fast a client reads."""
    for start in range(0, len(content), PART):
        yield content[start : start + PART]
