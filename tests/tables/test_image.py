"""Image files as 8-bit RGB: transparency, depth, profiles, several images, rotation."""

import io
import os
import struct

import numpy as np
import pytest
from fake_data import write_clip_folder
from PIL import Image
from raw_images import chunk, colour_profile, write_png, write_tiff

from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from benchmarks_toybox_ilab.tables import image as module
from benchmarks_toybox_ilab.tables.frame import BadFrameError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.image import (
    open_image,
    other_images_in_words,
    read_image,
    to_rgb,
)

HIDDEN = (200, 30, 90)  # colours that nobody sees
SHOWN = (10, 60, 120)


def read(path):
    return np.asarray(read_image(path)).tolist()


def with_alpha(mode):
    """An image with a pixel that is shown and one that is transparent, its colour
    hidden.
    """
    if mode == "P":
        image = Image.fromarray(np.uint8([[0, 1]]), "P")
        image.putpalette([*SHOWN, *HIDDEN])
        image.info["transparency"] = 1
        return image
    image = Image.fromarray(np.uint8([[(*SHOWN, 255), (*HIDDEN, 0)]]), "RGBA")
    if mode == "RGB":
        image = image.convert("RGB")
        image.info["transparency"] = HIDDEN
    return image.convert("LA").convert("La") if mode == "La" else image.convert(mode)


GREY = [52] * 3  # 0.299 R + 0.587 G + 0.114 B of what is shown
WHITE = [255] * 3


@pytest.mark.parametrize(
    ("mode", "name", "shown"),
    [
        ("RGBA", "a.png", [*SHOWN]),
        ("RGBA", "a.tif", [*SHOWN]),
        ("RGBA", "a.webp", [*SHOWN]),
        ("P", "a.png", [*SHOWN]),
        ("P", "a.gif", [*SHOWN]),
        ("RGB", "a.png", [*SHOWN]),
        ("LA", "a.png", GREY),
    ],
)
def test_transparency_of_a_file_is_laid_on_white(tmp_path, mode, name, shown):
    options = {"lossless": True, "exact": True} if name == "a.webp" else {}
    with_alpha(mode).save(tmp_path / name, **options)
    assert read(tmp_path / name) == [[shown, WHITE]]


@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        ("RGBA", [*SHOWN]),
        ("RGBa", [*SHOWN]),
        ("LA", GREY),
        ("La", GREY),
        ("P", [*SHOWN]),
        ("RGB", [*SHOWN]),
    ],
)
def test_transparency_of_an_image_is_laid_on_white(mode, shown):
    assert np.asarray(to_rgb(with_alpha(mode))).tolist() == [[shown, WHITE]]


@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.gif"])
def test_the_first_image_of_an_animation(tmp_path, name):
    frames = [
        with_alpha("RGBA"),
        Image.new("RGBA", (2, 1), (1, 2, 3, 255)),
        Image.new("RGBA", (2, 1), (7, 7, 7, 255)),
    ]
    frames[0].save(
        tmp_path / name,
        save_all=True,
        append_images=frames[1:],
        duration=100,
        lossless=True,
    )
    with pytest.warns(
        UserWarning,
        match=rf"{name}: only the first of its images is used; save the others",
    ):
        assert read(tmp_path / name) == [[list(SHOWN), [255] * 3]]


@pytest.mark.parametrize("empty", [1, 3])
@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.gif", "a.avif"])
def test_empty_images_before_an_animation(tmp_path, name, empty):
    nothing = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    picture = Image.new("RGBA", (8, 8), (*SHOWN, 255))
    # Formats leave out images that equal the one before.
    frames = [nothing.copy() for _ in range(empty)]
    for number, frame in enumerate(frames):
        frame.putpixel((number, 0), (9, 9, 9, 0))
    last = Image.new("RGBA", (8, 8), (7, 7, 7, 255))
    frames[0].save(
        tmp_path / name,
        save_all=True,
        append_images=[*frames[1:], picture, last],
        duration=100,
        lossless=True,
        quality=100,
        disposal=0,
    )
    with pytest.warns(UserWarning, match=f"{name}: only the first of its images"):
        pixels = np.asarray(read_image(tmp_path / name))
    assert pixels[4, 4] == pytest.approx(SHOWN, abs=2)


@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.gif"])
def test_an_animation_of_empty_images_is_white(tmp_path, name):
    frames = [Image.new("RGBA", (8, 8), (shade, 0, 0, 0)) for shade in (0, 90, 200)]
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
    with Image.open(tmp_path / name) as opened:
        assert to_rgb(opened).getpixel((4, 4)) == (255, 255, 255)
        assert opened.tell() == 0


@pytest.mark.parametrize(
    ("bits", "key", "other"),
    [(1, 0, 1), (1, 1, 0), (8, 0, 255), (8, 77, 0), (16, 0, 65535), (16, 500, 0)],
)
def test_the_transparent_grey_of_a_file_of_any_depth(tmp_path, bits, key, other):
    transparent = chunk(b"tRNS", struct.pack(">H", key))
    pixels = np.array([[[key], [other]]])
    path = write_png(tmp_path / "a.png", pixels, bits, transparent)
    assert read(path) == [[WHITE, WHITE if other else [0] * 3]]


DEEP = np.array([[0, 255, 256, 600], [1200, 5000, 40000, 65535]], dtype=np.uint16)
UPPER = [[0, 0, 1, 2], [4, 19, 156, 255]]


def green(path):
    """Return the green channel of a file, which is read as RGB."""
    image = read_image(path)
    assert image.mode == "RGB"
    return np.asarray(image)[..., 1].tolist()


def test_sixteen_bit_greys_keep_their_upper_eight_bits(tmp_path):
    Image.fromarray(DEEP).save(tmp_path / "a.png")
    assert green(tmp_path / "a.png") == UPPER


def test_sixteen_bit_greys_in_32_bits(tmp_path):
    Image.fromarray(DEEP.astype(np.int32)).save(tmp_path / "a.tif")  # mode I
    assert green(tmp_path / "a.tif") == UPPER


def test_eight_bits_in_a_file_of_sixteen(tmp_path):
    Image.fromarray(DEEP[:1] // 4).save(tmp_path / "a.png")
    assert green(tmp_path / "a.png") == [[0, 63, 64, 150]]


@pytest.mark.parametrize("bits", [8, 10, 12, 14])
@pytest.mark.parametrize("write", [write_png, write_tiff])
def test_colours_of_few_of_16_bits_are_refused(tmp_path, bits, write):
    pixels = np.array([[[255, 100, 7], [1, 0, 55]]]) << (bits - 8)
    path = write(tmp_path / "a", pixels.astype(np.uint16))
    words = "its colours have 16 bits of which few are used; save it with 8"
    with pytest.raises(ValueError, match=words):
        read_image(path)


# Of 12 bits, though 9 would do.
DARK = np.array([[[500], [0]]])


@pytest.mark.parametrize(
    ("pixels", "bits", "grey"),
    [
        (DARK, b"\x0c", 31),
        (DARK << 4, b"\x0c", 31),  # as it should be
        (DARK, b"\x10", 1),
    ],
)
def test_the_depth_that_a_png_states_holds(tmp_path, pixels, bits, grey):
    path = write_png(tmp_path / "a.png", pixels, 16, chunk(b"sBIT", bits))
    assert read(path)[0][0][0] == grey


def test_the_depth_that_a_tiff_states_holds(tmp_path):
    path = write_tiff(tmp_path / "a.tif", DARK.astype(np.uint16), tags={281: 4095})
    assert read(path)[0][0][0] == 31


def test_the_depth_that_a_pgm_states_holds(tmp_path):
    (tmp_path / "a.pgm").write_bytes(b"P5 2 1 4095\n" + DARK.astype(">u2").tobytes())
    assert read(tmp_path / "a.pgm")[0][0][0] == 31


def test_a_tiff_whose_white_is_0(tmp_path):
    pixels = np.uint16([[[0], [1023]]])
    assert read(write_tiff(tmp_path / "a.tif", pixels, tags={262: 0})) == [
        [WHITE, [0] * 3]
    ]


COLOURS = np.uint8([[[200, 100, 100], [128, 128, 128], [255, 255, 255]]])
# Display P3 with gamma 2.2, by hand: linear (0.586, 0.127, 0.127) in P3 is (0.689,
# 0.108, 0.119) in sRGB.
IN_SRGB = [[215, 92, 97], [129, 129, 129], [255, 255, 255]]


def test_colours_of_another_profile_become_srgb(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(COLOURS).save(path, icc_profile=colour_profile())
    image = read_image(path)
    assert np.asarray(image)[0] == pytest.approx(np.array(IN_SRGB), abs=2)
    with Image.open(path) as opened:
        assert np.array_equal(to_rgb(opened), image)


@pytest.mark.parametrize("profile", [b"no profile", colour_profile()[:200]])
def test_colours_of_a_damaged_profile_stay(tmp_path, profile):
    Image.fromarray(COLOURS).save(tmp_path / "a.png", icc_profile=profile)
    assert read(tmp_path / "a.png") == COLOURS.tolist()


@pytest.fixture
def page():
    return Image.new("RGB", (2, 2), (40, 40, 40))


def test_the_first_of_several_pages(tmp_path, page):
    second_frames = [Image.new("RGB", (2, 2), (shade,) * 3) for shade in (90, 140)]
    page.save(tmp_path / "a.tif", save_all=True, append_images=second_frames)
    words = r"a\.tif: only the first of its images is used"
    with pytest.warns(UserWarning, match=words):
        assert read(tmp_path / "a.tif")[0][0] == [40] * 3


@pytest.mark.parametrize(("name", "form"), [("a.tif", "TIFF"), ("a.jpg", "MPO")])
def test_a_reduced_copy_is_no_other_image(tmp_path, page, name, form):
    small = Image.new("RGB", (1, 1))
    small.encoderinfo = {"tiffinfo": {254: 1}}  # a reduced copy, as cameras add
    page.save(tmp_path / name, form, save_all=True, append_images=[small])
    with open_image(tmp_path / name) as opened:
        assert opened.n_frames == 2
        assert other_images_in_words(opened) is None


BLACK = np.zeros((2, 2, 3), np.uint16)


@pytest.mark.parametrize(
    ("name", "tags"), [("a.dng", {50706: 257}), ("a.nef", {254: 1})]
)
def test_raw_photos_are_refused(tmp_path, name, tags):
    path = write_tiff(tmp_path / name, BLACK, tags=tags)
    with pytest.raises(ValueError, match="raw photo, of which only a thumbnail"):
        read_image(path)


def write_png_for(path, transfer):
    """Write a PNG file of a transfer function."""
    colours = chunk(b"cICP", bytes((9, transfer, 0, 1)))
    return write_png(path, BLACK + 40_000, 16, colours)


def write_avif_for(path, transfer):
    """Write a transparent AVIF file of a transfer function."""
    file = io.BytesIO()
    Image.new("RGBA", (8, 8), (*SHOWN, 0)).save(file, "AVIF")
    content = file.getvalue()
    if transfer != 1:
        usual = b"colrnclx\0\x01\0\x0d"
        assert usual in content
        content = content.replace(usual, b"colrnclx\0\x09\0" + bytes([transfer]))
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("write", "transfer"),
    [(write_png_for, 16), (write_png_for, 18), (write_avif_for, 16)],
)
def test_images_for_hdr_screens_are_refused(tmp_path, write, transfer):
    with pytest.raises(ValueError, match="for HDR screens"):
        read_image(write(tmp_path / "a", transfer))


def test_an_image_whose_reader_says_that_it_is_hdr():
    image = Image.new("RGB", (2, 2))
    image.info["nclx_profile"] = {"transfer_characteristics": 16}  # as of HEIC
    with pytest.raises(ValueError, match="for HDR screens"):
        to_rgb(image)


def test_a_png_with_the_usual_transfer(tmp_path):
    assert read_image(write_png_for(tmp_path / "a", 1)).size == (2, 2)


def test_an_avif_with_the_usual_transfer(tmp_path):
    pixels = read(write_avif_for(tmp_path / "a", 1))
    assert pixels[4][4] == pytest.approx(WHITE, abs=2)


@pytest.mark.parametrize(
    "pixels",
    [np.float32([[0.5, 1.0]]), np.int32([[-1, 4]]), np.int32([[0, 70000]])],
)
def test_pixels_of_an_unknown_range_are_refused(tmp_path, pixels):
    Image.fromarray(pixels).save(tmp_path / "a.tif")
    words = r"its pixels are of mode [FI], from .* to .*; save it with 8 or 16 bits"
    with pytest.raises(ValueError, match=words):
        read_image(tmp_path / "a.tif")


def test_a_device_is_refused():
    with pytest.raises(ValueError, match="not a regular file"):
        read_image(os.devnull)


def test_postscript_is_refused(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", "EPS")
    with pytest.raises(ValueError, match="PostScript"):
        read_image(tmp_path / "a.jpg")


@pytest.fixture
def turned(tmp_path):
    """A clip folder, of which the first photo is to be turned clockwise.

    The left half of its pixels is black, which is the upper half of the turned photo.
    """
    table = ClipFolderFrames(write_clip_folder(tmp_path))
    pixels = np.full((4, 8, 3), 255, dtype=np.uint8)
    pixels[:, :4] = 0
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / table.path[0], exif=exif)
    return table


def test_photos_are_rotated_on_request(turned):
    photo = turned.root / turned.path[0]
    assert read_image(photo).size == (8, 4)
    upright = read_image(photo, upright=True)
    assert upright.size == (4, 8)
    assert np.asarray(upright)[..., 0].tolist() == [[0] * 4] * 4 + [[255] * 4] * 4


def test_photos_of_a_clip_folder_are_rotated(turned):
    assert turned.read(0).size == (4, 8)
    assert turned.without([1]).read(0).size == (4, 8)


def test_a_photo_that_cannot_be_read_is_named(turned):
    photo = turned.root / turned.path[0]
    photo.write_bytes(b"no image")
    with pytest.raises(BadFrameError, match=rf"cannot decode frame {photo}: "):
        turned.read(0)


@pytest.fixture(params=["a.jpg", "a.png"])
def large(request, tmp_path):
    """An image of 200 x 100 red pixels."""
    path = tmp_path / request.param
    Image.new("RGB", (200, 100), (200, 30, 30)).save(path)
    return path


def test_an_image_as_large_as_allowed(large, monkeypatch):
    monkeypatch.setattr(module, "MOST_PIXELS", 20_000)
    assert read_image(large).size == (200, 100)


@pytest.mark.parametrize("large", ["a.jpg"], indirect=True)
@pytest.mark.parametrize(("most", "size"), [(5_000, (100, 50)), (330, (25, 13))])
def test_a_large_jpeg_is_reduced(large, monkeypatch, most, size):
    monkeypatch.setattr(module, "MOST_PIXELS", most)
    image = read_image(large)
    assert image.size == size
    assert image.getpixel((12, 6)) == pytest.approx((200, 30, 30), abs=3)


@pytest.mark.parametrize("large", ["a.jpg"], indirect=True)
def test_a_jpeg_that_is_too_large_when_reduced(large, monkeypatch):
    monkeypatch.setattr(module, "MOST_PIXELS", 300)
    with pytest.raises(ValueError, match="200 x 100 pixels, more than 300 pixels"):
        read_image(large)


@pytest.mark.parametrize("large", ["a.png"], indirect=True)
def test_a_large_png_is_refused(large, monkeypatch):
    monkeypatch.setattr(module, "MOST_PIXELS", 5_000)
    words = "200 x 100 pixels, more than 5,000 pixels; reduce it, or save it as JPEG"
    with pytest.raises(ValueError, match=words):
        read_image(large)


@pytest.mark.parametrize(("upright", "size"), [(True, (4, 8)), (False, (8, 4))])
def test_photos_of_a_csv_are_rotated_unless_told_otherwise(turned, upright, size):
    file = turned.root / "frames.csv"
    turned.to_csv(file)
    table = FrameTable.from_csv(file, turned.root, upright=upright)
    assert table.read(0).size == size
    assert table.without([1]).read(0).size == size
    assert FrameTable.from_csv(file, turned.root).read(0).size == (4, 8)
