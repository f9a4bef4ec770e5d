"""Stored pixels of normalised images, and images whose features cannot be used."""

import numpy as np
import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from small_crumb import DIRECT, make
from small_models import CLASSES, SIZE, make_model
from torch.utils.data import Dataset
from watched import built

from benchmarks_toybox_ilab import ToyShapesFrames, imagenet_transform, make_benchmark
from crumb_avalanche.memory.buffers import ImageBuffer
from crumb_avalanche.models.extraction import BadFeaturesError
from crumb_avalanche.training.crumb import CRUMBStrategy

pytestmark = pytest.mark.filterwarnings("ignore")


class Pixels(Dataset):
    """Twelve random images of two classes, black and white pixels among them, passed through a transform."""

    def __init__(self, transform=None):
        self.images = torch.randint(0, 256, (12, 3, 16, 16), generator=torch.Generator().manual_seed(0)).byte()
        self.images[:, :, 0, 0], self.images[:, :, 0, 1] = 0, 255
        self.targets = [number % 2 for number in range(12)]
        self.transform = transform

    def __len__(self):
        return 12

    def __getitem__(self, index):
        image = self.images[index].float() / 255
        return (image if self.transform is None else self.transform(image)), self.targets[index]


def stored(transform, told=None):
    """Train on the images once and return the pixels that are stored, in the order of the stream."""
    pixels = Pixels(transform)
    dataset = as_classification_dataset(pixels)
    model, buffer = make_model(codebook=False), ImageBuffer(12)
    if told:
        model.set_normalization(*told)
    strategy = make(CRUMBStrategy, model, storage_policy=buffer, **DIRECT)
    strategy.train(benchmark_from_datasets(train=[dataset], test=[dataset]).train_stream[0])
    return model, buffer.rows, pixels.images


def test_the_normalisation_is_told_and_a_pixel_out_of_range_is_an_error():
    scaled = lambda image: image * 255  # noqa: E731
    model, rows, pixels = stored(scaled, told=([0.0], [1 / 255]))
    assert torch.equal(rows, pixels)
    torch.testing.assert_close(model.features(rows), model.features(pixels.float()), rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match=r"pixels would be from .* not 0 to 255.*mean \[0.485.*set_normalization"):
        stored(scaled)


ROW = 3  # of the table; in the first experience


def damaged_stream(value=None):
    """The usual stream, with a value put into one of its images."""
    table = ToyShapesFrames(
        classes=CLASSES, objects_per_class=2, sessions=2, frames_per_clip=5, size=SIZE, held_out_sessions=(1,)
    )
    usual, damaged = imagenet_transform(SIZE), table.read(ROW)

    def transform(image):
        pixels = usual(image)
        if value is not None and np.array_equal(image, damaged):
            pixels[0, 3, 3] = value
        return pixels

    return make_benchmark(table, "class_instance", 0, 2, transform, transform)


@pytest.mark.parametrize("name, value", [("slda", "nan"), ("crumb", 3e38), ("er", "inf")])
def test_nothing_is_accumulated_of_a_batch_with_a_damaged_image(name, value, model):
    stream = damaged_stream(float(value))
    strategy = built(name, model, 8, {"batch_size": 21})  # the first batch is the experience
    words = r"1 of \d+ images have feature maps .*\(number \d+ of its batch\).*finite and at most 1e\+12"
    with pytest.raises(BadFeaturesError, match=words):
        for experience in stream.train_stream:
            strategy.train(experience, eval_streams=[])
    if hasattr(strategy, "statistics"):
        assert not strategy.statistics.image_counts.any()
    else:
        assert len(strategy.storage_policy) == 0
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
    strategy.train(damaged_stream().train_stream[0], eval_streams=[])
    with pytest.raises(BadFeaturesError, match=words):
        strategy.eval(stream.train_stream[0])
