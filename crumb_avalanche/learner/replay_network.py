"""The trained layers of a learner by replay, and what its scores are computed from. Comes without Avalanche."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from crumb_avalanche.memory.buffers import MapBuffer
from crumb_avalanche.memory.product_quantizer import ProductQuantizer
from crumb_avalanche.models.backbones import usual_codebook_dim
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.map_store import FeatureMemo
from crumb_avalanche.models.penultimate import penultimate
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.rng_state import preserve_rng_state
from crumb_avalanche.system.tensor_file import StateError

FROZEN = "feature_extractor."
REMEMBERED_MAPS = 128  # of images that are replayed, in memory only


class HeldRows(MapBuffer):
    """Memories between two pieces: rows of any kind; rows of its own are float16 maps without the feature scale."""

    @staticmethod
    def item_bytes(model):
        """Return the bytes of a map, without its label."""
        return MapBuffer.item_bytes(model) // 2

    def to_rows(self, batch, positions, model):
        """Turn some maps of a batch into rows."""
        return batch.feature_map[positions].clamp(-65504, 65504).half().contiguous()

    def maps(self) -> tuple[Tensor, Tensor]:
        """Return all maps ``(n, C, H, W)`` float32 and their labels ``(n,)``."""
        held = (self.labels >= 0).nonzero().flatten()
        rows = torch.empty(0) if self.rows is None else self.rows[held].float()
        return rows, self.labels[held].long()


class ReplayNetwork:
    """Trained layers with a head that grows, and codebook, quantizer or class means, as the method has them.

    A new output of the head is zero, so what the head answers does not depend on when it grew.

    Args:
        frozen: a model with one output; its F is shared, its plastic layers are copied.
        codebook: whether the method trains a codebook.
        images: whether the method replays images; F's maps of the latest ones are remembered then.
    """

    def __init__(self, frozen: SplitModel, codebook: bool = False, images: bool = False):
        self.model: SplitModel = copy.deepcopy(frozen, {id(frozen.feature_extractor): frozen.feature_extractor})
        _freeze_norms(self.model.plastic_layers)
        if codebook:
            self.model.codebook = Codebook(codebook_dim=usual_codebook_dim(self.model))
        if images:
            self.model.feature_memo = FeatureMemo(REMEMBERED_MAPS)
        self.quantizer: ProductQuantizer | None = None  # that maps pass before the plastic layers
        self.means: Tensor | None = None  # (classes, D) unit means of exemplars that answers are nearest to
        self.old: dict[str, Tensor] = {}  # plastic layers after the latest training, where the method distils

    @property
    def head(self) -> list[Tensor]:
        """Weights of the head, with a row for each class."""
        return [weight.detach() for weight in self.model.plastic_layers.get_submodule(self.model.head).parameters()]

    @property
    def row_bytes(self) -> int:
        """Bytes of one class in the head."""
        return sum(weight[0].numel() * weight.element_size() for weight in self.head)

    @torch.no_grad()
    def resize(self, classes: int) -> None:
        """Give the head another number of outputs; new ones are zero."""
        before = self.head
        with preserve_rng_state():
            self.model.reset_head(classes)
        for weight, values in zip(self.head, before):
            weight.zero_()
            weight[: len(values)] = values[:classes]
        self.model.eval()

    def forget(self, label: int) -> None:
        """Remove what is held of one class alone."""
        old = [value for name, value in self.old.items() if name.startswith(f"{self.model.head}.")]
        for rows in [*self.head, *old, *([] if self.means is None else [self.means])]:
            if label < len(rows):
                rows[label] = 0
        if self.model.feature_memo is not None:
            self.model.feature_memo.clear()

    @torch.no_grad()
    def inputs(self, maps: Tensor) -> Tensor:
        """Compute what enters the plastic layers, ``(B, C, H, W)``, from maps of ``SplitModel.extract`` or pixels."""
        scaled = self.model.features(maps)
        # Answers take the maps through the table that memories are decoded from: the layers are trained on such maps.
        table = self.model.codebook if self.model.calibrated and self.model.codebook is not None else self.quantizer
        return scaled if table is None else table.decode(table.encode(scaled))

    def scores(self, inputs: Tensor) -> Tensor:
        """Compute ``(B, classes)`` scores, with a gradient: logits, or minus the distances from means."""
        if self.means is None:
            return self.model.classify(inputs)
        return -torch.cdist(normalize(penultimate(self.model, inputs)), self.means)

    def tensors(self) -> list[Tensor]:
        """Return all tensors that count for a budget: not the plastic layers below the head."""
        tables = [] if self.model.codebook is None else [self.model.codebook.blocks.detach()]
        tables += [] if self.quantizer is None else [self.quantizer.centroids]
        return [*self.head, *tables, *([] if self.means is None else [self.means]), *self.old.values()]

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the frozen F; the tensors may share memory with this instance."""
        return {
            "model": {name: value for name, value in self.model.state_dict().items() if not name.startswith(FROZEN)},
            "centroids": None if self.quantizer is None else self.quantizer.centroids,
            "means": self.means,
            "old": dict(self.old),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned; raise StateError if a tensor is missing, too many, or of another shape."""
        prefix = f"plastic_layers.{self.model.head}."
        rows = [len(value) for name, value in state["model"].items() if name.startswith(prefix) and value.dim()]
        self.resize(rows[0] if rows else 1)
        own = self.state_dict()["model"]
        _check_same(own, state["model"], "model")
        if state["old"]:
            layers = {
                name.partition(".")[2]: value for name, value in own.items() if name.startswith("plastic_layers.")
            }
            _check_same(layers, state["old"], "old")
        self.model.load_state_dict(dict(state["model"]), strict=False)
        self.quantizer = None if state["centroids"] is None else quantizer_of(state["centroids"])
        self.means = None if state["means"] is None else state["means"].clone()
        self.old = {name: value.clone() for name, value in state["old"].items()}


def _check_same(own: dict[str, Tensor], others: dict[str, Tensor], place: str) -> None:
    for name in {**own, **others}:
        mine, other = (one[name].shape if name in one else None for one in (own, others))
        if mine != other:
            raise StateError(f"{name} in {place} of the trained layers has the shape {other}, not {mine}")


def _freeze_norms(layers: nn.Module) -> None:
    """Freeze statistics and weights of batch norms: a clip of one class says nothing of those of all images."""
    for name, layer in layers.named_children():
        if isinstance(layer, nn.BatchNorm2d) and type(layer) is not nn.BatchNorm2d:  # of timm, with its activation
            from timm.utils.model import freeze_batch_norm_2d

            setattr(layers, name, freeze_batch_norm_2d(layer))
        elif isinstance(layer, nn.BatchNorm2d):
            from torchvision.ops.misc import FrozenBatchNorm2d  # takes a second to import

            frozen = FrozenBatchNorm2d(layer.num_features, layer.eps)
            frozen.load_state_dict(layer.state_dict())
            setattr(layers, name, frozen)
        else:
            _freeze_norms(layer)


def quantizer_of(centroids: Tensor) -> ProductQuantizer:
    """Rebuild a quantizer from its ``(m, K, d)`` centroids."""
    groups, size, length = centroids.shape
    quantizer = ProductQuantizer(groups * length, groups, size)
    quantizer.centroids.copy_(centroids)
    return quantizer
