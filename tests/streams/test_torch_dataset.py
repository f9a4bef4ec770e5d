import pickle

import numpy as np
import pytest
import torch
from fake_data import make_table
from PIL import Image
from torchvision import transforms

from benchmarks_toybox_ilab.streams.torch_dataset import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    FrameDataset,
    imagenet_transform,
    normalize_pixels,
    pixel_transform,
)

torch.set_num_threads(1)


@pytest.fixture(params=[(50, 31), (8, 8), (5, 90)])
def image(request):
    width, height = request.param
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_items_are_image_and_label_in_the_given_order():
    table = make_table()
    dataset = FrameDataset(table, [50, 3, 3], pixel_transform(8))
    assert len(dataset) == 3 and dataset.targets == [2, 0, 0]
    images, labels = zip(*(dataset[index] for index in range(3)))
    assert [image.float().mean().round().item() in (row, row + 1) for image, row in zip(images, [50, 3, 3])]
    assert labels == (2, 0, 0) and torch.equal(images[1], images[2])
    assert isinstance(FrameDataset(table, [0])[0][0], Image.Image)


def test_uint8_and_float_agree_to_the_bit(image):
    pixels, floats = pixel_transform(24)(image), imagenet_transform(24)(image)
    assert floats.dtype == torch.float32 and pixels.dtype == torch.uint8
    assert pixels.shape == (3, 24, 24) and pixels.is_contiguous()
    assert torch.equal(normalize_pixels(pixels), floats)
    assert torch.equal(normalize_pixels(pixels.expand(2, 5, -1, -1, -1))[1, 4], floats)


def test_transforms_equal_those_of_torchvision(image):
    theirs = transforms.Compose(
        [transforms.Resize((24, 24)), transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    )
    assert torch.equal(imagenet_transform(24)(image), theirs(image))


def test_transforms_can_be_pickled_and_have_stable_reprs_since_these_key_caches():
    for transform, shown in (
        (pixel_transform(16), "PixelTransform(size=16, interpolation='bilinear')"),
        (imagenet_transform(), "ImageNetTransform(size=224)"),
    ):
        assert repr(transform) == shown and pickle.loads(pickle.dumps(transform)) == transform
