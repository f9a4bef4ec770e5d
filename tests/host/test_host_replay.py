"""Facts of Avalanche's ``tests/training/test_replay.py`` for our buffers, and for its own over a ``SplitModel``.

Ids name the host's test.
"""

from collections import Counter

import pytest
import torch
from avalanche.training.plugins import ReplayPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from host_benchmarks import (
    KINDS,
    N_CLASSES,
    coloured_images,
    host_benchmark,
    host_model,
    quiet,
    sgd,
)
from host_strategies import COMMON

from crumb_avalanche import ImageBuffer
from crumb_avalanche.memory.selection import RULES

pytestmark = pytest.mark.filterwarnings("ignore")


def counts_of(buffer):
    return Counter(label for label in buffer.labels.tolist() if label >= 0)


class Replayed(SupervisedPlugin):
    """Checks that every image of a batch is one of its class, and collects labels of earlier experiences."""

    def __init__(self, model):
        super().__init__()
        data = coloured_images()
        self.pixels, self.labels, self.earlier = model.pixels(data.tensors[0]), data.tensors[1], []

    def after_forward(self, strategy, **kwargs):
        present = set(map(int, strategy.experience.dataset.targets))
        for image, label in zip(strategy.model.pixels(strategy.mb_x), strategy.mb_y.tolist()):
            distance = (self.pixels.int() - image.int()).abs().flatten(1).amax(1)
            assert int(self.labels[distance.argmin()]) == label and int(distance.min()) <= 1
            if label not in present:
                self.earlier.append(label)


def replay_in_naive(policy, mem_size, kind="nc_tasks", experiences=3):
    """The host's ``Naive`` and ``ReplayPlugin`` with a policy; the labels it replayed."""
    torch.manual_seed(0)
    model = host_model()
    watch, replay = Replayed(model), ReplayPlugin(mem_size=mem_size, storage_policy=policy)
    strategy = Naive(model=model, optimizer=sgd(model), plugins=[replay, watch], evaluator=quiet(), **COMMON)
    filled = []
    for experience in host_benchmark(kind).train_stream[:experiences]:
        strategy.train(experience)
        filled.append(len(replay.storage_policy.buffer))
    return filled, watch.earlier


@pytest.mark.parametrize("kind, rule", [*zip(KINDS, [*RULES, *RULES])])
def test_images_of_ours_in_the_hosts_replay_plugin(rule, kind):
    """test_replay_balanced_memory with ``storage_policy=ImageBuffer``: filled, balanced, replayed as the images."""
    policy = ImageBuffer(12, RULES[rule]())
    filled, replayed = replay_in_naive(policy, 12, kind)
    assert filled == [12, 12, 12] and counts_of(policy) == dict.fromkeys(range(N_CLASSES), 2)
    assert set(replayed) == {0, 1, 2, 3}
