"""Answers of what a run left, as the run gave them in its evaluation."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.images.looks import looks_of
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.learner.prediction import RUNNERS_UP, Ranking, rank
from crumb_avalanche.learner.taught_classes import TaughtClasses
from crumb_avalanche.methods.looks import WHOLE
from crumb_avalanche.methods.run_file import load_learner, probabilities
from crumb_avalanche.methods.run_header import LearnerError
from crumb_avalanche.models.extraction import LARGEST_FEATURE
from crumb_avalanche.system.process import preserve_rng_state


class RunAnswers:
    """What answers as the evaluation of a run did, for any strategy.

    It has of ``Classifier`` what answers need. Confidence is not calibrated, and it is
    not known which images are unknown. The RNG state does not change.

    Attributes:
        header: of the file.
        classes: names of the classes, and how many images the run learned of each.
        network: the strategy's model.
        note: what a person who reads the answers should know.

    Raises:
        LearnerError: see ``load_learner``.
    """

    looks = WHOLE
    shares = WHOLE.shares
    strict = 0.0  # a class is always named
    rates = None
    budget_bytes = 0
    missing_clips = 0  # no number is enough: unknown things are never told
    note = (
        "confidence is the softmax of the method's outputs, not calibrated, and "
        "unknown images are not told"
    )

    def __init__(self, path: Path):
        from crumb_avalanche.training.plugins import OutputsPlugin

        with preserve_rng_state():
            self._strategy, self.header = load_learner(path)
        transform, classes = self.header.transform, self.header.classes
        has_image_size = "size" in transform and "interpolation" in transform
        if not has_image_size or not classes:
            raise LearnerError(
                f"{path} names no class or image size; take a copy, or repeat the run"
            )
        self.network = FrozenNetwork(
            model=self._strategy.model,
            arguments={
                "name": self.header.network["name"],
                "image_size": int(transform["size"]),
            },
            source="the run's weights",
            sha256=self.header.weights_sha256,
        )
        self.classes = TaughtClasses()
        self._labels: list[int] = []  # columns of the outputs
        for learned in classes:
            number = self.classes.add(learned["name"])
            self.classes.count(number, learned["images"], n_clips=0)
            self._labels.append(learned["label"])
        self._outputs = OutputsPlugin()
        self._strategy.plugins.append(self._outputs)

    def tensors(self) -> list[Tensor]:
        """Return nothing: no budget counts them."""
        return []

    def compute(self, model: Any, pixels: Tensor, shares: Sequence[float]) -> Tensor:
        """Return the strategy's ``(B, classes)`` outputs, as in its evaluation.

        Args:
            model: not used; ``Classifier.compute`` has it.
            pixels: uint8 of ``B`` images, as ``LookTransform`` returns them.
            shares: not used either: the whole image is looked at, no part of it.

        Raises:
            LearnerError: the strategy cannot be evaluated.
        """
        from crumb_avalanche.training.avalanche_fixes import unlabelled_experience

        # The outputs are collected by a plugin of the strategy.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "No loggers specified")
            try:
                self._strategy.eval(unlabelled_experience(looks_of(pixels)[0]))
            except (
                AttributeError,
                IndexError,
                KeyError,
                RuntimeError,
                TypeError,
            ) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise LearnerError(
                    f"the learner of this run cannot answer ({reason}); take a copy, "
                    "or repeat it"
                ) from error
        # Some strategies mark classes that cannot be the answer by less.
        return torch.cat(self._outputs.outputs).clamp(-LARGEST_FEATURE, LARGEST_FEATURE)

    def evidence(self, outputs: Tensor) -> Tensor:
        """Return what ``ranked`` takes: the outputs."""
        return outputs

    def ranked(self, outputs: Tensor, runners_up: int = RUNNERS_UP) -> list[Ranking]:
        """Rank the classes for each frame, and for all together by their mean outputs.

        Args:
            outputs: ``(n, classes)`` of the strategy for ``n`` frames.
            runners_up: most classes besides the first.

        Returns:
            ``n + 1`` rankings, the last one for all frames. Whether an image is known
            cannot be said.
        """
        outputs = torch.cat([outputs, outputs.mean(0, keepdim=True)])
        class_probabilities = probabilities(self._strategy, outputs)[:, self._labels]
        is_known = [None] * len(outputs)
        names = [info.name for info in self.classes.infos]
        return rank(class_probabilities, names, is_known, runners_up)
