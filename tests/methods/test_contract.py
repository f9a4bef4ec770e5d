"""What every strategy of the registry has to keep, whatever it does inside."""

import copy
import importlib
import json
import pickle
import pkgutil
import re
import subprocess
import sys
import warnings
from dataclasses import dataclass, fields
from functools import cache, partial

import numpy as np
import pytest
import small_models
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.core import BasePlugin
from avalanche.training.plugins import SupervisedPlugin
from resumed import restore_as_a_run
from site_parts.result_tables import methods
from small_models import same_tensors, weights_of
from torch import nn
from torch.utils.data import TensorDataset
from watched import SIX, VARIANTS, Answers, built, entry_of, outputs_of
from watched import learned as learned_by

import crumb_avalanche
from crumb_avalanche import Learner
from crumb_avalanche.learner.export import export_onnx
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.methods.registry import (
    STRATEGIES,
    build_strategy,
    get_strategy,
    recommended_strategy,
    register,
)
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.system.tensor_file import (
    flatten,
    read_state,
    read_tensors,
    write_state,
)
from crumb_avalanche.system.value_types import StateError
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.ledger import LedgerMetric

BUDGET = 8 * 3 * 16**2  # eight images of 16 pixels
STREAM_LEARNERS = [name for name, entry in STRATEGIES.items() if not entry.joint]
STREAM_LEARNERS += VARIANTS
BUDGETED = [name for name in STREAM_LEARNERS if entry_of(name)[0].budgeted]
EACH_CLASS = [name for name, entry in STRATEGIES.items() if entry.each_class]
# Methods that take gradient steps.
TRAINED = [
    name
    for name in STREAM_LEARNERS
    if entry_of(name)[0].gradient and name != "crumb closed_form_stock"
]
each_learner = pytest.mark.parametrize("name", STREAM_LEARNERS)


def row_of(image):
    """The brightest corner of an image of the fake stream is its own."""
    return tuple(image.flatten()[:6].tolist())


class Watch(SupervisedPlugin):
    """Which images a strategy was shown in each experience, and its bytes."""

    def __init__(self):
        super().__init__()
        self.rows = []
        self.bytes = []  # after every step

    def before_training_exp(self, strategy, **kwargs):
        self.rows.append([])

    def before_forward(self, strategy, **kwargs):
        self.rows[-1] += map(row_of, strategy.mb_x)

    def after_training_iteration(self, strategy, **kwargs):
        entries = LedgerMetric().count(strategy)
        self.bytes.append(entries["memory_bytes"] - entries["label_bytes"])


@dataclass
class Learned:
    """A strategy after some experiences, its stream, and what was watched."""

    name: str
    strategy: object
    stream: object
    watch: Watch
    answers: Answers


def seed_everything(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)


def learn(name, protocol="class_instance", experiences=2):
    """Train a strategy by name on the small stream."""
    entry, varied = entry_of(name)
    seed_everything(0)
    stream = small_models.make_stream(protocol=protocol, classes=SIX)
    model = small_models.make_model(n_classes=6, codebook=entry.codebook)
    calibrate(model, stream.train_stream[0].dataset)
    count = entry.memories_in_budget(model, BUDGET, stream.n_classes, exact=True)
    watch = Watch()
    answers = Answers()
    plugins = [watch, answers]
    strategy = built(entry.name, model, count, method=varied, plugins=plugins)
    for experience in stream.train_stream[:experiences]:
        strategy.train(experience)
    return Learned(name, strategy, stream, watch, answers)


@cache
def learned(name):
    """What ``learn`` returns, once for the tests that only read it."""
    return learn(name)


def state(strategy):
    """A copy of a state: the tree without what a clock says, and the tensors."""
    tree, tensors = flatten(copy.deepcopy(strategy.state_dict()))
    pairs = json.loads(json.dumps(tree))["dict"]
    return [pair for pair in pairs if pair[0] != "seconds"], tensors


def assert_same(first, second):
    tree, tensors = first
    other_tree, second_tensors = second
    assert tree == other_tree
    assert tensors.keys() == second_tensors.keys()
    assert same_tensors(tensors, second_tensors)


def logits_of(strategy, stream):
    """``(N, classes)``, the outputs of the strategy on all classes seen."""
    logits, _ = outputs_of(strategy, stream.test_stream[:2])
    return logits


def built_anew(name):
    """A strategy that was not trained, with other weights where it would learn."""
    fresh = learn(name, experiences=0)
    torch.manual_seed(99)
    with torch.no_grad():
        for weight in fresh.strategy.model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.1)
    return fresh


def assert_answers_with_seen_classes(name):
    result = learn(name, "class_iid")
    strategy, stream, answers = result.strategy, result.stream, result.answers
    answers.given.clear()
    strategy.eval(stream.test_stream[:2])
    images = [len(experience.dataset) for experience in stream.test_stream[:2]]
    assert len(answers.given) == sum(images)
    assert set(answers.given) <= set().union(*stream.original_classes_in_exp[:2])


@each_learner
def test_answers_are_classes_it_saw(name):
    assert_answers_with_seen_classes(name)


@pytest.mark.parametrize("number", [0, 1])
@each_learner
def test_every_frame_is_seen_once_in_order(name, number):
    result = learned(name)
    dataset = result.stream.train_stream[number].dataset
    frames = [row_of(image) for image, *_ in dataset]
    rows = result.watch.rows[number]
    if number == 0:  # of several epochs
        rows = rows[: len(frames)]
    assert [row for row in rows if row in set(frames)] == frames


def experience_of(labels, dtype=torch.int64, seed=0):
    """An experience of noisy images with these labels, as a data set."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(
        0, 256, (len(labels), 3, 16, 16), dtype=torch.uint8, generator=generator
    )
    data = TensorDataset(images, torch.tensor(labels, dtype=dtype))
    return AvalancheDataset([data], data_attributes=[DataAttribute(labels, "targets")])


def trained_on_datasets(name, datasets, plugins=()):
    """A strategy by name after experiences of four classes in all."""
    entry, method = entry_of(name)
    model = small_models.make_model(codebook=entry.codebook)
    if name == "remind":
        method = {"centroids": 4}
    strategy = built(entry.name, model, 40, method=method, plugins=list(plugins))
    for experience in benchmark_from_datasets(train=datasets).train_stream:
        strategy.train(experience)
    return strategy


@pytest.mark.parametrize("empty", [0, 1])
@each_learner
def test_an_experience_may_have_no_images(name, empty):
    datasets = [experience_of([0, 1] * 6), experience_of([2, 3] * 6)]
    datasets.insert(empty, experience_of([]))
    answers = Answers()
    strategy = trained_on_datasets(name, datasets, [answers])
    strategy.eval(benchmark_from_datasets(test=datasets).test_stream)
    assert set(answers.given) <= {0, 1, 2, 3}
    assert set(strategy.seen_classes.seen) == {0, 1, 2, 3}


class StopAtOnce(SupervisedPlugin):
    """Stops the training of each experience after its first batch."""

    def after_training_iteration(self, strategy, **kwargs):
        strategy.stop_training()


@pytest.mark.parametrize("name", TRAINED)
def test_a_stopped_experience_may_have_short_labels(name):
    short = experience_of([0, 1] * 6, torch.int16)
    usual = experience_of([0, 1] * 6)
    stopped = trained_on_datasets(name, [short], [StopAtOnce()])
    expected = trained_on_datasets(name, [usual], [StopAtOnce()])
    assert same_tensors(weights_of(stopped.model), weights_of(expected.model))


@pytest.mark.parametrize("name", BUDGETED)
def test_bytes_stay_within_the_budget(name):
    used = learned(name).watch.bytes
    assert 0 < used[-1] <= max(used) <= BUDGET


WEIGHTS = 8 * 8 * 9 + 8 + (8 + 1) * 6  # of the plastic layers
IMAGE = 768  # bytes
BYTES = {
    **dict.fromkeys(["er", "image_replay", "gem", "rainbow_memory"], 8 * IMAGE),
    "der": 7 * (IMAGE + 4 * 6),  # with logits of six classes
    "gss": 7 * (IMAGE + 4),  # with a score
    "cope": 7 * IMAGE + 4 * 6 * 8,  # a prototype for each class
    "icarl": 6 * IMAGE + 2 * WEIGHTS,  # the old network in half precision
    "bic": 6 * IMAGE + 2 * WEIGHTS + 2 * 4 * 6,  # and two scalars for each class
    # The old network with the share, factors and summands; the stable branch.
    "aanets": 2 * IMAGE + 2 * (WEIGHTS + 1 + 64 + 8) + 4 * (584 + 64 + 8),
    "remind": 88 * 64 + 512,  # 4 bits a value, and the tables
    # A mean and a deviation for each channel, the lowest value and the number.
    "memory_recall": 6 * 4 * (2 * 8 + 2),
    "lwf": 4 * WEIGHTS,
    "ewc": 2 * 2 * 4 * WEIGHTS,  # importances and old weights of two experiences
    "mas": 2 * 4 * WEIGHTS,
    "si": 4 * 4 * WEIGHTS,
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_by_hand(name):
    entries = LedgerMetric().count(learned(name).strategy)
    assert entries["memory_bytes"] - entries["label_bytes"] == BYTES[name]


class NoGradients(SupervisedPlugin):
    """Clears the gradients of every update that the host announces."""

    def before_update(self, strategy, **kwargs):
        strategy.optimizer.zero_grad()


@pytest.mark.parametrize("name", TRAINED)
def test_every_update_is_announced(name):
    """A plugin that clears gradients in ``before_update`` keeps all weights."""
    entry, method = entry_of(name)
    if name == "remind":
        method = {"weight_decay": 0.0}
    stream = small_models.make_stream()
    model = small_models.make_model(codebook=entry.codebook)
    calibrate(model, stream.train_stream[0].dataset)
    strategy = built(
        entry.name,
        model,
        40,
        settings={"weight_decay": 0.0},
        method=method,
        plugins=[NoGradients()],
    )
    before = weights_of(strategy.model)
    for experience in stream.train_stream:
        strategy.train(experience)
    # The share of AANets is no weight of the optimiser's: it moves by itself.
    changed = set()
    for key, value in weights_of(strategy.model).items():
        if not torch.equal(value, before[key]) and not key.endswith("share"):
            changed.add(key)
    assert changed <= {"plastic_layers.aggregating"}


def trained_on(strategy, experience):
    """The state of a strategy after one more experience."""
    seed_everything(5)
    strategy.train(experience)
    return state(strategy)


@dataclass
class Continued:
    """A strategy that was copied and went on to the third experience.

    Attributes:
        state: before it went on.
        saved: what ``state_dict`` returned then.
        pickled: the strategy then.
        logits: its answers then.
        end: its state after the third experience.
        seen: classes seen before.
    """

    state: object
    saved: dict
    pickled: bytes
    logits: torch.Tensor
    end: object
    seen: set


@cache
def continued(name):
    result = learn(name)
    strategy = result.strategy
    before = state(strategy)
    saved = copy.deepcopy(strategy.state_dict())
    pickled = pickle.dumps(strategy)
    seen = set(strategy.seen_classes.seen)
    logits = logits_of(strategy, result.stream)
    end = trained_on(strategy, result.stream.train_stream[2])
    return Continued(before, saved, pickled, logits, end, seen)


def assert_goes_on_alike(name, strategy, stream):
    """A copy answers and learns as the original did."""
    original = continued(name)
    assert_same(original.state, state(strategy))
    assert torch.equal(logits_of(strategy, stream), original.logits)
    assert_same(original.end, trained_on(strategy, stream.train_stream[2]))


def assert_pickled_goes_on_alike(name):
    stream = small_models.make_stream(classes=SIX)
    assert_goes_on_alike(name, pickle.loads(continued(name).pickled), stream)


def assert_loaded_goes_on_alike(name, path):
    write_state(path, continued(name).saved, {})
    fresh = built_anew(name)
    fresh.strategy.load_state_dict(read_state(path)[0])
    assert_goes_on_alike(name, fresh.strategy, fresh.stream)


def assert_resumed_goes_on_alike(name, folder):
    fresh = built_anew(name)
    restore_as_a_run(pickle.loads(continued(name).pickled), fresh.strategy, folder)
    assert_goes_on_alike(name, fresh.strategy, fresh.stream)


@each_learner
def test_repeated_it_is_the_same(name):
    assert_same(state(learned(name).strategy), continued(name).state)


@each_learner
def test_only_seen_classes_are_answered(name):
    original = continued(name)
    assert set(original.logits.argmax(1).tolist()) <= original.seen


@each_learner
def test_a_pickled_one_goes_on_alike(name):
    assert_pickled_goes_on_alike(name)


@each_learner
def test_a_loaded_one_goes_on_alike(name, tmp_path):
    assert_loaded_goes_on_alike(name, tmp_path / "state.safetensors")


@each_learner
def test_a_resumed_run_goes_on_alike(name, tmp_path):
    assert_resumed_goes_on_alike(name, tmp_path)


ANSWERING = [name for name in STREAM_LEARNERS if name != "chance"]


def with_answer_state(name, path):
    """A fresh strategy with the answer state of a trained one, written to a path."""
    write_state(path, learned(name).strategy.answer_state(), {})
    fresh = built_anew(name)
    fresh.strategy.load_answer_state(read_state(path)[0])
    return fresh


@pytest.mark.parametrize("name", ANSWERING)
def test_the_answer_state_suffices(name, tmp_path):
    trained = copy.deepcopy(learned(name).strategy)
    expected = logits_of(trained, learned(name).stream)
    fresh = built_anew(name)
    assert not torch.equal(logits_of(fresh.strategy, fresh.stream), expected)
    answering = with_answer_state(name, tmp_path / "answers.safetensors")
    assert torch.equal(logits_of(answering.strategy, answering.stream), expected)


@pytest.mark.parametrize("name", ANSWERING)
def test_the_answer_state_holds_no_more(name, tmp_path):
    answers = tmp_path / "answers.safetensors"
    complete = tmp_path / "state.safetensors"
    write_state(answers, learned(name).strategy.answer_state(), {})
    write_state(complete, learned(name).strategy.state_dict(), {})
    assert answers.stat().st_size < complete.stat().st_size
    needless = "optimizer|buffers|random|old_network|feature_extractor"
    names = read_tensors(answers)[0].keys()
    assert not [key for key in names if re.search(needless, key)]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("icarl", "ExperienceReplayPlugin, ICaRLPlugin"),
        ("finetune", "ReplayPlugin; build"),
    ],
)
def test_a_state_of_another_is_refused(name, facts):
    strategy = built_anew(name).strategy
    before = weights_of(strategy.model)
    with pytest.raises(StateError, match=facts):
        strategy.load_state_dict(learned("er").strategy.state_dict())
    after = weights_of(strategy.model)
    assert same_tensors(before, after)


def test_a_state_with_a_buffer_is_refused():
    strategy = built_anew("finetune").strategy
    with pytest.raises(StateError, match=r"1 replay buffers, the strategy has 0"):
        strategy.load_state_dict(learned("er").strategy.state_dict(), strict=False)


def test_a_state_is_loaded_loosely():
    # Given a state that has a plugin more than a strategy
    saved = learned("er").strategy.state_dict()
    plugins = {**saved["plugins"], "AbsentPlugin": {}}
    strategy = built_anew("er").strategy
    # When it is loaded loosely
    strategy.load_state_dict({**saved, "plugins": plugins}, strict=False)
    # Then the other plugins have theirs
    assert strategy.seen_classes.seen == plugins["SeenClassesPlugin"]["seen"]


def test_a_state_with_another_selection_rule_is_refused():
    strategy = built_anew("rainbow_memory").strategy
    with pytest.raises(StateError, match=r"RingBuffer.*, this one is .*ChosenFrames"):
        strategy.load_state_dict(learned("er").strategy.state_dict(), strict=False)


def plugins_of_the_package():
    """All plugin classes of the rooms that train."""
    rooms = ("training", "methods", "runs")
    for module in pkgutil.walk_packages(crumb_avalanche.__path__, "crumb_avalanche."):
        if module.name.split(".")[1] in rooms:
            importlib.import_module(module.name)
    classes = [BasePlugin]
    for plugin in classes:
        classes += [sub for sub in plugin.__subclasses__() if sub not in classes]
    return [
        plugin for plugin in classes if plugin.__module__.startswith("crumb_avalanche.")
    ]


def test_every_plugin_says_its_state():
    plugins = plugins_of_the_package()
    assert len(plugins) > 20
    assert not [plugin for plugin in plugins if not hasattr(plugin, "state_dict")]


def end_of(name, plugins=()):
    """The tensors of a strategy after the small stream."""
    torch.manual_seed(0)
    model = small_models.make_model(codebook=STRATEGIES[name].codebook)
    stream = small_models.make_stream()
    strategy = learned_by(name, model, stream, 9, plugins=list(plugins))
    return flatten(strategy.state_dict())[1]


@pytest.mark.parametrize("name", ["crumb", "der", "icarl", "rainbow_memory", "remind"])
def test_a_feature_cache_changes_nothing(name, tmp_path):
    model = small_models.make_model(codebook=STRATEGIES[name].codebook)
    store = MapStore(tmp_path, model, 200, "toy", progress=False)
    plain = end_of(name)
    cached = end_of(name, [FeatureCache(store)])
    assert plain.keys() == cached.keys()
    for key, value in plain.items():
        torch.testing.assert_close(value, cached[key], rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", EACH_CLASS)
def test_too_few_memories_are_told(name, make_model, make_stream):
    model = make_model(codebook=STRATEGIES[name].codebook)
    with pytest.raises(ValueError, match=r"3 .*the.* 4 classes"):
        learned_by(name, model, make_stream(), 3)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_class_beyond_the_head_is_told(name, make_model, make_stream):
    experience = make_stream(classes=SIX[:4]).train_stream[1]
    highest = max(experience.classes_in_this_experience)
    model = make_model(n_classes=highest, codebook=STRATEGIES[name].codebook)
    strategy = built(name, model, 8)
    words = (
        f"an image has class {highest}, but the head has {highest} outputs (0 to "
        f"{highest - 1}); build the model with n_classes={highest + 1} or more"
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        strategy.train(experience)
    assert strategy.seen_classes.seen == []
    assert strategy.clock.train_iterations == 0


@pytest.mark.parametrize(
    "build",
    [
        partial(build_strategy, "rda", mem_size=8),
        partial(recommended_strategy, mem_size=8),
    ],
    ids=["by name", "recommended"],
)
def test_another_network_is_told(build):
    words = "rda trains a SplitModel, not a Sequential: build one with split_backbone"
    with pytest.raises(TypeError, match=words):
        build(nn.Sequential(nn.Linear(2, 2)))


def test_a_missing_codebook_is_told(make_model):
    words = r"crumb needs a codebook: build the model with codebook=Codebook\(\)"
    with pytest.raises(ValueError, match=words):
        built("crumb", make_model(codebook=False))


TOY = """
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.registry import register
from crumb_avalanche.methods.replay import ImageMemoryPlugin, Reservoir, draw
from crumb_avalanche.system.setting_ranges import Positive

@register("toy_means", summary="toy", source="here", stores="means")
class ToyMeans(ClassMeans):
    scale: Positive = 2.0

    def _answers(self, features, solution):
        return self.scale * super()._answers(features, solution)

@register("toy_replay", summary="toy", source="here", stores="images")
class ToyPlugin(ImageMemoryPlugin):
    rule = Reservoir
    state_names = ("classes", "labels", "offered", "old", "position")

    def __init__(self, recipe, *, weight: Positive = 0.5):
        super().__init__(recipe)
        self.weight = weight
        self.classes = 0
        self.labels = [900]
        self.offered = {901: 902}
        self.old = 903
        self.position = 904

    def after_training_exp(self, strategy, **kwargs):
        super().after_training_exp(strategy, **kwargs)
        self.classes += len(strategy.experience.classes_in_this_experience)
        self.position += 1

    def before_backward(self, strategy, **kwargs):
        slots = draw(self.storage_policy, len(strategy.mb_y))
        if len(slots):
            logits, labels = self.memory_logits(strategy, slots)
            loss = strategy._criterion(logits, labels)
            strategy.loss = strategy.loss + self.weight * loss
"""
each_toy = pytest.mark.parametrize("name", ["toy_means", "toy_replay"])


@pytest.fixture
def one_file(tmp_path, monkeypatch):
    """A closed form and a replay method of a user's file, gone after the test."""
    (tmp_path / "of_a_user.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(STRATEGIES, "_entries", dict(STRATEGIES._entries))
    yield __import__("of_a_user")
    sys.modules.pop("of_a_user")
    continued.cache_clear()


def test_names_are_listed_without_torch():
    code = """
import sys
from crumb_avalanche.methods.registry import STRATEGIES
print(*STRATEGIES, "torch" in sys.modules)
"""
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    *names, has_torch = process.stdout.split()
    assert has_torch == "False"
    assert len(names) > 30
    assert {"crumb", "rda", "klda", "icarl"} <= {*names}


def test_an_unknown_name_is_told():
    with pytest.raises(ValueError, match=r"'ewk' is unknown; known are .*crumb"):
        get_strategy("ewk")


def test_known_names_are_sorted():
    with pytest.raises(ValueError, match=r"aanets, acil, bic, .*python FILE.py"):
        get_strategy("my_er")


def test_a_name_is_taken_once(one_file):
    add = register("er", summary="toy", source="here", stores="means")
    words = "'er' is the method of methods/er.py; register ToyMeans by another name"
    with pytest.raises(ValueError, match=re.escape(words)):
        add(one_file.ToyMeans)


def test_odd_arguments_of_a_form_are_told(one_file):
    members = {"_allocate": lambda self, count, size: None}
    odd = type("Odd", (one_file.ToyMeans,), members)
    words = "Odd._allocate takes count, size; name the first two n_classes and length"
    with pytest.raises(TypeError, match=re.escape(words)):
        odd(2, 3)


class UntypedPlugin:
    def __init__(self, recipe, *, weight=0.5):
        self.weight = weight


class NoDefaultPlugin:
    def __init__(self, recipe, *, weight: float):
        self.weight = weight


@pytest.mark.parametrize(
    ("plugin", "missing"), [(UntypedPlugin, "type"), (NoDefaultPlugin, "default")]
)
def test_a_setting_that_lacks_something_is_told(one_file, plugin, missing):
    words = (
        f"{plugin.__name__}.__init__ takes the setting weight without a {missing}; .*"
        "weight: Positive = 0.5"
    )
    with pytest.raises(TypeError, match=words):
        register("odd", summary="toy", source="here", stores="nothing")(plugin)


def test_a_form_that_names_no_counts_is_told(one_file):
    odd = type("Odd", (one_file.ToyMeans,), {"by_class": ("means",)})
    with pytest.raises(TypeError, match=r"Odd.by_class names means, .*add 'counts'"):
        register("odd", summary="toy", source="here", stores="means")(odd)


def test_a_form_without_a_tensor_is_told(one_file):
    members = {"by_class": ("means", "counts", "sums")}
    odd = type("Odd", (one_file.ToyMeans,), members)
    with pytest.raises(TypeError, match=r"Odd._allocate makes no tensor sums"):
        odd(2, 3)


def test_answers_for_classes_not_seen_are_told(one_file):
    def answers(self, features, solution):
        return torch.zeros(len(features), 5)

    form = type("Odd", (one_file.ToyMeans,), {"_answers": answers})(5, 3)
    form.update(torch.ones(2, 3), torch.tensor([0, 3]))
    words = r"Odd._answers returns scores of the shape \(4, 5\), not \(4, 2\)"
    with pytest.raises(TypeError, match=words):
        form.scores(torch.ones(4, 3))


def test_settings_follow_from_the_class(one_file):
    means = STRATEGIES["toy_means"]
    assert [setting.name for setting in fields(means.settings)][-1] == "scale"
    assert means.form is one_file.ToyMeans
    replay = STRATEGIES["toy_replay"]
    assert [setting.name for setting in fields(replay.settings)] == ["weight"]


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("toy_means", {"scale": 0}, "scale is 0; give more than 0"),
        ("toy_replay", {"weight": -1}, "weight is -1; give more than 0"),
        (
            "toy_replay",
            {"scale": 1},
            "toy_replay has no setting 'scale'; it has weight",
        ),
    ],
)
def test_wrong_settings_are_told(one_file, name, changes, words):
    with pytest.raises(ValueError, match=words):
        STRATEGIES[name].method_settings(changes)


@pytest.mark.parametrize(
    "keyword, setting",
    [
        ("train_mb_size", "batch_size"),
        ("eval_mb_size", "eval_batch_size"),
        ("train_epochs", "epochs"),
        ("first_epochs", "first_epochs"),
        ("clamp_gradients", "clamp_gradients"),
        ("optimizer", "learning_rate"),
        ("replay_weight", "replay_weight"),
    ],
)
def test_what_settings_decide_is_no_keyword(make_model, keyword, setting):
    words = rf"{keyword} is decided .* settings=LearningSettings\({setting}=...\)"
    with pytest.raises(TypeError, match=words):
        built("crumb", make_model(), **{keyword: 2})


def test_settings_reach_the_constructor(one_file, make_model):
    method = {"weight": 0.25}
    strategy = built("toy_replay", make_model(codebook=False), method=method)
    assert strategy.memory.weight == 0.25


@pytest.mark.parametrize(
    "row", ["| `toy_means` | toy | here | means |", "| `toy_replay` |"]
)
def test_the_docs_list_it(one_file, row):
    assert row in methods()


@each_toy
def test_a_toy_answers_with_classes_it_saw(one_file, name):
    assert_answers_with_seen_classes(name)


@each_toy
def test_a_pickled_toy_goes_on_alike(one_file, name):
    assert_pickled_goes_on_alike(name)


@each_toy
def test_a_loaded_toy_goes_on_alike(one_file, name, tmp_path):
    assert_loaded_goes_on_alike(name, tmp_path / "state.safetensors")


@each_toy
def test_a_resumed_run_of_a_toy_goes_on_alike(one_file, name, tmp_path):
    assert_resumed_goes_on_alike(name, tmp_path)


def test_own_state_may_have_any_name(one_file, tmp_path):
    fresh = built_anew("toy_replay").strategy
    trained = pickle.loads(continued("toy_replay").pickled)
    restore_as_a_run(trained, fresh, tmp_path)
    assert fresh.memory.classes == 4  # two experiences of two
    assert fresh.memory.position == 906
    n_offered = trained.memory.storage_policy.rule.seen
    assert fresh.memory.storage_policy.rule.seen == n_offered > 6


def test_bytes_of_toy_replay(one_file):
    assert 0 < max(learn("toy_replay").watch.bytes) <= BUDGET


def test_bytes_of_toy_means(one_file):
    result = learn("toy_means")
    entry = STRATEGIES["toy_means"]
    model = result.strategy.model
    fixed = entry.fixed_bytes(model, entry.settings(), result.stream.n_classes)
    assert LedgerMetric().count(result.strategy)["memory_bytes"] == fixed


def test_a_learner_with_a_toy_is_exported(one_file, tmp_path):
    pytest.importorskip("onnxruntime")
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (3, 4, 32, 32, 3), np.uint8)
    learner = Learner.__new__(Learner)
    learner._set_up("toy_means", FrozenNetwork.build("small_cnn", None, 32), 9_000_000)
    learner.teach(images[0], "a")
    learner.teach(images[1], "b")
    learner.teach(images[2], "c")
    samples = list(images.reshape(-1, 32, 32, 3))
    export = export_onnx(learner, tmp_path / "toy.onnx", samples)
    assert export.score_error < 1e-4


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [("toy_means", "scale", 3.0), ("toy_replay", "weight", 0.25)],
)
def test_a_run_takes_a_toy(one_file, crumb, tiny, tmp_path, name, setting, value):
    run = tmp_path / "run"
    option = f"--method.{setting}"
    code, _, err = crumb(*tiny, "--strategy", name, option, value, "--output", run)
    assert code == 0, err
    assert f"{setting}: {value}" in (run / "config.yaml").read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as Avalanche's of no loggers
        learner = Learner.load(run)
    assert learner.method == name
    assert len(learner.classes) > 1
