"""Read image files as RGB with 8 bits per channel.

One rule for every image, whichever way it comes: files, arrays, uploads and frames of
videos.

- Transparency is laid on white, so that colours under transparent pixels do not matter.
- 16-bit greys keep the upper 8 of the bits that are used, see `eight_bits`; colours of
  10 to 14 bits in 16 are refused.
- Colours of another profile than sRGB (Display P3 of phones, Adobe RGB) are converted
  to sRGB.
- Of an animation or a file of several pages the first image is taken, and
  `other_images_in_words` says so. Of an animation that begins with images in which
  nothing is visible, it is the first one in which something is.
- A file that is cut or has a hole is refused, whatever other libraries have set for
  Pillow.
"""

import io
import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from os import PathLike
from threading import Lock
from typing import Any, BinaryIO, cast

import numpy as np
from PIL import ExifTags, Image, ImageCms, ImageFile, ImageOps, JpegImagePlugin

from benchmarks_toybox_ilab.tables.damage import check_whole

MOST_PIXELS = 89_478_485  # decoded at a time, 268 MB as RGB; beyond it, Pillow warns
# as in JPEG; rows of one pixel take far longer than the same pixels in a square
LONGEST_SIDE = 65_535
DEPTHS = (8, 10, 12, 14, 16)  # bits that cameras use of 16
BACKGROUND = "white"  # below transparent pixels

# Pixels of a JPEG that is decoded at a reduced size: five times those of the largest
# phones, and seconds of work.
_MOST_REDUCED = 1_000_000_000
# A progressive one is kept as a whole while it is decoded, in 2 bytes a value.
MOST_PROGRESSIVE = 2 * MOST_PIXELS
_REDUCTIONS = (1, 2, 4, 8)  # of the sides, which a JPEG can be decoded at
_MOST_SEARCHED = 100  # images of an animation or pages; there may be millions
_ORIENTATION = ExifTags.Base.Orientation
_UPRIGHT = 1  # value of the tag
_ANIMATED = ("GIF", "PNG", "WEBP", "AVIF")  # formats of animations with transparency
# TIFF tags
_SUBFILE = 254  # a sum of the two below and others
_REDUCED_COPY = 1
_MASK = 4
_BITS_PER_SAMPLE = 258
_PHOTOMETRIC = 262
_WHITE_IS_ZERO = 0  # value of the tag
_MAX_SAMPLE_VALUE = 281
_DNG_VERSION = 50706
# Transfer functions of HDR, numbered as in ITU-T H.273: PQ and HLG
_HDR_TRANSFERS = (16, 18)
# of LittleCMS, whose transforms are safe in threads only without the cache
_NO_CACHE = 0x40
# Entry of `PIL.Image.Image.info`: by how much the sides of a JPEG were reduced.
REDUCTION = "reduced_by"


class TooManyPixelsError(ValueError):
    """An image is too large to be decoded."""


class _CutFilesRefused:
    """Make Pillow raise for files that end early, in a `with` block.

    `ImageFile.LOAD_TRUNCATED_IMAGES`, which other libraries set, is one for the whole
    process. It is off while any thread is in such a block, and as before afterwards.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks = 0  # that threads are in
        self._setting_before = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin_in_child)

    def __enter__(self) -> None:
        with self._lock:
            if self._blocks == 0:
                self._setting_before = ImageFile.LOAD_TRUNCATED_IMAGES
                ImageFile.LOAD_TRUNCATED_IMAGES = False
            self._blocks += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                ImageFile.LOAD_TRUNCATED_IMAGES = self._setting_before

    def _begin_in_child(self) -> None:
        """Forget the threads of the parent, of which a forked process has none."""
        self._lock = Lock()
        if self._blocks:
            ImageFile.LOAD_TRUNCATED_IMAGES = self._setting_before
        self._blocks = 0


_cut_files_refused = _CutFilesRefused()


def read_image(path: str | PathLike, upright: bool = False) -> Image.Image:
    """Read an image file as 8-bit RGB by the rules of this module.

    Warns if the file holds more than one image.

    Args:
        path: Path of the file.
        upright: Rotate the image as its EXIF orientation says.

    Raises:
        ValueError: As `open_image` and `to_rgb`.
        OSError: If Pillow cannot read the file, or it is damaged; Pillow may raise
            other errors, too.
    """
    with open_image(path) as image:
        unused = other_images_in_words(image)
        if unused:
            warnings.warn(f"{path}: {unused}", stacklevel=2)
        return _as_rgb(image, upright)


def open_image(
    source: str | PathLike | BinaryIO, most_pixels: int | None = None, **options: Any
) -> Image.Image:
    """Open an image without decoding it.

    A JPEG that is too large is set to be decoded at a half, quarter or eighth of its
    width and height.

    Args:
        source: Path of a file, or an open file.
        most_pixels: Number of pixels that may be decoded; None is `MOST_PIXELS`.
        **options: For `PIL.Image.open`, such as `formats`.

    Raises:
        TooManyPixelsError: If the image is too large.
        ValueError: If the path is a pipe or a device, or the file holds PostScript.
        OSError: If Pillow cannot read the file; it may raise other errors, too.
    """
    if most_pixels is None:
        most_pixels = MOST_PIXELS
    if _is_special_file(source):
        raise ValueError("it is not a regular file; give a file of an image")
    with _cut_files_refused:  # Pillow raises at a file that ends early
        image = _open_any_size(source, most_pixels, **options)
    try:
        # Whatever its name: Pillow runs Ghostscript, if there is one, to decode it.
        if image.format == "EPS":
            raise ValueError(
                "it is PostScript, a program that draws an image; convert it to JPEG "
                "or PNG"
            )
        _set_decoded_size(image, most_pixels)
    except BaseException:
        image.close()
        raise
    return image


def _is_special_file(source: str | PathLike | BinaryIO) -> bool:
    """Whether the path is a pipe, which would block, or a device, which never ends."""
    if not isinstance(source, str | PathLike):
        return False
    return os.path.exists(source) and not os.path.isfile(source)


def _open_any_size(
    source: str | PathLike | BinaryIO, most_pixels: int, **options: Any
) -> Image.Image:
    """Open an image; also a JPEG of so many pixels that Pillow refuses it.

    Pillow does so before the JPEG can be asked for a reduced size.

    Args:
        source: Path of a file, or an open file.
        most_pixels: Number of pixels that may be decoded, for the error.
        **options: Arguments of `PIL.Image.open`.

    Raises:
        TooManyPixelsError: If Pillow refuses it, and it is no JPEG.
    """
    try:
        return Image.open(source, **options)
    except Image.DecompressionBombError as error:
        # Raised below, unless it is a JPEG.
        too_large = TooManyPixelsError(f"it has far {_too_large_in_words(most_pixels)}")
        too_large.__cause__ = error
    formats = options.get("formats") or ("JPEG",)
    if "JPEG" not in formats:
        raise too_large
    if not isinstance(source, str | PathLike):
        source.seek(0)  # Pillow has read the beginning of the open file
    try:
        # Opened by the class of its format, which does not count the pixels.
        return JpegImagePlugin.JpegImageFile(source)
    except SyntaxError:  # it is no JPEG
        raise too_large from too_large.__cause__


def _too_large_in_words(most_pixels: int) -> str:
    """Say how many pixels an image may have, and what to do with a larger one."""
    return (
        f"more than {most_pixels:,} pixels; reduce it, or save it as JPEG, which is "
        "decoded at a reduced size"
    )


def _set_decoded_size(image: Image.Image, most_pixels: int) -> None:
    """Set a large JPEG to be decoded at a half, quarter or eighth of its sides.

    Args:
        image: An opened image, not yet decoded.
        most_pixels: Number of pixels that may be decoded.

    Raises:
        TooManyPixelsError: If it has more even then, or is no JPEG.
    """
    width, height = image.size
    if max(width, height) > LONGEST_SIDE:
        raise TooManyPixelsError(
            f"it has {width} x {height} pixels, a side of more than {LONGEST_SIDE:,}; "
            "cut it"
        )
    most_in_file = _MOST_REDUCED
    if image.info.get("progressive"):
        most_in_file = MOST_PROGRESSIVE
    if width * height > most_in_file:
        raise TooManyPixelsError(
            f"it has {width} x {height} pixels, more than {most_in_file:,}; reduce it"
        )
    for reduction in _REDUCTIONS:  # the smallest that is enough, or the largest
        if width * height <= most_pixels * reduction**2:
            break
    if reduction > 1:
        image.draft(None, (width // reduction, height // reduction))  # JPEG alone
        image.info[REDUCTION] = width / image.width
    if image.width * image.height > most_pixels:
        raise TooManyPixelsError(
            f"it has {width} x {height} pixels, {_too_large_in_words(most_pixels)}"
        )


def other_images_in_words(image: Image.Image) -> str | None:
    """Say that an opened file holds images beside the first one, which alone is read.

    Reduced copies and masks in a TIFF file, layers and the second pictures of phones
    (previews, gain maps) do not count. None if there are no others.
    """
    if image.format in ("MPO", "PSD") or not getattr(image, "is_animated", False):
        return None
    if image.format == "TIFF" and _count_pages(image) < 2:
        return None
    return "only the first of its images is used; save the others as files of their own"


def _count_pages(image: Image.Image) -> int:
    """Count the pages of a TIFF file that are neither reduced copies nor masks."""
    count = 0
    with suppress(EOFError):  # after the last page
        for page in range(_MOST_SEARCHED):
            image.seek(page)
            subfile = image.tag_v2.get(_SUBFILE, 0)  # type: ignore
            if not subfile & (_REDUCED_COPY | _MASK):
                count += 1
    image.seek(0)
    return count


def to_rgb(image: Image.Image, upright: bool = False) -> Image.Image:
    """Convert an opened image to 8-bit RGB as `read_image` does.

    The result shares no memory with the image.

    Args:
        image: As `open_image` returns it; its pixels are decoded.
        upright: Rotate the image as its EXIF orientation says.

    Raises:
        ValueError: If the range of the pixels is unknown (floats, 32 bits, 10 to 14
            bits of a colour), there are none, or the file is a raw photo or for HDR
            screens.
        OSError: If Pillow cannot decode the image, or it is damaged; Pillow may raise
            other errors, too.
    """
    if 0 in image.size:
        raise ValueError(
            f"it has {image.width} x {image.height} pixels; give an image with at "
            "least one"
        )
    rgb = _as_rgb(image, upright)
    if rgb is image:
        return rgb.copy()
    return rgb


def eight_bits(pixels: np.ndarray, depths: tuple[int, ...] = DEPTHS) -> np.ndarray:
    """Keep the upper 8 bits of those that are used of 16-bit pixels.

    Cameras of 10, 12 and 14 bits write values that do not fill 16 bits, and files
    rarely say so. The bits that are used are therefore the fewest of `depths` that hold
    the largest value; 16 if none do. Those of alpha are as many if they hold it, and 16
    if not.

    Args:
        pixels: `(..., C)` `uint16`, not empty. Of 2 or 4 channels the last is alpha
            (opacity); 1 or 3 are colours alone.
        depths: Numbers of bits in ascending order, of 8 to 16.

    Returns:
        `(..., C)` `uint8`.
    """
    channels = pixels.shape[-1]
    has_alpha = channels in (2, 4)
    n_colours = channels - has_alpha
    bits = _fewest_bits(pixels[..., :n_colours], depths)
    pixels_8bit = (pixels >> (bits - 8)).astype(np.uint8)
    if has_alpha:
        alpha = pixels[..., n_colours:]
        alpha_bits = _fewest_bits(alpha, (bits,))
        pixels_8bit[..., n_colours:] = alpha >> (alpha_bits - 8)
    return pixels_8bit


def _fewest_bits(pixels: np.ndarray, depths: tuple[int, ...]) -> int:
    """Return the first of the depths in bits that holds the largest pixel, or 16."""
    largest = int(pixels.max())
    return next((bits for bits in depths if largest < 1 << bits), 16)


def on_background(image: Image.Image) -> Image.Image:
    """Lay an image of any mode with transparency on white; returns RGB."""
    if image.mode == "La":  # Pillow converts it to no other mode
        image = image.convert("LA")
    image = image.convert("RGBA")
    canvas = Image.new("RGB", image.size, BACKGROUND)
    canvas.paste(image, mask=image.getchannel("A"))
    return canvas


def _as_rgb(image: Image.Image, upright: bool) -> Image.Image:
    """Convert an image of any mode to sRGB of 8 bits, on white.

    An image that needs no conversion is returned itself, not a copy.

    Args:
        image: As Pillow opened or made it.
        upright: Whether to turn it as its EXIF orientation says.
    """
    _check_readable(image)
    profile = image.info.get("icc_profile")  # of its colours, bytes
    decoded = _eight_bit_image(image)
    if decoded.has_transparency_data:
        rgb = on_background(decoded)
    elif decoded.mode == "RGB":
        rgb = decoded
    else:
        rgb = decoded.convert("RGB")
    if profile and decoded.mode in ("RGB", "RGBA", "P", "PA"):
        transform = _transform_to_srgb(profile)
        if transform is not None:
            # It returns nothing only where it is asked to change the image itself.
            rgb = cast(Image.Image, ImageCms.applyTransform(rgb, transform))
    if REDUCTION in image.info:
        rgb.info[REDUCTION] = image.info[REDUCTION]
    if upright:
        return _upright(rgb, decoded.getexif().get(_ORIENTATION, _UPRIGHT))
    return rgb


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    """Rotate and mirror an image by a value of EXIF's orientation."""
    if orientation == _UPRIGHT:
        return image
    image.getexif()[_ORIENTATION] = orientation
    return ImageOps.exif_transpose(image)


def _check_readable(image: Image.Image) -> None:
    """Raise ValueError for image files of which Pillow reads something else."""
    if image.format == "TIFF":
        tags = image.tag_v2  # type: ignore
        if _DNG_VERSION in tags or tags.get(_SUBFILE, 0) & _REDUCED_COPY:
            raise ValueError(
                "it is a raw photo, of which only a thumbnail could be read; convert "
                "it to JPEG, PNG or TIFF"
            )
    if _is_hdr(image):
        raise ValueError(
            "its brightness is for HDR screens (PQ or HLG), which is not read; save it "
            "as SDR"
        )


@lru_cache(maxsize=8)
def _transform_to_srgb(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """Return the transform from RGB of a colour profile to sRGB.

    None if the profile is that of sRGB, damaged or of other colours than RGB.
    """
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "sRGB" in ImageCms.getProfileDescription(source):
            return None
        if source.profile.xcolor_space.strip() != "RGB":
            return None
        return ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            "RGB",
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags(_NO_CACHE),  # the cache is not safe in threads
        )
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None


# Decoding


def _eight_bit_image(image: Image.Image) -> Image.Image:
    """Decode an opened image; return it, or one of 8 bits a channel instead of it.

    Raises:
        OSError: If the file is cut or damaged.
        ValueError: If the range of the pixels is unknown.
    """
    if image.mode == "F" or image.mode.startswith("I"):
        return _eight_bit_grey(image)
    has_deep_colours = _has_sixteen_bit_colours(image)
    _load_pixels(image)
    if has_deep_colours:
        _check_depth_of_colours(image)
    return _first_visible(image)


def _load_pixels(image: Image.Image) -> None:
    """Decode the pixels of an opened image in place; raise if its file is damaged.

    Pillow maps uncompressed TIFF files into memory, rotated ones with width and height
    exchanged, which scrambles them. It does not map files whose name it does not know.
    """
    with _file_at_start(image) as file:
        check_whole(image, file)
    name = getattr(image, "filename", None)
    if image.format == "TIFF":
        image.filename = ""  # type: ignore
    try:
        with _cut_files_refused:  # Pillow raises at a file that ends early
            image.load()
    finally:
        if image.format == "TIFF":
            image.filename = name  # type: ignore


def _first_visible(image: Image.Image) -> Image.Image:
    """Return a decoded image, or if nothing in it is visible, the next one of its file.

    Animations often begin with an empty image. If nothing is visible in any of them, or
    the file holds one image, it is the image itself. The image stays at its place in
    the file.
    """
    is_first = image.format in _ANIMATED and image.tell() == 0
    if not is_first or _is_visible(image):
        return image
    visible = None
    with _cut_files_refused:  # Pillow raises at a file that ends early
        with suppress(EOFError):
            for number in range(1, _MOST_SEARCHED):
                image.seek(number)
                if _is_visible(image):
                    visible = image.copy()
                    break
        image.seek(0)
        image.load()
    return image if visible is None else visible


def _is_visible(image: Image.Image) -> bool:
    """Whether any pixel of a decoded image is not fully transparent."""
    if not image.has_transparency_data:
        return True
    if image.mode == "La":
        image = image.convert("LA")
    alpha = image.convert("RGBA").getchannel("A")
    return alpha.getbbox() is not None  # the box around all that is not 0


def _has_sixteen_bit_colours(image: Image.Image) -> bool:
    """Whether an opened image has 16-bit colours; Pillow keeps their upper byte."""
    if image.format not in ("PNG", "TIFF") or image.mode not in ("RGB", "RGBA"):
        return False
    # The arguments of the decoder of each part of the image: RGB;16B and the like.
    tiles = getattr(image, "tile", ())
    return any(";16" in str(tile.args) for tile in tiles)


def _check_depth_of_colours(image: Image.Image) -> None:
    """Raise if few of the bits of 16-bit colours are used, of which Pillow drops 8."""
    transparent_colour = image.info.get("transparency")
    brightest = np.asarray(image)[..., :3].max()  # of the upper 8 bits
    uses_few_bits = brightest < 1 << 6
    if transparent_colour is not None or uses_few_bits:
        raise ValueError(
            "its colours have 16 bits of which few are used; save it with 8 bits per "
            "channel"
        )


def _eight_bit_grey(image: Image.Image) -> Image.Image:
    """Decode an image of 16-bit greys as one of 8 bits.

    The transparent grey of the file becomes an alpha channel, and the orientation of
    its EXIF data is passed on.

    Raises:
        OSError: If the file is cut or damaged.
        ValueError: If the range of the pixels is unknown.
    """
    depths = _stated_depths(image)
    transparent_grey = image.info.get("transparency")  # a value of 16 bits, or None
    _load_pixels(image)
    pixels = _grey_pixels(image)
    pixels_8bit = eight_bits(pixels, depths)[..., 0]
    if image.format == "TIFF":
        photometric = image.tag_v2.get(_PHOTOMETRIC)  # type: ignore
        if photometric == _WHITE_IS_ZERO:  # which Pillow leaves so
            pixels_8bit = 255 - pixels_8bit
    converted = Image.fromarray(pixels_8bit)
    if transparent_grey is not None:
        is_transparent = pixels[..., 0] == transparent_grey
        alpha = np.where(is_transparent, np.uint8(0), np.uint8(255))
        converted.putalpha(Image.fromarray(alpha))
    orientation = image.getexif().get(_ORIENTATION, _UPRIGHT)
    converted.getexif()[_ORIENTATION] = orientation
    return converted


def _grey_pixels(image: Image.Image) -> np.ndarray:
    """Return the pixels of an image of mode I or I;16, as `(H, W, 1)` `uint16`.

    Raises:
        ValueError: If its range is unknown: floats, or values beyond 16 bits.
    """
    pixels = np.asarray(image)
    lowest = pixels.min()
    highest = pixels.max()
    if image.mode == "F" or lowest < 0 or highest > 0xFFFF:
        raise ValueError(
            f"its pixels are of mode {image.mode}, from {lowest} to {highest}; save it "
            "with 8 or 16 bits per channel"
        )
    return pixels.astype(np.uint16)[..., None]


def _stated_depths(image: Image.Image) -> tuple[int, ...]:
    """Return the possible bit depths of an opened file of 16-bit pixels.

    Cameras often use 10 to 14 bits. `eight_bits` scales by the first of these that the
    brightest pixel fits into, so the image is not too dark.

    Returns:
        The number that the file states, at least 8; or all of `DEPTHS`.
    """
    bits = 0  # stated in the file; 0 if it does not say
    if image.format in ("PPM", "JPEG2000"):  # Pillow scales their values to 16 bits
        bits = 16
    elif image.format == "TIFF":
        bits = _bits_stated_in_tiff(image)
    elif image.format == "PNG":
        # Cameras fill only the bits that they state. A file that follows the standard
        # fills all 16: its brightest pixel does not fit into fewer.
        bits = max(_start_of_png_chunk(image, b"sBIT"), default=0)  # a byte a channel
    if not bits:
        return DEPTHS
    return (min(max(bits, 8), 16),)


def _bits_stated_in_tiff(image: Image.Image) -> int:
    """Return the bits of a channel that the tags of a TIFF state; 0 for none or 16."""
    tags = image.tag_v2  # type: ignore
    largest = tags.get(_MAX_SAMPLE_VALUE, 0)
    if isinstance(largest, tuple):
        largest = max(largest)
    if largest:
        return largest.bit_length()
    return max(tags.get(_BITS_PER_SAMPLE, (16,))) % 16


def _is_hdr(image: Image.Image) -> bool:
    """Whether the brightness of an opened file is stored for HDR screens (PQ, HLG).

    Pillow, and decoders of HEIC that are registered with it, ignore that.
    """
    if image.format == "PNG":
        # A byte each: primaries, transfer function, matrix, range.
        transfer = _start_of_png_chunk(image, b"cICP")[1:2]
        return int.from_bytes(transfer, "big") in _HDR_TRANSFERS
    if image.format == "AVIF":
        # Two bytes each: primaries, transfer function, matrix.
        with _file_at_start(image) as file:
            _, _, colours = file.read(1 << 16).partition(b"colrnclx")
        return int.from_bytes(colours[2:4], "big") in _HDR_TRANSFERS
    profile = image.info.get("nclx_profile") or {}  # of pillow-heif
    return profile.get("transfer_characteristics") in _HDR_TRANSFERS


def _start_of_png_chunk(image: Image.Image, name: bytes) -> bytes:
    """Return the first 4 bytes of a chunk before the pixels of a PNG file.

    Pillow skips such chunks. Fewer bytes if it is shorter; none if there is no chunk of
    this name.
    """
    with _file_at_start(image) as file:
        file.seek(8)  # after the signature of PNG
        # Of each chunk: its length in 4 bytes, its name, the content, a checksum.
        while len(head := file.read(8)) == 8 and head[4:] != b"IDAT":
            length = struct.unpack(">I", head[:4])[0]
            if head[4:] == name:
                return file.read(min(length, 4))
            file.seek(length + 4, os.SEEK_CUR)
    return b""


@contextmanager
def _file_at_start(image: Image.Image) -> Iterator[BinaryIO]:
    """Yield the file of an opened image, at its beginning; its position is restored.

    It is an empty file if the one of the image is closed.
    """
    file = getattr(image, "fp", None) or io.BytesIO()
    position = file.tell()
    file.seek(0)
    try:
        yield file
    finally:
        file.seek(position)
