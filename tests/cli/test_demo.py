"""What the demo draws for its pretraining, and that a new user is not met by warnings there."""

import warnings

import torch

from benchmarks_toybox_ilab.frames import pixel_transform
from benchmarks_toybox_ilab.toy_shapes import ToyShapesFrames
from crumb_avalanche.cli import demo


def test_shapes_are_the_frames_of_their_table(monkeypatch):
    monkeypatch.setattr(demo, "PRETRAINING_CLASSES", demo.PRETRAINING_CLASSES[:2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = demo.shapes(pixel_transform(demo.SIZE), progress=False)
    table = ToyShapesFrames(classes=demo.PRETRAINING_CLASSES, size=demo.SIZE)
    assert len(images) == len(table) and images.targets == table.labels.tolist() and set(images.targets) == {0, 1}
    for row in (0, len(table) // 2, len(table) - 1):
        image, label = images[row]
        assert image.dtype == torch.uint8 and image.shape == (3, demo.SIZE, demo.SIZE)
        assert torch.equal(image, pixel_transform(demo.SIZE)(table.read(row))) and label == table.labels[row]
