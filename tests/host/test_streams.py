"""Facts of Avalanche's ``tests/benchmarks`` for our benchmarks: scenarios, data sets, and what is made of them."""

import pytest
import torch
from avalanche.benchmarks import (
    CLScenario,
    CLStream,
    benchmark_with_validation_stream,
    class_incremental_benchmark,
    with_classes_timeline,
)
from avalanche.benchmarks.utils import TaskAwareSupervisedClassificationDataset
from host_streams import TRAINING, joined, our_stream, rows
from small_models import SIZE
from torch.utils.data import DataLoader

PROTOCOLS = ("class_instance", "class_iid", "offline")


@pytest.fixture(params=PROTOCOLS)
def benchmark(request):
    return our_stream(request.param)


@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
@pytest.mark.parametrize("size", [5, 0.2], ids=["fixed", "relative"])
def test_benchmark_with_validation_stream(benchmark, size, lazy):
    """DatasetWithValidationStreamTests: fixed size, relative size, and the lazy benchmark."""
    whole = [rows(experience) for experience in benchmark.train_stream]
    scenario = benchmark
    if lazy:
        streams = [CLStream(name, (one for one in stream)) for name, stream in benchmark.streams.items()]
        scenario = CLScenario(streams)
    parts = benchmark_with_validation_stream(scenario, size, shuffle=False)
    cut = [len(one) - int(size if size > 1 else size * len(one)) for one in whole]
    assert [rows(experience) for experience in parts.train_stream] == [one[:at] for one, at in zip(whole, cut)]
    assert [rows(experience) for experience in parts.valid_stream] == [one[at:] for one, at in zip(whole, cut)]
    assert rows(parts.test_stream) == rows(benchmark.test_stream)
    for experience in parts.valid_stream:
        assert experience.classes_in_this_experience == set(experience.dataset.targets)
    assert [*benchmark.streams] == ["train", "test"]
    assert [rows(experience) for experience in benchmark.train_stream] == whole


@pytest.mark.parametrize("choice", [{"num_experiences": 4}, {"num_classes_per_exp": [1, 1, 1, 1]}], ids=str)
def test_class_incremental_benchmark(benchmark, choice):
    """ClassIncrementalBenchmark: our joined data is split by Avalanche's generator."""
    parts = {name: joined(stream) for name, stream in benchmark.streams.items()}
    made = with_classes_timeline(class_incremental_benchmark(parts, class_order=[2, 1, 0, 3], **choice))
    for name in ("train", "test"):
        assert [experience.classes_in_this_experience for experience in made.streams[name]] == [{2}, {1}, {0}, {3}]
        assert [len(experience.dataset) for experience in made.streams[name]] == [TRAINING / 2] * 4
        assert sorted(rows(made.streams[name])) == sorted(rows(benchmark.streams[name]))


def batch_of(data):
    return next(iter(DataLoader(data, batch_size=len(data), collate_fn=data.collate_fn)))


@pytest.mark.parametrize("name", ["train", "test"])
def test_items(benchmark, name):
    """AvalancheDatasetTests.test_mnist_no_transforms: image, label and task label, and the attributes of each."""
    for experience in benchmark.streams[name]:
        data = experience.dataset
        assert isinstance(data, TaskAwareSupervisedClassificationDataset)
        for number, (image, label, task) in enumerate(data):
            assert image.shape == (3, SIZE, SIZE) and image.dtype == torch.float32
            assert type(label) is type(task) is int
            assert (label, task) == (data.targets[number], data.targets_task_labels[number])
        images, labels, tasks = batch_of(data)
        assert images.shape == (len(data), 3, SIZE, SIZE)
        assert labels.tolist() == list(data.targets) and tasks.tolist() == [0] * len(data)
