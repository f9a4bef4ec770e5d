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
from avalanche.benchmarks.utils import AvalancheDataset, TaskAwareSupervisedClassificationDataset, concat_datasets
from host_streams import TRAINING, joined, our_stream, rows
from small_models import SIZE
from torch.utils.data import DataLoader

from benchmarks_toybox_ilab import imagenet_transform, pixel_transform

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


@pytest.fixture
def stream():
    return our_stream().train_stream


@pytest.fixture
def data(stream):
    return stream[0].dataset


def batch_of(data):
    return next(iter(DataLoader(data, batch_size=len(data), collate_fn=data.collate_fn)))


@pytest.mark.parametrize("protocol", ["class_instance", "class_iid", "offline"])
@pytest.mark.parametrize("name", ["train", "test"])
def test_items(protocol, name):
    """AvalancheDatasetTests.test_mnist_no_transforms: image, label and task label, and the attributes of each."""
    for experience in our_stream(protocol).streams[name]:
        data = experience.dataset
        assert isinstance(data, TaskAwareSupervisedClassificationDataset)
        for number, (image, label, task) in enumerate(data):
            assert image.shape == (3, SIZE, SIZE) and image.dtype == torch.float32
            assert type(label) is type(task) is int
            assert (label, task) == (data.targets[number], data.targets_task_labels[number])
        images, labels, tasks = batch_of(data)
        assert images.shape == (len(data), 3, SIZE, SIZE)
        assert labels.tolist() == list(data.targets) and tasks.tolist() == [0] * len(data)


@pytest.mark.parametrize("join", [lambda a, b: a.concat(b), lambda a, b: a + b, lambda a, b: concat_datasets([a, b])])
def test_add(stream, join):
    """AvalancheDatasetTests.test_avalanche_dataset_add and ..._radd, test_attribute_cat_sub."""
    first, second = (experience.dataset for experience in stream)
    both = join(first, second)
    assert isinstance(both, AvalancheDataset) and len(both) == 2 * TRAINING
    assert rows(both) == rows(first) + rows(second)
    assert list(both.targets) == [*first.targets, *second.targets] and both.targets.uniques == {0, 1, 2, 3}
    assert list(both.targets_task_labels) == [0] * len(both)
    for place, (part, number) in {0: (first, 0), TRAINING: (second, 0), -1: (second, -1)}.items():
        assert torch.equal(both[place % len(both)][0], part[number % len(part)][0])


def test_transform_groups():
    """SITTests.test_nc_benchmark_transformations_advanced: train and eval transforms in both streams."""
    benchmark = our_stream(train_transform=pixel_transform(8), eval_transform=imagenet_transform(12))
    train, test = benchmark.train_stream[0].dataset, benchmark.test_stream[0].dataset
    assert [part[0][0].shape[-1] for part in (train, train.eval(), train.eval().train())] == [8, 12, 8]
    assert [part[0][0].shape[-1] for part in (test, test.train(), test.train().eval())] == [12, 8, 12]
    assert train[0][0].dtype == torch.uint8 and train.eval()[0][0].dtype == torch.float32
