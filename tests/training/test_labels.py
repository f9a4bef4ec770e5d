"""Labels of data sets with and without ``targets``."""

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.training.plugins import EvaluationPlugin
from small_models import coloured, make_model
from torch.utils.data import Dataset, Subset

from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings, build_strategy
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.training.data import labels_of

pytestmark = pytest.mark.filterwarnings("ignore")
SETTINGS = LearningSettings(learning_rate=0.02, batch_size=5, eval_batch_size=8, first_epochs=2)


class Noisy(Dataset):
    """Items whose images are drawn anew each time; counts them."""

    def __init__(self):
        self.read = 0

    def __len__(self):
        return 3

    def __getitem__(self, number):
        self.read += 1
        return torch.rand(2), torch.tensor(number % 2)


def test_labels_without_targets_are_read_from_the_items_once():
    data = Noisy()
    before = torch.get_rng_state()
    assert labels_of(data) == labels_of(data) == [0, 1, 0] and data.read == 3
    assert torch.equal(torch.get_rng_state(), before)
    other = Noisy()
    assert labels_of(other) == [0, 1, 0] and other.read == 3


def test_targets_are_labels_as_they_are():
    data = Noisy()
    data.targets = torch.tensor([5, 6, 7])
    assert labels_of(data) == [5, 6, 7] and all(type(label) is int for label in labels_of(data)) and data.read == 0


def stream_of(with_targets: bool):
    """Two experiences of two classes, with or without ``targets``."""
    images, parts = coloured(), []
    for first in (0, 2):
        part = Subset(images, [n for n in range(len(images)) if int(images[n][1]) in (first, first + 1)])
        targets = [int(label) for _, label in part]
        parts.append(AvalancheDataset([part], data_attributes=[DataAttribute(targets, "targets")] * with_targets))
    return benchmark_from_datasets(train=parts).train_stream


@pytest.mark.parametrize("name", [name for name, entry in STRATEGIES.items() if not entry.joint])
def test_a_stream_without_targets_is_trained_on_as_one_with_them(name):
    weights = []
    for with_targets in (True, False):
        torch.manual_seed(0)
        model = make_model(codebook=STRATEGIES[name].codebook)
        strategy = build_strategy(name, model, SETTINGS, 8, evaluator=EvaluationPlugin(loggers=[]))
        for experience in stream_of(with_targets):
            assert hasattr(experience.dataset, "targets") == with_targets
            strategy.train(experience)
        weights.append((weights_hash(model), strategy.seen_classes.seen))
        strategy.eval(stream_of(with_targets))
    assert weights[0] == weights[1] and weights[0][1] == [0, 1, 2, 3]
