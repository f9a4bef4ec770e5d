"""A learner by replay: what it promises beyond the contract of all learners, and once its layers are trained."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from patch_images import SIZE, images
from torch import nn

from crumb_avalanche.learner import replay
from crumb_avalanche.learner.export import ExportError, export_onnx
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.replay import ReplayClassifier
from crumb_avalanche.methods.closed_form import BudgetError
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.system.tensor_file import flatten

BUDGET = 700_000  # small, since each lesson copies what is stored


def taught(learner, classes=4, count=9):
    for number in range(classes):
        learner.teach(images(number, count), f"c{number}")
    return learner


@pytest.fixture(scope="module")
def kept():
    return []


@pytest.fixture
def trained(kept, make):
    """A learner that was taught four classes of nine images."""
    if not kept:
        kept.append(taught(make("crumb", BUDGET)))
    return copy.deepcopy(kept[0])


def whole(learner):
    """The state as a tree and tensors."""
    return flatten({**learner.state_dict(), "history": None, "pictures": None, "lessons": None})


def assert_same(one, other):
    (tree, tensors), (its_tree, its_tensors) = whole(one), whole(other)
    assert tree == its_tree and tensors.keys() == its_tensors.keys()
    assert not [name for name, value in tensors.items() if not torch.equal(value, its_tensors[name])]


def right(learner, classes):
    return np.mean([learner.predict(images(number, 1, seed=1)).label == f"c{number}" for number in classes])


def test_maps_are_kept_until_there_are_enough_and_then_dropped(make, trained):
    learner = taught(make("crumb", BUDGET), 3)
    assert learner._classifier.pieces == 0 and len(learner._classifier.memories) == 27
    assert learner._classifier.memories.rows.dtype == torch.float16 and right(learner, range(3)) == 1
    assert "feature maps in half precision" in learner._classifier.stored[0] and not learner.forget("c2")
    assert trained._classifier.pieces == 1 and len(trained._classifier.memories) == 36
    assert trained._classifier.memories.rows.dtype == torch.uint8 and right(trained, range(4)) == 1


def test_it_learns_classes_and_records_how_sure_it_is(trained):
    learner = trained
    for number in range(4, 6):
        learner.teach(images(number), f"c{number}")
    lesson = learner.teach(images(0, seed=3), "c0")
    assert lesson.answered == 1 and len(learner._classifier.confidence) > 0
    assert right(learner, range(6)) >= 0.75
    answer = learner.predict(images(1, 3, seed=2))
    shares = [answer.confidence, *(share for _, share in answer.runners_up)]
    assert len(answer.frames) == 3 and sum(shares) <= 1 + 1e-6 and shares == sorted(shares, reverse=True)


def test_undo_and_files_keep_every_bit(trained, tmp_path):
    learner = trained
    before = copy.deepcopy(learner)
    learner.teach(images(7), "new")
    learner.save(tmp_path / "a.safetensors")
    again = Learner.load(tmp_path / "a.safetensors")
    assert_same(learner, again)
    random = torch.get_rng_state()
    for one in (learner, again):  # a class that comes back, and another one
        one.teach(images(7, seed=2), "new")
        one.teach(images(8), "other")
        one.undo()
    assert torch.equal(random, torch.get_rng_state())
    assert_same(learner, again)
    assert learner.predict(images(7, 1, seed=1)) == again.predict(images(7, 1, seed=1))
    third = Learner.load(tmp_path / "a.safetensors")
    third.undo()
    assert_same(third, before)


def test_forget_leaves_no_memory(trained):
    learner = trained
    learner.teach(images(5), "last")
    known = learner._classifier
    assert known.memories.slots.by_class[1] and "all classes share" in learner.forget("c1")
    for state in (learner.state_dict(), learner._history.before.state_dict()):
        memories = state["replay"]["memories"]
        assert 1 not in memories["labels"] and 1 not in memories["by_class"]
        assert not memories["rows"][memories["free"]].any()
        weights = state["replay"]["model"]
        assert not any(weights[f"plastic_layers.head.{name}"][1].any() for name in ("weight", "bias"))
        assert not state["statistics"]["means"][1].any() and state["names"][1] is None
        assert 1 not in memories["rule"]["past"] | memories["rule"]["coming"] | memories["rule"]["offered"]
    assert learner.predict(images(1, 1)).label != "c1"
    learner.undo()
    assert [info.name for info in learner.classes] == ["c0", "c2", "c3"]
    learner.teach(images(1), "c1")
    assert learner.predict(images(1, 1, seed=1)).label == "c1"
    for info in learner.classes:
        learner.forget(info.name)
    assert learner._classifier.pieces == 0 and not len(learner._classifier.memories)
    assert right(taught(learner), range(4)) == 1


def test_a_head_that_grew_answers_as_one_with_room_from_the_start(make, trained, monkeypatch):
    resize = ReplayClassifier._resize
    monkeypatch.setattr(ReplayClassifier, "_resize", lambda self, classes: resize(self, 64))
    roomy = taught(make("crumb", BUDGET))
    monkeypatch.undo()
    for number in range(4):
        one, other = (learner.predict(images(number, 1, seed=1)) for learner in (trained, roomy))
        assert one.label == other.label and one.confidence == pytest.approx(other.confidence, abs=1e-4)


def test_the_budget_is_kept_and_what_gives_way_is_told(make, monkeypatch):
    monkeypatch.setattr(replay, "FIRST_LOCATIONS", 64)  # of maps of 16
    budget = 24_000
    learner, notes = make("crumb", budget), []
    for number in range(5):
        notes += learner.teach(images(number, 12), f"c{number}").notes
        assert learner.bytes <= budget and sum(info.bytes for info in learner.classes) <= learner.bytes
    counts = [learner._classifier.memories.slots.count(number) for number in range(5)]
    assert max(counts) - min(counts) <= 1 < min(counts)
    assert "give up" in notes[-1] and notes[-1].endswith(f"of 5 may keep {learner._classifier.memories.max_size // 5}")
    with pytest.raises(
        BudgetError, match=r"bytes are needed for .* classes with a memory of each class.* budget .* forget"
    ):
        taught(learner, 60, 1)
    assert len(learner.classes) < 60 and learner.bytes <= budget
    with pytest.raises(BudgetError, match="forget a class"):
        make("crumb", 4_000).teach(images(0), "c0")


def test_merge_and_export_are_refused_with_a_way_out(make, trained, kept, tmp_path):
    learner, other = trained, make("crumb")
    other.teach(images(9), "nine")
    with pytest.raises(ValueError, match=r"by replay \(crumb\) cannot be merged.*teach one .*closed form"):
        learner.merge(other)
    assert_same(learner, kept[0])
    with pytest.raises(ExportError, match=r"by replay \(crumb\).*closed form.*rda"):
        export_onnx(learner, tmp_path / "a.onnx")


def test_batch_norms_of_the_trained_layers_are_frozen():
    model = split_backbone("small_cnn", None, n_classes=1, codebook=None, cut_layer=8, image_size=SIZE).eval()
    for layer in model.plastic_layers.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.uniform_()
            layer.running_var.uniform_(0.5, 2)
    trained, maps = ReplayClassifier("crumb", model, 10**6).model, torch.rand(3, *model.map_shape)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in trained.plastic_layers.modules())
    expected = model.classify(maps)
    for mode in (True, False):
        assert torch.allclose(trained.train(mode).classify(maps), expected, atol=1e-5)


def test_images_that_are_all_alike_are_no_reason_to_stop(make):
    learner = make("crumb")
    for label in ("black", "white"):
        learner.teach(np.full((40, SIZE, SIZE, 3), 255 * (label == "white"), np.uint8), label)
    assert {info.images for info in learner.classes} == {40}
    assert learner.predict(np.zeros((1, SIZE, SIZE, 3), np.uint8)).label in {"black", "white"}


def test_prediction_needs_no_avalanche(trained, tmp_path):
    path = str(tmp_path / "mine.safetensors")
    trained.save(path)
    code = (
        "import sys, numpy as np\nfrom crumb_avalanche import Learner\n"
        f"learner = Learner.load({path!r})\nlearner.predict(np.zeros(({SIZE}, {SIZE}, 3), np.uint8))\n"
        "learner.forget('c0')\n"
        "assert 'torch' in sys.modules and 'avalanche' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
