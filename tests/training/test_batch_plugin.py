"""The batch of an iteration is recorded from its own forward pass, not from others through the model."""

from functools import partial

import numpy as np
import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.supervised import Naive
from small_crumb import make
from watched import built

from crumb_avalanche.memory.buffers import CodeBuffer
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.training.batch_plugin import BatchPlugin
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.plugins import SeenClassesPlugin
from crumb_avalanche.training.stream_strategy import StreamStrategy

pytestmark = pytest.mark.filterwarnings("ignore")
LEARNERS = [name for name, entry in STRATEGIES.items() if entry.gradient and not entry.joint]


class ForeignPass(SupervisedPlugin):
    """Passes noise through the model in training mode, in batches of several sizes, at every event of an iteration."""

    def __init__(self):
        super().__init__()
        self.passes = 0
        self.noise = torch.randint(0, 256, (9, 3, 16, 16), generator=torch.Generator().manual_seed(9)).byte()

    def look(self, strategy, **kwargs):
        assert strategy.model.training
        with torch.no_grad():
            for size in (9, len(strategy.mb_y), 1):
                strategy.model(self.noise[:size])
                self.passes += 1

    before_forward = after_forward = after_backward = before_update = after_update = look


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


def test_a_mask_that_was_not_handed_over_is_an_error(model, make_stream):
    seen, own = SeenClassesPlugin, partial(CRUMBStrategy, mem_size=4)
    for kind, plugins, words in (
        (Naive, [seen(), CRUMBPlugin(CodeBuffer(4))], r"was not handed .*different classes.*seen="),
        (Naive, [seen(), CRUMBPlugin(CodeBuffer(4), seen=seen())], "different classes"),
        (Naive, [CRUMBPlugin(CodeBuffer(4), seen=seen())], r"not in the strategy's plugin list.*plugins=\[seen"),
        (own, [seen()], "SeenClassesPlugin"),
    ):
        with pytest.raises(ValueError, match=words):
            make(kind, model, *plugins).train(make_stream().train_stream[0])
