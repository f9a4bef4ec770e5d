"""A network, a stream and a buffer small enough to be followed by hand."""

from collections import OrderedDict
from functools import cache

import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.initialisers import init_dense_matched_
from crumb_avalanche.models.split_model import SplitModel

SIZE = 16  # pixels a side
CLASSES = ("house", "leaf", "ring", "star")


def make_model(seed: int = 0, n_classes: int = 4, codebook: bool = True) -> SplitModel:
    """Images of 16 pixels -> maps of 8x4x4 -> a codebook of 8 rows of 4 -> logits.

    Same seed, same weights, which no calibration changes.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        extractor = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        )
        layers = dict(
            conv=nn.Conv2d(8, 8, 3, padding=1),
            relu=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
        )
        plastic = nn.Sequential(
            OrderedDict(**layers, flatten=nn.Flatten(), head=nn.Linear(8, n_classes))
        )
        images = torch.randn(16, 3, SIZE, SIZE)
    table = Codebook(8, 4) if codebook else None
    model = SplitModel(extractor, plastic, "head", codebook=table, image_size=SIZE)
    if codebook:
        init_dense_matched_(
            table, model.features(images), torch.Generator().manual_seed(seed)
        )
    model.calibrated = True  # strategies leave its scale as it is
    return model


@cache
def _drawn(path: str) -> Image.Image:
    from benchmarks_toybox_ilab.datasets.toy_shapes import ToyShapesReader

    return ToyShapesReader()(path)


class DrawnOnce:
    """Draws each frame once for all tests, as drawing takes long.

    A checkpoint of Avalanche's pickles it.
    """

    def __call__(self, path: str) -> Image.Image:
        """Return the image."""
        return _drawn(path)


def make_stream(
    classes_per_experience: int = 2,
    run: int = 0,
    protocol: str = "class_instance",
    classes=CLASSES,
):
    """Experiences of ten rendered training frames a class.

    Two objects, one clip of five frames each, in order.
    """
    from benchmarks_toybox_ilab import ToyShapesFrames, make_benchmark, pixel_transform

    drawn = dict(
        objects_per_class=2,
        sessions=2,
        frames_per_clip=5,
        size=SIZE,
        held_out_sessions=(1,),
    )
    table = ToyShapesFrames(classes=classes, **drawn)
    table.reader = DrawnOnce()
    transform = pixel_transform(SIZE)
    return make_benchmark(
        table, protocol, run, classes_per_experience, transform, transform
    )


def coloured() -> TensorDataset:
    """Forty noisy images of four colours, one a class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 4
    colours = torch.tensor([[200, 0, 0], [0, 200, 0], [0, 0, 200], [120, 120, 0]])
    noise = torch.randint(0, 55, (40, 3, 16, 16), generator=generator)
    return TensorDataset(
        (colours[labels][:, :, None, None] + noise).to(torch.uint8), labels
    )


def conv_head_model() -> SplitModel:
    """As SqueezeNet ends: dropout, a convolution as head, ReLU, pooling."""
    torch.manual_seed(1)
    extractor = nn.Sequential(nn.Conv2d(3, 5, 3, stride=4, padding=1), nn.ReLU())
    layers = OrderedDict(
        fire=nn.Conv2d(5, 6, 3, padding=1),
        bn=nn.BatchNorm2d(6),
        relu=nn.ReLU(),
        drop=nn.Dropout(0.5),
        head=nn.Conv2d(6, 4, 3, padding=1),
        last=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    return SplitModel(extractor, nn.Sequential(layers), "head", image_size=16)


def weights_of(model) -> dict[str, torch.Tensor]:
    """Copies of the weights and buffers of a model, by name."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_tensors(tensors, others) -> bool:
    """Whether all tensors are equal to others of the same names, bit by bit."""
    return all(torch.equal(tensors[name], others[name]) for name in tensors)


def stacked_images(dataset) -> torch.Tensor:
    """Stack the images of a data set, ``(N, ...)``."""
    return torch.stack([image for image, *_ in dataset])


def images_extracted(model: SplitModel) -> list[torch.Tensor]:
    """A list to which every image is added whose map is computed from now on."""
    images = []
    extract = model.extract

    def noted_extract(batch: torch.Tensor) -> torch.Tensor:
        images.extend(batch)
        return extract(batch)

    model.extract = noted_extract
    return images
