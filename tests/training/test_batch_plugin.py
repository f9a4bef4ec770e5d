"""The batch of an iteration is recorded from its own forward pass, not from others through the model."""

import numpy as np
import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.supervised import ER_ACE, Naive
from small_crumb import make
from stored_memories import ForeignPass, assert_memories_are_of_the_stream
from torch import nn
from watched import built

from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.training.batch_plugin import BatchPlugin
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.plugins import SeenClassesPlugin
from crumb_avalanche.training.storage_policies import CodeBuffer
from crumb_avalanche.training.stream_strategy import StreamStrategy

pytestmark = pytest.mark.filterwarnings("ignore")
LEARNERS = [name for name, entry in STRATEGIES.items() if entry.gradient and not entry.joint]


@pytest.mark.parametrize("name", [*LEARNERS, "fused"])
def test_no_strategy_mistakes_a_foreign_pass_for_its_own(make_model, make_stream, name):
    settings = {"first_epochs": 1} | ({"fused": True} if name == "fused" else {})
    name, results = "crumb" if name == "fused" else name, []
    for foreign in ([], [ForeignPass()]):
        torch.manual_seed(0)
        np.random.seed(0)
        model = make_model(codebook=STRATEGIES[name].codebook)
        strategy = built(name, model, 8, settings, plugins=foreign)
        for experience in make_stream().train_stream:
            strategy.train(experience)
        results.append(strategy)
    assert foreign[0].passes > 0
    one, two = results
    weights = two.model.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in one.model.state_dict().items())
    if one.storage_policy is not None and one.storage_policy.rows is not None:
        assert torch.equal(one.storage_policy.rows, two.storage_policy.rows)
        assert torch.equal(one.storage_policy.labels, two.storage_policy.labels)


def test_beside_a_strategy_with_a_second_batch_of_its_own(model, make_stream):
    stream, buffer = make_stream(), CodeBuffer(8)
    model.codebook.requires_grad_(False)
    settings = dict(criterion=nn.CrossEntropyLoss(), mem_size=12, batch_size_mem=5)
    strategy = make(ER_ACE, model, CRUMBPlugin(buffer), **settings)
    for experience in stream.train_stream:
        strategy.train(experience, shuffle=False)
    assert len(buffer) == 8
    assert_memories_are_of_the_stream(buffer, model, stream.train_stream)


def test_a_batch_that_does_not_pass_the_model_is_computed(model, make_stream):
    class Watch(BatchPlugin):
        batches = 0

        def before_backward(self, strategy, **kwargs):
            assert torch.equal(self.batch.feature_map, strategy.model.features(strategy.mb_x))
            assert self.batch.codes is None and self.batch.labels is strategy.mb_y
            assert torch.equal(self.batch.pixels([1, 0]), strategy.mb_x[[1, 0]])
            self.batches += 1

    class Copying(StreamStrategy):
        def forward(self):
            return self.model(self.mb_x.clone())

    watch = Watch()
    make(Copying, model, watch).train(make_stream().train_stream[0])
    assert watch.batches == 4 and watch.batch is None


@pytest.mark.parametrize(
    "kind, plugins, words",
    [
        (
            Naive,
            lambda buffer: [SeenClassesPlugin(), CRUMBPlugin(buffer)],
            r"was not handed .*different classes.*seen=",
        ),
        (
            Naive,
            lambda buffer: [SeenClassesPlugin(), CRUMBPlugin(buffer, seen=SeenClassesPlugin())],
            "different classes",
        ),
        (
            Naive,
            lambda buffer: [CRUMBPlugin(buffer, seen=SeenClassesPlugin())],
            r"not in the strategy's plugin list.*plugins=\[seen",
        ),
        (CRUMBStrategy, lambda buffer: [SeenClassesPlugin()], "SeenClassesPlugin"),
    ],
)
def test_a_mask_that_was_not_handed_over_is_an_error(model, make_stream, kind, plugins, words):
    buffer = CodeBuffer(4)
    strategy = make(kind, model, *plugins(buffer), **({} if kind is Naive else {"storage_policy": buffer}))
    with pytest.raises(ValueError, match=words):
        strategy.train(make_stream().train_stream[0])


def test_without_a_mask_losses_are_over_all_outputs(make_model, make_stream):
    class Losses(SupervisedPlugin):
        def __init__(self):
            super().__init__()
            self.of_memories = []

        def on_replay_loss(self, strategy, **kwargs):
            head = strategy.model.plastic_layers.head.weight
            (gradient,) = torch.autograd.grad(strategy.replay_loss, [head], retain_graph=True)
            self.of_memories.append(gradient.any(1).tolist())

    stream = make_stream(classes_per_experience=1)
    for masked in (False, True):
        losses, seen = Losses(), SeenClassesPlugin()
        plugins = [losses, CRUMBPlugin(CodeBuffer(6), seen=seen if masked else None)]
        strategy = make(Naive, make_model(), *([seen, *plugins] if masked else plugins))
        for experience in stream.train_stream[:2]:
            strategy.train(experience)
        assert losses.of_memories
        for row in losses.of_memories:
            assert [bool(row[label]) for label in range(4)] == [not masked or label in seen.seen for label in range(4)]


def test_the_strategy_has_the_buffer_of_its_plugin(make_model):
    buffer = CodeBuffer(4)
    strategy = make(CRUMBStrategy, make_model(), storage_policy=buffer)
    assert strategy.storage_policy is buffer is strategy.memory.storage_policy
    strategy.memory.storage_policy = other = CodeBuffer(5)
    assert strategy.storage_policy is other
    with pytest.raises(AttributeError):
        strategy.storage_policy = buffer
    assert make(StreamStrategy, make_model()).storage_policy is None
