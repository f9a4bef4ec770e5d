"""A small picture of a lesson: some of its images, side by side in cells of a width."""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from crumb_avalanche.images.clips import Frames

MOST_IMAGES = 4  # of a strip
HEIGHT = 64  # of a strip, in pixels
WIDEST = 2 * HEIGHT  # of an image in a strip, in pixels
LARGEST_PICTURE = 2**16  # bytes of a JPEG; four images of this size stay far below


@dataclass(frozen=True)
class Picture:
    """A picture of a lesson.

    Attributes:
        jpeg: up to 4 images, 64 pixels high, in cells of the same width; empty for
            none.
        shows: the numbers of these images in the lesson, from 0.
    """

    jpeg: bytes = b""
    shows: tuple[int, ...] = ()

    def without(self, number: int) -> "Picture":
        """Return the picture of a lesson without one of the lesson's images.

        Later images of the lesson are numbered anew.

        Args:
            number: of the image in the lesson, which the picture may not show.
        """
        if not self.jpeg:
            return Picture()
        images = []
        new_numbers = []
        for image, image_number in zip(cells_of(self), self.shows, strict=True):
            if image_number < number:
                images.append(image)
                new_numbers.append(image_number)
            elif image_number > number:
                images.append(image)
                new_numbers.append(image_number - 1)
        return Picture(_strip_of(images), tuple(new_numbers))


def cells_of(picture: Picture) -> list[Image.Image]:
    """Return the images of a picture."""
    if not picture.jpeg:
        return []
    with Image.open(io.BytesIO(picture.jpeg), formats=["JPEG"]) as strip:
        width = strip.width // len(picture.shows)
        lefts = range(0, width * len(picture.shows), width)
        return [strip.crop((left, 0, left + width, HEIGHT)) for left in lefts]


def _strip_of(images: list[Image.Image]) -> bytes:
    """Return a JPEG of images side by side, each in a cell of the largest width."""
    if not images:
        return b""
    width = max(image.width for image in images)
    strip = Image.new("RGB", (width * len(images), HEIGHT), "white")
    for number, image in enumerate(images):
        left = number * width + (width - image.width) // 2
        strip.paste(image, (left, (HEIGHT - image.height) // 2))
    file = io.BytesIO()
    strip.save(file, "JPEG", quality=80)
    return file.getvalue()


class PictureStrip:
    """Some images of a lesson, spread evenly, in a small JPEG without metadata."""

    def __init__(self) -> None:
        self._images: list[Image.Image] = []
        self._seen = 0
        self._step = 1  # every so many images, one is noted

    def noting(self, frames: Frames) -> Frames:
        """Yield frames, and note some of them as they are read."""
        for path, image in frames:
            self._note(image)
            yield path, image
            del image  # before the next one is decoded

    def _note(self, image: Image.Image) -> None:
        """Keep a small copy of every ``_step``-th image, fewer as more images come."""
        if self._seen % self._step == 0:
            small = image.copy()
            small.thumbnail((WIDEST, HEIGHT))
            self._images.append(small)
            if len(self._images) == 2 * MOST_IMAGES:
                self._images = self._images[::2]
                self._step *= 2
        self._seen += 1

    def picture(self) -> Picture:
        """Return the picture of up to 4 images."""
        if not self._images:
            return Picture()
        spread = np.linspace(0, len(self._images) - 1, MOST_IMAGES).round()
        chosen = np.unique(spread.astype(int)).tolist()
        jpeg = _strip_of([self._images[index] for index in chosen])
        return Picture(jpeg, tuple(index * self._step for index in chosen))


def check_jpeg(data: bytes) -> None:
    """Raise ValueError for bytes that are no JPEG of the size of a strip."""
    if len(data) > LARGEST_PICTURE:
        raise ValueError(f"a JPEG of at most {LARGEST_PICTURE:,} bytes")
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            size = image.size
    except Exception as error:  # Pillow raises far more than OSError on odd bytes
        raise ValueError("a JPEG") from error
    if size[1] != HEIGHT or size[0] > MOST_IMAGES * WIDEST:
        raise ValueError(
            f"a JPEG {HEIGHT} pixels high, at most {MOST_IMAGES * WIDEST} wide"
        )
