"""Every memory is that of an image of the stream with its label, whatever happens beside the training."""

import pytest
import torch
from avalanche.benchmarks import split_online_stream
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
