"""A closed form for each look: what one look learns does not change the others."""

import copy

import pytest
import torch

from crumb_avalanche.methods.budgeted_statistics import BudgetError
from crumb_avalanche.methods.look_forms import LookForms
from crumb_avalanche.methods.looks import Looks
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.slda import StreamingLDA

LOOKS = Looks((1.0, 0.5))  # of one view and of two
LENGTH = 6
CLASSES = 3
IMAGES = 20


def views_and_labels(seed=0):
    draws = torch.Generator().manual_seed(seed)
    views = torch.randn(IMAGES, LOOKS.n_views, LENGTH, generator=draws)
    return views, torch.arange(IMAGES) % CLASSES


def empty_forms(looks=LOOKS):
    return LookForms(looks, StreamingLDA(CLASSES, LENGTH))


@pytest.fixture
def forms():
    forms = empty_forms()
    forms.update(*views_and_labels())
    return forms


def of_one_look(views_of_look):
    """What a form learns of some views alone."""
    views, labels = views_and_labels()
    form = StreamingLDA(CLASSES, LENGTH)
    rows = views[:, views_of_look].flatten(0, 1)
    form.update(rows, labels.repeat_interleave(len(views_of_look)))
    return form


def assert_equal(form, expected):
    tensors = form.named_tensors()
    for name, tensor in expected.named_tensors().items():
        assert torch.equal(tensors[name], tensor), name


@pytest.mark.parametrize(("look", "views_of_look"), [(0, [0]), (1, [1, 2])])
def test_a_look_learns_its_views_alone(forms, look, views_of_look):
    assert_equal(forms.by_look[look], of_one_look(views_of_look))


def test_scores_are_of_each_views_look(forms):
    views, _ = views_and_labels(seed=1)
    scores = forms.scores(views)
    assert scores.shape == (IMAGES, LOOKS.n_views, CLASSES)
    for view, look in enumerate(LOOKS.look_of_views):
        expected = forms.by_look[look].scores(views[:, view])
        torch.testing.assert_close(scores[:, view], expected)


def test_what_stays_is_not_changed_by_a_look_that_goes(forms):
    forms.keep_looks([1])
    assert forms.used == (1,)
    assert_equal(forms.first, of_one_look([1, 2]))
    views, _ = views_and_labels(seed=1)
    assert forms.scores(views).shape == (IMAGES, 2, CLASSES)


def test_images_are_counted_once(forms):
    _, labels = views_and_labels()
    assert torch.equal(forms.image_counts, labels.bincount().int())
    forms.keep_looks([1])  # of two views
    assert torch.equal(forms.image_counts, labels.bincount().int())


def test_bytes_are_sums_over_looks(forms):
    assert forms.held_bytes == sum(form.held_bytes for form in forms.by_look.values())
    assert len(forms.tensors()) == 2 * len(forms.first.tensors())


def test_a_class_is_forgotten_by_all_looks(forms):
    forms.forget(1)
    for form in forms.by_look.values():
        assert form.image_counts.tolist()[1] == 0


def test_merged_forms_have_the_looks_of_both(forms):
    second = empty_forms()
    second.update(*views_and_labels(seed=1))
    second.keep_looks([0])
    both = copy.deepcopy(forms)
    both.merge(second, {label: label for label in range(CLASSES)})
    assert both.used == (0,)
    assert int(both.image_counts.sum()) == 2 * IMAGES
    assert forms.used == (0, 1)


def test_classes_get_other_numbers(forms):
    relabelled = forms.relabelled({0: 0, 1: 0, 2: 2})
    counts = forms.image_counts.tolist()
    assert relabelled.image_counts.tolist() == [counts[0] + counts[1], 0, counts[2]]


@pytest.mark.parametrize("load", [LookForms.loaded, LookForms.of_states])
def test_states_are_loaded(forms, load):
    forms.keep_looks([1])
    loaded = load(empty_forms(), forms.state_dict(), forms.weights.state_dict())
    assert loaded.used == (1,)
    assert_equal(loaded.first, forms.first)


def test_a_state_for_each_look(forms):
    with pytest.raises(ValueError, match="zip"):
        empty_forms().loaded(forms.state_dict()[:1], forms.weights.state_dict())


# Budgets


def discriminants(looks=LOOKS):
    return LookForms(looks, RegularizedDiscriminant(CLASSES, LENGTH, directions=8))


def test_each_look_has_a_part_of_the_budget():
    forms = discriminants()
    forms.update(*views_and_labels())
    all_bytes = forms.held_bytes
    budget = all_bytes * 3 // 4
    forms.fit_into(CLASSES, budget, LENGTH)
    assert forms.held_bytes <= budget < all_bytes
    for form in forms.by_look.values():
        assert form.held_bytes <= budget // 2


def test_what_a_look_gives_up_is_said():
    forms = discriminants()
    forms.update(*views_and_labels())
    note = forms.make_room(CLASSES + 1, 3 * forms.held_bytes // 4, LENGTH)
    whole_image, middle = note.split("; ")
    assert whole_image.startswith("look 1: ")
    assert middle.startswith("look 0.5: ")


def test_what_all_looks_give_up_is_said_once():
    forms = discriminants()
    for form in forms.by_look.values():
        form.make_room = lambda *_: "all features"
    assert forms.make_room(CLASSES, budget=1000, head_length=LENGTH) == "all features"


LEAST_BYTES = 176  # of a discriminant of one class more


@pytest.mark.parametrize(
    ("budget", "used", "note"),
    [
        (2 * LEAST_BYTES, (0, 1), ""),
        (2 * LEAST_BYTES - 1, (1,), "look 1 is given up, as look 0.5 counts more"),
    ],
    ids=["room for all", "room for one"],
)
def test_the_look_that_counts_most_stays(budget, used, note):
    forms = discriminants()  # before any clip the middle counts most
    assert forms.make_room(CLASSES + 1, budget, LENGTH) == note
    assert forms.used == used


@pytest.mark.parametrize("looks", [LOOKS, Looks()], ids=str)
def test_a_class_too_many(looks):
    with pytest.raises(BudgetError, match="bytes are needed for 4 classes"):
        discriminants(looks).make_room(CLASSES + 1, budget=60, head_length=LENGTH)
