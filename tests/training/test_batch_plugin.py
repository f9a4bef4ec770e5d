"""The batch of an iteration is recorded from its own forward pass, not from others through the model."""

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.supervised import ER_ACE, Naive
from stored_memories import ForeignPass, assert_memories_are_of_the_stream
from torch import nn

from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings, build_strategy
from crumb_avalanche.training.batch_plugin import BatchPlugin
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.plugins import EpochSchedule, SeenClassesPlugin
from crumb_avalanche.training.storage_policies import CodeBuffer, ImageBuffer, MapBuffer
from crumb_avalanche.training.stream_strategy import StreamStrategy

pytestmark = pytest.mark.filterwarnings("ignore")

MEM_SIZE = 8
EVENTS = 5  # of an iteration, at which a foreign pass is made


def crumb(model, buffer, plugins=(), **settings):
    """A ``CRUMBStrategy`` of the small stream."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    settings = dict(train_mb_size=6, first_epochs=2, evaluator=EvaluationPlugin(loggers=[])) | settings
    return CRUMBStrategy(model=model, optimizer=optimizer, storage_policy=buffer, plugins=plugins, **settings)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [CodeBuffer, MapBuffer, ImageBuffer])
def test_foreign_forward_passes_change_nothing(make_model, make_stream, kind, fused):
    results = []
    for foreign in ([], [ForeignPass()]):
        model, stream, buffer = make_model(), make_stream(), kind(MEM_SIZE)
        model.codebook.requires_grad_(False)  # so that codes of any time can be compared
        strategy = crumb(model, buffer, foreign, fused=fused, direct_weight=0.5)
        for experience in stream.train_stream:
            strategy.train(experience)
        assert_memories_are_of_the_stream(buffer, model, stream.train_stream)
        results.append((model.state_dict(), buffer))
    assert foreign[0].passes == (2 * 4 + 4) * EVENTS * 3
    (weights, buffer), (other_weights, other) = results
    assert all(torch.equal(value, other_weights[name]) for name, value in weights.items())
    assert torch.equal(buffer.rows, other.rows) and torch.equal(buffer.labels, other.labels)


LEARNERS = [name for name, entry in STRATEGIES.items() if entry.gradient and not entry.joint]


@pytest.mark.parametrize("name", LEARNERS)
def test_no_strategy_mistakes_a_foreign_pass_for_its_own(make_model, make_stream, name):
    entry, results = STRATEGIES[name], []
    for foreign in ([], [ForeignPass()]):
        torch.manual_seed(0)
        np.random.seed(0)
        model, stream = make_model(codebook=entry.codebook), make_stream()
        settings = LearningSettings(learning_rate=0.02, batch_size=6, eval_batch_size=8, first_epochs=2)
        strategy = build_strategy(
            name, model, settings, MEM_SIZE, 0, plugins=foreign, evaluator=EvaluationPlugin(loggers=[])
        )
        for experience in stream.train_stream:
            strategy.train(experience)
        results.append(strategy)
    assert foreign[0].passes > 0
    one, two = results
    weights = two.model.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in one.model.state_dict().items())
    if one.storage_policy is not None and one.storage_policy.rows is not None:
        assert torch.equal(one.storage_policy.rows, two.storage_policy.rows)
        assert torch.equal(one.storage_policy.labels, two.storage_policy.labels)


def test_beside_a_strategy_with_a_second_batch_of_its_own(make_model, make_stream):
    model, stream, buffer = make_model(), make_stream(), CodeBuffer(MEM_SIZE)
    model.codebook.requires_grad_(False)
    strategy = ER_ACE(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        criterion=nn.CrossEntropyLoss(),
        mem_size=12,
        batch_size_mem=5,
        train_mb_size=6,
        plugins=[CRUMBPlugin(buffer)],
        evaluator=EvaluationPlugin(loggers=[]),
    )
    for experience in stream.train_stream:
        strategy.train(experience, shuffle=False)
    assert len(buffer) == MEM_SIZE
    assert_memories_are_of_the_stream(buffer, model, stream.train_stream)


def test_a_batch_that_does_not_pass_the_model_is_computed(make_model, make_stream):
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

    model, watch = make_model(), Watch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    evaluator = EvaluationPlugin(loggers=[])
    strategy = Copying(model=model, optimizer=optimizer, plugins=[watch], evaluator=evaluator, first_epochs=1)
    strategy.train(make_stream().train_stream[0])
    assert watch.batches == 1 and watch.batch is None


def naive(model, plugins):
    """Avalanche's ``Naive`` with some plugins."""
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=6,
        plugins=plugins,
        evaluator=EvaluationPlugin(loggers=[]),
    )


def test_a_mask_that_was_not_handed_over_is_an_error(make_model, make_stream):
    experience = make_stream().train_stream[0]
    for seen in (None, SeenClassesPlugin()):
        strategy = naive(make_model(), [SeenClassesPlugin(), CRUMBPlugin(CodeBuffer(4), seen=seen)])
        with pytest.raises(ValueError, match=r"SeenClassesPlugin.*different classes.*seen="):
            strategy.train(experience)
    # One that is not in the list would mask every class.
    strategy = naive(make_model(), [CRUMBPlugin(CodeBuffer(4), seen=SeenClassesPlugin())])
    with pytest.raises(ValueError, match=r"SeenClassesPlugin .* not in the strategy's plugin list.*plugins=\[seen"):
        strategy.train(experience)
    # A second one beside the strategy's own, too.
    strategy = crumb(make_model(), CodeBuffer(4), [SeenClassesPlugin()])
    with pytest.raises(ValueError, match="SeenClassesPlugin"):
        strategy.train(experience)


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
        strategy = naive(make_model(), [seen, *plugins] if masked else plugins)
        for experience in stream.train_stream[:2]:
            strategy.train(experience)
        assert losses.of_memories
        for row in losses.of_memories:
            assert [bool(row[label]) for label in range(4)] == [not masked or label in seen.seen for label in range(4)]


def test_the_strategy_has_the_buffer_of_its_plugin(make_model):
    buffer = CodeBuffer(4)
    strategy = crumb(make_model(), buffer)
    assert strategy.storage_policy is buffer is strategy.memory.storage_policy
    strategy.memory.storage_policy = other = CodeBuffer(5)
    assert strategy.storage_policy is other
    with pytest.raises(AttributeError):
        strategy.storage_policy = buffer
    model = make_model()
    plain = StreamStrategy(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), plugins=[EpochSchedule(1)]
    )
    assert plain.storage_policy is None
