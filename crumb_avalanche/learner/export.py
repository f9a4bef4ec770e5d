"""Export a learner to ONNX, and check that the result answers as the learner does."""

import io
import itertools
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from crumb_avalanche._version import __version__
from crumb_avalanche.learner.evidence import TEMPERATURES, evidence
from crumb_avalanche.learner.graph import FILTERS, OPERATORS, Familiarity, Graph, Probabilities
from crumb_avalanche.learner.kinds import KINDS, REPLAY
from crumb_avalanche.learner.learner import Learner, NothingTaughtError
from crumb_avalanche.learner.pixels import AT_A_TIME, batches
from crumb_avalanche.learner.sources import clips_of
from crumb_avalanche.system.atomic_file import atomic_write

SCORE_TOLERANCE = 1e-3  # largest difference of a score, relative to the largest score of the image
LABEL_TOLERANCE = 1 / 500  # share of images whose label may differ
FAMILIARITY_TOLERANCE = 1e-2  # largest difference of the familiarity, in standard deviations
NOISE_IMAGES = 32
OPSET = 17  # of 2022, which every runtime has; nothing newer is needed
PRODUCER = "crumb-avalanche"  # in the graph
NEEDED = "the export to ONNX needs onnx and onnxruntime: pip install 'crumb-avalanche[onnx]'"


class ExportError(ValueError):
    """The learner cannot be exported, or the exported graph does not answer as the learner does."""


@dataclass(frozen=True)
class Parity:
    """Comparison of an exported graph with its learner.

    Attributes:
        images: number of images.
        score_error: largest difference of a score for the same resized image, relative to the image's largest score.
        other_labels: number of images with another label if the graph resizes them.
        familiarity_error: largest difference of the familiarity for the same resized image.
        other_known: number of images of which the graph, if it resizes them, says otherwise whether they are known.
    """

    images: int
    score_error: float
    other_labels: int
    familiarity_error: float = 0.0
    other_known: int = 0

    @property
    def holds(self) -> bool:
        """Whether all are within their tolerances."""
        same_input = self.score_error <= SCORE_TOLERANCE and self.familiarity_error <= FAMILIARITY_TOLERANCE
        return same_input and self.other_labels <= self._allowed and self.other_known <= max(1, self._allowed)

    @property
    def _allowed(self) -> int:
        return int(self.images * LABEL_TOLERANCE)

    def __str__(self) -> str:
        return (
            f"{self.images} images: scores differ by at most {self.score_error:.1e} of the largest one (allowed "
            f"{SCORE_TOLERANCE:.0e}), labels of {self.other_labels} differ (allowed {self._allowed}), the familiarity "
            f"differs by at most {self.familiarity_error:.1e} (allowed {FAMILIARITY_TOLERANCE:.0e}), known or unknown "
            f"of {self.other_known} (allowed {max(1, self._allowed)})"
        )


def export_onnx(learner: Learner, path: str | os.PathLike, images: Any = None) -> Parity:
    """Write a learner as an ONNX file, after a check in ONNX Runtime.

    Input ``images`` is ``(batch, height, width, 3)`` uint8, RGB, of any size. Outputs are ``scores``, of which the
    largest is the answer, and ``probabilities``, both ``(batch, classes)`` float32, ``known``, ``(batch,)`` bool,
    whether a class explains the image, and ``familiarity``, ``(batch,)`` float32, how well: below 0 for unknown images.
    The metadata hold ``classes`` (a JSON list of names, in the order of the scores), ``method``, ``backbone``,
    ``image_size`` and ``weights_sha256``, the hash of the network's weights.

    Args:
        learner: a learner with at least one class.
        path: the file; an existing one is replaced.
        images: images to compare the two on, as for ``Learner.predict_all``; default noise of several sizes.

    Returns:
        The comparison.

    Raises:
        ImportError: onnx or onnxruntime is not installed.
        NothingTaughtError: nothing was taught.
        ExportError: the learner learns by replay or in int8, or the graph answers otherwise than the learner; no file
            is written, and an existing one is unchanged.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError as error:
        raise ImportError(NEEDED) from error
    with learner._lock:
        if not learner.classes:
            raise NothingTaughtError("nothing was taught yet: there is nothing to export; teach the learner first")
        if learner.method in REPLAY:
            raise ExportError(
                f"a learner by replay ({learner.method}) cannot be exported; those in closed form can: "
                f"{', '.join(KINDS)}"
            )
        if learner.runtime.calibration is not None:
            raise ExportError(
                "a learner in int8 cannot be exported, as the graph is in float32: teach a new one with --runtime auto"
            )
        if learner.network.interpolation not in FILTERS:
            raise ExportError(
                f"{learner.network.backbone} takes images resized with {learner.network.interpolation}, which is "
                f"not exported; {' and '.join(FILTERS)} are"
            )
        graph = onnx_graph(learner)
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        parity = compare(learner, session, _noise(learner.network.image_size) if images is None else images)
    if not parity.holds:
        raise ExportError(f"the ONNX graph answers otherwise than the learner, so no file is written; on {parity}")
    with atomic_write(Path(path)) as temporary:
        temporary.write_bytes(graph)
    return parity


def is_export(path: str | os.PathLike) -> bool:
    """Whether a file is an ONNX graph that ``export_onnx`` wrote.

    Raises:
        ImportError: onnx is not installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError(NEEDED) from error
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(path, load_external_data=False).producer_name == PRODUCER
    except DecodeError:
        return False


def onnx_graph(learner: Learner) -> bytes:
    """Convert a learner to an ONNX graph.

    torch's TorchScript exporter is used: unlike the newer one, it works in every version of torch from 2.4 on, needs no
    onnxscript, and takes a second instead of ten.
    """
    import onnx

    network, known = learner.network, learner._knowledge
    # The solution depends on the classes alone; found here, it is a constant of the graph.
    found = evidence(known.statistics, torch.zeros(1, known.length))
    known.confidence.familiarity(found)
    further = [
        Probabilities(TEMPERATURES[type(known.statistics)] * known.confidence.temperature(found)),
        Familiarity(known.statistics, known.confidence),
    ]
    graph = Graph(network.model, learner._features_of_statistics, known.statistics, network.image_size, further).eval()
    names = ["scores", "probabilities", "familiarity", "known"]
    example = torch.zeros(2, network.image_size + 1, network.image_size + 2, 3, dtype=torch.uint8)
    stream = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad(), more_operators():
        warnings.simplefilter("ignore")  # this exporter will be removed one day, and traces shapes
        torch.onnx.export(
            graph,
            (example,),
            stream,
            dynamo=False,
            opset_version=OPSET,
            input_names=["images"],
            output_names=names,
            dynamic_axes={"images": {0: "batch", 1: "height", 2: "width"}, **{name: {0: "batch"} for name in names}},
        )
    model = onnx.load_from_string(stream.getvalue())
    model.producer_name, model.producer_version = PRODUCER, __version__
    metadata = {
        "classes": json.dumps([known.names[number] for number in known.taught], ensure_ascii=False),
        "method": learner.method,
        "backbone": network.backbone,
        "image_size": str(network.image_size),
        "weights_sha256": network.sha256,
    }
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    return model.SerializeToString()


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


def compare(learner: Learner, session: Any, images: Any) -> Parity:
    """Compare a learner with an ONNX Runtime session of its graph on images, as for ``Learner.predict_all``."""
    known, size = learner._knowledge, learner.network.image_size
    count, error, other, familiarity_error, other_known = 0, 0.0, 0, 0.0, 0
    for some in _pieces(frame for clip in clips_of(images, on_bad="skip") for frame in clip.frames):
        ((_, pixels),) = batches(some, AT_A_TIME, size, learner.network.interpolation)
        features = learner._features_of_statistics(learner.network.model, pixels)
        scores = known.statistics.scores(features)[:, known.taught].numpy()
        familiarity = known.confidence.familiarity(evidence(known.statistics, features)).numpy()
        given = {"images": pixels.permute(0, 2, 3, 1).contiguous().numpy()}
        same_input, same_familiarity = session.run(["scores", "familiarity"], given)
        familiarity_error = max(familiarity_error, _largest(same_familiarity - familiarity))
        largest = np.abs(scores).max(1, keepdims=True).clip(1e-300)
        error = max(error, _largest((same_input - scores) / largest))
        for (_, image), expected, is_known in zip(some, scores.argmax(1), familiarity >= 0):
            found, found_known = session.run(["scores", "known"], {"images": np.asarray(image.convert("RGB"))[None]})
            other += int(found[0].argmax() != expected)
            other_known += int(found_known[0] != is_known)
        count += len(some)
    if not count:
        raise ValueError("none of the images to compare on could be read; give a folder with photos")
    return Parity(count, error, other, familiarity_error, other_known)


def _largest(differences: np.ndarray) -> float:
    return float(np.nan_to_num(np.abs(differences), nan=np.inf).max())


def _pieces(frames: Iterator[tuple[str, Image.Image]]) -> Iterator[list[tuple[str, Image.Image]]]:
    while some := list(itertools.islice(frames, AT_A_TIME)):
        yield some


def _noise(size: int) -> list[Image.Image]:
    """Draw images of coloured blots in several sizes."""
    random = np.random.default_rng(0)
    shapes = [(size, size), (2 * size + 1, size), (size // 2 + 1, 3 * size), (5 * size, 4 * size)]
    blots = random.integers(0, 256, (NOISE_IMAGES, 8, 8, 3), dtype=np.uint8)
    return [Image.fromarray(one).resize(shapes[number % len(shapes)]) for number, one in enumerate(blots)]
