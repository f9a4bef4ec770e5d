"""Decode images that anybody may send, within limits of pixels and time."""

import io
import time

from PIL import Image

from benchmarks_toybox_ilab.tables.image import (
    TooManyPixelsError,
    open_image,
    other_images_in_words,
    to_rgb,
)

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MOST_PIXELS = 64_000_000  # of an image: more than phones take, 192 MB decoded
# pixels in all scans of a JPEG, each of which costs as much as the whole image
MOST_SCANNED = 1_000_000_000
START_OF_SCAN = b"\xff\xda"
# an image of the thread that decodes it, as the processor counts
SECONDS_TO_DECODE = 10.0


class ImageError(ValueError):
    """Bytes that are not an image of a format that is read."""


class TooLargeError(ValueError):
    """An image or an upload is above the limit."""


class _TimedBytes(io.BytesIO):
    """Bytes of an image that cannot be read on once its decoding took too long."""

    def __init__(self, data: bytes):
        super().__init__(data)
        self._end = time.thread_time() + SECONDS_TO_DECODE

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as any file; TooManyPixelsError when the time of the image is over."""
        if time.thread_time() > self._end:
            raise TooManyPixelsError(
                f"it takes more than {SECONDS_TO_DECODE:g} s to decode; reduce it"
            )
        return super().read(size)


def decoded(name: str, data: bytes) -> tuple[Image.Image, list[str]]:
    """Decode an image to RGB, rotated as its EXIF orientation says.

    Args:
        name: for errors.
        data: the bytes of its file.

    Returns:
        The image, and what of the file is not used, as notes.

    Raises:
        ImageError: it is not an image of ``FORMATS``, or is damaged.
        TooLargeError: it has more than ``MOST_PIXELS`` pixels, or would take too long
            to decode.
    """
    reason = (
        f"{len(data):,} bytes that are not an image of these formats: "
        f"{', '.join(FORMATS)}"
    )
    try:
        # Raises if decoding takes too long.
        image = open_image(_TimedBytes(data), MOST_PIXELS, formats=FORMATS)
        _check_scans(image, data)  # raises for too many scans of a progressive JPEG
        reason = "it is damaged; send it again, or another one"
        unused = other_images_in_words(image)  # such as those of an animation
        pixels = to_rgb(image, upright=True)
    except TooManyPixelsError as error:
        raise TooLargeError(f"{name}: {error}") from error
    except Exception as error:  # Pillow raises far more than OSError on damaged bytes
        says_why = type(error) is ValueError  # ours
        if says_why:
            reason = str(error)
        raise ImageError(f"{name}: {reason}") from error
    notes = []
    if unused:
        notes.append(f"{name}: {unused}")
    return pixels, notes


def _check_scans(image: Image.Image, data: bytes) -> None:
    """Raise TooManyPixelsError for a JPEG of so many scans that decoding takes long."""
    scanned = data.count(START_OF_SCAN) * image.width * image.height
    if scanned > MOST_SCANNED and image.format in ("JPEG", "MPO"):
        raise TooManyPixelsError(
            "it is a JPEG of too many scans; save it again as a usual one"
        )
