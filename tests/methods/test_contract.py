"""What every strategy of the registry has to keep, whatever it does inside."""

import copy
import importlib
import json
import pickle
import pkgutil
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache

import numpy as np
import pytest
import small_models
import torch
from avalanche.core import BasePlugin
from avalanche.training.plugins import SupervisedPlugin
from site_parts.result_tables import methods
from watched import SIX, VARIANTS, Answers, built, entry_of, outputs_of
from watched import learned as learned_by

import crumb_avalanche
from crumb_avalanche import Learner
from crumb_avalanche.learner.export import export_onnx
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.methods.registry import STRATEGIES, get_strategy, register
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.system.tensor_file import (
    StateError,
    flatten,
    read_state,
    read_tensors,
    write_state,
)
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.ledger import LedgerMetric

BUDGET = 8 * 3 * 16**2  # eight images of 16 pixels
STREAM_LEARNERS = [
    *(name for name, entry in STRATEGIES.items() if not entry.joint),
    *VARIANTS,
]


class Watch(SupervisedPlugin):
    """Which rows of the data a strategy was shown in each experience, and its bytes after every step."""

    def __init__(self):
        super().__init__()
        self.rows, self.bytes = [], []

    def before_training_exp(self, strategy, **kwargs):
        self.rows.append([])

    def before_forward(self, strategy, **kwargs):
        # The brightest corner of an image of the fake stream is its own.
        self.rows[-1] += [
            tuple(image.flatten()[:6].tolist()) for image in strategy.mb_x
        ]

    def after_training_iteration(self, strategy, **kwargs):
        entries = LedgerMetric().count(strategy)
        self.bytes.append(entries["memory_bytes"] - entries["label_bytes"])


def learn(name, make_model, make_stream, protocol="class_instance", experiences=2):
    """A strategy after some experiences, with what was watched; the global RNG state is set."""
    entry, varied = entry_of(name)
    torch.manual_seed(0)
    np.random.seed(0)
    stream = make_stream(protocol=protocol, classes=SIX)
    model = calibrate(
        make_model(n_classes=6, codebook=entry.codebook), stream.train_stream[0].dataset
    )
    count = entry.memories_in_budget(model, BUDGET, stream.n_classes, exact=True)
    watch, answers = Watch(), Answers()
    strategy = built(entry.name, model, count, method=varied, plugins=[watch, answers])
    for experience in stream.train_stream[:experiences]:
        strategy.train(experience)
    return strategy, stream, watch, answers


@cache
def learned(name):
    """What ``learn`` returns, once for the tests that only read it."""
    return learn(name, small_models.make_model, small_models.make_stream)


def weights(strategy):
    return {key: value.clone() for key, value in strategy.model.state_dict().items()}


def state(strategy):
    """A copy of a strategy's state: the tensors, and the rest without what a clock says."""
    tree, tensors = flatten(copy.deepcopy(strategy.state_dict()))
    return [
        pair for pair in json.loads(json.dumps(tree))["dict"] if pair[0] != "seconds"
    ], tensors


def assert_same(first, second):
    (tree, tensors), (other_tree, others) = first, second
    assert tree == other_tree and tensors.keys() == others.keys()
    assert all(torch.equal(tensors[key], others[key]) for key in tensors)


def logits_of(strategy, stream):
    """``(N, classes)``, the outputs of the strategy on all classes seen."""
    return outputs_of(strategy, stream.test_stream[:2])[0]


def built_anew(name, make_model, make_stream):
    """A strategy with the same settings that was not trained, with other weights where training changes them."""
    strategy, stream, *_ = learn(name, make_model, make_stream, experiences=0)
    torch.manual_seed(99)
    with torch.no_grad():
        for weight in strategy.model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.1)
    return strategy, stream


@pytest.mark.parametrize("name", STREAM_LEARNERS)
def test_learns_a_stream_and_answers_only_with_classes_it_saw(
    name, make_model, make_stream
):
    strategy, stream, _, answers = learn(name, make_model, make_stream, "class_iid")
    for seen in (1, 2):
        answers.given.clear()
        strategy.eval(stream.test_stream[:seen])
        assert len(answers.given) == sum(
            len(experience.dataset) for experience in stream.test_stream[:seen]
        )
    known = set().union(*stream.original_classes_in_exp[:2])
    assert set(answers.given) <= known


@pytest.mark.parametrize("name", STREAM_LEARNERS)
def test_every_later_frame_is_seen_once_and_in_order(name):
    _, stream, watch, _ = learned(name)
    for number, experience in enumerate(stream.train_stream[:2]):
        shown = [
            tuple(image.flatten()[:6].tolist()) for image, *_ in experience.dataset
        ]
        epochs = watch.rows[number][: len(shown)] if number == 0 else watch.rows[number]
        fresh = [row for row in epochs if row in set(shown)]
        assert fresh == shown


@pytest.mark.parametrize(
    "name", [name for name in STREAM_LEARNERS if entry_of(name)[0].budgeted]
)
def test_keeps_its_bytes_within_the_budget_at_every_step(name):
    _, _, watch, _ = learned(name)
    assert 0 < watch.bytes[-1] <= max(watch.bytes) <= BUDGET


WEIGHTS = 8 * 8 * 9 + 8 + (8 + 1) * 6  # of the plastic layers
BYTES = {
    **dict.fromkeys(["er", "image_replay", "gem", "rainbow_memory"], 8 * 768),
    "der": 7 * (768 + 4 * 6),  # with logits of six classes
    "gss": 7 * (768 + 4),  # with a score
    "cope": 7 * 768 + 4 * 6 * 8,  # a prototype for each class
    "icarl": 6 * 768 + 2 * WEIGHTS,  # the old network in half precision
    "bic": 6 * 768 + 2 * WEIGHTS + 2 * 4 * 6,  # and two scalars for each class
    # The old network with the share, factors and summands; the stable branch.
    "aanets": 2 * 768 + 2 * (WEIGHTS + 1 + 64 + 8) + 4 * (584 + 64 + 8),
    "remind": 88 * 64 + 512,  # 4 bits a value, and the tables
    "memory_recall": 6
    * 4
    * (
        2 * 8 + 2
    ),  # a mean and a deviation for each channel, the lowest value and the number
    "lwf": 4 * WEIGHTS,
    "ewc": 2 * 2 * 4 * WEIGHTS,  # importances and old weights of two experiences
    "mas": 2 * 4 * WEIGHTS,
    "si": 4 * 4 * WEIGHTS,
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_after_two_experiences_by_hand(name):
    entries = LedgerMetric().count(learned(name)[0])
    assert entries["memory_bytes"] - entries["label_bytes"] == BYTES[name]


def trained_on(strategy, experience):
    """The state of a strategy after one more experience."""
    torch.manual_seed(5)
    np.random.seed(5)
    strategy.train(experience)
    return state(strategy)


@pytest.mark.parametrize("name", STREAM_LEARNERS)
def test_repeated_pickled_and_loaded_it_is_the_same_and_goes_on_alike(
    name, make_model, make_stream, tmp_path
):
    strategy, stream, *_ = learn(name, make_model, make_stream)
    assert_same(state(learned(name)[0]), state(strategy))
    pickled = pickle.loads(pickle.dumps(strategy))
    write_state(tmp_path / "state.safetensors", strategy.state_dict(), {})
    again, its_stream = built_anew(name, make_model, make_stream)
    again.load_state_dict(read_state(tmp_path / "state.safetensors")[0])
    assert_same(state(strategy), state(again))
    expected = logits_of(strategy, stream)
    assert set(expected.argmax(1).tolist()) <= set(strategy.seen_classes.seen)
    end = trained_on(strategy, stream.train_stream[2])
    for one, data in ((pickled, stream), (again, its_stream)):
        assert torch.equal(logits_of(one, data), expected)
        assert_same(end, trained_on(one, data.train_stream[2]))


@pytest.mark.parametrize("name", [name for name in STREAM_LEARNERS if name != "chance"])
def test_the_answer_state_suffices_for_the_same_answers(
    name, make_model, make_stream, tmp_path
):
    strategy, stream, *_ = learned(name)
    answers, everything = (
        tmp_path / "answers.safetensors",
        tmp_path / "state.safetensors",
    )
    write_state(answers, strategy.answer_state(), {})
    write_state(everything, strategy.state_dict(), {})
    again, its_stream = built_anew(name, make_model, make_stream)
    expected = logits_of(copy.deepcopy(strategy), stream)
    assert not torch.equal(logits_of(again, its_stream), expected)
    again.load_answer_state(read_state(answers)[0])
    assert torch.equal(logits_of(again, its_stream), expected)
    assert answers.stat().st_size < everything.stat().st_size
    names = read_tensors(answers)[0].keys()
    assert not [
        key
        for key in names
        if re.search("optimizer|buffers|random|old_network|feature_extractor", key)
    ]


def test_a_state_of_another_strategy_is_refused(make_model, make_stream):
    saved = learned("er")[0].state_dict()
    for name, facts in (
        ("icarl", "ExperienceReplayPlugin, ICaRLPlugin"),
        ("finetune", "ReplayPlugin; build"),
    ):
        other = built_anew(name, make_model, make_stream)[0]
        before = weights(other)
        with pytest.raises(StateError, match=facts):
            other.load_state_dict(saved)
        assert all(
            torch.equal(value, before[key]) for key, value in weights(other).items()
        )
    with pytest.raises(StateError, match=r"1 replay buffers, the strategy has 0"):
        other.load_state_dict(saved, strict=False)
    loose = built_anew("rainbow_memory", make_model, make_stream)[0]
    loose.load_state_dict(saved, strict=False)
    assert loose.seen_classes.seen == saved["plugins"]["SeenClassesPlugin"]["seen"]


def test_every_plugin_of_the_package_says_its_state():
    for module in pkgutil.walk_packages(crumb_avalanche.__path__, "crumb_avalanche."):
        if module.name.split(".")[1] in ("training", "methods", "runs"):
            importlib.import_module(module.name)
    kinds = [BasePlugin]
    for kind in kinds:
        kinds += [one for one in kind.__subclasses__() if one not in kinds]
    ours = [kind for kind in kinds if kind.__module__.startswith("crumb_avalanche.")]
    assert len(ours) > 20
    without = [kind.__name__ for kind in ours if not hasattr(kind, "state_dict")]
    assert not without


@pytest.mark.parametrize("name", ["crumb", "der", "icarl", "rainbow_memory", "remind"])
def test_a_feature_cache_changes_nothing(name, make_model, make_stream, tmp_path):
    ends = []
    for cached in (False, True):
        torch.manual_seed(0)
        model, stream = make_model(codebook=STRATEGIES[name].codebook), make_stream()
        plugins = (
            [FeatureCache(MapStore(tmp_path, model, 200, "toy", progress=False))]
            if cached
            else []
        )
        ends.append(
            flatten(learned_by(name, model, stream, 9, plugins=plugins).state_dict())[1]
        )
    assert ends[0].keys() == ends[1].keys()
    for key, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][key], rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize(
    "name", [name for name, entry in STRATEGIES.items() if entry.each_class]
)
def test_too_few_memories_for_the_classes_are_told(name, make_model, make_stream):
    model, stream = make_model(codebook=STRATEGIES[name].codebook), make_stream()
    with pytest.raises(ValueError, match=r"3 .*the.* 4 classes"):
        learned_by(name, model, stream, 3)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_class_beyond_the_head_is_told_before_anything_is_learned(
    name, make_model, make_stream
):
    experience = make_stream(classes=SIX[:4]).train_stream[1]
    highest = max(experience.classes_in_this_experience)
    model = make_model(n_classes=highest, codebook=STRATEGIES[name].codebook)
    strategy = built(name, model, 8)
    words = (
        f"class {highest} was seen, but the head has {highest} outputs (0 to {highest - 1}); build the model with "
        f"n_classes={highest + 1} or more"
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        strategy.train(experience)
    assert strategy.seen_classes.seen == [] and strategy.clock.train_iterations == 0


TOY = """
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.registry import register
from crumb_avalanche.methods.replay import ImageMemoryPlugin, draw
from crumb_avalanche.system.setting_ranges import Positive

@register("toy_means", summary="toy", source="here", stores="means")
class ToyMeans(ClassMeans):
    scale: Positive = 2.0

    def _answers(self, features, solution):
        return self.scale * super()._answers(features, solution)

@register("toy_replay", summary="toy", source="here", stores="images")
class ToyPlugin(ImageMemoryPlugin):
    def __init__(self, recipe, *, weight: Positive = 0.5):
        super().__init__(recipe)
        self.weight = weight

    def before_backward(self, strategy, **kwargs):
        slots = draw(self.storage_policy, len(strategy.mb_y))
        if len(slots):
            strategy.loss = strategy.loss + self.weight * strategy._criterion(*self.memory_logits(strategy, slots))
"""


@pytest.fixture
def one_file(tmp_path, monkeypatch):
    """A closed form and a replay method of a file of a user, which are gone after the test."""
    (tmp_path / "of_a_user.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(STRATEGIES, "_entries", dict(STRATEGIES._entries))
    yield __import__("of_a_user")
    sys.modules.pop("of_a_user")


def test_names_are_listed_without_torch():
    code = (
        "import sys; from crumb_avalanche.methods.registry import STRATEGIES as names; "
    )
    code += "print(*names, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    *names, loaded = done.stdout.split()
    assert (
        loaded == "False"
        and len(names) > 30
        and {"crumb", "rda", "klda", "icarl"} <= {*names}
    )
    assert all(STRATEGIES[name].name == name for name in names)
    with pytest.raises(ValueError, match=r"'ewk' is unknown; known are .*crumb"):
        get_strategy("ewk")


def test_a_method_of_one_file_gets_settings_and_its_place_in_the_docs(one_file):
    means, replay = STRATEGIES["toy_means"], STRATEGIES["toy_replay"]
    assert [item.name for item in fields(means.settings)][
        -1
    ] == "scale" and means.form is one_file.ToyMeans
    add = register("er", summary="toy", source="here", stores="means")
    with pytest.raises(
        ValueError,
        match=r"'er' is the method of methods/er.py; register ToyMeans by another name",
    ):
        add(one_file.ToyMeans)
    odd = type(
        "Odd", (one_file.ToyMeans,), {"_allocate": lambda self, count, size: None}
    )
    with pytest.raises(
        TypeError,
        match=r"Odd._allocate takes count, size; name the first two n_classes and length",
    ):
        odd(2, 3)
    with pytest.raises(ValueError, match="scale is 0; give more than 0"):
        means.method_settings({"scale": 0})
    with pytest.raises(
        ValueError, match="strategy toy_replay has no setting 'scale'; it has weight"
    ):
        replay.method_settings({"scale": 1})
    assert (
        "| `toy_means` | toy | here | means |" in methods()
        and "| `toy_replay` |" in methods()
    )


@pytest.mark.parametrize("name", ["toy_means", "toy_replay"])
def test_a_method_of_one_file_keeps_the_contract_and_its_bytes(
    one_file, name, make_model, make_stream, tmp_path
):
    test_learns_a_stream_and_answers_only_with_classes_it_saw(
        name, make_model, make_stream
    )
    resumes = test_repeated_pickled_and_loaded_it_is_the_same_and_goes_on_alike
    resumes(name, make_model, make_stream, tmp_path)
    strategy, stream, watch, _ = learn(name, make_model, make_stream)
    if name == "toy_replay":
        assert 0 < max(watch.bytes) <= BUDGET
        return
    entry = STRATEGIES[name]
    fixed = entry.fixed_bytes(strategy.model, entry.settings(), stream.n_classes)
    assert LedgerMetric().count(strategy)["memory_bytes"] == fixed


def test_a_learner_takes_a_closed_form_of_one_file_and_is_exported(one_file, tmp_path):
    pytest.importorskip("onnxruntime")
    learner, images = (
        Learner.__new__(Learner),
        np.random.default_rng(0).integers(0, 256, (3, 4, 32, 32, 3), np.uint8),
    )
    learner._set_up("toy_means", FrozenNetwork.build("small_cnn", None, 32), 9_000_000)
    for name, some in zip("abc", images):
        learner.teach(some, name)
    assert (
        export_onnx(
            learner, tmp_path / "toy.onnx", [*images.reshape(-1, 32, 32, 3)]
        ).score_error
        < 1e-4
    )


@pytest.mark.parametrize(
    "settings", [("toy_means", "scale", 3.0), ("toy_replay", "weight", 0.25)]
)
def test_a_run_takes_it_by_name_and_leaves_a_learner(
    one_file, crumb, tiny, tmp_path, settings
):
    name, setting, value = settings
    run = tmp_path / "run"
    code, _, err = crumb(
        *tiny, "--strategy", name, f"--method.{setting}", value, "--output", run
    )
    assert code == 0, err
    assert f"{setting}: {value}" in (run / "config.yaml").read_text()
    learner = Learner.load(run)
    assert learner.method == name and len(learner.classes) > 1
