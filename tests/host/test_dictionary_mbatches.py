"""Facts of Avalanche's ``tests/training/test_dictionary_mbatches.py`` for our strategies."""

import pytest
import torch
from avalanche.benchmarks import DatasetExperience, EagerCLStream
from avalanche.benchmarks.utils import AvalancheDataset, ConstantSequence, DataAttribute
from avalanche.training.supervised import Naive
from host_benchmarks import PER_CLASS, Trace, coloured_images, host_model, quiet, sgd
from host_strategies import COMMON

from crumb_avalanche import CodeBuffer, CRUMBPlugin, CRUMBStrategy, ImageBuffer, SeenClassesPlugin, StreamStrategy

pytestmark = pytest.mark.filterwarnings("ignore")


def collate(samples):
    """Join dictionaries of an image, a label and a task label."""
    return {
        key: torch.stack([sample[key] for sample in samples])
        if isinstance(samples[0][key], torch.Tensor)
        else torch.tensor([sample[key] for sample in samples])
        for key in samples[0]
    }


class OfDictionaries:
    """Mixin of a strategy whose batches are dictionaries, as the host's test overrides them."""

    mb_x = property(lambda self: self.mbatch["x"])
    mb_y = property(lambda self: self.mbatch["y"])
    mb_task_id = property(lambda self: self.mbatch["targets_task_labels"])

    def _unpack_minibatch(self):
        self.mbatch = {key: value.to(self.device) for key, value in self.mbatch.items()}


def dictionaries(first: int):
    """Two classes as an Avalanche data set of dictionaries."""
    rows = [{"x": image, "y": label} for image, label in coloured_images() if first <= label < first + 2]
    tasks = DataAttribute(ConstantSequence(0, len(rows)), "targets_task_labels", use_in_getitem=True)
    targets = DataAttribute([int(row["y"]) for row in rows], "targets")
    return AvalancheDataset([rows], data_attributes=[targets, tasks], collate_fn=collate)


def stream():
    """Three experiences of two classes."""
    experiences = [DatasetExperience(dataset=dictionaries(first)) for first in (0, 2, 4)]
    return EagerCLStream("train", experiences)


@pytest.mark.parametrize("kind", [CodeBuffer, ImageBuffer])
@pytest.mark.parametrize("name", ["CRUMBStrategy", "StreamStrategy", "Naive"])
def test_batches_that_are_dictionaries(name, kind):
    """test_dictionary_train_replay: a strategy with its own ``mb_x`` and ``mb_y``, and our memory beside it."""
    torch.manual_seed(0)
    model, buffer, seen, trace = host_model(), kind(12), SeenClassesPlugin(), Trace()
    base, arguments = {
        "CRUMBStrategy": (CRUMBStrategy, {"storage_policy": buffer, "plugins": [trace]}),
        "StreamStrategy": (StreamStrategy, {"plugins": [trace]}),
        "Naive": (Naive, {"plugins": [seen, trace, CRUMBPlugin(buffer, seen=seen)]}),
    }[name]
    strategy = type("OfDictionaries" + name, (OfDictionaries, base), {})(
        model=model, optimizer=sgd(model), evaluator=quiet(), **COMMON, **arguments
    )
    for experience in stream():
        strategy.train(experience, eval_streams=[])
    assert [len(labels) for labels in trace.labels] == 3 * [2 * 2 * PER_CLASS]
    if name != "StreamStrategy":
        assert sorted(buffer.labels.tolist()) == sorted(2 * list(range(6)))


def test_a_data_set_of_dictionaries():
    """test_dictionary_datasets."""
    data = dictionaries(0)
    assert set(data[0]) == {"x", "y", "targets_task_labels"} and len(data) == 2 * PER_CLASS
