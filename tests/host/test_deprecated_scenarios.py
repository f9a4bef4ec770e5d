"""The facts of Avalanche's ``tests/benchmarks/scenarios/deprecated``, for our benchmarks."""

import pytest
from avalanche.benchmarks import (
    GenericCLScenario,
    data_incremental_benchmark,
    dataset_benchmark,
    nc_benchmark,
    ni_benchmark,
)
from avalanche.benchmarks.utils import concat_datasets
from host_streams import joined, our_stream, rows, same_items

PROTOCOLS = ("class_instance", "class_iid", "offline")


@pytest.fixture(params=PROTOCOLS)
def benchmark(request):
    return our_stream(request.param)


@pytest.mark.parametrize("protocol", PROTOCOLS[:2])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_nc_sit(protocol, size):
    """SITTests.test_sit_single_dataset and ..._batch_size: number of classes, and each class in one experience."""
    benchmark = our_stream(protocol, size)
    assert benchmark.n_classes == 4 and sum(benchmark.n_classes_per_exp) == 4
    assert len(benchmark.train_stream) == len(benchmark.test_stream) == len(benchmark.n_classes_per_exp)
    for stream in benchmark.streams.values():
        sets = [experience.classes_in_this_experience for experience in stream]
        assert sets == benchmark.original_classes_in_exp
        assert [len(labels) for labels in sets] == benchmark.n_classes_per_exp
        assert set.union(*sets) == set(benchmark.classes_order) == {0, 1, 2, 3}


def test_nc_sit_reproducibility():
    """SITTests.test_sit_single_dataset_reproducibility_data: a run fixes the whole stream."""
    runs = [our_stream(run=run) for run in (0, 0, 1, 2)]
    order = [rows(benchmark.train_stream) for benchmark in runs]
    assert order[0] == order[1] and order[0] != order[2] != order[3]
    assert all(sorted(one) == sorted(order[0]) for one in order)
    assert same_items(joined(runs[0].train_stream), joined(runs[1].train_stream))


def whole_and_parts(benchmark):
    """The data sets of both streams: joined, and as they are."""
    parts = [[experience.dataset for experience in stream] for stream in benchmark.streams.values()]
    return [concat_datasets(one) for one in parts], parts


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 2, 0]], ids=str)
def test_nc_benchmark(benchmark, order):
    """SITTests.test_sit_single_dataset_fixed_order, GenericCLScenarioTests.test_classes_in_exp."""
    made = nc_benchmark(*whole_and_parts(benchmark)[0], 2, task_labels=False, fixed_class_order=order)
    for name, stream in benchmark.streams.items():
        assert [set(made.classes_in_experience[name][number]) for number in (0, 1)] == [{*order[:2]}, {*order[2:]}]
        assert sorted(rows(made.streams[name])) == sorted(rows(stream))
    assert [set(classes) for classes in made.get_classes_timeline(1)] == [{*order[2:]}, {*order[:2]}, {*order}, set()]


@pytest.mark.parametrize("count", [2, 5])
def test_ni_benchmark(benchmark, count):
    """NISITTests.test_ni_sit_single_dataset: experiences of equal size, every class in each."""
    made = ni_benchmark(*whole_and_parts(benchmark)[0], count, task_labels=False, balance_experiences=True, seed=1)
    for experience in made.train_stream:
        assert dict(experience.dataset.targets.count) == dict.fromkeys(range(4), 10 // count)
    assert sorted(rows(made.train_stream)) == sorted(rows(benchmark.train_stream))


def test_dataset_benchmark(benchmark):
    """HighLevelGeneratorTests.test_dataset_benchmark_avalanche_dataset."""
    made = dataset_benchmark(*whole_and_parts(benchmark)[1])
    for name, stream in benchmark.streams.items():
        for theirs, ours in zip(made.streams[name], stream, strict=True):
            assert same_items(theirs.dataset, ours.dataset) and theirs.task_label == 0


def test_data_incremental_benchmark(benchmark):
    """HighLevelGeneratorTests.test_data_incremental_benchmark: small experiences in the order of the stream."""
    made = data_incremental_benchmark(dataset_benchmark(*whole_and_parts(benchmark)[1]), 6, shuffle=False)
    wanted = [size for one in benchmark.train_stream for size in [6] * (len(one.dataset) // 6) + [len(one.dataset) % 6]]
    assert [len(experience.dataset) for experience in made.train_stream] == wanted
    assert rows(made.train_stream) == rows(benchmark.train_stream)


def test_lazy_benchmark(benchmark):
    """GenericCLScenarioTests.test_lazy_benchmark: classes are known when an experience is reached."""
    ours = benchmark.train_stream
    lazy = ((experience.dataset for experience in ours), len(ours)), [{0}] * len(ours)
    made = GenericCLScenario(stream_definitions={"train": lazy, "test": (whole_and_parts(benchmark)[1][1],)})
    assert made.get_classes_timeline(0)[0] is None
    for number, experience in enumerate(made.train_stream):
        assert set(experience.classes_in_this_experience) == ours[number].classes_in_this_experience
        assert set(made.get_classes_timeline(number)[1]) == ours[number].previous_classes
    with pytest.raises(IndexError):
        made.train_stream[len(ours)]
