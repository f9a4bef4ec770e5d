"""Batches of a clip, decoded one image at a time."""

import os

import numpy as np
import pytest
import torch
from clip_trees import save
from counted_images import Counted
from PIL import Image

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from crumb_avalanche.learner import sources
from crumb_avalanche.learner.sources import batches, clips_of


def test_batches_are_resized_as_in_a_run(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (5, 40, 60, 3), dtype=np.uint8)
    for number, image in enumerate(noise):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    (clip,) = clips_of(tmp_path)
    found = list(batches(clip.frames, 2, 24))
    assert [len(paths) for paths, _ in found] == [2, 2, 1]
    assert [os.path.basename(path) for paths, _ in found for path in paths] == [f"{i}.png" for i in range(5)]
    assert all(images.dtype == torch.uint8 and images.shape[1:] == (3, 24, 24) for _, images in found)
    expected = torch.stack([PixelTransform(24)(Image.fromarray(image)) for image in noise])
    assert torch.equal(torch.cat([images for _, images in found]), expected)
    assert list(batches([], 2, 24)) == []


@pytest.mark.parametrize("arguments", [(0, 24), (2, 0), (1.5, 24), (True, 24)])
def test_sizes_of_batches(arguments):
    with pytest.raises(ValueError, match=r"(size|image_size) is .*whole number of at least 1"):
        next(batches([], *arguments))


@pytest.mark.parametrize("kind", ["folder", "pattern", "list", "tree"])
def test_one_image_at_a_time_is_decoded(tmp_path, monkeypatch, no_cycles, kind):
    for number in range(30):
        save(tmp_path / f"class{number % 3}" / f"{number}.png")
    root = tmp_path / "class0" if kind == "folder" else tmp_path
    pattern = str(tmp_path / "**" / "*.png")
    source = {"pattern": pattern, "list": sorted(tmp_path.rglob("*.png"))}.get(kind, root)
    counted = Counted(sources.read_image)
    monkeypatch.setattr(sources, "read_image", counted)
    total = sum(len(paths) for clip in clips_of(source) for paths, _ in batches(clip.frames, 8, 4))
    assert total == counted.calls == (10 if kind == "folder" else 30)
    assert counted.most == 1
    list(clips_of(source))  # clips alone decode nothing
    assert counted.calls == total


def test_one_image_of_a_batch_in_memory_is_converted_at_a_time(monkeypatch, no_cycles):
    counted = Counted(Image.fromarray)
    monkeypatch.setattr(Image, "fromarray", counted)
    for source in (np.zeros((20, 4, 4, 3)), torch.zeros((20, 3, 4, 4))):
        (clip,) = clips_of(source)
        assert sum(len(paths) for paths, _ in batches(clip.frames, 8, 4)) == 20
    assert counted.calls == 40 and counted.most == 1
