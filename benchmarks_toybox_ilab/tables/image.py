"""Read image files as RGB with 8 bits per channel.

One rule for every image, whichever way it comes: files, arrays, uploads and frames of
videos.

- Transparency is laid on white, so that colours under transparent pixels do not matter.
- 16-bit greys keep the upper 8 of the bits that are used, see `eight_bits`; colours of
  10 to 14 bits in 16 are refused.
- Colours of another profile than sRGB (Display P3 of phones, Adobe RGB) are converted
  to sRGB.
- Of an animation or a file of several pages the first image is taken, and
  `other_images` says so.
"""

import io
import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from os import PathLike
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageCms, ImageOps

MOST_PIXELS = 89_478_485  # decoded at a time, 268 MB as RGB; beyond it, Pillow warns
# as in JPEG; rows of one pixel take far longer than the same pixels in a square
LONGEST_SIDE = 65_535
DEPTHS = (8, 10, 12, 14, 16)  # bits that cameras use of 16
BACKGROUND = "white"  # below transparent pixels

_ORIENTATION = ExifTags.Base.Orientation
_BITS_PER_SAMPLE, _PHOTOMETRIC, _MAX_SAMPLE_VALUE, _SUBFILE, _DNG_VERSION = (
    258,
    262,
    281,
    254,
    50706,
)  # TIFF tags
_NO_CACHE = (
    0x40  # of LittleCMS, whose transforms are safe in threads only without the cache
)


class TooManyPixelsError(ValueError):
    """An image is too large to be decoded."""


def read_image(path: str | PathLike, upright: bool = False) -> Image.Image:
    """Read an image file as 8-bit RGB by the rules of this module; warn if it holds more than one image.

    Args:
        path: Path of the file.
        upright: Rotate the image as its EXIF orientation says.

    Raises:
        ValueError: As `open_image` and `to_rgb`.
        OSError: If Pillow cannot read the file; it may raise other errors, too.
    """
    with open_image(path) as image:
        if others := other_images(image):
            warnings.warn(f"{path}: {others}", stacklevel=2)
        return _rgb(image, upright)


def open_image(
    source: str | PathLike | BinaryIO, most_pixels: int | None = None, **how
) -> Image.Image:
    """Open an image without decoding it; a JPEG that is too large is set to be decoded at a half, quarter or eighth.

    Args:
        source: Path of a file, or an open file.
        most_pixels: Number of pixels that may be decoded; None is `MOST_PIXELS`.
        **how: For `PIL.Image.open`, such as `formats`.

    Raises:
        TooManyPixelsError: If the image is too large.
        ValueError: If the path is a pipe or a device, or the file holds PostScript.
        OSError: If Pillow cannot read the file; it may raise other errors, too.
    """
    most = MOST_PIXELS if most_pixels is None else most_pixels
    if (
        isinstance(source, str | PathLike)
        and os.path.exists(source)
        and not os.path.isfile(source)
    ):
        raise ValueError(
            "it is not a regular file; give a file of an image"
        )  # a pipe would block, a device never end
    too_large = f"more than {most:,} pixels; reduce it, or save it as JPEG, which is decoded at a reduced size"
    try:
        image = Image.open(source, **how)
    except Image.DecompressionBombError as error:
        raise TooManyPixelsError(f"it has far {too_large}") from error
    if (
        image.format == "EPS"
    ):  # whatever its name: Pillow runs Ghostscript, if there is one, to decode it
        image.close()
        raise ValueError(
            "it is PostScript, a program that draws an image; convert it to JPEG or PNG"
        )
    width, height = image.size
    parts = next(
        (parts for parts in (1, 2, 4, 8) if width * height <= most * parts**2), 8
    )
    if parts > 1:
        image.draft(None, (width // parts, height // parts))
    if image.width * image.height > most or max(image.size) > LONGEST_SIDE:
        image.close()
        rule = (
            f"a side of more than {LONGEST_SIDE:,}; cut it"
            if max(width, height) > LONGEST_SIDE
            else too_large
        )
        raise TooManyPixelsError(f"it has {width} x {height} pixels, {rule}")
    return image


def other_images(image: Image.Image) -> str | None:
    """Say that an opened file holds images beside the first one, which alone is read; None if there is one.

    Reduced copies and masks in a TIFF file, layers and the second pictures of phones
    (previews, gain maps) do not count.
    """
    if image.format in ("MPO", "PSD") or not getattr(image, "is_animated", False):
        return None
    if image.format == "TIFF":
        pages = 0
        with suppress(EOFError):
            for page in range(100):  # there may be millions
                image.seek(page)
                pages += image.tag_v2.get(_SUBFILE, 0) & 0b101 == 0
        image.seek(0)
        if pages < 2:
            return None
    return "only the first of its images is used; save the others as files of their own"


def to_rgb(image: Image.Image, upright: bool = False) -> Image.Image:
    """Convert an opened image to 8-bit RGB as `read_image` does; the result shares no memory with the image.

    Raises:
        ValueError: If the range of the pixels is unknown (floats, 32 bits, 10 to 14
            bits of a colour), there are none, or the file is a raw photo or for HDR
            screens.
        OSError: If Pillow cannot decode the image; it may raise other errors, too.
    """
    if 0 in image.size:
        raise ValueError(
            f"it has {image.width} x {image.height} pixels; give an image with at least one"
        )
    rgb = _rgb(image, upright)
    return rgb.copy() if rgb is image else rgb


def eight_bits(pixels: np.ndarray, depths: tuple[int, ...] = DEPTHS) -> np.ndarray:
    """Keep the upper 8 bits of those that are used of 16-bit pixels.

    Cameras of 10, 12 and 14 bits write values that do not fill 16 bits, and files
    rarely say so. The bits that are used are therefore the fewest of `depths` that hold
    the largest value; 16 if none do. Those of alpha are as many if they hold it, and 16
    if not.

    Args:
        pixels: `(..., C)` `uint16`, not empty; the last of 2 or 4 channels is alpha.
        depths: Numbers of bits in ascending order, of 8 to 16.
    """
    colours = pixels.shape[-1] - (pixels.shape[-1] in (2, 4))
    used = _fewest(pixels[..., :colours], depths)
    shallow = (pixels >> (used - 8)).astype(np.uint8)
    if colours < pixels.shape[-1]:
        alpha = pixels[..., colours:]
        shallow[..., colours:] = alpha >> (_fewest(alpha, (used,)) - 8)
    return shallow


def _fewest(pixels: np.ndarray, depths: tuple[int, ...]) -> int:
    largest = int(pixels.max())
    return next((bits for bits in depths if largest < 1 << bits), 16)


def on_background(image: Image.Image) -> Image.Image:
    """Lay an image of any mode with transparency on white; returns RGB."""
    image = (
        image.convert("LA") if image.mode == "La" else image
    )  # Pillow converts it to no other mode
    image = image.convert("RGBA")
    below = Image.new("RGB", image.size, BACKGROUND)
    below.paste(image, mask=image.getchannel("A"))
    return below


def _rgb(image: Image.Image, upright: bool) -> Image.Image:
    """As `to_rgb`, but an RGB image that needs no conversion is returned itself."""
    if image.format == "TIFF" and (
        _DNG_VERSION in image.tag_v2 or image.tag_v2.get(_SUBFILE, 0) & 1
    ):
        raise ValueError(
            "it is a raw photo, of which only a thumbnail could be read; convert it to JPEG, PNG or TIFF"
        )
    if _is_hdr(image):
        raise ValueError(
            "its brightness is for HDR screens (PQ or HLG), which is not read; save it as SDR"
        )
    found = _of_sixteen_bits(image)
    if found is None:
        _load(image)
        found = image
    profile = image.info.get("icc_profile")
    if found.has_transparency_data:
        rgb = on_background(found)
    else:
        rgb = found if found.mode == "RGB" else found.convert("RGB")
    if profile and found.mode in ("RGB", "RGBA", "P", "PA"):
        transform = _transform(profile)
        rgb = rgb if transform is None else ImageCms.applyTransform(rgb, transform)
    orientation = found.getexif().get(_ORIENTATION, 1) if upright else 1
    if orientation != 1:
        rgb.getexif()[_ORIENTATION] = orientation
        rgb = ImageOps.exif_transpose(rgb)
    return rgb


@lru_cache(maxsize=8)
def _transform(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """From RGB of a colour profile to sRGB; None if the profile is that of sRGB, damaged or of other colours."""
    try:
        given = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if (
            "sRGB" in ImageCms.getProfileDescription(given)
            or given.profile.xcolor_space.strip() != "RGB"
        ):
            return None
        srgb = ImageCms.createProfile("sRGB")
        intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
        return ImageCms.buildTransform(
            given, srgb, "RGB", "RGB", intent, ImageCms.Flags(_NO_CACHE)
        )
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None


def _of_sixteen_bits(image: Image.Image) -> Image.Image | None:
    """An image of greys with 16 bits as one with 8, with its orientation; None for any other image."""
    key = image.info.get("transparency")
    if image.mode != "F" and not image.mode.startswith("I"):
        if (
            any(";16" in str(tile.args) for tile in getattr(image, "tile", ()))
            and image.format in ("PNG", "TIFF")
            and image.mode in ("RGB", "RGBA")
        ):
            _load(
                image
            )  # Pillow keeps the upper byte, which is right if all bits are used
            if key is not None or np.asarray(image)[..., :3].max() < 1 << 6:
                raise ValueError(
                    "its colours have 16 bits of which few are used; save it with 8 bits per channel"
                )
        return None
    depths, pixels = _stated_depths(image), _grey(image)
    shallow = eight_bits(pixels, depths)[..., 0]
    if (
        image.format == "TIFF" and image.tag_v2.get(_PHOTOMETRIC) == 0
    ):  # white is 0, which Pillow leaves so
        shallow = 255 - shallow
    converted = Image.fromarray(shallow)
    if key is not None:
        converted.putalpha(
            Image.fromarray(np.where(pixels[..., 0] == key, np.uint8(0), np.uint8(255)))
        )
    converted.getexif()[_ORIENTATION] = image.getexif().get(_ORIENTATION, 1)
    return converted


def _grey(image: Image.Image) -> np.ndarray:
    """Pixels of an image of mode I or I;16, as `(H, W, 1)` `uint16`."""
    _load(image)
    pixels = np.asarray(image)
    if image.mode == "F" or pixels.min() < 0 or pixels.max() > 0xFFFF:
        raise ValueError(
            f"its pixels are of mode {image.mode}, from {pixels.min()} to {pixels.max()}; save it "
            "with 8 or 16 bits per channel"
        )
    return pixels.astype(np.uint16)[..., None]


def _stated_depths(image: Image.Image) -> tuple[int, ...]:
    """The bits that 16-bit pixels of an opened file may use: those that the file states, or any of `DEPTHS`."""
    if image.format in ("PPM", "JPEG2000"):  # Pillow scales their values to 16 bits
        return (16,)
    if image.format == "TIFF":
        largest = image.tag_v2.get(_MAX_SAMPLE_VALUE, 0)
        stated = max(largest if isinstance(largest, tuple) else (largest,)).bit_length()
        stated = stated or max(image.tag_v2.get(_BITS_PER_SAMPLE, (16,))) % 16
    else:
        # A file that follows the standard fills all 16 bits whatever it states; those
        # of cameras do not.
        stated = max(
            _chunk(image, b"sBIT") if image.format == "PNG" else b"", default=0
        )
    return (min(max(stated, 8), 16),) if stated else DEPTHS


def _is_hdr(image: Image.Image) -> bool:
    """Whether the brightness of an opened file is stored for HDR screens (PQ, HLG), which Pillow ignores."""
    if image.format == "PNG":
        return _chunk(image, b"cICP")[1:2] in (b"\x10", b"\x12")
    if image.format != "AVIF":
        return False
    with _at_start(image) as file:
        _, _, colours = file.read(1 << 16).partition(b"colrnclx")
    return colours[2:4] in (b"\0\x10", b"\0\x12")


def _chunk(image: Image.Image, name: bytes) -> bytes:
    """A chunk that lies before the pixels of a PNG file and that Pillow skips; empty if there is none."""
    with _at_start(image) as file:
        file.seek(8)
        while len(head := file.read(8)) == 8 and head[4:] != b"IDAT":
            length = struct.unpack(">I", head[:4])[0]
            if head[4:] == name:
                return file.read(min(length, 4))
            file.seek(length + 4, os.SEEK_CUR)
    return b""


@contextmanager
def _at_start(image: Image.Image) -> Iterator[BinaryIO]:
    """The file of an opened image, at its beginning; an empty one if it is closed. Its place is kept."""
    file = getattr(image, "fp", None) or io.BytesIO()
    place = file.tell()
    file.seek(0)
    try:
        yield file
    finally:
        file.seek(place)


def _load(image: Image.Image) -> None:
    """Decode an opened image.

    Pillow maps uncompressed TIFF files into memory, rotated ones with width and height
    exchanged, which scrambles them. It does not map files whose name it does not know.
    """
    name = getattr(image, "filename", None)
    if image.format == "TIFF":
        image.filename = ""
    try:
        image.load()
    finally:
        if image.format == "TIFF":
            image.filename = name
