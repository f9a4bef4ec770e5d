"""The frozen network of a learner, with what is needed to rebuild and to check it."""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.system.rng_state import preserve_rng_state
from crumb_avalanche.system.tensor_bytes import tensor_bytes

SOURCES = {"torchvision": "torchvision's ImageNet weights (BSD-3-Clause)"}


class NetworkError(ValueError):
    """Weights that are absent, or of another network."""


@dataclass(frozen=True)
class FrozenNetwork:
    """A network that is never trained.

    Attributes:
        model: in evaluation mode; its head is zero and never used.
        backbone: a name in ``BACKBONES``.
        image_size: side in pixels of the images.
        source: where its weights come from.
        sha256: hash of its weights.
    """

    model: SplitModel
    backbone: str
    image_size: int
    source: str
    sha256: str

    @classmethod
    def build(cls, backbone: str, weights: str | os.PathLike | None, image_size: int) -> "FrozenNetwork":
        """Build a network with weights of torchvision or of a file; see ``split_backbone``."""
        name = str(weights) if weights is not None else None
        source = SOURCES.get(name or "", f"the file {os.path.basename(name)}" if name else "random weights")
        return cls._of(_model(backbone, name, image_size), backbone, image_size, source)

    @classmethod
    def of_state(cls, header: dict[str, Any], state: dict[str, Tensor]) -> "FrozenNetwork":
        """Rebuild a network from ``header()`` and ``state()``.

        Raises:
            NetworkError: the weights are not those that the header names.
        """
        model = _model(header["backbone"], None, header["image_size"])
        missing = sorted(_named(model).keys() ^ state.keys())
        if missing:
            raise NetworkError(
                f"the weights of {header['backbone']} lack or add {missing[0]!r}; save the learner again"
            )
        model.load_state_dict(state, strict=False)
        network = cls._of(model, header["backbone"], header["image_size"], header["source"])
        network.check_hash(header["weights_sha256"])
        return network

    @classmethod
    def _of(cls, model: SplitModel, backbone: str, image_size: int, source: str) -> "FrozenNetwork":
        return cls(model, backbone, image_size, source, weights_hash(_Weights(model)))

    def check_hash(self, sha256: str) -> None:
        """Raise NetworkError if the weights have another hash."""
        if self.sha256 != sha256:
            raise NetworkError(
                f"the weights of {self.backbone} have the SHA-256 {self.sha256[:12]}..., but the learner was taught "
                f"with {sha256[:12]}...: give the weight file that it was made with"
            )

    def check_same(self, other: "FrozenNetwork") -> None:
        """Raise NetworkError if another network is not the same to the bit."""
        mine, theirs = ((one.backbone, one.image_size, one.sha256[:12]) for one in (self, other))
        if mine != theirs:
            raise NetworkError(
                f"the learners have different networks (backbone, image size, weights): {mine} and {theirs}; only "
                "learners with the same network can be merged"
            )

    @property
    def bytes(self) -> int:
        """Bytes of its weights."""
        return tensor_bytes(_named(self.model).values())

    def header(self) -> dict[str, Any]:
        """Return plain values that describe it."""
        return {
            "backbone": self.backbone,
            "image_size": self.image_size,
            "source": self.source,
            "weights_sha256": self.sha256,
        }

    def state(self) -> dict[str, Tensor]:
        """Return its weights by name, without the head."""
        return _named(self.model)


class _Weights(nn.Module):
    """The part of a model that has an influence on features, for ``weights_hash``."""

    def __init__(self, model: SplitModel):
        super().__init__()
        self.model = [model]

    def state_dict(self, *arguments, **keywords):
        return _named(self.model[0])


def _named(model: SplitModel) -> dict[str, Tensor]:
    head = f"plastic_layers.{model.head}."
    return {name: value for name, value in model.state_dict().items() if not name.startswith((head, "calibrated"))}


def _model(backbone: str, weights: str | None, image_size: int) -> SplitModel:
    with preserve_rng_state():
        model = split_backbone(backbone, weights, n_classes=1, codebook=None, image_size=image_size)
    head = model.plastic_layers.get_submodule(model.head)
    with torch.no_grad():
        for weight in head.parameters():
            weight.zero_()
    return model.eval()
