"""Facts of Avalanche's ``tests/benchmarks/utils/test_dataloaders.py`` for our buffers and models."""

from itertools import islice

import pytest
import torch
from avalanche.benchmarks.utils.data_loader import (
    GroupBalancedDataLoader,
    GroupBalancedInfiniteDataLoader,
    ReplayDataLoader,
    TaskBalancedDataLoader,
)
from avalanche.benchmarks.utils.utils import concat_datasets
from host_benchmarks import Trace, host_benchmark
from host_strategies import OURS, our_strategy
from torch.utils.data import DataLoader

from crumb_avalanche import CodeBuffer, ImageBuffer, MapBuffer

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", params=[CodeBuffer, ImageBuffer, MapBuffer])
def buffer(request):
    """Twelve memories of six classes."""
    buffer = request.param(12)
    strategy = our_strategy("CRUMBStrategy", buffer=buffer, train_epochs=1)
    strategy.train(host_benchmark("nc_tasks").train_stream)
    return buffer


LOADERS = {
    "DataLoader": lambda buffer: DataLoader(buffer.buffer, batch_size=6),
    "TaskBalanced": lambda buffer: TaskBalancedDataLoader(buffer.buffer, batch_size=6),
    "GroupBalanced": lambda buffer: GroupBalancedDataLoader(buffer.buffer_datasets, batch_size=6),
    "Replay": lambda buffer: ReplayDataLoader(buffer.buffer, buffer.buffer, batch_size=3, batch_size_mem=3),
    "GroupBalancedInfinite": lambda buffer: GroupBalancedInfiniteDataLoader(buffer.buffer_datasets, batch_size=1),
    "concatenated": lambda buffer: DataLoader(concat_datasets(buffer.buffer_datasets), batch_size=6),
}


@pytest.mark.parametrize("loader", LOADERS)
def test_a_buffer_goes_through_every_loader(buffer, loader):
    """test_basic: rows, labels and task labels come batch by batch."""
    row_of = {row.numpy().tobytes(): int(label) for row, label, _ in buffer.buffer}
    batches = [*islice(LOADERS[loader](buffer), 4)]
    assert len(batches) == (2 if loader in ("DataLoader", "TaskBalanced", "GroupBalanced", "concatenated") else 4)
    for rows, labels, tasks in batches:
        assert len(rows) == len(labels) == len(tasks) == 6 and not tasks.any()
        assert [row_of[row.numpy().tobytes()] for row in rows] == labels.tolist()
        if loader.startswith("GroupBalanced"):
            assert sorted(labels.tolist()) == list(range(6))


@pytest.mark.parametrize("name", OURS)
def test_training_with_worker_processes(name):
    """test_dataloader_with_multiple_workers: the same as without."""
    ends = []
    for workers in (0, 2):
        trace = Trace()
        strategy = our_strategy(name, plugins=[trace], train_epochs=1)
        torch.manual_seed(1)
        strategy.train(host_benchmark("nc").train_stream[0], num_workers=workers)
        ends.append((trace.labels, trace.losses))
    assert ends[0] == ends[1]
