"""iCaRL in one pass: herded exemplars, distillation, nearest mean of exemplars.

Rebuffi et al., CVPR 2017.
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, one_hot

from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import HerdingPlugin, OldNetwork, draw_from
from crumb_avalanche.models.penultimate import HeadInput
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.tensor_file import tensor_bytes
from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.plugins import give_unseen_probability


@dataclass(frozen=True)
class ExemplarMeans:
    """Means of the exemplars.

    Attributes:
        classes: the classes that have exemplars.
        means: ``(classes, D)`` float32, of length 1.
    """

    classes: list[int]
    means: Tensor


@register(
    "icarl",
    summary="herded exemplars, distillation, nearest mean of exemplars",
    source=(
        "Rebuffi et al., iCaRL: Incremental Classifier and Representation Learning, "
        "CVPR 2017"
    ),
    stores="raw images, and a copy of the plastic layers for distillation",
    scores_answer=True,
    fixed_bytes=lambda model, method, n_classes: OldNetwork.bytes_of(model),
)
class ICaRLPlugin(HerdingPlugin):
    """Distillation with replay, herding, and the nearest mean of exemplars.

    In training, new frames and as many exemplars of old classes (each again only after
    all were drawn) share a step, and the loss is the mean over both, as for the paper's
    union of new data and exemplars. The loss of an image is the sum over the classes
    seen. The old network computes the targets in the same step from the same maps.

    After each experience, the exemplars are herded in one more pass over it, in
    evaluation mode and without training. Means are not normalised in herding, as in the
    authors' code, but are in evaluation. The paper's ``m = K / t`` exemplars a class
    fill the budget: the remainder goes one each to the oldest classes. With fewer
    exemplars than classes, the latest classes get none and are never predicted.
    """

    state_names = ("old_classes", "old_network")
    class_numbers = ("old_classes",)

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        _warn_of_relu_behind_head(recipe.model)
        self.old_network = OldNetwork()
        self.old_classes: list[int] = []  # classes of earlier experiences
        self._head = HeadInput()
        # During an evaluation; None where there are no exemplars.
        self._means: ExemplarMeans | None = None
        # Of a learner that only answers.
        self._loaded_means: ExemplarMeans | None = None

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the old network and, in an evaluation, of the exemplars' means."""
        size = super().statistics_bytes
        if self._means is not None:
            size += tensor_bytes([self._means.means])
        return size

    def before_training_exp(self, strategy, **kwargs):
        """Note the classes of earlier experiences.

        Nothing begins in the buffer: lists are cut after the experience (algorithm 2).
        """
        self._loaded_means = None
        coming = set(labels_of(strategy.experience.dataset))
        seen = strategy.seen_classes.seen
        self.old_classes = [label for label in seen if label not in coming]

    def before_backward(self, strategy, **kwargs):
        """Replace ``strategy.loss`` by classification and distillation (algorithm 3).

        It is the binary cross-entropy of new images and as many memories of old
        classes, summed over the classes seen, mean over images.
        """
        # Of the new images; those of the memories are appended.
        logits = strategy.mb_output
        labels = self.current.labels
        maps = self.current.feature_map
        slots = self._slots_of_old_classes()  # of their memories
        if slots:
            model = strategy.model
            storage = self.storage_policy
            with model.stopwatch.measure("replay"):
                drawn_slots = draw_from(storage.slots.random, slots, len(labels))
                memory_maps, memory_labels = storage.replay(drawn_slots, model)
                logits = torch.cat([logits, model.classify(memory_maps)])
                labels = torch.cat([labels, memory_labels])
                maps = torch.cat([maps, memory_maps])
        targets = self._targets(strategy, maps, labels, logits.shape[1])
        seen = strategy.seen_classes.seen  # columns of the classes
        losses = binary_cross_entropy_with_logits(
            logits[:, seen], targets[:, seen], reduction="none"
        )
        strategy.loss = losses.sum(1).mean()

    def _slots_of_old_classes(self) -> list[int]:
        """Return the slots of the exemplars of classes of earlier experiences."""
        # A class whose first experience was interrupted has no exemplars.
        slots: list[int] = []
        for label in self.old_classes:
            slots += self.storage_policy.slots.by_class.get(label, ())
        return slots

    def _targets(
        self, strategy, maps: Tensor, labels: Tensor, n_classes: int
    ) -> Tensor:
        """Return the targets of the binary cross-entropy, from 0 to 1 (algorithm 3).

        Those of old classes are the old network's sigmoid outputs, the others 0 or 1
        by the labels.

        Args:
            strategy: gives the layers that the weights of the old network run in.
            maps: ``(B, C, H, W)`` feature maps, which enter these layers.
            labels: ``(B,)`` int64.
            n_classes: number of outputs.

        Returns:
            ``(B, n_classes)`` float32.
        """
        targets = one_hot(labels, n_classes).float()
        if self.old_classes:
            with strategy.model.stopwatch.measure("replay"):
                old_logits = self.old_network.logits(strategy.model, maps)
            targets[:, self.old_classes] = old_logits[:, self.old_classes].sigmoid()
        return targets

    @torch.no_grad()
    def after_training_exp(self, strategy, **kwargs):
        """Choose exemplars by herding, and keep a copy as the old network."""
        self.herd(strategy)
        self.old_network.copy_from(strategy.model)

    @torch.no_grad()
    def before_eval(self, strategy, **kwargs):
        """Compute the means of the exemplars with the network of now."""
        self._means = self._exemplar_means(strategy)

    def _exemplar_means(self, strategy) -> ExemplarMeans | None:
        """Compute the means of the exemplars; ``None`` where there are none."""
        classes = list(self.storage_policy.classes)
        if not classes:
            return self._loaded_means
        by_class = self.storage_policy.slots.by_class
        means = [
            self.stored_features(strategy, by_class[label]).mean(0) for label in classes
        ]
        return ExemplarMeans(classes=classes, means=normalize(torch.stack(means)))

    def before_eval_forward(self, strategy, **kwargs):
        """Record the input of the head in the forward pass."""
        self._head.attach(strategy.model, strategy.mb_x)

    def after_eval_forward(self, strategy, **kwargs):
        """Answer with the distances to the means of exemplars, where there are any."""
        features = self._head.take_averaged()
        if self._means is None:
            # During the first experience there are no exemplars: the head answers.
            return
        assert features is not None, "the strategy passed the images to its model"
        classes = self._means.classes
        means = self._means.means.to(features.device)
        scores = torch.zeros_like(strategy.mb_output)
        scores[:, classes] = -torch.cdist(normalize(features), means)
        unseen = torch.ones(scores.shape[1], dtype=torch.bool)
        unseen[classes] = False
        strategy.mb_output = give_unseen_probability(scores, unseen)

    def after_eval(self, strategy, **kwargs):
        """Drop the means, which training changes."""
        self._means = None

    @torch.no_grad()
    def answer_state(self, strategy):
        """Return the means of the exemplars, which answers are the nearest of."""
        means = self._exemplar_means(strategy)
        if means is None:
            return {}
        return {"classes": means.classes, "means": means.means}

    def load_answer_state(self, state):
        """Load what ``answer_state`` returned."""
        classes = list(state["classes"])
        self._loaded_means = ExemplarMeans(
            classes=classes, means=state["means"].clone()
        )


def _warn_of_relu_behind_head(model: SplitModel) -> None:
    """Warn of a network whose logits are never negative."""
    parent, _, head = model.head.rpartition(".")
    layers = dict(model.plastic_layers.get_submodule(parent).named_children())
    names = list(layers)
    names_from_head = names[names.index(head) :]
    if any(isinstance(layers[name], nn.ReLU) for name in names_from_head):
        warnings.warn(
            "icarl trains sigmoids, which need logits of either sign, but a ReLU "
            "follows the head of this model: no class gets less than 0.5, and a class "
            "whose logits fall to 0 learns no more; build the model with "
            "relu_logits=False",
            stacklevel=3,
        )
