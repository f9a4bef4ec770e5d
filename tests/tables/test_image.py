"""Image files as 8-bit RGB: 16-bit greys keep their range, and photos are rotated on request."""

import numpy as np
import pytest
from fake_data import write_clip_folder
from PIL import Image

from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from benchmarks_toybox_ilab.tables.frame import BadFrameError
from benchmarks_toybox_ilab.tables.image import read_image

SIDEWAYS = 6  # in EXIF: to be turned clockwise by a quarter


def save_sideways(path, size=(8, 4)):
    """A photo whose left half is black, which is the upper half of the rotated photo."""
    pixels = np.full((size[1], size[0], 3), 255, dtype=np.uint8)
    pixels[:, : size[0] // 2] = 0
    exif = Image.Exif()
    exif[0x0112] = SIDEWAYS
    Image.fromarray(pixels).save(path, exif=exif)


def test_sixteen_bit_greys_keep_their_upper_eight_bits(tmp_path):
    values = np.array([[0, 255, 256, 600], [1200, 5000, 40000, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    image = read_image(tmp_path / "deep.png")
    assert image.mode == "RGB"
    assert np.asarray(image)[..., 1].tolist() == [[0, 0, 1, 2], [4, 19, 156, 255]]
    Image.fromarray(values[:1] // 4).save(tmp_path / "shallow.png")  # 8 bits in a file of 16
    assert np.asarray(read_image(tmp_path / "shallow.png"))[..., 0].tolist() == [[0, 63, 64, 150]]
    Image.fromarray(values.astype(np.int32)).save(tmp_path / "deep.tif")  # mode I
    assert np.array_equal(np.asarray(read_image(tmp_path / "deep.tif")), np.asarray(image))


@pytest.mark.parametrize("values", [np.float32([[0.5, 1.0]]), np.int32([[-1, 4]]), np.int32([[0, 70000]])])
def test_unknown_ranges_are_refused(tmp_path, values):
    Image.fromarray(values).save(tmp_path / "x.tif")
    with pytest.raises(ValueError, match=r"its pixels are of mode [FI], from .* to .*; save it with 8 or 16 bits"):
        read_image(tmp_path / "x.tif")


def test_photos_are_rotated_on_request(tmp_path):
    save_sideways(tmp_path / "photo.png")
    assert read_image(tmp_path / "photo.png").size == (8, 4)
    upright = read_image(tmp_path / "photo.png", upright=True)
    assert upright.size == (4, 8)
    assert np.asarray(upright)[..., 0].tolist() == [[0] * 4] * 4 + [[255] * 4] * 4


def test_a_clip_folder_rotates_photos_and_names_what_it_cannot_read(tmp_path):
    write_clip_folder(tmp_path)
    table = ClipFolderFrames(tmp_path)
    save_sideways(tmp_path / table.path[0])
    assert table.read(0).size == (4, 8)
    assert table.without([1]).read(0).size == (4, 8)
    (tmp_path / table.path[0]).write_bytes(b"no image")
    with pytest.raises(BadFrameError, match=rf"cannot decode frame {tmp_path / table.path[0]}: "):
        table.read(0)
