"""Statistics of each look: a closed form of the views of each part of an image."""

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.look_weights import LookWeights
from crumb_avalanche.methods.looks import Looks

# The copy that is asked before a clip is learned is made anew once there are so many
# times the images that the last one learned.
GROWTH = 1.5


class LookForms:
    """A closed form for each look that is used, of the views of this look alone.

    So a look that is not needed costs the others nothing: where it is given up, what is
    left equals what one look alone would have learned, but for what a budget took.
    ``weights`` say how much the views of each look count.

    Args:
        looks: the parts of an image that are looked at.
        form: without images; each look gets a copy.

    Attributes:
        by_look: the forms that are used, by number of the look, in increasing order.
        weights: of the scores of the views; its used looks have a form.
    """

    def __init__(self, looks: Looks, form: ClosedForm):
        self.looks = looks
        self.by_look = {number: copy.deepcopy(form) for number in looks.all}
        self.weights = LookWeights(looks)

    @property
    def used(self) -> tuple[int, ...]:
        """Numbers of the looks that are used, which have a form."""
        return self.weights.used

    @property
    def first(self) -> ClosedForm:
        """The form of the first look that is used; all have the same settings."""
        return next(iter(self.by_look.values()))

    @property
    def length(self) -> int:
        """Number of features of a view."""
        return self.first.settings["length"]

    @property
    def n_classes(self) -> int:
        """Number of classes, with those without images."""
        return self.first.settings["n_classes"]

    @property
    def image_counts(self) -> Tensor:
        """Images of each class that were learned, ``(n_classes,)`` int32."""
        views_of_first = self.looks.views_of(self.used[:1])
        return self.first.image_counts // len(views_of_first)

    def knows(self, label: int) -> bool:
        """Whether images of a class were learned."""
        image_counts = self.image_counts
        return label < len(image_counts) and bool(image_counts[label])

    def tensors(self) -> list[Tensor]:
        """Return the tensors that hold the statistics of all looks."""
        tensors = []
        for form in self.by_look.values():
            tensors += form.tensors()
        return tensors

    @property
    def held_bytes(self) -> int:
        """Bytes of the statistics of all looks."""
        return sum(form.held_bytes for form in self.by_look.values())

    @property
    def derived_bytes(self) -> int:
        """Bytes of the solutions that answers are computed from."""
        return sum(form.derived_bytes for form in self.by_look.values())

    # Learning

    def update(self, views: Tensor, labels: Tensor) -> None:
        """Let the form of each look learn the views of this look.

        Args:
            views: ``(B, V, D)`` float features of all views of ``B`` images, used or
                not.
            labels: ``(B,)`` whole numbers, the classes.
        """
        for look, form in self.by_look.items():
            views_of_look = self.looks.views_of([look])
            rows = views[:, views_of_look].flatten(0, 1)  # a row for each view
            form.update(rows, labels.repeat_interleave(len(views_of_look)))

    def grow(self, n_classes: int) -> None:
        """Add classes without images; see ``ClosedForm.grow``."""
        for form in self.by_look.values():
            form.grow(n_classes)

    def forget(self, label: int) -> None:
        """Remove a class from all forms; see ``ClosedForm.forget``."""
        for form in self.by_look.values():
            form.forget(label)

    def keep_looks(self, looks: Collection[int]) -> None:
        """Give up the used looks that are not among these, and drop their forms."""
        kept_looks = tuple(look for look in self.used if look in looks)
        self._drop_others(kept_looks)

    def settle(self) -> None:
        """Give up looks that are not needed; see ``LookWeights.settle``."""
        self.weights.settle()
        self._drop_others(self.weights.used)

    def _drop_others(self, used: tuple[int, ...]) -> None:
        """Use some of the looks alone from now on."""
        self.weights.used = used
        for look in list(self.by_look):
            if look not in used:
                del self.by_look[look]

    def keep_features(self, count: int) -> None:
        """Keep the last features of each view; see ``ClosedForm.keep_features``."""
        for form in self.by_look.values():
            form.keep_features(count)

    def merge(self, other: "LookForms", labels: Mapping[int, int]) -> None:
        """Add what another instance learned by the looks that both use.

        The forms of other looks are dropped, as they would lack the images of one side.
        ``weights`` stay as they are.

        Args:
            other: of the same looks; it is not changed.
            labels: see ``ClosedForm.merge``.
        """
        self.keep_looks(other.used)
        for look, form in self.by_look.items():
            form.merge(other.by_look[look], labels)

    def relabelled(self, labels: Mapping[int, int]) -> "LookForms":
        """Return a copy in which classes have other numbers; two may become one.

        Args:
            labels: the new number of each class with images.
        """
        relabelled = {}
        for look, form in self.by_look.items():
            relabelled[look] = form.like(form.state_dict())  # without images
            relabelled[look].merge(form, labels)
        return self._with(relabelled)

    def _with(self, by_look: dict[int, ClosedForm]) -> "LookForms":
        """Return a copy that has other forms, by number of the look."""
        copied = copy.copy(self)
        copied.by_look = by_look
        copied.weights = copy.copy(self.weights)
        return copied

    # Budgets, of which each look has the same part

    def _give_up_looks(self, n_classes: int, budget: int, head_length: int) -> str:
        """Give up all looks but one where a budget is too small for all of them.

        It is too small where it does not even hold the features of the head for all
        looks. The look that counts most stays.

        Args:
            n_classes, budget, head_length: see ``make_room``.

        Returns:
            What is given up, in words; empty for nothing.
        """
        if len(self.by_look) == 1:
            return ""
        part = self._budget_of_look(budget)
        are_held = [
            form.holds(n_classes, part, head_length) for form in self.by_look.values()
        ]
        if all(are_held):
            return ""
        best = self.weights.best
        given_up = [look for look in self.used if look != best]
        self.keep_looks([best])
        names = ", ".join(f"{self.looks.shares[look]:g}" for look in given_up)
        return (
            f"look {names} is given up, as look {self.looks.shares[best]:g} counts more"
        )

    def make_room(self, n_classes: int, budget: int, head_length: int) -> str:
        """Fit so many classes into a budget; see ``BudgetedStatistics.make_room``.

        Features of the map are given up first, then looks, then directions of classes.

        Returns:
            What is given up for it, in words; empty for nothing.

        Raises:
            BudgetError: even the least does not fit.
        """
        looks_given_up = self._give_up_looks(n_classes, budget, head_length)
        notes = {}  # what each look gives up, in words
        for look, form in self.by_look.items():
            notes[look] = form.make_room(
                n_classes, self._budget_of_look(budget), head_length
            )
        return "; ".join(filter(None, [looks_given_up, self._given_up(notes)]))

    def _given_up(self, notes: Mapping[int, str]) -> str:
        """Return in words what looks give up: once, or for each look apart.

        Args:
            notes: what a look gives up, by its number; empty for nothing.
        """
        all_looks_alike = len(set(notes.values())) == 1
        if all_looks_alike:
            return next(iter(notes.values()))
        texts = []
        for look, note in notes.items():
            if note:
                texts.append(f"look {self.looks.shares[look]:g}: {note}")
        return "; ".join(texts)

    def fit_into(self, n_classes: int, budget: int, head_length: int) -> None:
        """Give up what does not fit into a budget in bytes, with so many classes.

        Features, looks and directions go in the order of ``make_room``.

        Args:
            n_classes: number of classes that are to fit.
            budget: in bytes.
            head_length: number of the last features, those of the head's input, which
                stay.
        """
        n_with_reserve = max(form.allocated_classes for form in self.by_look.values())
        self._give_up_looks(n_with_reserve, budget, head_length)
        part = self._budget_of_look(budget)
        for form in self.by_look.values():
            # Some of these are in reserve, which takes bytes, too.
            n_allocated = form.allocated_classes
            dropped_features = form.fit_features(n_allocated, part, head_length)
            if dropped_features:  # which allocates them again, without a reserve
                n_allocated = n_classes
            form.fit_statistics(n_allocated, part)

    def _budget_of_look(self, budget: int) -> int:
        """Return the part of a budget that a look has."""
        return budget // len(self.by_look)

    # Answering

    def scores(self, views: Tensor) -> Tensor:
        """Score the classes: ``(B, V', n_classes)`` float64 of the ``V'`` used views.

        Args:
            views: ``(B, V, D)`` float features of all views; where the forms are of
                fewer features, the last ones count.
        """
        scores_of_looks = []
        for look, form in self.by_look.items():
            views_of_look = self.looks.views_of([look])
            rows = views[:, views_of_look, -self.length :].flatten(0, 1)
            scores = form.scores(rows).unflatten(0, (-1, len(views_of_look)))
            scores_of_looks.append(scores)
        return torch.cat(scores_of_looks, 1)

    # Saving and loading

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state of the form of each used look, in order."""
        return [form.state_dict() for form in self.by_look.values()]

    def loaded(
        self, states: Sequence[dict[str, Any]], weights: dict[str, Any]
    ) -> "LookForms":
        """Return an instance of the same settings with what ``state_dict`` returned.

        Args:
            states: of the form of each used look.
            weights: what ``LookWeights.state_dict`` returned.

        Raises:
            StateError: the settings differ, or a tensor is missing or damaged.
            ValueError: there are more or fewer states than looks.
        """
        forms = []
        for state in states:
            form = self.first.like(state)
            form.load_state_dict(state)
            forms.append(form)
        return self._with_loaded(forms, weights)

    def of_states(
        self, states: Sequence[dict[str, Any]], weights: dict[str, Any]
    ) -> "LookForms":
        """Return an instance with the settings of states, too; see ``loaded``."""
        form = type(self.first)
        return self._with_loaded([form.from_state(state) for state in states], weights)

    def _with_loaded(
        self, forms: Sequence[ClosedForm], weights: dict[str, Any]
    ) -> "LookForms":
        """Return a copy that has other forms and weights.

        Args:
            forms: of each used look.
            weights: what ``LookWeights.state_dict`` returned.
        """
        loaded = self._with(dict(zip(weights["used"], forms, strict=True)))
        loaded.weights.load_state_dict(weights)
        return loaded


class EarlierForms:
    """An earlier copy of the forms, which answers for clips before they are learned.

    It is made anew in each lesson, or experience of a run, and within one whenever
    there are half as many images again: each change of the statistics needs a new
    solution, which takes longer than an answer. A learner also makes it anew for a clip
    whose class it lacks, which is once for each class at most.
    """

    def __init__(self) -> None:
        self._forms: LookForms | None = None  # the copy
        self._images = 0  # that the copy has learned

    def __deepcopy__(self, memo: dict) -> "EarlierForms":
        return copy.copy(self)  # the copy is replaced, never changed

    def forget(self) -> None:
        """Drop the copy, so that all that was learned so far answers next."""
        self._forms = None

    def copy_of(self, forms: LookForms) -> LookForms:
        """Return the copy of what was learned so far, made anew if it is too old."""
        n_learned = int(forms.image_counts.sum())
        if self._forms is None or n_learned >= GROWTH * self._images:
            self._forms = copy.deepcopy(forms)
            self._images = max(1, n_learned)
        return self._forms

    def copy_with_class(self, forms: LookForms, label: int) -> LookForms:
        """Return the copy, made anew if it is too old or lacks a class learned since.

        Args:
            forms: what was learned so far.
            label: class of the clip that is to be predicted.
        """
        if forms.knows(label) and not self.copy_of(forms).knows(label):
            self.forget()
        return self.copy_of(forms)

    def copy_that_knows(self, forms: LookForms, label: int) -> LookForms | None:
        """Return a copy of the forms that predicts a clip before it is learned.

        Args:
            forms: what was learned so far; an earlier copy is returned while it is
                recent enough.
            label: class of the clip.

        Returns:
            ``None`` if the copy does not know the class, or no other one.
        """
        earlier = self.copy_of(forms)
        knows_others = int((earlier.image_counts > 0).sum()) > 1
        return earlier if earlier.knows(label) and knows_others else None

    def state_dict(self) -> dict[str, Any]:
        """Return the copy, and how many images it learned."""
        forms = None if self._forms is None else self._forms.state_dict()
        return {"forms": forms, "images": self._images}

    def load_state_dict(self, state: dict[str, Any], forms: LookForms) -> None:
        """Load what ``state_dict`` returned.

        Args:
            state: see above.
            forms: with the same settings and used looks.
        """
        self._forms = None
        self._images = state["images"]
        if state["forms"] is not None:
            self._forms = forms.loaded(state["forms"], forms.weights.state_dict())
