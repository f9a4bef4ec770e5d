"""A learner as one ``nn.Module`` from pixels to scores, whose weights are constants and which exporters can trace."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.evidence import evidence
from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.models.split_model import SplitModel


def _triangle(distances: Tensor) -> Tensor:
    return (1 - distances).clamp_min(0)


def _cubic(distances: Tensor) -> Tensor:
    """Return Pillow's bicubic filter (Catmull-Rom: the parameter is -0.5)."""
    near = (1.5 * distances - 2.5) * distances**2 + 1
    far = ((2.5 - 0.5 * distances) * distances - 4) * distances + 2
    return torch.where(distances < 1, near, torch.where(distances < 2, far, torch.zeros_like(distances)))


FILTERS = {"bilinear": _triangle, "bicubic": _cubic}


class Resize(nn.Module):
    """Resize ``(B, H, W, 3)`` uint8 images of any size; ``(B, 3, size, size)`` float64 pixels, whole numbers 0 to 255.

    Two matrix products with the weights of Pillow's filter, which are multiples of ``2**-22``, so that their
    sums are exact in double precision. The result is that of ``PixelTransform``, or one level beside it: of pixels with
    a tie, and of images that Pillow resizes along their height first. ONNX's own ``Resize`` with ``antialias=1`` is up
    to 19 levels from Pillow in ONNX Runtime.

    Args:
        size: side in pixels of the results.
        interpolation: ``bilinear`` or ``bicubic``.
    """

    def __init__(self, size: int, interpolation: str = "bilinear"):
        super().__init__()
        self.size, self.filter = size, FILTERS[interpolation]

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.permute(0, 3, 1, 2).double()
        pixels = _shifted(pixels @ self._weights(images.shape[2], images.device, 0))
        return _shifted(self._weights(images.shape[1], images.device, 1) @ pixels)

    def _weights(self, length: int, device: torch.device, axis: int) -> Tensor:
        """Compute ``2**22`` times the weights of the filter, from ``length`` pixels on ``axis`` to ``size``.

        Not transposed afterwards: ONNX Runtime before 1.20 has no product with a transposed matrix of doubles.
        """
        places = torch.arange(length, device=device).double()
        # From the tensor, because exporters trace it; of one axis, because they take scalars to be float32.
        scale = (places[-1:] + 1) / self.size
        centres = (torch.arange(self.size, device=device).double() + 0.5) * scale
        differences = places.unsqueeze(1 - axis) - centres.unsqueeze(axis)
        weights = self.filter((differences + 0.5).abs() * (1 / scale.clamp_min(1)))
        return (weights / weights.sum(axis, keepdim=True) * 2**22 + 0.5).floor()


def _shifted(pixels: Tensor) -> Tensor:
    return (pixels * 2**-22 + 0.5).floor().clamp(0, 255)


class Features(nn.Module):
    """Features ``(B, D)`` float32 of ``(B, 3, h, w)`` pixels from 0 to 255, as ``FeatureMoments`` computes them.

    Args:
        model: its plastic layers are an ``nn.Sequential`` with the head in it.
        moments: says which features.
    """

    def __init__(self, model: SplitModel, moments: FeatureMoments):
        super().__init__()
        self.extract, self.moments, self.grid = model.feature_extractor, moments, model.places
        self.mean, self.std, self.scale = model.pixel_mean, model.pixel_std, model.feature_scale
        names = [name for name, _ in model.plastic_layers.named_children()]
        self.below_head = model.plastic_layers[: names.index(model.head)].eval()

    def forward(self, pixels: Tensor) -> Tensor:
        maps = self.extract((pixels.float() / 255 - self.mean) / self.std) * self.scale
        layers = [self.grid(maps)] if self.moments.maps else []
        return self.moments.of_layers([*layers, self.below_head(maps)], moments=_mean_and_deviation)


def _mean_and_deviation(values: Tensor) -> tuple[Tensor, Tensor]:
    places = values.flatten(2)
    mean = places.mean(2)
    return mean, (places - mean.unsqueeze(2)).square().mean(2).sqrt()


class Probabilities(nn.Module):
    """Softmax of scores at a temperature."""

    def __init__(self, temperature: float):
        super().__init__()
        self.temperature = temperature

    def forward(self, features: Tensor, scores: Tensor) -> tuple[Tensor]:
        return ((scores / self.temperature).softmax(1).float(),)


class Familiarity(nn.Module):
    """``Confidence.familiarity`` and whether it says that an image is known, traced from the code of both modules."""

    def __init__(self, statistics: ClosedForm, confidence: Confidence):
        super().__init__()
        self.statistics, self.confidence = statistics, confidence

    def forward(self, features: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        familiarity = self.confidence.familiarity(evidence(self.statistics, features, scores))
        return familiarity.float(), familiarity >= 0


def _constant(value: Any) -> Any:
    """Return the tensor or number of a constant of torch's exporter."""
    node = value.node()
    return node.t("value") if node.kindOf("value") == "t" else value.toIValue()


def _solve_triangular(graph, root: Any, values: Any, upper: Any, left: Any, unitriangular: Any) -> Any:
    # In single precision: the inverse of a covariance's root is most of the file.
    inverse = graph.op("Constant", value_t=torch.linalg.inv(_constant(root)).float())
    values = graph.op("Cast", values, to_i=torch.onnx.TensorProtoDataType.FLOAT)
    product = graph.op("MatMul", *((inverse, values) if _constant(left) else (values, inverse)))
    return graph.op("Cast", product, to_i=torch.onnx.TensorProtoDataType.DOUBLE)


def _cholesky_solve(graph, values: Any, root: Any, upper: Any) -> Any:
    matrix = _constant(root)
    return graph.op("MatMul", graph.op("Constant", value_t=torch.linalg.inv(matrix @ matrix.mT)), values)


# What torch's exporter does not know; solves with a constant matrix become products with its inverse. The first
# arguments have no annotation: torch 2.4 raises for one that is not a class.
OPERATORS: dict[str, Callable] = {
    "aten::mT": lambda graph, matrix: graph.op("Transpose", matrix, perm_i=[1, 0]),
    "aten::linalg_solve_triangular": _solve_triangular,
    "aten::cholesky_solve": _cholesky_solve,
}


class Graph(nn.Module):
    """Scores ``(B, classes)`` float32 of ``(B, H, W, 3)`` uint8 images, and further answers from them.

    Args:
        model, moments: the network and its features.
        statistics: what is learned; classes without images have no column.
        size: side in pixels to which images are resized.
        further: modules from features and scores to a tuple of tensors each.
    """

    def __init__(
        self,
        model: SplitModel,
        moments: FeatureMoments,
        statistics: ClosedForm,
        size: int,
        further: Iterable[nn.Module] = (),
    ):
        super().__init__()
        self.resize, self.features = Resize(size, model.interpolation), Features(model, moments)
        self.classifier = statistics.solution()
        self.further = nn.ModuleList(further)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        features = self.features(self.resize(images))
        scores = self.classifier(features)
        return scores.float(), *(output for module in self.further for output in module(features, scores))
