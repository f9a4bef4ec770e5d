"""The frozen network of a learner, with what is needed to rebuild and to check it."""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks_toybox_ilab.tables.numbers import whole_number
from crumb_avalanche.methods.run_header import LearnerError
from crumb_avalanche.models.backbone_names import (
    PUBLISHED,
    Preprocessing,
    full_name,
    is_timm,
    preprocessing_of,
    source_of,
)
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.models.split_model import NOT_WEIGHTS, SplitModel
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.system.process import preserve_rng_state
from crumb_avalanche.system.tensor_file import tensor_bytes


class NetworkError(ValueError):
    """Weights that are absent, or of another network."""


@dataclass(frozen=True)
class FrozenNetwork:
    """A network that is never trained.

    Attributes:
        model: in evaluation mode; its head is zero and never used.
        arguments: of ``split_backbone``: ``name``, ``image_size`` and, where they are
            not the default, others.
        source: where its weights come from.
        sha256: hash of its weights.
    """

    model: SplitModel
    arguments: dict[str, Any]
    source: str
    sha256: str

    @property
    def backbone(self) -> str:
        """Its name, as for ``split_backbone``."""
        return self.arguments["name"]

    @property
    def image_size(self) -> int:
        """Side in pixels of the images."""
        return self.arguments["image_size"]

    @property
    def interpolation(self) -> str:
        """Filter that images are resized with."""
        return self.model.interpolation

    @classmethod
    def build(
        cls,
        backbone: str,
        weights: str | os.PathLike | None,
        image_size: int | None = None,
        cut_layer: int | str | None = None,
    ) -> "FrozenNetwork":
        """Build a network with published weights or those of a file.

        Args:
            backbone: name of the backbone.
            weights: ``torchvision``, ``timm`` or ``package`` for published ones, or a
                weight file; ``None`` draws them.
            image_size: side of the images in pixels; default that of the backbone.
            cut_layer: where features are taken; default that of the backbone.

        Raises:
            ImportError: timm is needed and not installed.
            ValueError: an argument is unknown, or the weights do not fit the network.
        """
        expected = preprocessing_of(backbone)
        if image_size is None:
            image_size = expected.size
        else:
            image_size = whole_number("image_size", image_size, 1)
        arguments: dict[str, Any] = {
            "name": full_name(backbone),
            "image_size": image_size,
        }
        if is_timm(backbone) or expected != Preprocessing():
            arguments["preprocessing"] = expected.as_dict()
        if cut_layer is not None:
            arguments["cut_layer"] = cut_layer
        return cls.of_arguments(arguments, weights)

    @classmethod
    def of_arguments(
        cls, arguments: dict[str, Any], weights: str | os.PathLike | None
    ) -> "FrozenNetwork":
        """Build a network from the ``arguments`` of another.

        Args:
            arguments: of ``split_backbone``: ``name``, ``image_size`` and others.
            weights: a name in ``PUBLISHED``, or a weight file; ``None`` draws them.
        """
        if weights is None:
            return cls._of(_built_model(None, arguments), arguments, "random weights")
        name = str(weights)
        if name in PUBLISHED:
            source = source_of(arguments["name"], name)
        else:
            source = f"the file {os.path.basename(name)}"
        return cls._of(_built_model(name, arguments), arguments, source)

    @classmethod
    def of_state(
        cls, header: dict[str, Any], state: dict[str, Tensor]
    ) -> "FrozenNetwork":
        """Rebuild a network from its description and its weights.

        Args:
            header: what ``header`` returned: ``arguments``, ``source``, and
                ``weights_sha256``, which is ``None`` if it is not known.
            state: what ``state`` returned: weights by name.

        Raises:
            NetworkError: the weights are not those that the header names.
        """
        arguments = header["arguments"]
        model = _built_model(None, arguments)
        different = sorted(_weights_of(model).keys() ^ state.keys())
        if different:
            raise NetworkError(
                f"the weights of {arguments['name']} lack or add {different[0]!r}; "
                "save the learner again"
            )
        model.load_state_dict(state, strict=False)
        network = cls._of(model, arguments, header["source"])
        if header["weights_sha256"] is not None:
            network.check_hash(header["weights_sha256"])  # raises for other weights
        return network

    @classmethod
    def _of(
        cls, model: SplitModel, arguments: dict[str, Any], source: str
    ) -> "FrozenNetwork":
        """Take a model, and compute the hash of its weights."""
        return cls(model, arguments, source, weights_hash(_weights_of(model)))

    def check_hash(self, sha256: str) -> None:
        """Raise NetworkError if the weights have another hash."""
        if self.sha256 != sha256:
            raise NetworkError(
                f"the weights of {self.backbone} have the SHA-256 "
                f"{self.sha256[:12]}..., but the learner was taught with "
                f"{sha256[:12]}...: give the weight file that it was made with"
            )

    @property
    def bytes(self) -> int:
        """Bytes of its weights."""
        return tensor_bytes(_weights_of(self.model).values())

    def header(self) -> dict[str, Any]:
        """Return plain values that describe it."""
        return {
            "arguments": dict(self.arguments),
            "source": self.source,
            "weights_sha256": self.sha256,
        }

    def state(self) -> dict[str, Tensor]:
        """Return its weights by name, without the head."""
        return _weights_of(self.model)


@dataclass(frozen=True)
class StoredNetwork:
    """A network as a learner file holds it, which is not built.

    With it a learner can be changed and saved, but neither asked nor taught.

    Attributes:
        described: what ``FrozenNetwork.header`` returned.
        weights: what ``FrozenNetwork.state`` returned; ``None`` if the file holds none.
    """

    described: dict[str, Any]
    weights: dict[str, Tensor] | None

    @classmethod
    def of_file(
        cls, described: dict[str, Any], weights: dict[str, Tensor] | None
    ) -> "StoredNetwork":
        """Take what a file holds; see the class.

        Raises:
            NetworkError: the weights are not those that are described.
        """
        if weights is not None and weights_hash(weights) != described["weights_sha256"]:
            raise NetworkError(
                "its weights are not those that it names; take a copy from before"
            )
        return cls(described, weights)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of ``split_backbone``, as those of ``FrozenNetwork``."""
        return self.described["arguments"]

    @property
    def source(self) -> str:
        """Where its weights come from."""
        return self.described["source"]

    @property
    def sha256(self) -> str:
        """Hash of its weights."""
        return self.described["weights_sha256"]

    @property
    def backbone(self) -> str:
        """Its name, as for ``split_backbone``."""
        return self.arguments["name"]

    @property
    def image_size(self) -> int:
        """Side in pixels of the images."""
        return self.arguments["image_size"]

    @property
    def interpolation(self) -> str:
        """Raises LearnerError: the filter that images are resized with is not known."""
        return self.model.interpolation

    @property
    def model(self) -> SplitModel:
        """Raises LearnerError: it is not built."""
        raise LearnerError(
            "the learner was loaded without its network, so it can be changed and "
            "saved alone: load it anew to teach or ask it"
        )

    def header(self) -> dict[str, Any]:
        """Return plain values that describe it."""
        described = dict(self.described)
        described.pop("included", None)
        return described

    def state(self) -> dict[str, Tensor]:
        """Return its weights by name, without the head.

        Raises:
            LearnerError: the file held none.
        """
        if self.weights is None:
            raise LearnerError("the learner's file held no weights to be saved")
        return self.weights


Network = FrozenNetwork | StoredNetwork  # of a learner


def _weights_of(model: SplitModel) -> dict[str, Tensor]:
    """Return the weights of a network by name, without those of its head."""
    head = f"plastic_layers.{model.head}."
    return {
        name: value
        for name, value in model.state_dict().items()
        if not name.startswith((head, *NOT_WEIGHTS))
    }


def _built_model(weights: str | None, arguments: dict[str, Any]) -> SplitModel:
    """Build the network, whose head is zero; the RNG state does not change.

    It is fine-tuned where a run's was, whose small images were enlarged.
    """
    settings = {"fine_tuning": False, **arguments}
    with preserve_rng_state():
        model = split_backbone(weights=weights, n_classes=1, codebook=None, **settings)
    head = model.plastic_layers.get_submodule(model.head)
    with torch.no_grad():
        for weight in head.parameters():
            weight.zero_()
    return model.eval()


def are_same(first: Network, second: Network) -> bool:
    """Return whether two networks are the same to the bit, wherever they are from."""
    header = first.header()
    other_header = second.header()
    names = ("arguments", "weights_sha256")
    return all(header[name] == other_header[name] for name in names)


def check_same(first: Network, second: Network) -> None:
    """Raise NetworkError if two networks are not the same to the bit."""
    if are_same(first, second):
        return
    raise NetworkError(
        f"the learners have different networks, {_described(first)} and "
        f"{_described(second)}; only learners with the same network can be merged: "
        "teach one of them again with the network of the other"
    )


def _described(network: Network) -> str:
    """Return in words what tells a network from others."""
    cut = ""
    if "cut_layer" in network.arguments:
        cut = f", cut at {network.arguments['cut_layer']},"
    return (
        f"{network.backbone} for images of {network.image_size} pixels{cut} with "
        f"{network.source} (SHA-256 {network.sha256[:12]}...)"
    )


def cuts_of(network: Network) -> tuple[int | str, ...]:
    """Return the values of ``cut_layer`` that say where it is cut, the usual one first.

    Raises:
        LearnerError: it is cut at the usual layer, and not built.
    """
    cut_layer = network.arguments.get("cut_layer")
    if cut_layer is not None:
        return (cut_layer,)
    stages = network.model.stages
    return (len(stages), *stages[-1:])
