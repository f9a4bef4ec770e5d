"""Labels, normalisation and names of frames of data sets."""

import re

import numpy as np
import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute, as_classification_dataset
from small_crumb import DIRECT, make
from small_models import CLASSES, SIZE, coloured, make_model
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms
from torchvision.transforms import v2
from watched import built

from benchmarks_toybox_ilab import ToyShapesFrames, imagenet_transform, make_benchmark
from crumb_avalanche.memory.buffers import ImageBuffer
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.extraction import BadFeaturesError
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.training.crumb import CRUMBStrategy
from crumb_avalanche.training.data import normalization_of

pytestmark = pytest.mark.filterwarnings("ignore")


# The methods that read labels themselves, and one of each other kind.
@pytest.mark.parametrize("name", ["crumb", "icarl", "remind", "slda"])
def test_a_stream_without_targets_is_trained_on_as_one_with_them(name):
    weights = []
    for with_targets in (True, False):
        torch.manual_seed(0)
        model = make_model(codebook=STRATEGIES[name].codebook)
        strategy = built(name, model, 8)
        for experience in stream_of(with_targets):
            assert hasattr(experience.dataset, "targets") == with_targets
            strategy.train(experience)
        weights.append((weights_hash(model), strategy.seen_classes.seen))
        strategy.eval(stream_of(with_targets))
    assert weights[0] == weights[1] and weights[0][1] == [0, 1, 2, 3]


def stream_of(with_targets: bool):
    """Two experiences of two classes, with or without ``targets``."""
    images, parts = coloured(), []
    for first in (0, 2):
        part = Subset(images, [n for n in range(len(images)) if int(images[n][1]) in (first, first + 1)])
        targets = [int(label) for _, label in part]
        parts.append(AvalancheDataset([part], data_attributes=[DataAttribute(targets, "targets")] * with_targets))
    return benchmark_from_datasets(train=parts).train_stream


CIFAR = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


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


def stored(transform, told=None, inside=True):
    """Train on the images once and return the pixels that are stored, in the order of the stream."""
    pixels = Pixels(transform if inside else None)
    dataset = as_classification_dataset(pixels)
    if not inside:
        dataset = dataset.replace_current_transform_group(transform)
    model, buffer = make_model(codebook=False), ImageBuffer(12)
    if told:
        model.set_normalization(*told)
    strategy = make(CRUMBStrategy, model, storage_policy=buffer, **DIRECT)
    strategy.train(benchmark_from_datasets(train=[dataset], test=[dataset]).train_stream[0])
    return model, buffer.rows, pixels.images


@pytest.mark.parametrize("version, inside", [(transforms, True), (v2, False)])
def test_the_normalisation_is_read_from_the_transform(version, inside):
    transform = version.Compose([torch.nn.Identity(), version.Normalize(*CIFAR)])
    model, rows, pixels = stored(transform, inside=inside)
    assert torch.equal(rows, pixels)
    # Replay sees the images as training did.
    images = torch.stack([transform(image) for image in pixels.float() / 255])
    torch.testing.assert_close(model.features(rows), model.features(images), rtol=1e-3, atol=1e-3)


def test_the_normalisation_is_told_and_a_pixel_out_of_range_is_an_error():
    scaled = lambda image: image * 255  # noqa: E731
    model, rows, pixels = stored(scaled, told=([0.0], [1 / 255]))
    assert torch.equal(rows, pixels)
    torch.testing.assert_close(model.features(rows), model.features(pixels.float()), rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match=r"pixels would be from .* not 0 to 255.*mean \[0.485.*set_normalization"):
        stored(scaled)


def test_found_through_every_wrapper():
    normalize = transforms.Normalize(*CIFAR)
    plain = Pixels(transforms.Compose([transforms.RandomApply([transforms.CenterCrop(8)]), normalize]))
    for dataset in (plain, Subset(plain, [0, 1]), ConcatDataset([plain, plain]), as_classification_dataset(plain)):
        assert normalization_of(dataset) == CIFAR
    assert normalization_of(as_classification_dataset(plain).subset([0, 2]).concat(as_classification_dataset(plain)))
    assert normalization_of(Pixels()) is None
    assert normalization_of(Pixels(lambda image: normalize(image))) is None, "it cannot be seen"
    with pytest.raises(ValueError, match=r"normalised in 2 ways.*set_normalization"):
        normalization_of(ConcatDataset([plain, Pixels(transforms.Normalize([0.4] * 3, [0.5] * 3))]))


ROW = 3  # of the table; in the first experience


def damaged_stream(value=None):
    """The usual stream, with a value put into one of its images; and the path of that one."""
    table = ToyShapesFrames(
        classes=CLASSES, objects_per_class=2, sessions=2, frames_per_clip=5, size=SIZE, held_out_sessions=(1,)
    )
    usual, damaged = imagenet_transform(SIZE), table.read(ROW)

    def transform(image):
        pixels = usual(image)
        if value is not None and np.array_equal(image, damaged):
            pixels[0, 3, 3] = value
        return pixels

    return make_benchmark(table, "class_instance", 0, 2, transform, transform), table.path[ROW]


@pytest.mark.parametrize("name, value", [("slda", "nan"), ("crumb", 3e38), ("er", "inf")])
def test_the_frame_is_named_and_nothing_is_accumulated(model, name, value):
    stream, path = damaged_stream(float(value))
    strategy = built(name, model, 8, {"batch_size": 21})  # the first batch is the experience
    with pytest.raises(BadFeaturesError, match=rf"^frame {re.escape(path)} \(row {ROW} .*finite and at most 1e\+12"):
        for experience in stream.train_stream:
            strategy.train(experience, eval_streams=[])
    if hasattr(strategy, "statistics"):
        assert not strategy.statistics.image_counts.any()
    else:
        assert len(strategy.storage_policy) == 0
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
    strategy.train(damaged_stream()[0].train_stream[0], eval_streams=[])
    with pytest.raises(BadFeaturesError, match=rf"^frame {re.escape(path)} "):
        strategy.eval(stream.train_stream[0])
