"""The program of the page that asks an exported learner without torch."""

import contextlib
import io
import json

import numpy as np
import pytest
from page_commands import ROOT, blocks
from PIL import ExifTags, Image
from raw_images import write_png
from small_lessons import SIZE, images

from crumb_avalanche.learner.export import export_onnx
from crumb_avalanche.learner.learner import Learner

PHOTO = images(1, 1, seed=3)[0]
PAGE = (ROOT / "docs" / "robots.md").read_text(encoding="utf-8")
PROGRAM = blocks(PAGE, "python")[-1]


def write_jpeg(path):
    Image.fromarray(PHOTO).save(path, quality=95)


def write_rotated_jpeg(path):
    """A photo that is stored on its side, as phones store them."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    sideways = Image.fromarray(PHOTO).rotate(90)
    sideways.save(path, exif=exif, quality=95)


def write_transparent_png(path):
    """An image with a corner that is transparent, and one that is half so."""
    alpha = np.full((SIZE, SIZE), 255, dtype=np.uint8)
    alpha[:16, :16] = 0
    alpha[16:, 16:] = 100
    image = Image.fromarray(PHOTO).convert("RGBA")
    image.putalpha(Image.fromarray(alpha))
    image.save(path)


def write_palette_png(path):
    """An image of few colours, one of which is transparent."""
    Image.fromarray(PHOTO).quantize(8).save(path, transparency=0)


def write_deep_greys(path):
    """Greys that fill 16 bits."""
    write_png(path, PHOTO[..., :1].astype(np.uint16) * 257)


def write_dark_greys(path):
    """Greys of a camera that uses 12 of 16 bits."""
    write_png(path, PHOTO[..., :1].astype(np.uint16) << 4)


def write_deep_colours(path):
    write_png(path, PHOTO.astype(np.uint16) * 257)


@pytest.fixture(scope="module")
def exported(weights_file, tmp_path_factory):
    """A folder with a learner's file and its export."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("exported")
    learner = Learner(backbone="small_cnn", weights=weights_file, image_size=SIZE)
    for number in range(3):
        learner.teach(images(number), f"c{number}")
    learner.save(folder / "mine.safetensors")
    export_onnx(learner, folder / "mine.onnx")
    return folder


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("plain.jpg", write_jpeg),
        ("rotated.jpg", write_rotated_jpeg),
        ("transparent.png", write_transparent_png),
        ("palette.png", write_palette_png),
        ("deep_greys.png", write_deep_greys),
        ("dark_greys.png", write_dark_greys),
        ("deep_colours.png", write_deep_colours),
    ],
)
def test_it_answers_as_the_command_does(exported, done, monkeypatch, name, write):
    # Given an exported learner, and an image that has to be read with care
    monkeypatch.chdir(exported)
    write(exported / name)
    assert PROGRAM.count('"photo.jpg"') == 1
    # When the program of the page is asked about it
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(PROGRAM.replace("photo.jpg", name), "robots.md", "exec"), {})
    # Then it answers as the command does
    answer = json.loads(done("predict", "mine.safetensors", name, "--json"))
    expected = "unknown" if answer["unknown"] else answer["label"]
    label, share = printed.getvalue().split()
    assert label == expected
    assert float(share) == pytest.approx(answer["confidence"], abs=1e-3)
