"""CRUMB's readout in closed form: a discriminant of the decoded memories."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.memory.buffers import MemoryBuffer
from crumb_avalanche.methods.closed_form import NO_DENSITY
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.models.extraction import without_autocast
from crumb_avalanche.training.crumb import CRUMBStrategy

# Arguments of ``CRUMBStrategy`` with which nothing is trained and every image is
# offered to the buffer once.
NOTHING_TRAINED = dict(
    direct_weight=0.0,
    codebook_weight=1.0,
    replay_steps=0,
    replay_compute=None,
    first_epochs=1,
    train_epochs=1,
)


@dataclass(frozen=True)
class LinearReadout:
    """A linear classifier; scores are ``features @ weights + offsets``.

    Attributes:
        weights: ``(D, C)`` float32.
        offsets: ``(C,)`` float32.
        labels: ``(C,)`` int64, the class of each column.
    """

    weights: Tensor
    offsets: Tensor
    labels: Tensor

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor, n_classes: int) -> "LinearReadout":
        """Fit a linear discriminant with one covariance.

        It is shrunk more the fewer features there are.

        Args:
            features: ``(N, D)`` float on the CPU, at least one.
            labels: ``(N,)`` int64.
            n_classes: number of classes.

        Returns:
            The classifier of the classes with features.
        """
        statistics = RegularizedDiscriminant(
            n_classes, features.shape[1], whole=True, own=0.0, diagonal=False, span=True
        )
        statistics.update(features, labels)
        solution = statistics.solved()
        # -|z - m|^2 / 2 without |z|^2, for z = (x - centre) projection.
        weights = solution.projection @ solution.means.mT
        squared_lengths = solution.means.square().sum(1)
        offsets = -squared_lengths / 2 - solution.centre @ weights
        return cls(
            weights=weights.float(),
            offsets=offsets.float(),
            labels=statistics.image_counts.nonzero().flatten(),
        )

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> "LinearReadout":
        """Build it from copies of what ``state_dict`` returned."""
        return cls(**{name: tensor.clone() for name, tensor in state.items()})

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return dict(vars(self))

    def scores(self, features: Tensor) -> Tensor:
        """Compute ``(B, C)`` float64 of ``(B, D)`` float64 features."""
        return features @ self.weights.double() + self.offsets.double()


class ReadoutStrategy(CRUMBStrategy):
    """CRUMB that answers by a linear discriminant of its memories instead of its head.

    The discriminant is fitted to features of the decoded memories: means and deviations
    over locations, of the map and of the head's input. Images to evaluate are encoded
    and decoded too. It is fitted from scratch to all memories when an evaluation
    begins, and nothing but the codes is kept for it.

    Args:
        train_layers: train as CRUMB does; else nothing is trained.
        crumb_arguments: see ``CRUMBStrategy``.
    """

    def __init__(self, *, train_layers: bool = True, **crumb_arguments):
        if not train_layers:
            crumb_arguments |= NOTHING_TRAINED
        super().__init__(**crumb_arguments)
        self.train_layers = train_layers
        self.features = FeatureMoments(
            maps=True, deviations=True, power=0.7, equal_lengths=True
        )
        # Of this evaluation, or loaded; None before any memory.
        self._readout: LinearReadout | None = None

    @property
    def derived_bytes(self) -> int:
        """Bytes of the discriminant, fitted or not.

        It has weights and an offset of float32, and an int64 label, for each class.
        """
        bytes_of_class = 4 * (self.features.length(self.model) + 1) + 8
        return len(self._memories.classes) * bytes_of_class

    @property
    def _memories(self) -> MemoryBuffer:
        """The buffer of codes."""
        buffer = self.storage_policy
        assert buffer is not None, "CRUMB has one"
        return buffer

    @torch.no_grad()
    def _fitted(self) -> LinearReadout | None:
        """Fit the discriminant to the memories; without any, return what was loaded."""
        storage = self._memories
        slots: list[int] = []
        for members in storage.slots.by_class.values():
            slots += members
        if not slots:
            return self._readout
        features = []
        labels = []
        with without_autocast(self.device):
            for batch in torch.tensor(slots).split(self.eval_mb_size):
                maps, batch_labels = storage.replay(batch, self.model)
                features.append(self.features.of_maps(self.model, maps).cpu())
                labels.append(batch_labels.cpu())
        return LinearReadout.fit(
            torch.cat(features), torch.cat(labels), self.model.n_classes
        )

    def forward(self):
        """Return the logits of CRUMB in training, else the scores of the readout.

        Where nothing is trained, the logits in training are zeros.
        """
        if not self.is_training:
            with without_autocast(self.device):
                return self._readout_scores(self.mb_x)
        if self.train_layers:
            return super().forward()
        shape = (len(self.mb_y), self.model.n_classes)
        return torch.zeros(shape, dtype=torch.float32, device=self.device)

    @torch.no_grad()
    def _readout_scores(self, images: Tensor) -> Tensor:
        """Compute the scores ``(B, classes)`` of images by the readout.

        They are 0 for the best class and the lowest for classes without memories.
        Images are encoded and decoded, as memories are.
        """
        shape = (len(images), self.model.n_classes)
        readout = self._readout
        if readout is None:
            return torch.zeros(shape, dtype=torch.float32, device=self.device)
        codes = self.model.encode(self.model.features(images))
        maps = self.model.codebook.decode(codes)
        features = self.features.of_maps(self.model, maps).cpu().double()
        scores = readout.scores(features)
        outputs = torch.full(shape, NO_DENSITY, dtype=torch.float32)
        best = scores.amax(1, keepdim=True)
        outputs[:, readout.labels] = (scores - best).float()
        return outputs.to(self.device)

    def criterion(self):
        """Return 0 in training where nothing is trained."""
        if self.is_training and not self.train_layers:
            return self.mb_output.new_zeros(())
        return super().criterion()

    def backward(self):
        """Compute the gradients, if the layers are trained."""
        if self.train_layers:
            super().backward()

    def optimizer_step(self):
        """Take a step, if the layers are trained."""
        if self.train_layers:
            super().optimizer_step()

    def _before_eval(self, **kwargs):
        """Fit the readout to the memories of now, before images are evaluated."""
        self._readout = self._fitted()
        super()._before_eval(**kwargs)

    def answer_state(self) -> dict[str, Any]:
        """Return what evaluation needs, with the readout fitted to the memories."""
        readout = self._fitted()
        method = {} if readout is None else readout.state_dict()
        return super().answer_state() | {"method": method}

    def load_answer_state(self, state: dict[str, Any]) -> None:
        """Load what ``answer_state`` returned, with its readout."""
        super().load_answer_state(state)
        self._readout = None
        if state["method"]:
            self._readout = LinearReadout.from_state(state["method"])
