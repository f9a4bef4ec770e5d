"""Damage that decoders do not report: holes of zeros, and cut files."""

import io
import threading

import numpy as np
import pytest
from PIL import Image, ImageFile

from benchmarks_toybox_ilab.tables import image as module
from benchmarks_toybox_ilab.tables.damage import DamagedError
from benchmarks_toybox_ilab.tables.image import open_image, read_image, to_rgb

FORMATS = {
    "baseline.jpg": {},
    "grey.jpg": {},
    "optimised.jpg": {"optimize": True},
    "coarse.jpg": {"optimize": True, "quality": 20},
    "a.webp": {},
    "a.avif": {},
    "a.jp2": {},
    "lzw.tif": {"compression": "tiff_lzw"},
    "deflate.tif": {"compression": "tiff_adobe_deflate"},
    "jpeg.tif": {"compression": "jpeg"},
    "a.png": {},
    "a.gif": {},
}
FLAT_FORMATS = FORMATS | {
    "progressive.jpg": {"progressive": True},
    "fast.webp": {"method": 0},
    "lossless.webp": {"lossless": True, "method": 0},
}


def photo(size=300):
    """Return an image with shades, edges and noise."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size]
    pixels = 128 + 60 * np.sin(x / 17) + 40 * np.cos(y / 23)
    pixels = pixels[..., None] + rng.normal(0, 12, (size, size, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def flat(size=1000):
    """Return a white page with a few dark words."""
    pixels = np.full((size, size, 3), 255, np.uint8)
    pixels[40:60, 40:200] = 20
    return Image.fromarray(pixels)


def save(image, path, **options):
    if path.name.startswith("grey"):
        image = image.convert("L")
    image.save(path, **options)
    return path


def write_hole(path, begin, size):
    """Overwrite a part of a file, which begins at a share of it, by zeros."""
    content = bytearray(path.read_bytes())
    first = int(begin * len(content))
    content[first : first + size] = bytes(size)
    path.write_bytes(content)


@pytest.mark.parametrize("begin", [0.4, 0.6, 0.8])
@pytest.mark.parametrize("name", FORMATS)
def test_a_hole_is_refused(tmp_path, name, begin):
    path = save(photo(), tmp_path / name, **FORMATS[name])
    write_hole(path, begin, 4096 if name == "a.webp" else 512)
    with pytest.raises((OSError, SyntaxError)):
        read_image(path)


@pytest.mark.parametrize("size", [300, 301])
def test_a_hole_behind_a_profile(tmp_path, size):
    """A chunk of an odd number of bytes is filled up by one."""
    path = save(photo(), tmp_path / "a.webp", icc_profile=b"x" * size)
    write_hole(path, 0.6, 4096)
    with pytest.raises(DamagedError):
        read_image(path)


@pytest.mark.parametrize("begin", [0.1, 0.5])
def test_a_hole_in_a_progressive_jpeg(tmp_path, begin):
    path = save(photo(), tmp_path / "a.jpg", progressive=True)
    write_hole(path, begin, 512)
    with pytest.raises(OSError):
        read_image(path)


def test_the_error_says_what_to_do(tmp_path):
    path = save(photo(), tmp_path / "a.jpg")
    write_hole(path, 0.5, 4096)
    words = "at least 4096 bytes of its pixels are zeros.*copy it again from its source"
    with pytest.raises(DamagedError, match=words):
        read_image(path)


def test_a_hole_in_an_upload(tmp_path):
    path = save(photo(), tmp_path / "a.jpg")
    write_hole(path, 0.5, 4096)
    with (
        pytest.raises(DamagedError),
        open_image(io.BytesIO(path.read_bytes())) as image,
    ):
        to_rgb(image)


def test_a_hole_in_the_headers(tmp_path):
    path = save(photo(), tmp_path / "a.jpg")
    content = path.read_bytes()
    tables = content.index(b"\xff\xdb") + 5  # the first quantization table
    path.write_bytes(content[:tables] + bytes(64) + content[tables + 64 :])
    with pytest.raises(DamagedError, match="a quantization table holds zeros"):
        read_image(path)


@pytest.mark.parametrize("name", FLAT_FORMATS)
def test_a_flat_image_has_no_hole(tmp_path, name):
    path = save(flat(), tmp_path / name, **FLAT_FORMATS[name])
    assert min(read_image(path).getpixel((900, 900))) > 250


def test_zeros_beside_the_pixels_are_no_hole(tmp_path):
    path = tmp_path / "a.jpg"
    photo().save(path, comment=bytes(5000))
    path.write_bytes(path.read_bytes() + bytes(5000))
    assert read_image(path).size == (300, 300)


PADDING = 0xEA1C  # tag of Exif
ORIENTATION = 0x0112


def exif_with_room(orientation):
    """Exif that has room for more, as Windows writes it."""
    exif = Image.Exif()
    exif[PADDING] = bytes(2060)
    exif[ORIENTATION] = orientation
    return exif


@pytest.mark.parametrize("orientation", [1, 6])
def test_zeros_of_metadata_beside_the_pixels_of_avif(tmp_path, orientation):
    path = tmp_path / "a.avif"
    xmp = b"<x:xmpmeta/>" + bytes(3000)
    photo().save(path, exif=exif_with_room(orientation), xmp=xmp)
    assert bytes(2060) in path.read_bytes()
    assert read_image(path).size == (300, 300)


def test_a_hole_beside_the_metadata_of_avif(tmp_path):
    path = tmp_path / "a.avif"
    photo().save(path, exif=exif_with_room(1))
    write_hole(path, 0.6, 512)
    with pytest.raises((OSError, SyntaxError)):
        read_image(path)


def write_jpeg2000(path, box=b""):
    """Write a photo as JPEG 2000, in a file of boxes with another box of that content.

    A file that ends with .j2k has the pixels alone.
    """
    photo().save(path)
    content = path.read_bytes()
    pixels = content.find(b"jp2c") - 4
    if box:
        head = (8 + len(box)).to_bytes(4, "big") + b"uuid"
        path.write_bytes(content[:pixels] + head + box + content[pixels:])
    return path


def test_zeros_beside_the_pixels_of_jpeg_2000(tmp_path):
    path = write_jpeg2000(tmp_path / "a.jp2", bytes(16 + 78))
    assert read_image(path).size == (300, 300)


@pytest.mark.parametrize("name", ["a.jp2", "a.j2k"])
def test_a_hole_in_jpeg_2000(tmp_path, name):
    path = write_jpeg2000(tmp_path / name)
    write_hole(path, 0.5, 512)
    with pytest.raises(DamagedError):
        read_image(path)


@pytest.fixture
def lenient(monkeypatch):
    """Let Pillow read cut files, as other libraries do."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("share", [0.5, 0.95])
@pytest.mark.parametrize("name", FLAT_FORMATS)
def test_a_cut_file_is_refused(tmp_path, name, share):
    path = save(photo(), tmp_path / name, **FLAT_FORMATS[name])
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises((OSError, SyntaxError)):
        read_image(path)


@pytest.mark.usefixtures("lenient")
def test_the_setting_of_others_stays(tmp_path):
    path = save(photo(), tmp_path / "a.jpg")
    threads = [threading.Thread(target=read_image, args=[path]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(OSError):
        read_image(path)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_a_jpeg_that_pillow_refuses_for_its_size(tmp_path, monkeypatch):
    path = tmp_path / "a.jpg"
    Image.new("RGB", (200, 100), (200, 30, 30)).save(path)
    monkeypatch.setattr(module, "MOST_PIXELS", 5_000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000)
    assert read_image(path).size == (100, 50)
    with open_image(io.BytesIO(path.read_bytes()), formats=("PNG", "JPEG")) as image:
        assert to_rgb(image).size == (100, 50)


def test_a_png_that_pillow_refuses_for_its_size(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.new("RGB", (200, 100)).save(path)
    monkeypatch.setattr(module, "MOST_PIXELS", 5_000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000)
    with pytest.raises(ValueError, match="far more than 5,000 pixels; reduce it, or"):
        read_image(path)


def test_a_progressive_jpeg_of_too_many_pixels(tmp_path, monkeypatch):
    path = tmp_path / "a.jpg"
    Image.new("RGB", (200, 100)).save(path, progressive=True)
    monkeypatch.setattr(module, "MOST_PROGRESSIVE", 10_000)
    with pytest.raises(ValueError, match="200 x 100 pixels, more than 10,000; reduce"):
        read_image(path)
