"""Image files as 8-bit RGB: transparency, depth, colour profiles, several images in a file, and rotation."""

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
from benchmarks_toybox_ilab.tables.image import (
    open_image,
    other_images,
    read_image,
    to_rgb,
)

HIDDEN = (200, 30, 90)  # colours that nobody sees
SHOWN = (10, 60, 120)


def read(path):
    return np.asarray(read_image(path)).tolist()


def with_alpha(mode):
    """An image with a pixel that is shown and one that is transparent, its colour hidden."""
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


FILES = [
    ("RGBA", "a.png"),
    ("RGBA", "a.tif"),
    ("RGBA", "a.webp"),
    ("P", "a.png"),
    ("P", "a.gif"),
    ("RGB", "a.png"),
]


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        *FILES,
        ("LA", "a.png"),
        *((mode, None) for mode in ("RGBA", "RGBa", "LA", "La", "P", "RGB")),
    ],
)
def test_transparency_is_laid_on_white(tmp_path, mode, name):
    image = with_alpha(mode)
    if name:
        image.save(
            tmp_path / name,
            **({"lossless": True, "exact": True} if name == "a.webp" else {}),
        )
    shown = (
        [52] * 3 if mode in ("LA", "La") else list(SHOWN)
    )  # 0.299 R + 0.587 G + 0.114 B
    assert (read(tmp_path / name) if name else np.asarray(to_rgb(image)).tolist()) == [
        [shown, [255] * 3]
    ]


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


@pytest.mark.parametrize(("bits", "keys"), [(1, (0, 1)), (8, (0, 77)), (16, (0, 500))])
def test_the_transparent_grey_of_a_file_of_any_depth(tmp_path, bits, keys):
    for key in keys:
        other = 2**bits - 1 if key == 0 else 0
        grey = np.array([[[key], [other]]])
        path = write_png(
            tmp_path / "a.png", grey, bits, chunk(b"tRNS", struct.pack(">H", key))
        )
        assert read(path) == [[[255] * 3, [255 if other else 0] * 3]]


def test_sixteen_bit_greys_keep_their_upper_eight_bits(tmp_path):
    values = np.array([[0, 255, 256, 600], [1200, 5000, 40000, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    image = read_image(tmp_path / "deep.png")
    assert image.mode == "RGB"
    assert np.asarray(image)[..., 1].tolist() == [[0, 0, 1, 2], [4, 19, 156, 255]]
    Image.fromarray(values[:1] // 4).save(
        tmp_path / "shallow.png"
    )  # 8 bits in a file of 16
    assert np.asarray(read_image(tmp_path / "shallow.png"))[..., 0].tolist() == [
        [0, 63, 64, 150]
    ]
    Image.fromarray(values.astype(np.int32)).save(tmp_path / "deep.tif")  # mode I
    assert np.array_equal(
        np.asarray(read_image(tmp_path / "deep.tif")), np.asarray(image)
    )


@pytest.mark.parametrize("bits", [8, 10, 12, 14])
def test_colours_of_few_of_16_bits_are_refused(tmp_path, bits):
    pixels = np.array([[[255, 100, 7], [1, 0, 55]]]) << (bits - 8)
    for path in (
        write_png(tmp_path / "a.png", pixels),
        write_tiff(tmp_path / "a.tif", pixels.astype(np.uint16)),
    ):
        with pytest.raises(
            ValueError,
            match="its colours have 16 bits of which few are used; save it with 8",
        ):
            read_image(path)


def test_what_a_file_says_about_its_depth_holds(tmp_path):
    dark = np.array([[[500], [0]]])  # of 12 bits, though 9 would do
    assert (
        read(write_png(tmp_path / "a.png", dark, 16, chunk(b"sBIT", b"\x0c")))[0][0][0]
        == 31
    )
    assert (
        read(write_tiff(tmp_path / "a.tif", dark.astype(np.uint16), tags={281: 4095}))[
            0
        ][0][0]
        == 31
    )
    assert (
        read(write_png(tmp_path / "a.png", dark << 4, 16, chunk(b"sBIT", b"\x0c")))[0][
            0
        ][0]
        == 31
    )  # as it should be
    assert (
        read(write_png(tmp_path / "a.png", dark, 16, chunk(b"sBIT", b"\x10")))[0][0][0]
        == 1
    )
    (tmp_path / "a.pgm").write_bytes(b"P5 2 1 4095\n" + dark.astype(">u2").tobytes())
    assert read(tmp_path / "a.pgm")[0][0][0] == 31
    white_is_0 = write_tiff(
        tmp_path / "a.tif", np.uint16([[[0], [1023]]]), tags={262: 0}
    )
    assert read(white_is_0) == [[[255] * 3, [0] * 3]]


def test_colours_of_another_profile_become_srgb(tmp_path):
    colours = np.uint8([[[200, 100, 100], [128, 128, 128], [255, 255, 255]]])
    Image.fromarray(colours).save(tmp_path / "a.png", icc_profile=colour_profile())
    # Display P3 with gamma 2.2, by hand: linear (0.586, 0.127, 0.127) in P3 is (0.689,
    # 0.108, 0.119) in sRGB.
    expected = [[215, 92, 97], [129, 129, 129], [255, 255, 255]]
    assert np.asarray(read_image(tmp_path / "a.png"))[0] == pytest.approx(
        np.array(expected), abs=2
    )
    with Image.open(tmp_path / "a.png") as opened:
        assert np.array_equal(to_rgb(opened), read_image(tmp_path / "a.png"))
    for damaged in (b"no profile", colour_profile()[:200]):
        Image.fromarray(colours).save(tmp_path / "a.png", icc_profile=damaged)
        assert read(tmp_path / "a.png") == colours.tolist()


def test_several_pages_and_what_does_not_count_as_one(tmp_path):
    pages = [Image.new("RGB", (2, 2), (shade,) * 3) for shade in (40, 90, 140)]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    with pytest.warns(
        UserWarning, match=r"pages\.tif: only the first of its images is used"
    ):
        assert read(tmp_path / "pages.tif")[0][0] == [40] * 3
    small = Image.new("RGB", (1, 1))
    small.encoderinfo = {"tiffinfo": {254: 1}}  # a reduced copy, as cameras add
    pages[0].save(tmp_path / "copy.tif", save_all=True, append_images=[small])
    pages[0].save(tmp_path / "phone.jpg", "MPO", save_all=True, append_images=[small])
    for name in ("copy.tif", "phone.jpg"):
        with open_image(tmp_path / name) as opened:
            assert opened.n_frames == 2 and other_images(opened) is None


def test_images_that_would_be_read_wrong_are_refused(tmp_path):
    pixels = np.zeros((2, 2, 3), np.uint16)
    write_tiff(tmp_path / "a.dng", pixels, tags={50706: 257})
    write_tiff(tmp_path / "a.nef", pixels, tags={254: 1})
    for transfer in (1, 16, 18):
        write_png(
            tmp_path / f"{transfer}.png",
            pixels + 40_000,
            16,
            chunk(b"cICP", bytes((9, transfer, 0, 1))),
        )
    file = io.BytesIO()
    Image.new("RGBA", (8, 8), (*SHOWN, 0)).save(file, "AVIF")
    (tmp_path / "1.avif").write_bytes(file.getvalue())
    (tmp_path / "16.avif").write_bytes(
        file.getvalue().replace(b"colrnclx\0\x01\0\x0d", b"colrnclx\0\x09\0\x10")
    )
    Image.new("RGB", (8, 8)).save(tmp_path / "eps.jpg", "EPS")
    unknown = (np.float32([[0.5, 1.0]]), np.int32([[-1, 4]]), np.int32([[0, 70000]]))
    for number, values in enumerate(unknown):
        Image.fromarray(values).save(tmp_path / f"{number}.tif")
    assert read(tmp_path / "1.avif")[4][4] == pytest.approx([255] * 3, abs=2) and read(
        tmp_path / "1.png"
    )
    for names, words in (
        (["a.dng", "a.nef"], "raw photo, of which only a thumbnail"),
        (["16.png", "18.png", "16.avif"], "for HDR screens"),
        (
            ["0.tif", "1.tif", "2.tif"],
            r"its pixels are of mode [FI], from .* to .*; save it with 8 or 16 bits",
        ),
        ([os.devnull], "not a regular file"),
        (["eps.jpg"], "PostScript"),
    ):
        for name in names:
            with pytest.raises(ValueError, match=words):
                read_image(tmp_path / name)


def test_photos_are_rotated_on_request_as_by_a_clip_folder_which_names_what_it_cannot_read(
    tmp_path,
):
    table = ClipFolderFrames(write_clip_folder(tmp_path))
    photo, exif = tmp_path / table.path[0], Image.Exif()
    pixels = np.full((4, 8, 3), 255, dtype=np.uint8)
    pixels[:, :4] = (
        0  # the left half is black, which is the upper half of the rotated photo
    )
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    Image.fromarray(pixels).save(photo, exif=exif)
    assert read_image(photo).size == (8, 4)
    upright = read_image(photo, upright=True)
    assert (
        upright.size == (4, 8) == table.read(0).size == table.without([1]).read(0).size
    )
    assert np.asarray(upright)[..., 0].tolist() == [[0] * 4] * 4 + [[255] * 4] * 4
    photo.write_bytes(b"no image")
    with pytest.raises(BadFrameError, match=rf"cannot decode frame {photo}: "):
        table.read(0)


def test_a_large_jpeg_is_reduced_and_a_large_png_refused(tmp_path, monkeypatch):
    image = Image.new("RGB", (200, 100), (200, 30, 30))
    image.save(tmp_path / "a.jpg")
    image.save(tmp_path / "a.png")
    monkeypatch.setattr(module, "MOST_PIXELS", 20_000)
    assert (
        read_image(tmp_path / "a.jpg").size
        == read_image(tmp_path / "a.png").size
        == (200, 100)
    )
    monkeypatch.setattr(module, "MOST_PIXELS", 5_000)
    small = read_image(tmp_path / "a.jpg")
    assert small.size == (100, 50) and small.getpixel((50, 25)) == pytest.approx(
        (200, 30, 30), abs=3
    )
    with pytest.raises(
        ValueError,
        match="200 x 100 pixels, more than 5,000 pixels; reduce it, or save it as JPEG",
    ):
        read_image(tmp_path / "a.png")
    monkeypatch.setattr(module, "MOST_PIXELS", 330)
    assert read_image(tmp_path / "a.jpg").size == (25, 13)
    monkeypatch.setattr(module, "MOST_PIXELS", 300)
    with pytest.raises(ValueError, match="200 x 100 pixels, more than 300 pixels"):
        read_image(tmp_path / "a.jpg")
