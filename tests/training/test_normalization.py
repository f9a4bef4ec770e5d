"""Stored images are the stream's pixels, however the stream normalises them."""

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training.plugins import EvaluationPlugin
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms
from torchvision.transforms import v2

from crumb_avalanche.training.crumb import CRUMBStrategy
from crumb_avalanche.training.data import normalization_of
from crumb_avalanche.training.storage_policies import ImageBuffer

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")

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


def stored(make_model, transform, told=None, where="data set"):
    """Train on the images once and return the pixels that are stored, in the order of the stream."""
    pixels = Pixels(transform if where == "data set" else None)
    dataset = as_classification_dataset(pixels)
    if where == "avalanche":
        dataset = dataset.replace_current_transform_group(transform)
    model, buffer = make_model(codebook=False), ImageBuffer(12)
    if told:
        model.set_normalization(*told)
    strategy = CRUMBStrategy(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        storage_policy=buffer,
        direct_weight=1.0,
        codebook_weight=0.0,
        evaluator=EvaluationPlugin(loggers=[]),
    )
    strategy.train(benchmark_from_datasets(train=[dataset], test=[dataset]).train_stream[0])
    return model, buffer.rows, pixels.images


@pytest.mark.parametrize("where", ["data set", "avalanche"])
@pytest.mark.parametrize("version", [transforms, v2])
def test_the_normalisation_is_read_from_the_transform(make_model, version, where):
    transform = version.Compose([torch.nn.Identity(), version.Normalize(*CIFAR)])
    model, rows, pixels = stored(make_model, transform, where=where)
    assert torch.equal(rows, pixels)
    # Replay sees the images as training did.
    images = torch.stack([transform(image) for image in pixels.float() / 255])
    torch.testing.assert_close(model.features(rows), model.features(images), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_the_normalisation_is_told(make_model, scale):
    model, rows, pixels = stored(make_model, lambda image: image * scale, told=([0.0], [1 / scale]))
    assert torch.equal(rows, pixels)
    torch.testing.assert_close(model.features(rows), model.features(pixels.float() / 255 * scale), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("transform", [lambda image: image * 255, transforms.Compose([lambda image: 4 * image - 2])])
def test_a_pixel_out_of_range_is_an_error(make_model, transform):
    with pytest.raises(ValueError, match=r"pixels would be from .* not 0 to 255.*mean \[0.485.*set_normalization"):
        stored(make_model, transform)


def test_found_through_every_wrapper():
    normalize = transforms.Normalize(*CIFAR)
    plain = Pixels(transforms.Compose([transforms.RandomApply([transforms.CenterCrop(8)]), normalize]))
    for dataset in (plain, Subset(plain, [0, 1]), ConcatDataset([plain, plain]), as_classification_dataset(plain)):
        assert normalization_of(dataset) == CIFAR
    assert normalization_of(as_classification_dataset(plain).subset([0, 2]).concat(as_classification_dataset(plain)))
    assert normalization_of(Pixels()) is None
    hidden = Pixels(lambda image: normalize(image))
    assert normalization_of(hidden) is None


def test_two_normalisations_are_an_error():
    one, two = (Pixels(transforms.Normalize([mean] * 3, [0.5] * 3)) for mean in (0.4, 0.5))
    with pytest.raises(ValueError, match=r"normalised in 2 ways.*set_normalization"):
        normalization_of(ConcatDataset([one, two]))
