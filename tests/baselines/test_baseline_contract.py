"""What every strategy of the registry has to keep, whatever it does inside."""

import pickle
import re

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from watched import Answers, plugin_of

from crumb_avalanche.baselines.entry import LearningSettings
from crumb_avalanche.baselines.registry import STRATEGIES, build_strategy
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.training.ledger import LedgerMetric
from crumb_avalanche.training.state_tree import packed

pytestmark = pytest.mark.filterwarnings("ignore")
SETTINGS = LearningSettings(learning_rate=0.02, batch_size=5, eval_batch_size=8, first_epochs=2)
CLASSES = ("fish", "house", "key", "leaf", "ring", "star")  # three experiences of two
BUDGET = 8 * 3 * 16**2  # eight images of 16 pixels
STREAM_LEARNERS = [name for name, entry in STRATEGIES.items() if not entry.joint]


class Watch(SupervisedPlugin):
    """Which rows of the data a strategy was shown in each experience, and its bytes after every step."""

    def __init__(self):
        super().__init__()
        self.rows, self.bytes = [], []

    def before_training_exp(self, strategy, **kwargs):
        self.rows.append([])

    def before_forward(self, strategy, **kwargs):
        # The brightest corner of an image of the fake stream is its own.
        self.rows[-1] += [tuple(image.flatten()[:6].tolist()) for image in strategy.mb_x]

    def after_training_iteration(self, strategy, **kwargs):
        entries = LedgerMetric().count(strategy)
        self.bytes.append(entries["memory_bytes"] - entries["label_bytes"])


def learn(name, make_model, make_stream, protocol="class_instance", experiences=2, method=None):
    """A strategy after some experiences, with what was watched; all global states of chance are set."""
    entry = STRATEGIES[name]
    torch.manual_seed(0)
    np.random.seed(0)
    stream = make_stream(protocol=protocol, classes=CLASSES)
    model = calibrate(make_model(n_classes=6, codebook=entry.codebook), stream.train_stream[0].dataset)
    count = entry.memories_in_budget(model, BUDGET, stream.n_classes, exact=True)
    watch, answers = Watch(), Answers()
    evaluator = EvaluationPlugin(loggers=[])
    strategy = build_strategy(
        name, model, SETTINGS, count, 0, method=method, plugins=[watch, answers], evaluator=evaluator
    )
    for experience in stream.train_stream[:experiences]:
        strategy.train(experience)
    return strategy, stream, watch, answers


def weights(strategy):
    return {key: value.clone() for key, value in strategy.model.state_dict().items()}


def state(strategy):
    """All that a checkpoint would keep of its model, buffers and statistics, without what a clock says."""
    clocks = (Watch, EvaluationPlugin, type(strategy.clock), Answers)
    plugins = [plugin for plugin in strategy.plugins if not isinstance(plugin, clocks)]
    kept = {"model": strategy.model.state_dict(), "plugins": plugins}
    kept |= {name: getattr(strategy, name, None) for name in ("storage_policy", "statistics", "_random")}
    return packed(kept)[1]


@pytest.mark.parametrize("protocol", ["class_instance", "class_iid"])
@pytest.mark.parametrize("name", STREAM_LEARNERS)
def test_learns_a_stream_and_answers_only_with_classes_it_saw(name, protocol, make_model, make_stream):
    strategy, stream, _, answers = learn(name, make_model, make_stream, protocol)
    for seen in (1, 2):
        answers.given.clear()
        strategy.eval(stream.test_stream[:seen])
        assert len(answers.given) == sum(len(experience.dataset) for experience in stream.test_stream[:seen])
    known = set().union(*stream.original_classes_in_exp[:2])
    assert set(answers.given) <= known


@pytest.mark.parametrize("name", STREAM_LEARNERS)
def test_every_later_frame_is_seen_once_and_in_order(name, make_model, make_stream):
    _, stream, watch, _ = learn(name, make_model, make_stream)
    for number, experience in enumerate(stream.train_stream[:2]):
        shown = [tuple(image.flatten()[:6].tolist()) for image, *_ in experience.dataset]
        epochs = watch.rows[number][: len(shown)] if number == 0 else watch.rows[number]
        fresh = [row for row in epochs if row in set(shown)]
        assert fresh == shown


@pytest.mark.parametrize("name", STREAM_LEARNERS)
def test_is_another_learner_than_fine_tuning(name, make_model, make_stream):
    if name == "finetune":
        pytest.skip("fine-tuning itself")
    ours, plain = (learn(one, make_model, make_stream)[0] for one in (name, "finetune"))
    ours_weights, plain_weights = weights(ours), weights(plain)
    assert any(
        key not in ours_weights or not torch.equal(ours_weights[key], plain_weights[key]) for key in plain_weights
    )


@pytest.mark.parametrize("name", [name for name in STREAM_LEARNERS if STRATEGIES[name].budgeted])
def test_keeps_its_bytes_within_the_budget_at_every_step(name, make_model, make_stream):
    _, _, watch, _ = learn(name, make_model, make_stream)
    assert max(watch.bytes) <= BUDGET
    assert watch.bytes[-1] > 0


@pytest.mark.parametrize("name", STREAM_LEARNERS)
def test_the_same_twice(name, make_model, make_stream):
    first, second = (state(learn(name, make_model, make_stream)[0]) for _ in range(2))
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", STREAM_LEARNERS)
def test_survives_pickling(name, make_model, make_stream):
    strategy, stream, _, _ = learn(name, make_model, make_stream)
    again = pickle.loads(pickle.dumps(strategy))
    outputs = []
    for one in (strategy, again):
        one.eval(stream.test_stream[:2])
        answers = plugin_of(Answers, one)
        outputs.append(answers.given[-len(stream.test_stream[1].dataset) :])
    assert outputs[0] == outputs[1]
    # It also goes on learning in the same way.
    for one in (strategy, again):
        torch.manual_seed(5)
        np.random.seed(5)
        one.train(stream.train_stream[2])
    first, second = state(strategy), state(again)
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_class_beyond_the_head_is_told_before_anything_is_learned(name, make_model, make_stream):
    experience = make_stream(classes=CLASSES[:4]).train_stream[1]
    highest = max(experience.classes_in_this_experience)
    model = make_model(n_classes=highest, codebook=STRATEGIES[name].codebook)
    strategy = build_strategy(name, model, SETTINGS, 8, 0, evaluator=EvaluationPlugin(loggers=[]))
    words = (
        f"class {highest} was seen, but the head has {highest} outputs (0 to {highest - 1}); build the model with "
        f"n_classes={highest + 1} or more"
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        strategy.train(experience)
    assert strategy.seen_classes.seen == [] and strategy.clock.train_iterations == 0


@pytest.mark.parametrize("name", [name for name, entry in STRATEGIES.items() if not entry.codebook])
def test_methods_without_memory_blocks_learn_beside_those_of_a_model_given(name, make_model, make_stream):
    """The plastic layers end the same whether the model has a codebook or not."""
    ends = []
    for codebook in (False, True):
        torch.manual_seed(0)
        np.random.seed(0)
        model = make_model(n_classes=4, codebook=codebook)
        strategy = build_strategy(name, model, SETTINGS, 8, 0, evaluator=EvaluationPlugin(loggers=[]))
        strategy.train(make_stream().train_stream[0])
        ends.append(model.plastic_layers.state_dict())
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_wrong_setting_is_refused_by_name(name, make_model, make_stream):
    with pytest.raises(ValueError, match=f"strategy {name} has no setting 'no_such_thing'; it has"):
        STRATEGIES[name].method_settings({"no_such_thing": 1})
