"""Weights that torchvision publishes: downloaded once, and checked before every use."""

from http.client import HTTPException
from pathlib import Path, PurePosixPath
from pickle import UnpicklingError

import torch
from torch import Tensor

from crumb_avalanche.models.weights import WeightsError, check_hub_name
from crumb_avalanche.system.atomic_file import cured


def torchvision_weights(name: str) -> dict[str, Tensor]:
    """Return torchvision's weights of a network from the cache of torch.hub, or download them.

    Raises:
        OSError: the cache cannot be written.
        ValueError: torchvision has no such network.
        WeightsError: they cannot be fetched, or the file is damaged.
    """
    from torchvision import models  # takes seconds and 170 MB to import

    if name not in models.list_models():
        raise ValueError(f"torchvision has no weights of {name}; train it as crumb demo does, or give None")
    weights = models.get_model_weights(name).DEFAULT
    known = Path(torch.hub.get_dir()) / "checkpoints" / PurePosixPath(weights.url).name
    if known.is_file():  # torch.hub checks the digest after a download only
        check_hub_name(known)
    try:
        return weights.get_state_dict(check_hash=True, weights_only=True)
    except (OSError, HTTPException, RuntimeError, EOFError, UnpicklingError) as error:
        if isinstance(error, OSError) and cured(error):
            raise
        raise WeightsError(
            f"torchvision's weights of {name} cannot be fetched from {weights.url} "
            f"({getattr(error, 'reason', error)}); connect to the network, or fetch this file elsewhere and give it "
            "with weights=FILE (--weights FILE)"
        ) from error
