"""Every memory is that of an image of the stream with its label, whatever happens beside the training."""

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets, split_online_stream
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training.plugins import EWCPlugin, LwFPlugin
from avalanche.training.supervised import Naive
from hypothesis import given, settings
from hypothesis import strategies as st
from small_crumb import make
from small_models import make_model, make_stream
from stored_memories import ForeignPass, assert_memories_are_of_the_stream

from crumb_avalanche.memory.selection import RULES
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.storage_policies import CodeBuffer, ImageBuffer, MapBuffer

pytestmark = pytest.mark.filterwarnings("ignore")

PLUGINS = {
    "foreign": ForeignPass,
    "ewc": lambda: EWCPlugin(0.1),
    "lwf": lambda: LwFPlugin(0.5, 2),
}
# Experiences of the small stream, whole or cut into pieces, in an order in which classes return.
LESSONS = st.lists(
    st.tuples(
        st.sampled_from([0, 1]),  # experience
        st.sampled_from([None, 3, 7]),  # images in each piece
        st.integers(1, 2),  # epochs
        st.booleans(),  # shuffled
        st.booleans(),  # foreign passes and an evaluation afterwards
    ),
    min_size=1,
    max_size=3,
)


def pieces(experience, size):
    """Cut an experience into pieces of ``size`` images, or not at all."""
    return [experience] if size is None else list(split_online_stream([experience], size, shuffle=False))


@settings(max_examples=10)
@given(
    lessons=LESSONS,
    kind=st.sampled_from([CodeBuffer, ImageBuffer, MapBuffer]),
    rule=st.sampled_from(sorted(RULES)),
    plugins=st.sets(st.sampled_from(sorted(PLUGINS))),
    own=st.booleans(),  # CRUMBStrategy, or CRUMBPlugin beside Naive
    eval_every=st.sampled_from([-1, 1]),
    batch=st.integers(1, 7),
)
def test_memories_are_of_the_stream(lessons, kind, rule, plugins, own, eval_every, batch):
    model, stream, buffer = make_model(), make_stream(), kind(8, RULES[rule]())
    model.codebook.requires_grad_(False)  # so that codes of any time can be compared
    beside = [PLUGINS[name]() for name in sorted(plugins)]
    common = dict(train_mb_size=batch, eval_mb_size=16, eval_every=eval_every)
    if own:
        strategy = make(CRUMBStrategy, model, *beside, storage_policy=buffer, **common)
    else:
        strategy = make(Naive, model, *beside, CRUMBPlugin(buffer), **common)
    trained = []
    for number, size, epochs, shuffled, disturbed in lessons:
        for experience in pieces(stream.train_stream[number], size):
            strategy.train_epochs = epochs
            strategy.train(experience, eval_streams=[stream.test_stream], shuffle=shuffled)
            trained.append(experience)
            if disturbed:
                model.train()
                model(torch.randint(0, 256, (5, 3, 16, 16)).byte())
                strategy.eval(stream.test_stream)
    assert_memories_are_of_the_stream(buffer, model, trained)


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.evenly_spread])
def test_memories_of_an_online_stream_are_spread_evenly(rule):
    class Bright:
        """A data set of 40 images of one class, each of its own brightness."""

        targets = [0] * 40

        def __len__(self):
            return 40

        def __getitem__(self, number):
            return torch.full((3, 16, 16), number, dtype=torch.uint8), 0

    benchmark = benchmark_from_datasets(train=[as_classification_dataset(Bright())], test=[])
    halves = [0, 0]
    for seed in range(10):
        model, buffer = make_model(), ImageBuffer(8, RULES[rule](), seed)
        strategy = make(CRUMBStrategy, model, storage_policy=buffer, replay_steps=0)
        for experience in split_online_stream(benchmark.train_stream, 5, shuffle=False):
            strategy.train(experience)
        assert len(buffer) == 8
        for brightness in buffer.rows[:, 0, 0, 0].tolist():
            halves[brightness >= 20] += 1
    assert abs(halves[1] - 40) < 4.5 * (80 * 0.25) ** 0.5  # of 80
