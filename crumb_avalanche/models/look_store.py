"""Feature maps of several looks at each image, kept in a file for each look."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from crumb_avalanche.models.map_store import MapDataset, MapStore


class OneLook(Dataset):
    """One look of a data set whose images are ``(L, 3, h, w)`` of ``L`` looks.

    Args:
        images: items ``(image, ...)``.
        look: number of the look.
    """

    def __init__(self, images: Any, look: int):
        self.images = images
        self.look = look

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        looks, *others = self.images[index]  # the rest of an item, such as its label
        return looks[self.look], *others


class LookMaps(Dataset):
    """Pairs of the maps of all looks, ``(L, C, H, W)``, and a label."""

    def __init__(self, looks: Sequence[MapDataset]):
        self.looks = looks
        self.targets = looks[0].targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        maps = [look[index][0] for look in self.looks]
        return torch.stack(maps), self.targets[index]


class LookStore:
    """Stores the maps of each look in a ``MapStore`` of its own.

    So runs that look at the whole image share its maps with those that look at the
    middle, too.

    Args:
        stores: one for each look.
    """

    def __init__(self, stores: Sequence[MapStore]):
        self.stores = stores

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the map of a look."""
        return self.stores[0].shape

    @property
    def path(self) -> Path:
        """File of the first look."""
        return self.stores[0].path

    @property
    def seconds(self) -> float:
        """Seconds spent filling, over all looks; setting it replaces the sum."""
        return sum(store.seconds for store in self.stores)

    @seconds.setter
    def seconds(self, total: float) -> None:
        self._set_total("seconds", total)

    @property
    def filled(self) -> int:
        """Number of maps computed, over all looks; setting it replaces the sum."""
        return sum(store.filled for store in self.stores)

    @filled.setter
    def filled(self, total: int) -> None:
        self._set_total("filled", total)

    @property
    def damaged(self) -> int:
        """Number of damaged maps, over all looks; setting it replaces the sum."""
        return sum(store.damaged for store in self.stores)

    @damaged.setter
    def damaged(self, total: int) -> None:
        self._set_total("damaged", total)

    def _set_total(self, name: str, total: float) -> None:
        """Set a count of the first store, and those of the other stores to 0.

        Args:
            name: of the attribute that counts.
            total: what the counts add up to then.
        """
        for store in self.stores:
            setattr(store, name, 0)
        setattr(self.stores[0], name, total)

    def dataset(self, images: Any, rows: np.ndarray, labels: list[int]) -> LookMaps:
        """Return the maps of a data set of images of all looks.

        See ``MapStore.dataset`` for the arguments, and for what is raised; images are
        ``(L, 3, h, w)``.
        """
        looks = []
        for number, store in enumerate(self.stores):
            looks.append(store.dataset(OneLook(images, number), rows, labels))
        return LookMaps(looks)

    def close(self) -> None:
        """Close the files of all looks. No map can be read afterwards."""
        for store in self.stores:
            store.close()
