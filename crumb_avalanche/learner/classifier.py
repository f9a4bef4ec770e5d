"""What a learner learned: names, statistics and confidence of its classes.

It sees features, not images.
"""

import copy
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.images.looks import looks_of
from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.evidence import (
    Evidence,
    evidence,
    mean_log,
)
from crumb_avalanche.learner.nothing import drawn_images, usual_threshold
from crumb_avalanche.learner.nothing_features import NothingFeatures
from crumb_avalanche.learner.prediction import (
    RUNNERS_UP,
    Observation,
    Prediction,
    Ranking,
    rank,
)
from crumb_avalanche.learner.prior import PRIORS
from crumb_avalanche.learner.rates import Rates
from crumb_avalanche.learner.record_fit import STRICT
from crumb_avalanche.learner.records import Records
from crumb_avalanche.learner.taught_classes import TaughtClasses
from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.look_forms import EarlierForms, LookForms
from crumb_avalanche.methods.look_weights import LookWeights
from crumb_avalanche.methods.looks import WHOLE, Looks, ViewFeatures
from crumb_avalanche.methods.registry import STRATEGIES, get_strategy
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.value_types import StateError
from crumb_avalanche.system.words import unknown_needs

# A budget that is too small for so many classes with all features has those of the
# head's input.
CLASSES = 20
# Classes that judge the first clip of another one, which takes a solution of the
# statistics; of more, later clips of each class say enough of what is unknown.
MOST_JUDGES = 32


def form_of(method: str) -> type[ClosedForm] | None:
    """Return the class of a registered closed form; ``None`` for other names."""
    return get_strategy(method).form if method in STRATEGIES else None


class Classifier:
    """Names, statistics and confidence of the classes taught, in closed form.

    Methods that learn, move or remove change it in place; ``State`` calls them on
    copies alone.

    Args:
        method: name of a registered closed form.
        features: what it computes of images.
        length: number of these features.
        budget_bytes: most bytes of the statistics.
        head_length: number of the last features, which stay if the budget becomes too
            small for the others; default all.
        looks: the parts of an image that features are computed of, as long as they are
            needed. Each has statistics of its own; the scores of their views are added.
        backbone: name of the network, for what is known of its confidence; without
            effect unless the cosines of the statistics are those of a whitened space.

    Attributes:
        classes: names of the classes, and how much each was taught.
        forms: the statistics, a closed form for each look that is used, and how much
            the scores of each view count.
        confidence: how sure its answers are.
        strict: confidence from which on a class is named; below it an image is unknown.
        nothing: features of images that show nothing; empty where they are not used or
            not computed yet.
    """

    def __init__(
        self,
        method: str,
        features: FeatureMoments,
        length: int,
        budget_bytes: int,
        head_length: int | None = None,
        looks: Looks = WHOLE,
        backbone: str = "",
    ):
        form = form_of(method)
        assert form is not None
        self.method = method
        self.features = features
        self.budget_bytes = budget_bytes
        self.head_length = length if head_length is None else head_length
        self.looks = looks
        self.backbone = backbone
        self.strict = STRICT
        budget_of_look = budget_bytes // len(looks)
        self.forms = LookForms(
            looks, form.for_budget(length, budget_of_look, self.head_length)
        )
        self.classes = TaughtClasses()
        self.nothing = NothingFeatures()
        self._views = ViewFeatures(features, looks)
        # Within a lesson: what answers for clips before they are learned, and the
        # confidence before the lesson.
        self._earlier_forms = EarlierForms()
        self._start_confidence()

    @classmethod
    def of_model(
        cls,
        method: str,
        model: SplitModel,
        budget_bytes: int,
        moments: dict[str, Any] | None = None,
        looks: Looks = WHOLE,
    ) -> "Classifier":
        """Make a classifier without classes for features of a model.

        By default the features are those of the method, or those of the head's input
        alone if the statistics of ``CLASSES`` classes would exceed the budget.

        Args:
            method: name of a closed form.
            model: the network, which decides the number of features.
            budget_bytes: most bytes of the statistics.
            moments: arguments of ``FeatureMoments``; see above for the default.
            looks: parts of an image that are looked at: the whole, and middle parts.
        """
        form = form_of(method)
        assert form is not None
        arguments = form.moments if moments is None else moments
        # Features of each view: of a look, or of a part of its feature map.
        views = ViewFeatures(FeatureMoments(**arguments), looks)
        length = views.length(model)  # number of features of one view
        head_length = views.of_head().length(model)
        if moments is None:
            trial = form.for_budget(length, budget_bytes, head_length)
            # In words what so many classes would have to give up, with one look; empty
            # if they fit.
            given_up = trial.fit_features(CLASSES, budget_bytes, head_length)
            if given_up:
                views = views.of_head()
                length = head_length
        return cls(
            method,
            features=views.moments,
            length=length,
            budget_bytes=budget_bytes,
            head_length=head_length,
            looks=looks,
            backbone=model.backbone,
        )

    @property
    def statistics(self) -> ClosedForm:
        """The closed form of the first look that is used."""
        return self.forms.first

    @property
    def look_weights(self) -> LookWeights:
        """How much the scores of each view count, and which looks are used."""
        return self.forms.weights

    @property
    def length(self) -> int:
        """Number of features that the statistics are of, the last of those given."""
        return self.forms.length

    def ensure_class(self, name: str) -> tuple[int, str]:
        """Return the number of a class, which is added if it is new.

        Args:
            name: of the class.

        Returns:
            The number, and in words what the learner gives up for a new class, such as
            features; empty if nothing.

        Raises:
            BudgetError: a class more does not fit into the budget.
        """
        if name in self.classes.names:
            return self.classes.find(name), ""
        note = self._make_room(len(self.classes) + 1)  # gives up features if it has to
        number = self.classes.add(name)
        self.forms.grow(len(self.classes.names))
        return number, note

    def _make_room(self, n_classes: int) -> str:
        """Fit so many classes into the budget; return what is given up for it."""
        length_before = self.length
        used_before = self.forms.used
        note = self.forms.make_room(n_classes, self.budget_bytes, self.head_length)
        self._drop_unused_looks(used_before)
        if self.length < length_before:
            self._start_confidence()
        return note

    def _start_confidence(self) -> None:
        """Begin without records of answers, which were those of more features."""
        self.confidence = self._empty_confidence()
        self.forms.weights = LookWeights(self.looks, self.forms.used)
        self._earlier_confidence = self.confidence
        self._earlier_forms.forget()
        self.nothing = self.nothing.last_features(self.length)

    def _empty_confidence(self) -> Confidence:
        """Return a confidence without records."""
        if not self.statistics.apart_from_nothing:
            return Confidence()
        return Confidence(PRIORS.get(self.backbone), usual_threshold(self.backbone))

    def tensors(self) -> list[Tensor]:
        """Return the tensors that count for the budget."""
        return self.forms.tensors()

    @property
    def rates(self) -> Rates | None:
        """How often it errs about what it knows; ``None`` for fewer than two classes.

        With a single class nothing was measured that holds for other things.
        """
        numbers = self.classes.numbers
        if len(numbers) < 2:
            return None
        images = {number: self.classes.images[number] for number in numbers}
        clips = [self.classes.clips[number] for number in numbers]
        return self.confidence.rates(self.strict, images, mean_log(clips))

    @property
    def missing_clips(self) -> int:
        """Clips to be asked before it tells unknown things; see ``Confidence``."""
        return self.confidence.missing_clips

    @property
    def note(self) -> str:
        """What a person who reads its answers should know; may be empty."""
        return unknown_needs(self.missing_clips)

    # Features

    @property
    def shares(self) -> tuple[float, ...]:
        """The parts of an image that have to be looked at, in units of its sides."""
        return tuple(self.looks.shares[number] for number in self.look_weights.used)

    def compute(
        self, model: SplitModel, pixels: Tensor, shares: Sequence[float]
    ) -> Tensor:
        """Compute what is learned or asked: ``(n, V * D)`` features of ``V`` views.

        A look is a middle part of the image, or the whole; a view is a look, or a part
        of its feature map. Features of views of other looks than these are 0.

        Args:
            model: the network.
            pixels: uint8 of ``n`` images in each look, as ``LookTransform`` returns
                them.
            shares: side of each look in units of that of the image: ``shares`` of this
                classifier, or of before looks were given up.
        """
        self.draw_nothing(model)  # once: features of images that show no class
        numbers_of_looks = [self.looks.shares.index(share) for share in shares]
        return self._views(model, looks_of(pixels), numbers_of_looks)

    def draw_nothing(self, model: SplitModel) -> None:
        """Compute the features of drawn images that show nothing, the first time.

        They follow from the model alone, and are the same whenever they are computed.
        """
        if self.nothing or not self.statistics.apart_from_nothing:
            return
        used = self.forms.used
        images = drawn_images(model.image_size)
        views = self._by_view(self._views(model, [images] * len(used), used))
        self.nothing = NothingFeatures.of_drawn(views, self.looks, used)

    def features_of_statistics(self, model: SplitModel) -> FeatureMoments:
        """Return the features that the statistics are of.

        These are those of the head's input alone once the others were given up.
        """
        if self.length == self._views.length(model):
            return self.features
        return self.features.of_head()

    def _by_view(self, features: Tensor) -> Tensor:
        """Return the features of each view that the statistics are of.

        Args:
            features: ``(n, V * D')`` of ``n`` images.

        Returns:
            ``(n, V, D)``, the last ``D`` of the ``D'`` features of each view.
        """
        views = features.unflatten(1, (self.looks.n_views, -1))
        return views[:, :, -self.length :]

    # Learning

    def learn(self, features: Tensor, number: int, is_new_clip: bool = True) -> None:
        """Add the features of ``n`` images of a class.

        Args:
            features: as ``compute`` returns them.
            number: of the class.
            is_new_clip: whether they are the first ones of their clip.
        """
        self.give_up_looks_without(features)
        labels = torch.full((len(features),), number)
        self.forms.update(self._by_view(features), labels)
        self.classes.count(number, len(features), n_clips=int(is_new_clip))

    def give_up_looks_without(self, features: Tensor) -> None:
        """Give up the used looks that features lack.

        Features of a lesson lack the looks that were given up before it. Where it is
        learned again without the lesson that gave them up, they are given up here.

        Args:
            features: ``(n, V * D')`` of ``n`` images, as ``compute`` returns them.

        Raises:
            ValueError: they lack all used looks.
        """
        look_of_views = self.looks.look_of_views
        computed_looks = {
            look_of_views[view] for view in self._computed_views(features)
        }
        self.keep_looks(computed_looks)

    def keep_looks(self, looks: Collection[int]) -> None:
        """Give up other looks than these, and drop what was learned by them."""
        used_before = self.forms.used
        self.forms.keep_looks(looks)
        self._drop_unused_looks(used_before)

    def _drop_unused_looks(self, used_before: tuple[int, ...]) -> None:
        """Drop what is left of looks that were given up; the others get their bytes.

        Args:
            used_before: numbers of the looks that were used before.
        """
        if self.forms.used == used_before:
            return
        self.nothing = self.nothing.of_looks(self.forms.used)
        self._earlier_forms.forget()
        self.forms.make_room(len(self.classes), self.budget_bytes, self.head_length)

    def _computed_views(self, features: Tensor) -> list[int]:
        """Return the numbers of the views that are used and were computed."""
        return self.look_weights.views_in(self._by_view(features))

    def _rows_of(self, features: Tensor, views: Sequence[int]) -> Tensor:
        """Return what closed forms score, a row for each view.

        Args:
            features: ``(n, V * D')`` of ``n`` images, as ``compute`` returns them.
            views: numbers of ``V'`` of the views.

        Returns:
            ``(n * V', D)``, image by image.
        """
        return self._by_view(features)[:, views].flatten(0, 1)

    def learn_nothing(self, features: Tensor) -> None:
        """Keep features of images of a clip's piece as those of what shows no class.

        Args:
            features: ``(n, V * D)`` of ``V`` views of each image (the whole image and
                middle parts of it), as ``compute`` returns them.

        Raises:
            ValueError: the method has no use for them.
        """
        if not self.nothing:
            raise ValueError(
                f"a learner of method {self.method} cannot be shown nothing; rda and "
                "slda can"
            )
        self.give_up_looks_without(features)
        self.nothing = self.nothing.with_shown(self._by_view(features), self.looks)

    def begin_lesson(self) -> None:
        """Let all that was learned so far answer for the first clip of a lesson."""
        self._earlier_forms.forget()
        self._earlier_confidence = copy.copy(self.confidence)

    def end_lesson(self) -> None:
        """Drop the copy that answered in the lesson, and looks that are not needed."""
        self._earlier_forms.forget()
        self._earlier_confidence = self.confidence
        used_before = self.forms.used
        self.forms.settle()
        self._drop_unused_looks(used_before)

    def predict_before_learning(
        self, features: Tensor, number: int
    ) -> Prediction | None:
        """Answer for a clip before it is learned, and record the answer in place.

        What is recorded of it is what the confidence and the weights of the views are
        fitted to. A copy of the statistics answers that may lack the last images, since
        statistics that change have to be solved anew.

        Args:
            features: ``(n, V * D)`` of ``V`` views of each of the clip's images (the
                whole image and middle parts of it), as ``compute`` returns them.
            number: of the clip's class.

        Returns:
            What the images looked like, by the confidence before the lesson; ``None``
            if the copy knew no other class, or for a new class more than 32.
        """
        forms = self._earlier_forms.copy_with_class(self.forms, number)
        if not self._judge(forms, number):
            return None
        views = self._computed_views(features)  # numbers of those that are used
        # Scores of each view, and how typical it is of the classes.
        of_views = self._evidence_of_views(forms, features, views, left_out=number)
        # By the weights before the clip, as an answer to it has them.
        of_images = self._of_images(of_views, views)
        losses = self._losses_of(of_views, views, number)
        self.look_weights.add_losses(losses)
        # ``add_clip`` replaces the number of the clip.
        records = Records.of_clip(of_images, number, clip_number=0)
        self.confidence.add_clip(records)
        confidence = self._earlier_confidence
        clip_probabilities = confidence.of_clip(of_images)  # (1, C)
        is_known = confidence.known(clip_probabilities, of_images, self.strict)
        return Prediction(
            evidence=confidence.calibrated(of_images),
            known=bool(is_known),
            observation=Observation(records, losses),
        )

    def _losses_of(
        self, of_views: Evidence, views: Sequence[int], number: int
    ) -> Tensor:
        """Return what a clip adds to the losses of each weighting of the looks.

        A look is a middle part of the image, or the whole. A weighting says how much
        the scores of each look count; the weights in use are a mean over weightings, in
        which those with smaller losses count more.

        Args:
            of_views: scores of its images, a row for each view of each image.
            views: numbers of the views: of a look, or of a part of its feature map.
            number: of its class; for a new one all are 0.

        Returns:
            ``(weightings,)`` float64.
        """
        if number not in of_views.class_of_column:
            return torch.zeros_like(self.look_weights.losses)
        scores = of_views.scores.unflatten(0, (-1, len(views)))  # (n, V', C)
        # Columns are in the order of class numbers.
        column = int((of_views.class_of_column < number).sum())
        return self.look_weights.losses_of(scores, column)

    def _judge(self, forms: LookForms, number: int) -> bool:
        """Whether forms answer for a clip of a class before it is learned."""
        n_known = int((forms.image_counts > 0).sum())
        if forms.knows(number):
            return n_known > 1
        return 2 <= n_known <= MOST_JUDGES

    def observe(self, observation: Observation) -> None:
        """Record a clip again that was predicted in the same state."""
        self.look_weights.add_losses(observation.losses)
        self.confidence.add_clip(observation.records)

    # Answers

    def evidence(self, features: Tensor) -> Evidence:
        """Compute scores and distances of ``n`` images.

        Args:
            features: as ``compute`` returns them.
        """
        views = self._computed_views(features)
        of_views = self._evidence_of_views(self.forms, features, views)
        return self._of_images(of_views, views)

    def _evidence_of_views(
        self,
        forms: LookForms,
        features: Tensor,
        views: Sequence[int],
        left_out: int | None = None,
    ) -> Evidence:
        """Compute the evidence of the views of ``n`` images, each by its look's form.

        Args:
            forms: of the used looks.
            features: ``(n, V * D')``, as ``compute`` returns them.
            views: numbers of ``V'`` of the views, in order.
            left_out: number of a class; see ``evidence``.

        Returns:
            Evidence with ``n * V'`` rows, image by image.
        """
        evidence_of_looks = []
        views_of_looks = []  # number of views of each look
        for look, form in forms.by_look.items():
            views_of_look = self.looks.views_of([look])
            # All views of a look are computed, or none.
            is_computed = views_of_look[0] in views
            if is_computed:
                rows = self._rows_of(features, views_of_look)
                nothing = self.nothing.of_look(look)
                evidence_of_looks.append(evidence(form, rows, nothing, left_out))
                views_of_looks.append(len(views_of_look))
        return Evidence.of_looks(evidence_of_looks, views_of_looks)

    def ranked(self, evidence: Evidence, runners_up: int = RUNNERS_UP) -> list[Ranking]:
        """Rank the classes for each frame, and for all together as a clip.

        Args:
            evidence: of ``n`` frames, as ``Classifier.evidence`` returns it.
            runners_up: most classes besides the first.

        Returns:
            ``n + 1`` rankings, the last one for the clip, by mean scores.
        """
        probabilities_of_frames = self.confidence.probabilities(evidence)  # (n, C)
        probabilities_of_clip = self.confidence.of_clip(evidence)  # (1, C)
        probabilities = torch.cat([probabilities_of_frames, probabilities_of_clip])
        class_of_column = evidence.class_of_column.tolist()
        names = [str(self.classes.names[number]) for number in class_of_column]
        is_known = self._are_known(probabilities, evidence)
        return rank(probabilities, names, is_known, runners_up)

    def _are_known(
        self, probabilities: Tensor, evidence: Evidence
    ) -> list[bool | None]:
        """Return whether the most likely class of each row is named; see ``Ranking``.

        Args:
            probabilities: ``(n, C)``, of images or of clips.
            evidence: of the images.
        """
        are_named = self.confidence.known(probabilities, evidence, self.strict)
        if not self.missing_clips:
            return are_named.tolist()
        # Nothing is known of other things yet: a class may be unlikely, but not known.
        return [None if is_named else False for is_named in are_named.tolist()]

    def _of_images(self, of_views: Evidence, views: Sequence[int]) -> Evidence:
        """Return the evidence of ``n`` images: weighted means over their views.

        Args:
            of_views: evidence with ``n * V'`` rows, image by image.
            views: numbers of the ``V'`` views.
        """
        of_images = of_views.mean_of_views(self.look_weights.weights(views))
        class_of_column = of_images.class_of_column.tolist()
        clip_counts = [self.classes.clips[number] for number in class_of_column]
        return of_images._replace(clip_counts=torch.tensor(clip_counts))

    # Changes of classes

    def move(self, old: str, new: str) -> None:
        """Make the images of a class those of another one, in place.

        Args:
            old, new: names of two classes that were taught; ``old`` is gone then.

        Raises:
            ValueError: there is no class ``old`` or ``new``.
        """
        source = self.classes.find(old)
        target = self.classes.find(new)
        # Numbers of classes: each keeps its own, but for the one that moves.
        new_of_old = {number: number for number in self.classes.numbers}
        new_of_old[source] = target
        forms = self.forms.relabelled(new_of_old)
        confidence = self._empty_confidence()
        confidence.merge(self.confidence, new_of_old)
        self.forms = forms
        self.confidence = confidence
        self.classes.move(source, target)
        self._earlier_forms.forget()  # its copy of the statistics has the old class

    def forget(self, name: str) -> None:
        """Remove a class with all that is stored of it alone."""
        number = self.classes.find(name)
        self.forms.forget(number)
        self.confidence.forget(number)
        self.classes.forget(number)
        self._earlier_forms.forget()

    def check_mergeable(self, other: "Classifier") -> None:
        """Raise ValueError if a classifier has another method or other features.

        Features are computed of looks: the whole image, and middle parts of it.
        """
        if other.method != self.method:
            raise ValueError(
                f"a learner of method {other.method} cannot be merged into one of "
                f"{self.method}: teach one of them again, with method={self.method}"
            )
        if other.looks != self.looks:
            raise ValueError(
                f"a learner of looks {other.looks.shares} cannot be merged into one of "
                f"{self.looks.shares}: teach its images to this one"
            )
        if not {*other.forms.used} & {*self.forms.used}:
            raise ValueError(
                f"this learner looks at {self.shares} of an image alone by now, the "
                f"other at {other.shares}: teach the images of one to the other"
            )
        if other.features != self.features:
            raise ValueError(
                "a learner of other features cannot be merged into this one "
                f"({_differences(self.features, other.features)}): teach its images to "
                "this one"
            )

    def merge(self, other: "Classifier") -> list[str]:
        """Add what another classifier learned; classes of the same name are one.

        Args:
            other: it is not changed.

        Returns:
            What is given up for it, in words.

        Raises:
            BudgetError: the classes of both do not fit into the budget.
        """
        # A look that one side gave up lacks the images of that side.
        self.keep_looks(other.forms.used)
        if other.length == self.length:
            self.look_weights.merge(other.look_weights)
        mine_of_theirs: dict[int, int] = {}  # numbers of classes here and there
        notes = []  # in words what is given up for each class, empty if nothing
        for theirs in other.classes.numbers:
            mine, note = self.ensure_class(str(other.classes.names[theirs]))
            mine_of_theirs[theirs] = mine
            self.classes.count(
                mine, other.classes.images[theirs], other.classes.clips[theirs]
            )
            notes.append(note)
        # Features that were given up on one side are given up on both.
        self._merge_statistics(other, mine_of_theirs)
        notes.append(self._make_room(len(self.classes)))  # for the merged statistics
        nothing = self.nothing.merged(other.nothing.last_features(self.length))
        self.nothing = nothing.of_looks(self.forms.used)
        if other.length == self.length:
            # What was recorded holds for as many features as it was recorded with.
            self.confidence.merge(other.confidence, mine_of_theirs)
        self._earlier_forms.forget()  # its copy lacks what was merged
        return [note for note in notes if note]

    def _merge_statistics(
        self, other: "Classifier", mine_of_theirs: dict[int, int]
    ) -> None:
        """Add the statistics of another, with the features that both have."""
        forms = other.forms
        if other.length > self.length:
            forms = copy.deepcopy(forms)
            forms.keep_features(self.length)
        elif other.length < self.length:
            self.forms.keep_features(other.length)
            self._start_confidence()
        self.forms.merge(forms, mine_of_theirs)

    # Keeping

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values and tensors, which may share memory."""
        return {
            **self.classes.state_dict(),
            "statistics": self.forms.state_dict(),
            "confidence": self.confidence.state_dict(),
            "look_weights": self.look_weights.state_dict(),
            "nothing": self.nothing.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned.

        Args:
            state: names, images and clips of the classes, their statistics, the
                confidence, how much each look (the whole image, or a middle part of
                it) counts, and features of what shows nothing.

        Raises:
            StateError: it is of other features, or of other statistics.
        """
        length = state["statistics"][0]["settings"]["length"]
        if length not in (self.length, self.head_length):
            raise StateError(
                f"the state has {length} features, but the learner {self.length} or "
                f"{self.head_length}; give one of the same features"
            )
        self.classes.load_state_dict(state)
        self.forms = self.forms.of_states(state["statistics"], state["look_weights"])
        self.confidence.load_state_dict(state["confidence"])
        self.nothing = NothingFeatures.of_state(state["nothing"], self.forms.used)
        self._earlier_forms.forget()


def _differences(mine: FeatureMoments, theirs: FeatureMoments) -> str:
    """Return which settings of features differ, such as ``power is 1 here, 0.5 there``.

    Args:
        mine, theirs: settings of two classifiers.
    """
    differences = []
    for name, value in vars(mine).items():
        their_value = getattr(theirs, name)
        if their_value != value:
            differences.append(f"{name} is {value} here, {their_value} there")
    return "; ".join(differences)
