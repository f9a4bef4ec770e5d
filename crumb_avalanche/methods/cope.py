"""CoPE: prototypes that are updated with every batch, and a loss that attracts to them.

De Lange and Tuytelaars, "Continual Prototype Evolution", ICCV 2021.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, one_hot

from crumb_avalanche.memory.buffers import StreamBatch
from crumb_avalanche.memory.selection import ClassBalancedReservoir
from crumb_avalanche.methods.features import feature_length
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import ImageMemoryPlugin, draw_from, held_slots
from crumb_avalanche.models.layers import trainable
from crumb_avalanche.models.penultimate import HeadInput, evaluating, penultimate
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import Positive, Probability
from crumb_avalanche.training.plugins import UNSEEN_LOGIT, give_unseen_probability
from crumb_avalanche.training.replay_step import in_replay_step


class BalancedMemories(ClassBalancedReservoir):
    """A class-balanced reservoir that allows more classes than slots.

    Every class has a prototype.
    """

    every_class_holds_one = False


def ppp_loss(
    embeddings: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    known: Tensor,
    temperature: float,
) -> Tensor:
    """Compute the pseudo-prototypical proxy (PPP) loss (eq. 3 to 6), in logarithms.

    ``P(c | f, p)`` is the softmax of the similarity of ``f`` to a proxy ``p`` of class
    ``c`` against the similarities to the prototypes of all other classes. The
    attraction of a sample is the log of its mean ``P`` over the prototype and the other
    samples of its class. Its repulsion of a sample ``j`` of another class is the log of
    1 minus the mean of ``P(c | f_j, .)`` over the prototype of its class and itself.
    Proxies are constants.

    Args:
        embeddings: ``(B, D)``, rows of length 1, so that products are cosines.
        labels: ``(B,)`` int64; all of them have a prototype.
        prototypes: ``(classes, D)``, rows of length 1.
        known: ``(classes,)`` bool, classes that have a prototype.
        temperature: divisor of similarities.

    Returns:
        The negative sum of all terms, divided by ``B``; 0 if there is only one class.
    """
    if int(known.sum()) < 2:
        return embeddings.sum() * 0  # a zero with a graph, for the backward pass
    # [i, j]: similarity of sample i to proxy j.
    to_samples = embeddings @ embeddings.detach().t() / temperature
    to_prototypes = embeddings @ prototypes.t() / temperature
    to_prototypes = to_prototypes.masked_fill(~known, -torch.inf)
    # [i, j]: of sample i to the prototypes of all classes but that of sample j.
    to_other_classes = _log_sum_of_other_classes(to_prototypes, labels)
    # Logits of P, whose sigmoids are P: [i, j] is of sample i, and of the proxies that
    # are sample j and the prototype of its class.
    sample_logits = to_samples - to_other_classes
    prototype_logits = to_prototypes[:, labels] - to_other_classes

    # The mean over the prototype and the other samples of a class has as many terms as
    # the class has samples.
    is_same_class = labels.unsqueeze(1) == labels
    is_itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    no_attraction = ~is_same_class | is_itself
    by_samples = logsigmoid(sample_logits).masked_fill(no_attraction, -torch.inf)
    by_prototype = logsigmoid(prototype_logits).diagonal().unsqueeze(1)
    attraction = torch.cat([by_samples, by_prototype], dim=1).logsumexp(1)
    attraction = attraction - is_same_class.sum(1).log()  # the log of a mean, (B,)
    # 1 - P = sigmoid(-logit), so this is the log of 1 minus a mean of two, (B, B).
    repulsion = torch.logaddexp(
        logsigmoid(-sample_logits), logsigmoid(-prototype_logits)
    )
    repulsion = repulsion - math.log(2)
    repulsion = repulsion.masked_fill(is_same_class, 0)
    return -(attraction.sum() + repulsion.sum()) / len(labels)


def _log_sum_of_other_classes(to_prototypes: Tensor, labels: Tensor) -> Tensor:
    """Return logs of summed exponentials of similarities to other classes' prototypes.

    Args:
        to_prototypes: ``(B, classes)`` similarities of each sample to each prototype.
        labels: ``(B,)`` int64, classes of the samples.

    Returns:
        ``(B, B)``; ``[i, j]`` is of sample ``i``, without the class of ``j``.
    """
    # Computed once for each of the k classes in the batch.
    batch_classes, index = labels.unique(return_inverse=True)
    is_class = one_hot(batch_classes, to_prototypes.shape[1]).bool()  # (k, classes)
    to_others = to_prototypes.unsqueeze(1).masked_fill(is_class, -torch.inf)
    return to_others.logsumexp(2)[:, index]


@register(
    "cope",
    summary=(
        "prototypes updated with every batch, balanced replay of images, nearest "
        "prototype"
    ),
    source="De Lange and Tuytelaars, Continual Prototype Evolution, ICCV 2021",
    stores="raw images, and a prototype of each class",
    fixed_bytes=lambda model, method, n_classes: 4 * n_classes * feature_length(model),
)
class CoPEPlugin(ImageMemoryPlugin):
    """Trains on every batch and as many memories; answers with the nearest prototype.

    An embedding is the normalised input of the head, averaged over locations; the head
    itself is not used. Memories are balanced over the classes by a reservoir, and none
    is replayed twice in a batch. Prototypes are updated after each step with the
    embeddings of that step.

    Args:
        recipe: what the strategy is built from.
        prototype_momentum: weight of the old prototype in an update.
        temperature: divisor of similarities.

    Attributes:
        prototypes: ``(n_classes, D)`` float32, of length 1, or 0 before the first frame
            of the class.

    Raises:
        ValueError: no weights of the model lie between cut and head.
    """

    answer_state_names = ("prototypes",)
    rule = BalancedMemories

    def __init__(
        self,
        recipe: Recipe,
        *,
        prototype_momentum: Probability = 0.99,
        temperature: Positive = 0.1,
    ):
        super().__init__(recipe)
        self.prototype_momentum = prototype_momentum
        self.temperature = temperature
        _check_layers_before_head(recipe.model)
        shape = (recipe.n_classes, feature_length(recipe.model))
        self.prototypes = torch.zeros(shape, dtype=torch.float32)
        self._head = HeadInput()
        # Embeddings and labels of the step, with those of its memories from the
        # backward pass on.
        self._labelled_embeddings: tuple[Tensor, Tensor] | None = None

    @property
    def known(self) -> Tensor:
        """Which classes have a prototype, ``(n_classes,)`` bool."""
        return self.prototypes.any(dim=1)

    def scores(self, embeddings: Tensor) -> Tensor:
        """Compute ``(B, classes)`` products with the prototypes, by the temperature."""
        self.prototypes = self.prototypes.to(embeddings.device)
        return embeddings @ self.prototypes.t() / self.temperature

    @torch.no_grad()
    def begin_prototypes(self, embeddings: Tensor, labels: Tensor) -> None:
        """Give classes in the batch that have no prototype yet their mean as one.

        The authors' code draws them at random. A stream has a few dozen batches of a
        class: with a momentum of 0.99, a random prototype would stay mostly random.

        Args:
            embeddings: ``(B, D)``, rows of length 1; so are the prototypes, which move
                to their device.
            labels: ``(B,)`` int64.
        """
        self.prototypes = self.prototypes.to(embeddings.device)
        for label in labels[~self.known[labels]].unique().tolist():
            mean = embeddings[labels == label].mean(0)
            self.prototypes[label] = normalize(mean, dim=0)

    @torch.no_grad()
    def evolve_prototypes(self, embeddings: Tensor, labels: Tensor) -> None:
        """Update ``p <- normalised(m p + (1 - m) mean)`` of each class (eq. 2).

        Args:
            embeddings: ``(B, D)``, of length 1.
            labels: ``(B,)`` int64.
        """
        momentum = self.prototype_momentum
        for label in labels.unique().tolist():
            mean = embeddings[labels == label].mean(0)
            average = momentum * self.prototypes[label] + (1 - momentum) * mean
            self.prototypes[label] = normalize(average, dim=0)

    def before_forward(self, strategy, **kwargs):
        """Record the maps, and the input of the head, of the forward pass."""
        super().before_forward(strategy, **kwargs)
        self._head.attach(strategy.model, strategy.mb_x)

    def after_forward(self, strategy, **kwargs):
        """Answer with the similarities to the prototypes; begin missing ones."""
        super().after_forward(strategy, **kwargs)
        embeddings = self._released_embeddings()
        self.begin_prototypes(embeddings, strategy.mb_y)
        self._labelled_embeddings = embeddings, strategy.mb_y
        scores = self.scores(embeddings).masked_fill(~self.known, UNSEEN_LOGIT)
        strategy.mb_output = self.mask(scores)

    def _released_embeddings(self) -> Tensor:
        """Return the embeddings ``(B, D)`` of the latest forward pass, of length 1."""
        features = self._head.take_averaged()
        assert features is not None, "the strategy passed the images to its model"
        return normalize(features)

    def before_backward(self, strategy, **kwargs):
        """Replace ``strategy.loss`` by the PPP loss of new images and memories.

        There are as many memories as new images, if the buffer holds so many (eq. 3 to
        6). Embeddings and labels of both are kept, to move the prototypes after the
        step.
        """
        model = strategy.model
        storage = self.storage_policy
        assert self._labelled_embeddings is not None, "set in after_forward"
        embeddings, labels = self._labelled_embeddings
        stored_slots = held_slots(storage)  # of all memories
        if stored_slots:
            with model.stopwatch.measure("replay"):
                count = min(len(stored_slots), len(labels))
                slots = draw_from(storage.slots.random, stored_slots, count)
                maps, memory_labels = storage.replay(slots, model)
                memory_embeddings = normalize(penultimate(model, maps))
                embeddings = torch.cat([embeddings, memory_embeddings])
                labels = torch.cat([labels, memory_labels])
        strategy.loss = ppp_loss(
            embeddings, labels, self.prototypes, self.known, self.temperature
        )
        self._labelled_embeddings = embeddings.detach(), labels

    def after_update(self, strategy, **kwargs):
        """Update the prototypes with the embeddings of the step."""
        if in_replay_step(strategy):  # of another plugin, whose images are not here
            return
        assert self._labelled_embeddings is not None, "set in before_backward"
        self.evolve_prototypes(*self._labelled_embeddings)
        self._labelled_embeddings = None

    @torch.no_grad()
    def offer(self, strategy: Any, batch: StreamBatch) -> None:
        """Offer a batch to the buffer; a class in it may still need a prototype."""
        was_trained_on = self.batch is not None
        if not was_trained_on:
            # The class may have no prototype yet, which its replay needs.
            model = strategy.model
            with evaluating(model):
                embeddings = normalize(penultimate(model, batch.feature_map))
                self.begin_prototypes(embeddings, batch.labels)
        super().offer(strategy, batch)

    def before_eval_forward(self, strategy, **kwargs):
        """Record the input of the head in the forward pass."""
        self._head.attach(strategy.model, strategy.mb_x)

    def after_eval_forward(self, strategy, **kwargs):
        """Answer with the nearest prototype; before there is any, with the head."""
        embeddings = self._released_embeddings()
        if self.known.any():
            scores = self.scores(embeddings)
            strategy.mb_output = give_unseen_probability(scores, ~self.known)


def _check_layers_before_head(model: SplitModel) -> None:
    """Raise ValueError for a model without weights between cut and head."""
    learned_names = trainable(model.plastic_layers)
    if all(name.startswith(f"{model.head}.") for name in learned_names):
        raise ValueError(
            "cope learns the layers between cut and head, but this model has none with "
            "weights there; cut the network at an earlier layer"
        )
