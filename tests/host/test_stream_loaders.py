"""The facts of Avalanche's ``test_dataloaders.py`` and ``test_replay_loader.py``, for the data sets of our streams."""

from collections import Counter

import pytest
import torch
from avalanche.benchmarks.utils import concat_datasets
from avalanche.benchmarks.utils.data_loader import (
    GroupBalancedDataLoader,
    GroupBalancedInfiniteDataLoader,
    MultiDatasetDataLoader,
    ReplayDataLoader,
    SingleDatasetDataLoader,
    TaskBalancedDataLoader,
)
from avalanche.training.plugins import ReplayPlugin
from host_streams import LEARNERS, TRAINING, Outputs, joined, learner, our_stream, rows
from small_models import SIZE
from torch.utils.data import DataLoader

from crumb_avalanche import ClassBalancedReservoir, CodeBuffer


@pytest.fixture
def stream():
    return our_stream().train_stream


@pytest.fixture
def datasets(stream):
    return [experience.dataset for experience in stream]


LOADERS = {
    "DataLoader": lambda parts: DataLoader(concat_datasets(parts), batch_size=4),
    "SingleDatasetDataLoader": lambda parts: SingleDatasetDataLoader(concat_datasets(parts), batch_size=4),
    "TaskBalancedDataLoader": lambda parts: TaskBalancedDataLoader(concat_datasets(parts), batch_size=4),
    "GroupBalancedDataLoader": lambda parts: GroupBalancedDataLoader(parts, batch_size=4),
    "ReplayDataLoader": lambda parts: ReplayDataLoader(*parts, batch_size=4, batch_size_mem=4),
    "MultiDatasetDataLoader": lambda parts: MultiDatasetDataLoader(parts, [4, 4]),
}


@pytest.mark.parametrize("name", LOADERS)
def test_basic(datasets, name):
    """DataLoaderTests.test_basic: every loader gives batches of images, labels and task labels."""
    loader, seen = LOADERS[name](datasets), Counter()
    for images, labels, tasks in loader:
        assert images.shape[1:] == (3, SIZE, SIZE) and len(images) == len(labels) == len(tasks)
        assert tasks.tolist() == [0] * len(tasks)
        seen.update(labels.tolist())
    assert seen == dict.fromkeys(range(4), TRAINING // 2)


@pytest.mark.parametrize("batches", [3, 50])
def test_infinite(datasets, batches):
    """DataLoaderTests.test_basic, GroupBalancedInfiniteDataLoader: batches never end, and are balanced."""
    loader = iter(GroupBalancedInfiniteDataLoader(datasets, batch_size=6))
    for _ in range(batches):
        _, labels, _ = next(loader)
        assert sum(label in (0, 1) for label in labels.tolist()) == len(labels) / 2 > 0


# The default rule of our buffers needs to know in advance which classes come.
OF_ANY_CLASS = {"CRUMBStrategy": {"storage_policy": CodeBuffer(8, ClassBalancedReservoir())}}


@pytest.mark.parametrize("kind", ["Naive", "CRUMBStrategy"])
def test_dataload_reinit(stream, kind):
    """DataLoaderTests.test_dataload_reinit: the loader is made anew for the second experience, with memories."""
    replay = ReplayPlugin(mem_size=5)
    strategy = learner(kind, plugins=[replay], **OF_ANY_CLASS.get(kind, {}))
    for number, experience in enumerate(stream):
        strategy.train(experience)
        assert len(replay.storage_policy.buffer) == 5
        assert set(rows(replay.storage_policy.buffer)) <= set(rows(stream[: number + 1]))


@pytest.mark.parametrize("oversample", [True, False])
def test_dataload_batch_balancing(datasets, oversample):
    """DataLoaderTests.test_dataload_batch_balancing: as many new images as memories, and no batch is too large."""
    new, memory = datasets[1], datasets[0].subset(range(7))
    loader = ReplayDataLoader(
        new, memory, oversample_small_tasks=oversample, batch_size=5, batch_size_mem=5, shuffle=True
    )
    counts = []
    for _, labels, _ in loader:
        old = sum(label in (0, 1) for label in labels.tolist())
        counts.append((len(labels) - old, old))
    assert counts == ([(5, 5), (5, 2), (5, 5), (5, 2)] if oversample else [(5, 5), (5, 2), (5, 0), (5, 0)])


SETS = {"big": 40, "small": 20, "tiny": 4}


@pytest.mark.parametrize(
    ("new", "memory", "size"),
    [
        pytest.param("small", 24, 6, id="test_bigger_memory"),
        pytest.param("big", 12, 6, id="test_smaller_memory"),
        pytest.param("big", 24, 16, id="test_big_batch_size"),
        pytest.param("big", 8, 16, id="test_zero_iterations_memory"),
        pytest.param("tiny", 24, 16, id="test_zero_iterations_current"),
        pytest.param("big", 24, 1, id="test_small_batch_size"),
    ],
)
def test_replay_loader(stream, new, memory, size):
    """TestReplayDataLoader: number and size of the batches for sizes of data, memory and batch."""
    whole = joined(stream)
    loader = ReplayDataLoader(
        whole.subset(range(SETS[new])),
        whole.subset(range(memory)),
        batch_size=size,
        batch_size_mem=size,
        oversample_small_tasks=True,
        drop_last=True,
    )
    sizes = [len(batch[0]) for batch in loader]
    assert len(loader) == len(sizes) == SETS[new] // size
    assert set(sizes) <= {size if memory < size else 2 * size}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", LEARNERS)
def test_multiple_workers(stream, kind, workers):
    """DataLoaderTests.test_dataloader_with_multiple_workers: they give the same weights as none."""
    weights = []
    for number in (0, workers):
        torch.manual_seed(0)
        strategy = learner(kind)
        strategy.train(stream[0], num_workers=number)
        weights.append(strategy.model.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize("shuffle", [True, False, None])
@pytest.mark.parametrize("kind", LEARNERS)
def test_order(stream, kind, shuffle):
    """BaseSGDTemplate.make_train_dataloader: ``shuffle`` of ``train``; by default our strategy keeps the order."""
    torch.manual_seed(0)
    outputs = Outputs()
    learner(kind, plugins=[outputs]).train(stream[0], **({} if shuffle is None else {"shuffle": shuffle}))
    labels = [int(label) for _, batch in outputs.batches for label in batch]
    in_order = kind == "CRUMBStrategy" if shuffle is None else not shuffle
    assert (labels == list(stream[0].dataset.targets)) is in_order


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("kind", LEARNERS)
def test_drop_last(stream, kind, drop_last):
    """BaseSGDTemplate.make_train_dataloader: ``drop_last`` of ``train`` reaches the loader."""
    outputs = Outputs()
    learner(kind, plugins=[outputs], train_mb_size=6).train(stream[0], drop_last=drop_last)
    assert [len(labels) for _, labels in outputs.batches] == [6, 6, 6] + [2] * (not drop_last)
