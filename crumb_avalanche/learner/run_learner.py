"""The learner of a finished run of any strategy, which can be asked."""

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.learner.answer import Answer, only_answer
from crumb_avalanche.learner.clip import BadImage, Clip, OnBad, warn
from crumb_avalanche.learner.evidence import TEMPERATURES
from crumb_avalanche.learner.file import LEARNER, LearnerError, load_to_answer
from crumb_avalanche.learner.knowledge import RUNNERS_UP, ClassInfo
from crumb_avalanche.learner.pixels import AT_A_TIME, batches
from crumb_avalanche.learner.sources import clips_to_ask
from crumb_avalanche.models.runtimes import Runtime, use_runtime
from crumb_avalanche.training.data import unlabelled_experience
from crumb_avalanche.training.plugins import OutputsPlugin


def probabilities(strategy: Any, outputs: Tensor) -> Tensor:
    """Return the softmax of a strategy's ``(B, classes)`` outputs, at the usual temperature of a closed form."""
    kind: Any = type(getattr(strategy, "statistics", None))
    return (outputs.double() / TEMPERATURES.get(kind, 1.0)).softmax(1)


class RunLearner:
    """Answers as the evaluation of a finished run did, for any strategy. It cannot be taught.

    Confidence is the softmax of the strategy's outputs and not calibrated; ``Answer.known`` is ``None``, because these
    methods do not tell unknown images.

    Args:
        path: the folder of a run, or its ``learner.safetensors``.

    Attributes:
        note: what a person who reads the answers should know.
        method: name of the strategy.
        image_size: side in pixels to which images are resized.
        classes: the classes of the run, in order of arrival.

    Raises:
        LearnerError: see ``load_learner``.
    """

    note = "confidence is the softmax of the method's outputs, not calibrated, and unknown images are not told"

    def __init__(self, path: str | os.PathLike):
        saved = load_to_answer(Path(path) / LEARNER if os.path.isdir(path) else path)
        self._strategy, header = saved.strategy, saved.header
        if not {"size", "interpolation"} <= header.transform.keys() or not header.classes:
            raise LearnerError(f"{path} says of no class or image size; take a copy, or repeat the run")
        self.method, self.image_size = header.strategy, int(header.transform["size"])
        self._interpolation = header.transform["interpolation"]
        self.classes = [ClassInfo(one["name"], one["images"], 0) for one in header.classes]
        self._labels = [one["label"] for one in header.classes]
        self._outputs = OutputsPlugin()
        self._strategy.plugins.append(self._outputs)
        self._lock = threading.Lock()

    @property
    def runtime(self) -> Runtime:
        """The runtime in use."""
        return self._strategy.model.runtime

    def use_runtime(self, name: str) -> Runtime:
        """Let a runtime run the frozen layers; see ``Learner.use_runtime``."""
        return use_runtime(self._strategy.model, name)

    def predict(self, source: Any, on_bad: OnBad = "raise") -> Answer:
        """Answer for an image or a clip; see ``Learner.predict``."""
        return only_answer(self.predict_all(source, on_bad=on_bad))

    def predict_all(
        self, source: Any, on_bad: OnBad = "raise", report: Callable[[BadImage], object] = warn
    ) -> Iterator[Answer]:
        """Answer for each image and clip of a source, in order; see ``Learner.predict_all``."""
        for clip in clips_to_ask(source, self.classes, on_bad=on_bad, report=report):
            paths: list[str] = []
            outputs: list[Tensor] = []
            for some, pixels in batches(clip.frames, AT_A_TIME, self.image_size, self._interpolation):
                with self._lock:
                    computed = self._evaluate(pixels)
                if os.path.isdir(clip.path):
                    yield from self._answers(clip, some, computed)[0]
                else:
                    paths, outputs = paths + some, [*outputs, computed]
            if paths:
                yield self._answers(clip, paths, torch.cat(outputs))[1]

    def _answers(self, clip: Clip, paths: list[str], outputs: Tensor) -> tuple[tuple[Answer, ...], Answer]:
        """Answer for each frame, and for the clip by the mean of their ``(n, classes)`` outputs."""
        shares = probabilities(self._strategy, torch.cat([outputs, outputs.mean(0, keepdim=True)]))[:, self._labels]
        if not shares.isfinite().all():
            raise LearnerError(
                "the learner of this run gives answers that are not finite; take a copy, or repeat the run"
            )
        best = shares.sort(dim=1, descending=True, stable=True).indices[:, : RUNNERS_UP + 1].tolist()
        ranked = [
            tuple((self.classes[place].name, float(row[place])) for place in places)
            for row, places in zip(shares, best)
        ]
        frames = tuple(Answer(*one[0], None, one[1:], path, clip.label) for one, path in zip(ranked, paths))
        if len(frames) == 1:
            return frames, frames[0]
        return frames, Answer(*ranked[-1][0], None, ranked[-1][1:], clip.path, clip.label, frames)

    def _evaluate(self, pixels: Tensor) -> Tensor:
        """Return the ``(B, classes)`` outputs of an evaluation of ``(B, 3, h, w)`` uint8 pixels."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "No loggers specified")
            try:
                self._strategy.eval(unlabelled_experience(pixels))
            except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise LearnerError(
                    f"the learner of this run cannot answer ({reason}); take a copy, or repeat it"
                ) from error
        return torch.cat(self._outputs.outputs)
