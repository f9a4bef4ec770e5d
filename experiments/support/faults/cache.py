"""Damage of the feature cache."""

from pathlib import Path
from random import Random

import numpy as np
import torch
from support.faults.case import Kind
from support.faults.damage import Tree, damage_some
from torch import nn
from torch.utils.data import TensorDataset

from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.models.split_model import SplitModel

IMAGES, SIDE = 12, 8


def tiny_model() -> SplitModel:
    """Images of 8 pixels to maps of 8x4x4."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
        plastic = nn.Sequential()
        plastic.add_module("pool", nn.AdaptiveAvgPool2d(1))
        plastic.add_module("flatten", nn.Flatten())
        plastic.add_module("head", nn.Linear(8, 2))
    return SplitModel(layers, plastic, "head", image_size=SIDE).eval()


class FeatureCacheFiles(Kind):
    """Maps on disk and their checksums; damaged ones are computed anew, with a warning and a count."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.model = tiny_model()
        random = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (IMAGES, 3, SIDE, SIDE), generator=random, dtype=torch.uint8)
        self.images = TensorDataset(images)
        self.learn_base()
        self.tree = Tree(folder)

    def damage(self, random: Random) -> str:
        return damage_some(self.tree.kept, random)

    def act(self):
        with MapStore(self.folder, self.model, IMAGES, "images", progress=False) as store:
            maps = store.dataset(self.images, np.arange(IMAGES), [0] * IMAGES)
            return torch.stack([maps[row][0] for row in range(IMAGES)])

    def right(self, found) -> bool:
        return torch.equal(found, self.expected)

    def restore(self) -> None:
        self.tree.restore()
