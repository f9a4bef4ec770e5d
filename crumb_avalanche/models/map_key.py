"""Names of what decides feature maps: the network and how it runs, and the images."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from torch.fx import GraphModule

from crumb_avalanche.models.preprocessing import PIXEL_MEAN, PIXEL_STD
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import weights_hash


def map_key(model: SplitModel, count: int, key: str, half: bool) -> str:
    """Return 24 hexadecimal digits of a SHA-256 over everything that decides the maps of ``count`` images.

    Args:
        model: model whose F computes the maps.
        count: number of images.
        key: identifies the images and their transform.
        half: whether the maps are float16.
    """
    runtime = "eager" if model.runtime.name == "torch" else str(model.runtime)
    what = f"{weights_hash(model.feature_extractor)} {_structure(model.feature_extractor)} {model.precision} "
    what += f"{runtime} {model.pixel_mean.device.type} {(count, *model.map_shape)} {key}{' half' * half}"
    what += _normalisation(model)
    return hashlib.sha256(what.encode()).hexdigest()[:24]


def files_key(paths: Iterable[str | os.PathLike]) -> str:
    """Return a SHA-256 over names, sizes and modification times of files, in their order.

    The common folder does not count, so a moved data set keeps its cache.
    """
    files = [Path(path) for path in paths]
    common = os.path.commonpath(files) if files else ""
    digest = hashlib.sha256()
    for path in files:
        state = path.stat()
        digest.update(f"{os.path.relpath(path, common)}|{state.st_size}|{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _structure(network: nn.Module) -> str:
    """Return layers and code of traced parts; a hash of weights does not cover layers without weights."""
    code = [part.code for part in network.modules() if isinstance(part, GraphModule)]
    return "\n".join([repr(network), *code])


def _normalisation(model: SplitModel) -> str:
    """Return how F normalises pixels, if it is not the usual way."""
    mean, std = (tuple(one.flatten().tolist()) for one in (model.pixel_mean, model.pixel_std))
    usual = tuple(tuple(torch.tensor(one).tolist()) for one in (PIXEL_MEAN, PIXEL_STD))
    return "" if (mean, std) == usual else f" {mean} {std}"
