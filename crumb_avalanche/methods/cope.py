"""CoPE: prototypes that are updated with every batch, and a loss that attracts features to them."""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, one_hot

from crumb_avalanche.memory.selection import ClassBalancedReservoir
from crumb_avalanche.methods.features import feature_length
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import ImageMemoryPlugin, draw_from, held_slots
from crumb_avalanche.models.penultimate import HeadInput, evaluating, penultimate
from crumb_avalanche.system.setting_ranges import Positive, Probability
from crumb_avalanche.training.plugins import UNSEEN_LOGIT, give_unseen_probability
from crumb_avalanche.training.replay_step import in_replay_step


class BalancedMemories(ClassBalancedReservoir):
    """A class-balanced reservoir that allows more classes than slots, since every class has a prototype."""

    every_class_holds_one = False


def ppp_loss(
    embeddings: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    known: Tensor,
    temperature: float,
) -> Tensor:
    """Compute the pseudo-prototypical proxy (PPP) loss, without loops and in logarithms.

    ``P(c | f, p)`` is the softmax of the similarity of ``f`` to a proxy ``p`` of class
    ``c`` against the similarities to the prototypes of all other classes. The
    attraction of a sample is the log of its mean ``P`` over the prototype and the other
    samples of its class. Its repulsion of a sample ``j`` of another class is the log of
    1 minus the mean of ``P(c | f_j, .)`` over the prototype of its class and itself.
    Proxies are constants.

    Args:
        embeddings: ``(B, D)``, of length 1.
        labels: ``(B,)`` int64; all of them have a prototype.
        prototypes, known: ``(classes, D)``, of length 1, and ``(classes,)`` bool, which
            of them there are.
        temperature: divisor of similarities.

    Returns:
        The negative sum of all terms, divided by ``B``; 0 if there is only one class.
    """
    if int(known.sum()) < 2:
        return embeddings.sum() * 0
    to_samples = (
        embeddings @ embeddings.detach().t() / temperature
    )  # [i, j]: similarity of i to proxy j
    to_prototypes = (embeddings @ prototypes.t() / temperature).masked_fill(
        ~known, -torch.inf
    )
    classes, places = labels.unique(return_inverse=True)
    own = one_hot(classes, len(prototypes)).bool()
    # [i, j]: log of the summed similarities of i to the prototypes of all classes
    # except that of j.
    others = (
        to_prototypes.unsqueeze(1).masked_fill(own, -torch.inf).logsumexp(2)[:, places]
    )
    sample, prototype = (
        to_samples - others,
        to_prototypes[:, labels] - others,
    )  # P is the sigmoid of these
    same = labels.unsqueeze(1) == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    pseudo = logsigmoid(sample).masked_fill(~same | itself, -torch.inf)
    attracted = torch.cat(
        [pseudo, logsigmoid(prototype).diagonal().unsqueeze(1)], dim=1
    ).logsumexp(1)
    attracted = attracted - same.sum(1).log()
    repelled = torch.logaddexp(logsigmoid(-sample), logsigmoid(-prototype)) - math.log(
        2
    )
    return -(attracted.sum() + repelled.masked_fill(same, 0).sum()) / len(labels)


@register(
    "cope",
    summary="prototypes updated with every batch, balanced replay of images, nearest prototype",
    source="De Lange and Tuytelaars, Continual Prototype Evolution, ICCV 2021",
    stores="raw images, and a prototype of each class",
    fixed_bytes=lambda model, method, n_classes: 4 * n_classes * feature_length(model),
)
class CoPEPlugin(ImageMemoryPlugin):
    """Trains on every batch and as many memories in one step; answers with the nearest prototype.

    An embedding is the normalised input of the head, averaged over locations; the head
    itself is not used. Memories are balanced over the classes by a reservoir, and none
    is replayed twice in a batch. Prototypes are updated after each step with the
    embeddings of that step.

    Attributes:
        prototype_momentum: weight of the old prototype in an update.
        temperature: divisor of similarities.
        prototypes: ``(n_classes, D)`` float32, of length 1, or 0 before the first frame
            of the class.
    """

    prototype_momentum: Probability = 0.99
    temperature: Positive = 0.1

    answering, rule = ("prototypes",), BalancedMemories

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        model = recipe.model
        weights = [
            name
            for name, weight in model.plastic_layers.named_parameters()
            if weight.requires_grad
        ]
        if all(name.startswith(f"{model.head}.") for name in weights):
            raise ValueError(
                "cope learns the layers between cut and head, but this model has none with weights there; cut the "
                "network at an earlier layer"
            )
        self.prototypes = torch.zeros(recipe.n_classes, feature_length(model))
        self._head = HeadInput()
        self._batch: tuple[Tensor, Tensor] | None = None

    @property
    def known(self) -> Tensor:
        """Which classes have a prototype, ``(n_classes,)`` bool."""
        return self.prototypes.any(dim=1)

    def scores(self, embeddings: Tensor) -> Tensor:
        """Compute ``(B, classes)`` products with the prototypes, divided by the temperature."""
        self.prototypes = self.prototypes.to(embeddings.device)
        return embeddings @ self.prototypes.t() / self.temperature

    @torch.no_grad()
    def begin(self, embeddings: Tensor, labels: Tensor) -> None:
        """Initialise the prototypes of classes in the batch that have none yet with their means.

        The authors' code draws them at random. A stream has a few dozen batches of a
        class: with a momentum of 0.99, a random prototype would stay mostly random.
        """
        self.prototypes = self.prototypes.to(embeddings.device)
        for label in labels[~self.known[labels]].unique().tolist():
            self.prototypes[label] = normalize(
                embeddings[labels == label].mean(0), dim=0
            )

    @torch.no_grad()
    def evolve(self, embeddings: Tensor, labels: Tensor) -> None:
        """Update ``p <- normalised(m p + (1 - m) mean)`` for each class of a batch."""
        momentum = self.prototype_momentum
        for label in labels.unique().tolist():
            mean = embeddings[labels == label].mean(0)
            self.prototypes[label] = normalize(
                momentum * self.prototypes[label] + (1 - momentum) * mean, dim=0
            )

    def before_forward(self, strategy, **kwargs):
        super().before_forward(strategy, **kwargs)
        self._head.attach(strategy.model, strategy.mb_x)

    def after_forward(self, strategy, **kwargs):
        super().after_forward(strategy, **kwargs)
        embeddings = normalize(self._head.release())
        self.begin(embeddings, strategy.mb_y)
        self._batch = embeddings, strategy.mb_y
        strategy.mb_output = self.mask(
            self.scores(embeddings).masked_fill(~self.known, UNSEEN_LOGIT)
        )

    def before_backward(self, strategy, **kwargs):
        model, storage = strategy.model, self.storage_policy
        embeddings, labels = self._batch
        held = held_slots(storage)
        if held:
            with model.stopwatch.measure("replay"):
                slots = draw_from(
                    storage.slots.random, held, min(len(held), len(labels))
                )
                maps, its_labels = storage.replay(slots, model)
                embeddings = torch.cat(
                    [embeddings, normalize(penultimate(model, maps))]
                )
                labels = torch.cat([labels, its_labels])
        strategy.loss = ppp_loss(
            embeddings, labels, self.prototypes, self.known, self.temperature
        )
        self._batch = embeddings.detach(), labels

    def after_update(self, strategy, **kwargs):
        if in_replay_step(strategy):  # of another plugin, whose images are not here
            return
        self.evolve(*self._batch)
        self._batch = None

    @torch.no_grad()
    def offer(self, strategy, batch):
        if (
            self.batch is None
        ):  # the class may have no prototype yet, which its replay needs
            with evaluating(strategy.model):
                self.begin(
                    normalize(penultimate(strategy.model, batch.feature_map)),
                    batch.labels,
                )
        super().offer(strategy, batch)

    def before_eval_forward(self, strategy, **kwargs):
        self._head.attach(strategy.model, strategy.mb_x)

    def after_eval_forward(self, strategy, **kwargs):
        features = self._head.release()
        if self.known.any():
            strategy.mb_output = give_unseen_probability(
                self.scores(normalize(features)), ~self.known
            )
