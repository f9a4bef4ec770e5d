"""Warn where training on the first experience of a stream taught nothing."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from crumb_avalanche.memory.buffers import StreamBatch
from crumb_avalanche.models.calibration import LOSSY, kept_text
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.models.split_model import SplitModel

IMAGES = 32  # whose maps are tested, at most: 11 MB with SqueezeNet
# Share of the way from chance to no error, below which a network has learned little.
LITTLE = 0.25


class FirstExperience:
    """Tests a network on images of the first experience that it was trained on.

    A network whose learning rate, weights or codes do not fit stays near chance, and
    then its accuracy on the stream is low whatever the method does against forgetting.
    F is frozen, so that maps of the first epoch are those of the trained network.
    """

    def __init__(self) -> None:
        self._maps: list[Tensor] = []  # (C, H, W) each
        self._labels: list[int] = []

    def observe(self, batch: StreamBatch, position: int, n_images: int) -> None:
        """Keep the maps of some images, evenly spread over the experience.

        Args:
            batch: of the first epoch.
            position: of its first image among those of the experience.
            n_images: number of images of the experience.
        """
        for index, label in enumerate(batch.label_numbers):
            # Of all positions, about IMAGES fulfil this: one in images / IMAGES.
            is_tested = (position + index) * IMAGES % n_images < IMAGES
            if is_tested:
                self._maps.append(batch.feature_map[index].clone())
                self._labels.append(label)

    def finish(
        self, model: SplitModel, n_classes: int, mask: Callable[[Tensor], Tensor]
    ) -> None:
        """Warn if the network answers the images that were observed hardly by chance.

        Their maps and labels are forgotten then.

        Args:
            model: the network after the experience.
            n_classes: number of classes in the experience.
            mask: function that masks ``(B, classes)`` logits of classes not seen.
        """
        if self._labels and n_classes > 1:
            is_right = self._answers(model, mask) == torch.tensor(self._labels)
            accuracy = float(is_right.float().mean())
            chance = 1 / n_classes
            # A quarter of the way from chance to no error.
            least_accuracy = chance + LITTLE * (1 - chance)
            if accuracy < least_accuracy:
                _warn_of_chance(model, accuracy, chance)
        self._maps = []
        self._labels = []

    @torch.no_grad()
    def _answers(self, model: SplitModel, mask: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the classes ``(N,)`` that the network answers for the maps.

        It runs as in evaluation.
        """
        with evaluating(model):
            logits = mask(model.classify(torch.stack(self._maps)))
        return logits.argmax(1).cpu()


def _warn_of_chance(model: SplitModel, accuracy: float, chance: float) -> None:
    """Warn of an accuracy near chance, and name what may cure it.

    Args:
        model: the network after the first experience.
        accuracy: share of the experience's images that it answers right, 0 to 1.
        chance: accuracy of guessing, 0 to 1.
    """
    cures = [
        "try other learning rates (crumb run --family fair tries five on this "
        "experience, in Python lr_search.tune)",
        "train it longer with first_epochs",
    ]
    error = model.codes_error  # None where it was not measured
    if error is not None and error > LOSSY:
        share_text = kept_text(error)  # such as "40 %"
        cures.append(
            f"take codes that keep more of the maps than {share_text}: "
            "--preset tuned, or Codebook(search='distance', filtered=True)"
        )
    cures.append("take pretrained weights, and images normalised as they expect")
    warnings.warn(
        f"after the first experience the network names {100 * accuracy:.0f} % of its "
        f"own images, where guessing names {100 * chance:.0f} %, so it will hardly "
        f"learn the others: {'; or '.join(cures)}",
        stacklevel=4,
    )
