"""Objects that are cut out and pasted on photos."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from scenes import SIDE, TAUGHT, Scenes, learned_in_a_run, measure, summary, view_of

from crumb_avalanche.learner.learner import Learner

BLUE, RED, GREEN = (40, 60, 190), (190, 50, 40), (70, 160, 60)


def picture(shape, colour, angle=0):
    image = Image.new("RGB", (128, 128), BLUE)
    getattr(ImageDraw.Draw(image), shape)((30 + angle, 34, 94 + angle, 90), fill=colour)
    return image


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder, draws = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(400):
        colours = draws.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(colours).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    path = tmp_path_factory.mktemp("views") / "view.png"
    found = {}
    for name, shape, colour in (("cup", "rectangle", RED), ("pear", "ellipse", GREEN)):
        for one in range(3):
            views = []
            for number in range(16):
                picture(shape, tuple(value + 5 * one for value in colour), number).save(path)
                views.append(view_of(path))
            found.setdefault(name, {})[f"{name}{one}"] = views
    return found


def test_an_object_is_cut_out_of_a_blue_ground(objects, tmp_path):
    cup = objects["cup"]["cup0"][0].cut
    assert abs(cup.width - 65) <= 4 and abs(cup.height - 57) <= 4
    pixels = np.asarray(cup)
    assert pixels[pixels[:, :, 3] == 255][:, :3].mean(0) == pytest.approx(RED, abs=12)
    Image.new("RGB", (128, 128), BLUE).save(tmp_path / "empty.png")
    assert view_of(tmp_path / "empty.png") is None


def test_an_object_has_the_height_that_is_asked_for(objects, photos):
    scenes = Scenes(objects, photos, 0)
    black = Image.new("RGB", (SIDE, SIDE))
    rows = np.asarray(scenes.shown(objects["cup"]["cup0"][0], black, 0.5)).any(2).any(1).nonzero()[0]
    assert rows[-1] - rows[0] + 1 == pytest.approx(0.5 * SIDE, abs=2)


def test_one_split_has_the_same_images_and_each_stream_its_photos(objects, photos):
    once, again = ([image for _, images in Scenes(objects, photos, 3).lessons("own") for image in images] for _ in "ab")
    assert all(np.array_equal(*pair) for pair in zip(once, again, strict=True))
    corners = {
        stream: [
            len({image.getpixel((0, 0)) for image in images})
            for _, images in Scenes(objects, photos, 3).lessons(stream)
        ]
        for stream in ("own", "three", "plain")
    }
    assert corners == {"own": [1, 1], "three": [3, 3], "plain": [1, 1]}
    table = [image.getpixel((0, 0)) for _, images in Scenes(objects, photos, 3).lessons("table") for image in images]
    assert len(table) == 2 * TAUGHT and len(set(table)) == 1


@pytest.mark.parametrize("stream, ways", [("own", 9), ("plain", 2)])
def test_a_learner_is_taught_and_asked(objects, photos, weights_file, stream, ways, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr("scenes.AT_A_TIME", 3)  # so that the last image is asked alone
    learner = Learner("slda", "small_cnn", weights_file, 32, looks=(0.75, 0.5))
    rows = measure(learner, Scenes(objects, photos, 1), stream)
    assert len(rows) == ways and all(0 <= right <= images and known <= images for _, images, right, known in rows)
    assert {way: images for way, images, *_ in rows}["same"] == 4
    header = ["backbone", "method", "looks", "stream", "split", "asked", "images", "right", "known"]
    text = summary([dict(zip(header, map(str, ["small", "slda", "0.75,0.5", stream, 1, *row]))) for row in rows])
    assert text.count("\n") == 2 and "same" in text


def test_a_method_without_lessons_learns_the_same_middles_in_a_run(objects, photos, weights_file, tmp_path):
    scenes, network = (
        Scenes(objects, photos, 1),
        {"backbone": "small_cnn", "weights": str(weights_file), "image_size": 32},
    )
    learner = learned_in_a_run(scenes, "own", 0.6, tmp_path, strategy="crumb", **network, first_epochs=1, threads=1)
    (last,) = (tmp_path / "clips" / "cup").glob("*/7.png")  # two objects with one image each are held out
    with Image.open(last) as image:
        assert image.size == (154, 154)
    rows = {way: (images, right) for way, images, right, _ in measure(learner, scenes, "own", share=0.6)}
    assert len(rows) == 9 and rows["same"][0] == 4 and rows["empty"] == (60, 0)
