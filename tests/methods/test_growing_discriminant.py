"""Regularised discriminant analysis that shares its budget among the classes so far: order, return, many classes."""

import pytest
import torch

from crumb_avalanche.methods.directions import direction_bytes, fixed_bytes
from crumb_avalanche.methods.method_settings import LearningSettings
from crumb_avalanche.methods.rda_entry import RDA
from crumb_avalanche.methods.registry import build_strategy
from crumb_avalanche.system.tensor_file import StateError

OF_MAP, OF_HEAD = 4 * 8, 8  # features of the small network
BUDGET = 40_000


@pytest.fixture
def make_learner(make_model):
    def make(n_classes, budget=BUDGET, **method):
        model = make_model(n_classes=n_classes, codebook=False)
        memories = RDA.memories_in_budget(model, budget, n_classes, RDA.method_settings(method))
        learner = build_strategy("rda", model, LearningSettings(), memories, 0, method=method)
        assert budget - RDA.bytes_of_item(model, RDA.method()) < learner.budget <= budget
        learner.budget = budget  # without what is too little for a direction, which depends on the number of classes
        return learner

    return make


def gaussians(classes, each, seed=0):
    """Features of classes with covariances of their own, and their labels, class by class."""
    draws = torch.Generator().manual_seed(7)
    means = torch.randn(classes, OF_MAP + OF_HEAD, generator=draws)
    spreads = 0.4 + torch.rand(classes, OF_MAP + OF_HEAD, generator=draws)
    labels = torch.arange(classes).repeat_interleave(each)
    noise = torch.randn(len(labels), OF_MAP + OF_HEAD, generator=torch.Generator().manual_seed(seed))
    return means[labels] + spreads[labels] * noise, labels


def taught(learner, features, labels, size=16):
    for step, some in enumerate(torch.arange(len(labels)).split(size)):
        learner._learn(features[some], labels[some])
        assert step % 25 or learner.statistics_bytes <= learner.budget
    assert learner.statistics_bytes <= learner.budget
    return learner


def answers(learner, features):
    return learner.statistics.scores(features[:, -learner.statistics.settings["length"] :]).argmax(1)


def accuracy(learner, features, labels):
    return float((answers(learner, features) == labels).double().mean())


def test_the_number_of_classes_to_come_changes_nothing(make_learner):
    features, labels = gaussians(12, 20)
    few, many = (taught(make_learner(n_classes), features, labels) for n_classes in (12, 60))
    for one, other in zip(few.statistics.tensors(), many.statistics.tensors(), strict=True):
        assert torch.equal(one, other)


def test_the_order_of_the_classes_and_their_return_change_little(make_learner):
    features, labels = gaussians(40, 30)
    fresh, truth = gaussians(40, 10, seed=1)
    order, halves = torch.randperm(40, generator=torch.Generator().manual_seed(2)), torch.arange(1200).view(40, 2, 15)
    orders = {
        "class by class": torch.arange(1200),
        "other order": torch.arange(1200).view(40, 30)[order].flatten(),
        "each class comes back": halves.transpose(0, 1).flatten(),
        "shuffled": torch.randperm(1200, generator=torch.Generator().manual_seed(3)),
    }
    learners = {name: taught(make_learner(40), features[rows], labels[rows]) for name, rows in orders.items()}
    held = {name: int(learner.statistics.directions.counts.max()) for name, learner in learners.items()}
    assert max(held.values()) - min(held.values()) <= 1 and held["shuffled"] < 29, "the budget limits the directions"
    found = {name: accuracy(learner, fresh, truth) for name, learner in learners.items()}
    assert max(found.values()) - min(found.values()) <= 0.01 and min(found.values()) > 0.9, found


@pytest.mark.parametrize("classes", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_classes_one_by_one(make_learner, classes):
    """Features of the map are dropped on the way, as if the number of classes had been known."""
    features, labels = gaussians(classes, 3)
    fresh, truth = gaussians(classes, 2000 // classes, seed=1)
    budget = 150 * classes
    growing = taught(make_learner(classes, budget), features, labels, size=3)
    assert growing.statistics.settings["length"] == OF_HEAD and not growing.features.maps
    assert growing.decided_settings == {"maps": False, "cells": 1}
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    mixed = taught(make_learner(classes, budget), features[shuffled], labels[shuffled], size=100)
    memories = (budget - classes * fixed_bytes(OF_HEAD, True)) // direction_bytes(OF_HEAD, True)
    settings = {"known_classes": True, **growing.decided_settings}
    known = build_strategy("rda", growing.model, LearningSettings(), memories, 0, method=settings)
    known.statistics.update(features[:, OF_MAP:], labels)
    found = [accuracy(learner, fresh, truth) for learner in (growing, mixed, known)]
    assert max(found) - min(found) <= 0.02 and min(found) > 30 / classes, found


def test_given_cells_are_never_dropped(make_learner):
    learner = taught(make_learner(60, 14_000, cells=2), *gaussians(60, 6))
    assert learner.statistics.settings["length"] == OF_MAP + OF_HEAD and learner.decided_settings == {}
    dropped = taught(make_learner(60, 14_000), *gaussians(60, 6))
    assert dropped.statistics.settings["length"] == OF_HEAD


@pytest.mark.parametrize("classes", [3, 60])
def test_a_state_can_be_loaded_and_learning_resumes(make_learner, classes):
    features, labels = gaussians(60, 6)
    rows = 6 * classes
    whole, half = (taught(make_learner(60, 14_000), features[:rows], labels[:rows]) for _ in range(2))
    fresh = make_learner(60, 14_000)
    fresh.load_state_dict(half.state_dict())
    assert fresh.features.maps == (classes == 3)
    for learner in (whole, fresh):
        taught(learner, *(tensor.flip(0) for tensor in (features, labels)))
    for one, other in zip(whole.statistics.tensors(), fresh.statistics.tensors(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(StateError, match="the state has 8 features, but this strategy 40"):
        make_learner(60, 14_000, cells=2).load_state_dict(whole.state_dict())


def test_features_that_are_dropped_leave_the_statistics_of_the_others(make_learner):
    features, labels = gaussians(3, 30)
    learner = taught(make_learner(3), features, labels)
    of_head = taught(make_learner(3, maps=False), features[:, OF_MAP:], labels)
    learner._keep_head()
    ours, theirs = learner.statistics, of_head.statistics
    fresh = gaussians(3, 10, seed=1)[0][:, OF_MAP:]
    torch.testing.assert_close(ours.scores(fresh), theirs.scores(fresh), rtol=0.02, atol=0.2)
    assert torch.equal(ours.classes.means, theirs.classes.means) and ours.settings["length"] == OF_HEAD
