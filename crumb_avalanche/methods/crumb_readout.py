"""CRUMB's readout in closed form: a discriminant of the decoded memories."""

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
# Directions of each class whose spread is its own. A memory counts little for them.
OWN_DIRECTIONS = 8
# Arguments of ``RegularizedDiscriminant``, chosen on development streams.
DISCRIMINANT = dict(
    own=0.1, own_images=20.0, diagonal=False, directions=OWN_DIRECTIONS, whole=True
)


class ReadoutStrategy(CRUMBStrategy):
    """CRUMB that answers by a discriminant of its memories instead of its head.

    The discriminant is that of ``--preset recommended``, fitted to features of the
    decoded memories: means and deviations over locations, of the map and of the head's
    input. Images to evaluate are encoded and decoded too. It is fitted from scratch to
    all memories when an evaluation begins, and nothing but the codes is kept for it.

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
        # Fitted for this evaluation, or loaded; None before any memory.
        self._discriminant: RegularizedDiscriminant | None = None

    @property
    def derived_bytes(self) -> int:
        """Bytes of the discriminant's statistics at most, fitted or not.

        What an evaluation solves for is not counted.
        """
        n_classes = len(self._memories.classes)
        if not n_classes:
            return 0
        sizes = self._sizes
        fixed = RegularizedDiscriminant.bytes_of(n_classes, **sizes, **DISCRIMINANT)
        direction = RegularizedDiscriminant.item_bytes(sizes["length"], DISCRIMINANT)
        return fixed + n_classes * OWN_DIRECTIONS * direction

    @property
    def _sizes(self) -> dict[str, int]:
        """Numbers of all features and of those of the head's input, by argument."""
        return {
            "length": self.features.length(self.model),
            "part": self.features.of_head().length(self.model),
        }

    @property
    def _memories(self) -> MemoryBuffer:
        """The buffer of codes."""
        buffer = self.storage_policy
        assert buffer is not None, "CRUMB has one"
        return buffer

    @torch.no_grad()
    def _fitted(self) -> RegularizedDiscriminant | None:
        """Fit a new discriminant to the features of all memories, and return it.

        Without memories, the one of a loaded file is returned, or ``None``.
        """
        storage = self._memories
        slots: list[int] = []
        for slots_of_class in storage.slots.by_class.values():
            slots += slots_of_class
        if not slots:
            return self._discriminant
        features = []
        labels = []
        with without_autocast(self.device):
            for batch in torch.tensor(slots).split(self.eval_mb_size):
                # Decoded feature maps of the memories, (b, C, H, W).
                maps, batch_labels = storage.replay(batch, self.model)
                features.append(self.features.of_maps(self.model, maps).cpu())
                labels.append(batch_labels.cpu())
        # With the numbers of features, and settings that the readout fixes.
        discriminant = RegularizedDiscriminant(
            self.model.n_classes, **self._sizes, **DISCRIMINANT
        )
        # At once: a class's own directions are those of all its memories.
        discriminant.update(torch.cat(features), torch.cat(labels))
        return discriminant

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
        """Compute scores ``(B, classes)`` float32 by the discriminant of the memories.

        They are 0 for the best class and the lowest for classes without memories; all
        are 0 before any memory is stored.

        Args:
            images: ``(B, 3, h, w)``, uint8 pixels or normalised floats.
        """
        discriminant = self._discriminant
        if discriminant is None:
            shape = (len(images), self.model.n_classes)
            return torch.zeros(shape, dtype=torch.float32, device=self.device)
        # Encoded and decoded as the memories are, which it was fitted to.
        codes = self.model.encode(self.model.features(images))
        maps = self.model.codebook.decode(codes)
        features = self.features.of_maps(self.model, maps)
        scores = discriminant.scores(features.cpu())
        best = scores.amax(1, keepdim=True)  # taken off: float32 has few digits
        has_memories = discriminant.image_counts > 0
        outputs = torch.where(has_memories, scores - best, NO_DENSITY)
        return outputs.float().to(self.device)

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
        self._discriminant = self._fitted()
        super()._before_eval(**kwargs)

    def answer_state(self) -> dict[str, Any]:
        """Return what evaluation needs, with the discriminant of the memories."""
        discriminant = self._fitted()
        method = {} if discriminant is None else discriminant.state_dict()
        return super().answer_state() | {"method": method}

    def load_answer_state(self, state: dict[str, Any]) -> None:
        """Load what ``answer_state`` returned, with its discriminant."""
        super().load_answer_state(state)
        self._discriminant = None
        if state["method"]:
            self._discriminant = RegularizedDiscriminant.from_state(state["method"])
