"""iCaRL in one pass: herded exemplars, distillation, nearest mean of exemplars (Rebuffi et al., CVPR 2017)."""

import warnings

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, one_hot

from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import HerdingPlugin, OldNetwork, draw_from
from crumb_avalanche.models.penultimate import HeadInput
from crumb_avalanche.system.tensor_file import tensor_bytes
from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.plugins import give_unseen_probability


@register(
    "icarl",
    summary="herded exemplars, distillation, nearest mean of exemplars",
    source="Rebuffi et al., iCaRL: Incremental Classifier and Representation Learning, CVPR 2017",
    stores="raw images, and a copy of the plastic layers for distillation",
    scores_answer=True,
    fixed_bytes=lambda model, method, n_classes: OldNetwork.bytes_of(model),
)
class ICaRLPlugin(HerdingPlugin):
    """Distillation with replay in training, herding after each experience, nearest mean of exemplars in evaluation.

    New frames and as many exemplars of old classes (each again only after all were
    drawn) share a step, and the loss is the mean over both, as for the paper's union of
    new data and exemplars. The loss of an image is the sum over the classes seen. The
    old network computes the targets in the same step from the same maps.

    The exemplars are herded in one more pass over the experience, after its last epoch,
    in evaluation mode and without training. Means are not normalised in herding, as in
    the authors' code, but are in evaluation. The paper's ``m = K / t`` exemplars a
    class fill the budget: the remainder goes one each to the oldest classes. With fewer
    exemplars than classes, the latest classes get none and are never predicted.
    """

    kept = ("_old", "old_network")

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        parent, _, head = recipe.model.head.rpartition(".")
        layers = dict(
            recipe.model.plastic_layers.get_submodule(parent).named_children()
        )
        if any(
            isinstance(layer, nn.ReLU)
            for layer in [*layers.values()][[*layers].index(head) :]
        ):
            warnings.warn(
                "icarl trains sigmoids, which need logits of either sign, but a ReLU follows the head of this model: "
                "no class gets less than 0.5, and a class whose logits fall to 0 learns no more; build the model with "
                "relu_logits=False",
                stacklevel=2,
            )
        self.old_network = OldNetwork()
        self._old: list[int] = []
        self._head = HeadInput()
        self._means: Tensor | None = None
        self._classes: list[int] = []  # of the means
        self._loaded: tuple[list[int], Tensor] | None = (
            None  # classes and means of a learner that only answers
        )

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the old network and, during an evaluation, of the means of the exemplars."""
        return super().statistics_bytes + (
            0 if self._means is None else tensor_bytes([self._means])
        )

    def before_training_exp(self, strategy, **kwargs):
        # Lists are cut after the experience (paper, algorithm 2), so begin_experience
        # is called then.
        self._loaded = None
        coming = set(labels_of(strategy.experience.dataset))
        self._old = [
            label for label in strategy.seen_classes.seen if label not in coming
        ]

    def before_backward(self, strategy, **kwargs):
        model, storage = strategy.model, self.storage_policy
        logits, labels, maps = (
            strategy.mb_output,
            self.batch.labels,
            self.batch.feature_map,
        )
        if self._old:
            with model.stopwatch.measure("replay"):
                # A class whose first experience was interrupted has no exemplars.
                stored = [
                    slot
                    for label in self._old
                    for slot in storage.slots.by_class.get(label, ())
                ]
                if stored:
                    replayed, its_labels = storage.replay(
                        draw_from(storage.slots.random, stored, len(labels)), model
                    )
                    logits = torch.cat([logits, model.classify(replayed)])
                    labels, maps = (
                        torch.cat([labels, its_labels]),
                        torch.cat([maps, replayed]),
                    )
                old_logits = self.old_network.logits(model, maps)
        targets = one_hot(labels, logits.shape[1]).float()
        if self._old:  # the answers of the old network (algorithm 3)
            targets[:, self._old] = old_logits[:, self._old].sigmoid()
        seen = strategy.seen_classes.seen
        loss = binary_cross_entropy_with_logits(
            logits[:, seen], targets[:, seen], reduction="none"
        )
        strategy.loss = loss.sum(1).mean()

    @torch.no_grad()
    def after_training_exp(self, strategy, **kwargs):
        self.herd(strategy)
        self.old_network.take(strategy.model)

    @torch.no_grad()
    def before_eval(self, strategy, **kwargs):
        self._classes, self._means = self._exemplar_means(strategy)

    def _exemplar_means(self, strategy) -> tuple[list[int], Tensor | None]:
        """Classes, and their unit means ``(classes, D)``; ``None`` where there are no exemplars."""
        classes = list(self.storage_policy.classes)
        if not classes and self._loaded is not None:
            return self._loaded
        lists = [self.storage_policy.slots.by_class[label] for label in classes]
        means = [self.stored_features(strategy, slots).mean(0) for slots in lists]
        return classes, normalize(torch.stack(means)) if means else None

    def before_eval_forward(self, strategy, **kwargs):
        self._head.attach(strategy.model, strategy.mb_x)

    def after_eval_forward(self, strategy, **kwargs):
        features = self._head.release()
        if self._means is None:
            # during the first experience there are no exemplars: the head answers
            return
        scores = torch.zeros_like(strategy.mb_output)
        scores[:, self._classes] = -torch.cdist(
            normalize(features), self._means.to(features.device)
        )
        without = torch.ones(scores.shape[1], dtype=torch.bool)
        without[self._classes] = False
        strategy.mb_output = give_unseen_probability(scores, without)

    def after_eval(self, strategy, **kwargs):
        self._means = None

    @torch.no_grad()
    def answer_state(self, strategy):
        classes, means = self._exemplar_means(strategy)
        return {} if means is None else {"classes": classes, "means": means}

    def load_answer_state(self, state):
        self._loaded = list(state["classes"]), state["means"].clone()
