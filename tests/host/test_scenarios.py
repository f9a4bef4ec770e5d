"""The facts of Avalanche's ``tests/benchmarks/scenarios``, for our benchmarks."""

from functools import partial

import pytest
from avalanche.benchmarks import (
    CLScenario,
    CLStream,
    EagerCLStream,
    benchmark_from_datasets,
    benchmark_with_validation_stream,
    class_incremental_benchmark,
    new_instances_benchmark,
    task_incremental_benchmark,
    with_classes_timeline,
    with_task_labels,
)
from avalanche.benchmarks.scenarios.dataset_scenario import (
    _split_dataset_by_attribute,
    split_validation_class_balanced,
    split_validation_random,
)
from avalanche.benchmarks.scenarios.generic_scenario import MaskedAttributeError
from host_streams import TRAINING, joined, our_stream, rows, same_items

PROTOCOLS = ("class_instance", "class_iid", "offline")


@pytest.fixture(params=PROTOCOLS)
def benchmark(request):
    return our_stream(request.param)


@pytest.fixture
def data():
    """The data set of the first of two experiences."""
    return our_stream().train_stream[0].dataset


# tests/benchmarks/scenarios/test_generic_scenario.py


@pytest.mark.parametrize("stream", ["train", "test"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_exp(benchmark, stream, mode):
    """ExperienceTests.test_exp: the number of an experience is hidden in training and evaluation."""
    for number, experience in enumerate(benchmark.streams[stream]):
        with pytest.raises(MaskedAttributeError):
            getattr(experience, mode)().current_experience  # noqa: B018
        assert experience.current_experience == experience.logging().current_experience == number


@pytest.mark.parametrize("stream", ["train", "test"])
def test_stream_getitem(benchmark, stream):
    """StreamTests.test_stream_getitem, SITTests.test_nc_sit_slicing: streams are indexed and iterated."""
    stream = benchmark.streams[stream]
    assert [stream[number] for number in range(len(stream))] == list(stream)
    assert all(experience.origin_stream is stream for experience in stream)
    with pytest.raises(IndexError):
        stream[len(stream)]


@pytest.mark.parametrize(
    ("part", "numbers"),
    [(slice(1, 2), [1]), (slice(2), [0, 1]), (slice(1, None), [1, 2, 3]), ([2, 3, 0], [2, 3, 0])],
    ids=["1:2", ":2", "1:", "list"],
)
@pytest.mark.parametrize("name", ["train", "test"])
def test_stream_slicing(part, numbers, name):
    """StreamTests.test_stream_slicing, SITTests.test_nc_sit_slicing: slices keep name and numbers."""
    stream = our_stream(classes_per_experience=1).streams[name]
    taken = stream[part]
    assert [experience.current_experience for experience in taken] == numbers
    assert (taken.name, len(taken)) == (name, len(numbers))
    assert rows(taken) == rows([stream[number] for number in numbers])


def test_lazy_stream(benchmark):
    """StreamTests.test_lazy_stream: a generator of our experiences becomes a stream that numbers them."""
    stream = CLStream("lazy", (experience for experience in reversed(benchmark.test_stream)), None, True)
    for _ in range(2):  # it can be read again
        for number, experience in enumerate(stream):
            assert experience.current_experience == number
            assert experience.origin_stream is stream


def test_scenario_streams(benchmark):
    """ScenarioTests.test_scenario_streams, CustomStreamsTests.test_custom_streams_name_and_length."""
    extra = EagerCLStream("extra", list(our_stream().test_stream))
    scenario = CLScenario([*benchmark.streams.values(), extra])
    assert scenario.train_stream is benchmark.train_stream and scenario.test_stream is benchmark.test_stream
    assert scenario.extra_stream is extra and [*scenario.streams] == ["train", "test", "extra"]
    del scenario.streams["train"]
    assert "train" in scenario.streams  # it was a copy


# tests/benchmarks/scenarios/test_dataset_scenario.py


def test_benchmark_from_datasets(benchmark):
    """DatasetScenarioTests.test_benchmark_from_datasets: items stay as they are, in their order."""
    datasets = {name: [experience.dataset for experience in stream] for name, stream in benchmark.streams.items()}
    made = benchmark_from_datasets(**datasets)
    for name, parts in datasets.items():
        for number, (experience, part) in enumerate(zip(made.streams[name], parts, strict=True)):
            assert experience.current_experience == number
            assert same_items(experience.dataset, part)


@pytest.mark.parametrize("size", [0.5, 0.25, 6])
@pytest.mark.parametrize("shuffle", [True, False])
def test_split_dataset_random(data, size, shuffle):
    """DatasetSplitterTest.test_split_dataset_random: both parts are rows of the whole, each once."""
    kept, held = split_validation_random(size, shuffle, 1, data)
    assert len(held) == (size if size > 1 else size * TRAINING)
    assert sorted(rows(kept) + rows(held)) == sorted(rows(data))
    assert (rows(kept) + rows(held) == rows(data)) is not shuffle
    for part in (kept, held):
        assert same_items(part, data.subset([rows(data).index(row) for row in rows(part)]))


@pytest.mark.parametrize("ratio", [0.5, 0.3])
def test_split_dataset_class_balanced(data, ratio):
    """DatasetSplitterTest.test_split_dataset_class_balanced."""
    kept, held = split_validation_class_balanced(ratio, data)
    assert dict(held.targets.count) == {label: ratio * count for label, count in data.targets.count.items()}
    assert sorted(rows(kept) + rows(held)) == sorted(rows(data))


@pytest.mark.parametrize("name", ["targets", "frame_row", "targets_task_labels"])
def test_split_dataset_by_attribute(data, name):
    """DatasetSplitterTest.test_split_dataset_by_attribute: each part has one value of the attribute."""
    parts = _split_dataset_by_attribute(data, name)
    assert parts.keys() == set(getattr(data, name))
    assert sum(map(len, parts.values())) == len(data)
    assert all(set(getattr(part, name)) == {value} for value, part in parts.items())


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


def test_validation_stream_with_a_strategy(benchmark):
    """benchmark_with_validation_stream's example: each class is split by the same share."""
    split = partial(split_validation_class_balanced, 0.2)
    parts = benchmark_with_validation_stream(benchmark, split_strategy=split)
    for train, valid in zip(parts.train_stream, parts.valid_stream, strict=True):
        assert {*train.dataset.targets.count.values()} == {8} and {*valid.dataset.targets.count.values()} == {2}


# tests/benchmarks/scenarios/test_supervised_scenario.py


@pytest.mark.parametrize("choice", [{"num_experiences": 4}, {"num_classes_per_exp": [1, 1, 1, 1]}], ids=str)
def test_class_incremental_benchmark(benchmark, choice):
    """ClassIncrementalBenchmark: our joined data is split by Avalanche's generator."""
    parts = {name: joined(stream) for name, stream in benchmark.streams.items()}
    made = with_classes_timeline(class_incremental_benchmark(parts, class_order=[2, 1, 0, 3], **choice))
    for name in ("train", "test"):
        assert [experience.classes_in_this_experience for experience in made.streams[name]] == [{2}, {1}, {0}, {3}]
        assert [len(experience.dataset) for experience in made.streams[name]] == [TRAINING / 2] * 4
        assert sorted(rows(made.streams[name])) == sorted(rows(benchmark.streams[name]))


@pytest.mark.parametrize("balanced", [True, False])
def test_new_instances(benchmark, balanced):
    """NewInstancesTests.test_ni_balanced and test_ni_unbalanced."""
    train, test = joined(benchmark.train_stream), joined(benchmark.test_stream)
    made = new_instances_benchmark(train, test, 5, shuffle=True, seed=1234, balance_experiences=balanced)
    made = with_classes_timeline(made)
    for experience in made.train_stream:
        assert experience.classes_in_this_experience == {0, 1, 2, 3}
        assert dict(experience.dataset.targets.count) == dict.fromkeys(range(4), 2)
    assert sorted(rows(made.train_stream)) == sorted(rows(train))
    assert rows(made.test_stream) == rows(test)


# tests/benchmarks/scenarios/test_task_aware.py, test_experience_decorators.py


def test_taskaware(benchmark):
    """TestsTaskAware.test_taskaware: task labels are the numbers of the experiences."""
    made = task_incremental_benchmark(benchmark, reset_task_labels=True)
    for name, stream in benchmark.streams.items():
        for number, (experience, ours) in enumerate(zip(made.streams[name], stream, strict=True)):
            assert (experience.task_label, experience.task_labels) == (number, [number])
            assert {item[-1] for item in experience.dataset} == {number}
            assert rows(experience) == rows(ours)
            assert {item[-1] for item in ours.dataset} == {0}  # our benchmark is left as it was
    with pytest.raises(ValueError, match="already has task labels"):
        task_incremental_benchmark(benchmark)


def test_with_task_labels(benchmark):
    """ExperienceDecoratorTests.test_with_task_labels: labels are unique integers."""
    for decorated in (benchmark, with_task_labels(benchmark)):
        for experience in [*decorated.train_stream, *decorated.test_stream]:
            assert experience.task_labels == [0] and type(experience.task_label) is int


@pytest.mark.parametrize("repeated", [False, True], ids=["each once", "a class comes back"])
def test_with_classes_timeline(repeated):
    """ExperienceDecoratorTests.test_with_classes_timeline_all_attributes."""
    stream = our_stream(classes_per_experience=1).train_stream
    chosen = [stream[0], stream[1], stream[2], stream[2 if repeated else 3]]
    labels = [set(experience.dataset.targets) for experience in chosen]
    made = benchmark_from_datasets(train=[experience.dataset for experience in chosen])
    for number, experience in enumerate(with_classes_timeline(made).train_stream):
        before, so_far = set().union(*labels[:number]), set().union(*labels[: number + 1])
        assert experience.classes_in_this_experience == labels[number]
        assert experience.previous_classes == before and experience.classes_seen_so_far == so_far
        assert experience.future_classes == set().union(*labels) - so_far
        assert all(type(label) is int for label in experience.classes_in_this_experience)


def test_our_own_timeline(benchmark):
    """ExperienceDecoratorTests.test_with_classes_timeline: every stream has it without a decorator."""
    for name, stream in benchmark.streams.items():
        decorated = with_classes_timeline(benchmark).streams[name]
        for ours, theirs in zip(stream, decorated, strict=True):
            for attribute in (
                "classes_in_this_experience",
                "previous_classes",
                "classes_seen_so_far",
                "future_classes",
            ):
                assert getattr(ours, attribute) == getattr(theirs, attribute)
