"""The learning rate is chosen on held-out frames of the first experience, without side effects."""

import random
import re

import numpy as np
import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.training.plugins import SupervisedPlugin
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from crumb_avalanche.system.rng_state import preserve_rng_state
from crumb_avalanche.training.lr_search import Trial, chosen, split_experience, tune
from crumb_avalanche.training.stream_strategy import StreamStrategy

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")


def experience(images, labels):
    targets = DataAttribute(labels.tolist(), "targets")
    data = AvalancheDataset([TensorDataset(images, labels)], data_attributes=[targets])
    return benchmark_from_datasets(train=[data], test=[data]).train_stream[0]


@pytest.fixture
def first(pixels):
    """20 images of two classes that differ in brightness, in the order 0 0 0 ... 1 1 1."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 60, (20, *pixels.shape[1:]), dtype=torch.uint8, generator=generator)
    images[10:] += 150
    return experience(images, torch.arange(20) // 10)


def learner(model_maker, seen=None):
    def make(rate, evaluator):
        torch.manual_seed(7)
        model = model_maker(codebook=False)
        made = StreamStrategy(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), rate),
            first_epochs=1,
            train_mb_size=4,
            evaluator=evaluator,
        )
        if seen is not None:
            seen.append(made)
        return made

    return make


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_the_last_fifth_of_each_class_is_held_out(labels):
    labels = [*labels, 0, 0, 1, 1, 2, 2, 3, 3]
    learned, tested = split_experience(labels)
    assert sorted(learned + tested) == list(range(len(labels)))
    for label in set(labels):
        mine = [place for place in learned if labels[place] == label]
        held = [place for place in tested if labels[place] == label]
        assert mine and held and max(mine) < min(held)
        assert abs(len(held) - 0.2 * (len(mine) + len(held))) <= 1


def test_by_hand():
    assert split_experience([5, 5, 5, 9, 9, 5, 5]) == ([0, 1, 2, 3, 5], [4, 6])


def test_one_frame_of_a_class_is_too_few():
    message = "class 3 of the first experience has 1 frame, but tuning .* give the class 2 frames or more"
    with pytest.raises(ValueError, match=message):
        split_experience([1, 1, 3])


def test_best_first_and_each_frame_seen_once(make_model, first):
    seen = []
    trials = tune(learner(make_model, seen), first, rates=(1e-9, 1e-2, 3e-2))
    assert [type(trial) for trial in trials] == [Trial] * 3
    assert trials[0] == chosen(trials)
    assert trials[1:] == sorted(trials[1:], key=lambda trial: (-trial.accuracy, trial.loss, trial.learning_rate))
    assert trials[0].learning_rate != 1e-9  # which learns nothing
    assert [made.clock.train_iterations for made in seen] == [4] * 3  # 16 of the 20 images, four at a time, once


@pytest.mark.parametrize(
    "results, rate",
    [
        # rate: (accuracy, loss)
        ({1e-4: (100, 0.043), 3e-4: (100, 0.0063), 1e-3: (100, 0.0007), 1e-2: (100, 0.0)}, 3e-4),  # all but perfect
        ({1e-4: (98.9, 0.005), 3e-4: (99.1, 0.009), 1e-3: (100, 0.0)}, 3e-4),  # a point of accuracy counts too
        ({1e-4: (40, 2.5), 3e-4: (60, 1.9), 1e-3: (75, 1.1), 3e-3: (74, 1.2)}, 1e-3),  # a hard experience: the best
        ({1e-4: (80, 0.7), 1e-3: (81, 0.695), 1e-2: (0, float("inf"))}, 1e-4),
    ],
)
def test_the_lowest_rate_that_is_as_good_as_the_best(results, rate):
    trials = [Trial(rate, accuracy, loss) for rate, (accuracy, loss) in results.items()]
    assert chosen(trials).learning_rate == rate
    assert chosen(trials[::-1]).learning_rate == rate


def test_a_rate_that_diverges_comes_last_and_all_of_them_are_an_error(make_model, first):
    trials = tune(learner(make_model), first, rates=(1e30, 1e-3))
    assert [trial.learning_rate for trial in trials] == [1e-3, 1e30]
    assert trials[1] == Trial(1e30, 0.0, float("inf")) or trials[1].accuracy <= trials[0].accuracy
    with pytest.raises(ValueError, match=re.escape("training diverged at every learning rate of 1e+30, 1e+36")):
        tune(learner(make_model), first, rates=(1e30, 1e36))


def test_rng_state_is_left_alone(make_model, first):
    def draws():
        return random.random(), np.random.rand(), torch.rand(()).item()

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    tune(learner(make_model), first, rates=(1e-3,))
    assert draws() == expected
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with pytest.raises(KeyError), preserve_rng_state():
        draws()
        raise KeyError
    assert draws() == expected


def test_answers_without_probabilities_are_judged_by_the_head(make_model, first):
    class Scores(SupervisedPlugin):
        """Answers with distances, as nearest-mean learners do: right, but all alike."""

        def after_eval_forward(self, strategy, **kwargs):
            strategy.mb_output = strategy.mb_output * 1e-3

    def make(rate, evaluator):
        made = learner(make_model)(rate, evaluator)
        made.plugins.append(Scores())
        return made

    plain = tune(learner(make_model), first, rates=(1e-9, 1e-2))
    by_scores = tune(make, first, rates=(1e-9, 1e-2))
    by_head = tune(make, first, rates=(1e-9, 1e-2), head_loss=True)
    assert by_head[0].loss == pytest.approx(plain[0].loss, rel=1e-5) != by_scores[0].loss
    assert by_head[0].learning_rate == 1e-2
