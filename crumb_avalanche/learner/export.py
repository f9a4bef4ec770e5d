"""Export a learner to ONNX, and check that the result answers as the learner does.

The graph is traced from the code that answers: pixels, features,
``ClosedForm.classifier``, evidence and confidence. Only resizing, which Pillow does, is
written a second time.
"""

import copy
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from benchmarks_toybox_ilab.tables.forks import never_freed_in_forks
from crumb_avalanche import __version__
from crumb_avalanche.images.looks import LookTransform
from crumb_avalanche.images.sources import clips_of
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.predictor import NothingTaughtError
from crumb_avalanche.models.runtimes import OPSET, onnx_bytes

SCORE_TOLERANCE = (
    1e-3  # largest difference of a score, relative to the largest score of the image
)
LABEL_TOLERANCE = 1 / 500  # share of images whose label may differ
PROBABILITY_TOLERANCE = 1e-2  # largest difference of a probability
NOISE_IMAGES = 32
PRODUCER = "crumb-avalanche"  # in the graph
OUTPUTS = ("scores", "probabilities", "known")


class ExportError(ValueError):
    """The learner cannot be exported, or its graph does not answer as it does."""


@dataclass(frozen=True)
class Parity:
    """Comparison of an exported graph with its learner.

    Attributes:
        images: number of images.
        score_error: largest difference of a score for the same resized image, relative
            to the largest score of the image.
        other_labels: images with another label if the graph resizes them.
        probability_error: largest difference for the same resized image.
        other_known: images that the graph, if it resizes them, calls known and the
            learner not, or the reverse.
    """

    images: int
    score_error: float
    other_labels: int
    probability_error: float = 0.0
    other_known: int = 0

    @property
    def holds(self) -> bool:
        """Whether all are within their tolerances."""
        is_same_before_resizing = (
            self.score_error <= SCORE_TOLERANCE
            and self.probability_error <= PROBABILITY_TOLERANCE
        )
        return (
            is_same_before_resizing
            and self.other_labels <= self._allowed
            and self.other_known <= self._allowed_known
        )

    @property
    def _allowed(self) -> int:
        """Number of images that may have another label."""
        return int(self.images * LABEL_TOLERANCE)

    @property
    def _allowed_known(self) -> int:
        """Number of images that may be known to one and unknown to the other."""
        return max(1, self._allowed)

    def __str__(self) -> str:
        return (
            f"{self.images} images: scores differ by at most {self.score_error:.1e} of "
            f"the largest one (allowed {SCORE_TOLERANCE:.0e}), labels of "
            f"{self.other_labels} (allowed {self._allowed}), probabilities by at most "
            f"{self.probability_error:.1e} (allowed {PROBABILITY_TOLERANCE:.0e}), "
            f"known or unknown of {self.other_known} (allowed {self._allowed_known})"
        )


def export_onnx(
    learner: Learner, path: str | os.PathLike, images: Any = None
) -> Parity:
    """Write a learner as an ONNX file, after a check in ONNX Runtime.

    Input ``images`` is ``(batch, height, width, 3)`` uint8, RGB, of any size. Outputs
    are ``scores``, of which the largest is the answer, and ``probabilities``, both
    ``(batch, classes)`` float32, and ``known``, ``(batch,)`` bool, whether the largest
    probability is enough to name the class; it is true where ``Answer.known`` is
    ``None``. The sum of the probabilities is that of any class. The metadata hold
    ``classes`` (a JSON list of names, in the order of the scores), ``method``,
    ``backbone``, ``image_size`` and ``weights_sha256``, the hash of the network's
    weights.

    Args:
        learner: a learner with at least one class.
        path: the file; an existing one is replaced.
        images: images to compare the two on, as for ``Learner.predict_all``; default
            noise of several sizes.

    Returns:
        The comparison.

    Raises:
        ImportError: onnx or onnxruntime is not installed.
        LearnerError: the learner can only be asked.
        NothingTaughtError: nothing was taught.
        ExportError: the method has an operation that ONNX lacks, or the graph answers
            otherwise than the learner; no file is written, and an existing one is
            unchanged.
    """
    _, onnxruntime = _onnx_modules()  # raises if they are not installed
    learner.check_teachable()  # raises if it can only be asked
    with learner._lock:
        if not learner.classes:
            raise NothingTaughtError(
                "nothing was taught yet: there is nothing to export; teach the learner "
                "first"
            )
        network = learner.network
        if network.interpolation not in FILTERS:
            raise ExportError(
                f"{network.backbone} takes images resized with "
                f"{network.interpolation}, which is not exported; "
                f"{' and '.join(FILTERS)} are"
            )
        graph = onnx_graph(learner)
        session = onnxruntime.InferenceSession(
            graph, providers=["CPUExecutionProvider"]
        )
        never_freed_in_forks(session)  # which would wait for threads of the parent
        if images is None:
            images = _noise_images(network.image_size)
        parity = compare(learner, session, images)
    if not parity.holds:
        raise ExportError(
            "the ONNX graph answers otherwise than the learner, so no file is written; "
            f"on {parity}"
        )
    with atomic_write(path) as file:
        file.write(graph)
    return parity


def is_export(path: str | os.PathLike) -> bool:
    """Whether a file is an ONNX graph that ``export_onnx`` wrote.

    Raises:
        ImportError: onnx is not installed.
    """
    onnx, _ = _onnx_modules()
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(path, load_external_data=False).producer_name == PRODUCER
    except DecodeError:
        return False


def _onnx_modules() -> tuple[Any, Any]:
    """Return ``onnx`` and ``onnxruntime``, or raise ImportError that says the cure."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        cure = 'pip install -e ".[onnx]"'
        raise ImportError(
            f"the export to ONNX needs onnx and onnxruntime: {cure}"
        ) from error
    return onnx, onnxruntime


# The graph


def _cubic(distances: Tensor) -> Tensor:
    """Return Pillow's bicubic filter (Catmull-Rom: the parameter is -0.5)."""
    near = (1.5 * distances - 2.5) * distances**2 + 1
    far = ((2.5 - 0.5 * distances) * distances - 4) * distances + 2
    beyond = torch.zeros_like(distances)
    outer = torch.where(distances < 2, far, beyond)
    return torch.where(distances < 1, near, outer)


FILTERS = {
    "bilinear": lambda distances: (1 - distances).clamp_min(0),
    "bicubic": _cubic,
}


class Resize(nn.Module):
    """Resize the middle of ``(B, H, W, 3)`` uint8; see ``MiddleTransform``.

    Images have any size. Pixels are ``(B, 3, size, size)`` float64, whole numbers 0 to
    255.

    Two matrix products with the weights of Pillow's filter, which are multiples of
    ``2**-22``, so that their sums are exact in double precision. The result is that of
    ``PixelTransform``, or one level beside it: of pixels with a tie, and of images that
    Pillow resizes along their height first. ONNX's own ``Resize`` is up to 19 levels
    from Pillow.
    """

    def __init__(self, size: int, interpolation: str = "bilinear", share: float = 1.0):
        super().__init__()
        self.size = size
        self.filter = FILTERS[interpolation]
        self.margin = (1 - share) / 2

    def forward(self, images: Tensor) -> Tensor:
        """Resize images."""
        pixels = images.permute(0, 3, 1, 2).double()
        pixels = _shifted(pixels @ self._weights(images.shape[2], images.device, 0))
        return _shifted(self._weights(images.shape[1], images.device, 1) @ pixels)

    def _weights(self, length: int, device: torch.device, axis: int) -> Tensor:
        """Compute the weights with which an image is resized along an axis, as Pillow.

        They are ``2**22`` times the values of the filter, in whole numbers, as Pillow
        has them for 8 bits. They lead from the middle of ``length`` pixels to ``size``
        pixels, and are not transposed afterwards: ONNX Runtime before 1.20 has no
        product with a transposed matrix of doubles.

        Args:
            length: of the image along the axis, in pixels.
            device: of the result.
            axis: of the result along which the ``length`` pixels lie.

        Returns:
            ``(length, size)`` float64 for axis 0, ``(size, length)`` for axis 1.
        """
        positions = torch.arange(length, device=device).double()
        # From the tensor, because exporters trace it; of one axis, because they take
        # scalars to be float32.
        last = positions[-1:]  # of which the length is 1 more
        # Pixels left out on each side, at most so many that one or two are left.
        rounded_margin = ((last + 1) * self.margin + 0.5).floor()
        margin = torch.minimum(rounded_margin, (last / 2).floor())
        scale = (last + 1 - 2 * margin) / self.size
        new_positions = torch.arange(self.size, device=device).double()
        centres = (new_positions + 0.5) * scale + margin
        # From the centre of each new pixel to that of an old one, at its number + 0.5.
        # An image that becomes smaller has a filter that is wider by the scale.
        differences = positions.unsqueeze(1 - axis) - centres.unsqueeze(axis)
        distances = (differences + 0.5).abs() * (1 / scale.clamp_min(1))
        is_inside = (positions >= margin) & (positions <= last - margin)
        weights = self.filter(distances) * is_inside.double().unsqueeze(1 - axis)
        return (weights / weights.sum(axis, keepdim=True) * 2**22 + 0.5).floor()


def _shifted(pixels: Tensor) -> Tensor:
    """Return levels of ``2**22`` times as many: rounded, 0 to 255, as Pillow does."""
    return (pixels * 2**-22 + 0.5).floor().clamp(0, 255)


class Graph(nn.Module):
    """Compute ``OUTPUTS`` of ``(B, H, W, 3)`` uint8 images.

    What is learned is a constant, in double precision.
    """

    def __init__(self, learner: Learner):
        super().__init__()
        network = learner.network
        self.classifier = learner._classifier
        self.model = copy.copy(network.model)  # whose F no other runtime runs
        self.resize = nn.ModuleList(
            Resize(network.image_size, network.interpolation, share)
            for share in self.classifier.shares
        )
        self.classifier.draw_nothing(self.model)
        # What follows from the classes alone is computed and cached by a first image,
        # so that it is a constant of the graph.
        length = self.classifier.looks.n_views * self.classifier.length
        features = torch.zeros(1, length, dtype=torch.float32)
        self.classifier.confidence.log_odds(self.classifier.evidence(features))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Compute ``OUTPUTS``."""
        classifier = self.classifier
        looks = [resize(images).to(torch.uint8) for resize in self.resize]
        pixels = torch.stack(looks, 1)
        features = classifier.compute(self.model, pixels, classifier.shares)
        evidence = classifier.evidence(features)
        scores = evidence.scores * classifier.statistics.temperature
        confidence = classifier.confidence
        probabilities = confidence.probabilities(evidence)
        known = confidence.known(probabilities, evidence, classifier.strict)
        return scores.float(), probabilities.float(), known


def _constant(value: Any) -> Any:
    """Return the tensor or number of a constant of torch's exporter."""
    node = value.node()
    return node.t("value") if node.kindOf("value") == "t" else value.toIValue()


def _solve_triangular(
    graph, root: Any, values: Any, upper: Any, left: Any, unitriangular: Any
) -> Any:
    """Make ONNX's product for ``linalg.solve_triangular`` with a constant ``root``.

    ONNX cannot solve, so the values are multiplied by the inverse. In single precision,
    because the inverse of a covariance's root is most of the file.

    Args:
        graph: of torch's exporter, which the operations are added to.
        root: ``(D, D)`` triangular matrix, constant in the graph.
        values: ``(n, D)`` or ``(D, n)`` float64.
        upper, left, unitriangular: the other arguments of torch's operator.
    """
    inverse = graph.op("Constant", value_t=torch.linalg.inv(_constant(root)).float())
    values = graph.op("Cast", values, to_i=torch.onnx.TensorProtoDataType.FLOAT)
    if _constant(left):
        product = graph.op("MatMul", inverse, values)
    else:
        product = graph.op("MatMul", values, inverse)
    return graph.op("Cast", product, to_i=torch.onnx.TensorProtoDataType.DOUBLE)


def _cholesky_solve(graph, values: Any, root: Any, upper: Any) -> Any:
    """Make a product of ``cholesky_solve`` with a constant ``root``."""
    matrix = _constant(root)
    inverse = graph.op("Constant", value_t=torch.linalg.inv(matrix @ matrix.mT))
    return graph.op("MatMul", inverse, values)


# What torch's exporter does not know; solves with a constant matrix become products
# with its inverse. The first arguments have no annotation: torch 2.4 raises for one
# that is not a class.
OPERATORS: dict[str, Callable] = {
    "aten::mT": lambda graph, matrix: graph.op("Transpose", matrix, perm_i=[1, 0]),
    "aten::linalg_solve_triangular": _solve_triangular,
    "aten::cholesky_solve": _cholesky_solve,
}


@contextmanager
def more_operators() -> Iterator[None]:
    """Let torch's exporter know ``OPERATORS``."""
    for name, function in OPERATORS.items():
        torch.onnx.register_custom_op_symbolic(name, function, OPSET)
    try:
        yield
    finally:
        for name in OPERATORS:
            torch.onnx.unregister_custom_op_symbolic(name, OPSET)


def onnx_graph(learner: Learner) -> bytes:
    """Convert a learner to an ONNX graph; return the bytes of its file.

    Raises:
        ExportError: the method has an operation that ONNX lacks.
    """
    import onnx

    network = learner.network
    classifier = learner._classifier
    # Of another height than width, so that none is taken for the other.
    shape = (2, network.image_size + 1, network.image_size + 2, 3)
    example = torch.zeros(shape, dtype=torch.uint8)
    # The input comes first, and the outputs in their order.
    axes = {"images": {0: "batch", 1: "height", 2: "width"}}
    axes |= {name: {0: "batch"} for name in OUTPUTS}
    with more_operators():
        try:
            graph = onnx_bytes(Graph(learner).eval(), example, axes)
        except torch.onnx.errors.OnnxExporterError as error:
            reason = str(error).splitlines()[0]
            raise ExportError(
                f"method {learner.method} has an operation that ONNX lacks: {reason}"
            ) from error
    model = onnx.load_from_string(graph)
    model.producer_name = PRODUCER
    model.producer_version = __version__
    names = [classifier.classes.names[number] for number in classifier.classes.numbers]
    metadata = {
        "classes": json.dumps(names, ensure_ascii=False),
        "method": learner.method,
        "backbone": network.backbone,
        "image_size": str(network.image_size),
        "weights_sha256": network.sha256,
    }
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    return model.SerializeToString()


# Parity


@dataclass(frozen=True)
class _Difference:
    """How the graph differs from the learner for one image; see ``Parity``."""

    score_error: float
    probability_error: float
    other_label: bool
    other_known: bool


def compare(learner: Learner, session: Any, images: Any) -> Parity:
    """Compare the answers of a learner with those of its graph in ONNX Runtime.

    Args:
        learner: the learner.
        session: of its graph.
        images: paths, images or arrays; what cannot be read is left out.

    Returns:
        The largest differences of scores and probabilities, and the numbers of images
        with another answer.

    Raises:
        ValueError: none could be read.
    """
    differences: list[_Difference] = []
    for clip in clips_of(images, on_bad="skip"):
        for _, image in clip.frames:
            differences.append(_difference(learner, session, image))
    if not differences:
        raise ValueError(
            "none of the images to compare on could be read; give a folder with photos"
        )
    return Parity(
        images=len(differences),
        score_error=max(image.score_error for image in differences),
        other_labels=sum(image.other_label for image in differences),
        probability_error=max(image.probability_error for image in differences),
        other_known=sum(image.other_known for image in differences),
    )


def _difference(learner: Learner, session: Any, image: Image.Image) -> _Difference:
    """Compare the answers of a learner and of its graph for an image.

    Scores and probabilities are compared on the image as the learner resizes it; label
    and known on the image itself, which the graph resizes.

    Args:
        learner: the learner.
        session: of ONNX Runtime, with its graph.
        image: RGB, of any size.
    """
    network = learner.network
    whole = PixelTransform(network.image_size, network.interpolation)
    # `(H, W, 3)`, in the order of memory that Pillow and ONNX Runtime read.
    resized = whole(image).permute(1, 2, 0).contiguous().numpy()
    scores, probabilities, _ = _answered(learner, Image.fromarray(resized))
    graph_scores, graph_probabilities = session.run(
        ["scores", "probabilities"], {"images": resized[None]}
    )
    largest_score = max(1e-300, np.abs(scores).max())  # above 0
    score_error = (graph_scores[0] - scores) / largest_score
    probability_error = graph_probabilities[0] - probabilities

    scores, _, known = _answered(learner, image)
    pixels = np.asarray(image.convert("RGB"))
    graph_scores, graph_known = session.run(
        ["scores", "known"], {"images": pixels[None]}
    )
    # By how much the learner prefers its answer to the graph's; classes whose scores
    # are level may change places.
    lead_of_answer = scores.max() - scores[graph_scores[0].argmax()]
    return _Difference(
        score_error=_largest(score_error),
        probability_error=_largest(probability_error),
        other_label=bool(lead_of_answer > SCORE_TOLERANCE * np.abs(scores).max()),
        other_known=bool(graph_known[0] != known),
    )


def _answered(
    learner: Learner, image: Image.Image
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the learner's answer for an image, in the form of the graph's outputs.

    Returns:
        Scores and probabilities, ``(C,)`` each, and whether the image is known.
    """
    classifier = learner._classifier
    network = learner.network
    shares = classifier.shares  # sides of the parts of an image that are looked at
    transform = LookTransform(shares, network.image_size, network.interpolation)
    features = classifier.compute(network.model, transform(image)[None], shares)
    evidence = classifier.evidence(features)  # scores of the classes, and typicality
    # Evidence has the scores of the method divided by its temperature.
    scores = evidence.scores[0] * classifier.statistics.temperature
    confidence = classifier.confidence
    probabilities = confidence.probabilities(evidence)
    known = confidence.known(probabilities, evidence, classifier.strict)
    return scores.numpy(), probabilities[0].numpy(), bool(known)


def _largest(differences: np.ndarray) -> float:
    """Return the largest absolute value; infinity if one is NaN."""
    return float(np.nan_to_num(np.abs(differences), nan=np.inf).max())


def _noise_images(size: int) -> list[Image.Image]:
    """Draw images of coloured blots in several sizes and shapes.

    Args:
        size: side of the network's images in pixels, which the sizes are around.
    """
    random = np.random.default_rng(0)
    sizes = [
        (size, size),
        (2 * size + 1, size),
        (size // 2 + 1, 3 * size),
        (5 * size, 4 * size),
    ]
    blots = random.integers(0, 256, (NOISE_IMAGES, 8, 8, 3), dtype=np.uint8)
    images = []
    for number, pixels in enumerate(blots):
        image = Image.fromarray(pixels)
        images.append(image.resize(sizes[number % len(sizes)]))
    return images
