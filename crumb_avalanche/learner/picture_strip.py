"""A small picture of a lesson: some of its images, side by side."""

import io

import numpy as np
from PIL import Image

from crumb_avalanche.images.clips import Frames

MOST_IMAGES = 4  # of a strip
HEIGHT = 64  # of a strip, in pixels
WIDEST = 2 * HEIGHT  # of an image in a strip, in pixels
LARGEST_PICTURE = 2**16  # bytes of a JPEG; four images of this size stay far below


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

    def jpeg(self) -> bytes:
        """Return the JPEG of up to 4 images, 64 pixels high; empty for none."""
        if not self._images:
            return b""
        spread = np.linspace(0, len(self._images) - 1, MOST_IMAGES).round()
        chosen = [self._images[index] for index in np.unique(spread.astype(int))]
        width = sum(image.width for image in chosen)
        strip = Image.new("RGB", (width, HEIGHT), "white")
        left = 0
        for image in chosen:
            strip.paste(image, (left, (HEIGHT - image.height) // 2))
            left += image.width
        file = io.BytesIO()
        strip.save(file, "JPEG", quality=80)
        return file.getvalue()


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
