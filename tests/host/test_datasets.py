"""The facts of Avalanche's ``tests/benchmarks/utils``, for the data sets of our benchmarks."""

import random

import pytest
import torch
from avalanche.benchmarks.utils import (
    AvalancheDataset,
    DataAttribute,
    TaskAwareSupervisedClassificationDataset,
    concat_datasets,
    make_avalanche_dataset,
)
from avalanche.benchmarks.utils.flat_data import ConstantSequence, _flatdata_depth
from avalanche.training.storage_policy import ClassBalancedBuffer, ReservoirSamplingBuffer
from avalanche.training.utils import load_all_dataset
from host_streams import TRAINING, our_stream, rows
from PIL import Image
from small_models import SIZE
from torch.utils.data import ConcatDataset, DataLoader, Subset

from benchmarks_toybox_ilab import imagenet_transform, pixel_transform


@pytest.fixture
def stream():
    return our_stream().train_stream


@pytest.fixture
def data(stream):
    return stream[0].dataset


def batch_of(data):
    return next(iter(DataLoader(data, batch_size=len(data), collate_fn=data.collate_fn)))


# tests/benchmarks/utils/test_avalanche_dataset.py and test_avalanche_classification_dataset.py


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


@pytest.mark.parametrize("times", [1, 2, 3])
def test_subset_of_subset(data, times):
    """AvalancheDatasetTests.test_subset_subset_merge: items and attributes follow every permutation."""
    order, part, draws = list(range(len(data))), data, random.Random(0)
    for _ in range(times):
        chosen = draws.sample(range(len(part)), len(part) - 2)
        order, part = [order[place] for place in chosen], part.subset(chosen)
    assert type(part) is type(data) and len(part) == len(data) - 2 * times
    for name in ("targets", "frame_row", "targets_task_labels"):
        assert list(getattr(part, name)) == [getattr(data, name)[place] for place in order]
    assert all(torch.equal(part[number][0], data[place][0]) for number, place in enumerate(order))


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


@pytest.mark.xfail(raises=AttributeError, reason="Avalanche appends a task label to the slice's data set", strict=True)
def test_slices(data):
    """AvalancheDataset: a slice is a data set; Avalanche's own with task labels have none, either."""
    assert rows(data[1:3]) == rows(data)[1:3]


def test_add_other_transforms(data):
    """AvalancheDatasetTests.test_avalanche_dataset_add: each part keeps its own transforms."""
    bytes_ = our_stream(train_transform=pixel_transform(8)).train_stream[0].dataset
    both = data + bytes_
    assert both[0][0].shape == (3, SIZE, SIZE) and both[0][0].dtype == torch.float32
    assert both[TRAINING][0].shape == (3, 8, 8) and both[TRAINING][0].dtype == torch.uint8
    assert rows(both) == 2 * rows(data)


def test_transform_groups():
    """SITTests.test_nc_benchmark_transformations_advanced: train and eval transforms in both streams."""
    benchmark = our_stream(train_transform=pixel_transform(8), eval_transform=imagenet_transform(12))
    train, test = benchmark.train_stream[0].dataset, benchmark.test_stream[0].dataset
    assert [part[0][0].shape[-1] for part in (train, train.eval(), train.eval().train())] == [8, 12, 8]
    assert [part[0][0].shape[-1] for part in (test, test.train(), test.train().eval())] == [12, 8, 12]
    assert train[0][0].dtype == torch.uint8 and train.eval()[0][0].dtype == torch.float32


def test_replaced_transforms(data):
    """AvalancheDatasetTests.test_avalanche_dataset_composition, and the transforms of the same class's guide."""
    doubled = make_avalanche_dataset(data, transform_groups=None).replace_current_transform_group(pixel_transform(8))
    assert doubled[0][0].shape == (3, 8, 8) and data[0][0].shape == (3, SIZE, SIZE)
    raw = data.remove_current_transform_group()[0][0]
    assert isinstance(raw, Image.Image) and raw.size == (SIZE, SIZE)
    assert torch.equal(imagenet_transform(SIZE)(raw), data[0][0])


def test_frozen_transforms():
    """AvalancheDatasetTests of frozen groups: a frozen transform stays when others are removed."""
    benchmark = our_stream(train_transform=pixel_transform(8), eval_transform=pixel_transform(12))
    frozen = benchmark.train_stream[0].dataset.freeze_transforms().remove_current_transform_group()
    assert [part[0][0].shape[-1] for part in (frozen, frozen.eval())] == [8, 12]


def test_task_set(stream):
    """AvalancheDatasetTests.test_avalanche_dataset_tensor_task_labels, ..._mixed_task_labels."""
    data = stream[0].dataset
    assert len(data.task_set) == 1 and rows(data.task_set[0]) == rows(data)
    with pytest.raises(KeyError):
        data.task_set[1]
    other = stream[1].dataset.update_data_attribute("targets_task_labels", ConstantSequence(3, TRAINING))
    both = data + other
    assert len(both.task_set) == 2 and [rows(both.task_set[task]) for task in (0, 3)] == [rows(data), rows(other)]
    assert {item[-1] for item in both.task_set[3]} == {3}


def test_update_data_attribute(data):
    """AvalancheDatasetTests.test_avalanche_dataset_update_data_attribute."""
    numbers = list(range(5, 5 + len(data)))
    plain = data.update_data_attribute("age", numbers)
    assert list(plain.age) == numbers and len(plain[0]) == 3 and not hasattr(data, "age")
    shown = data.update_data_attribute("age", DataAttribute(numbers, "age", use_in_getitem=True))
    assert shown[7][-1] == 12 and list((shown + shown).age) == 2 * numbers
    for wrong in (numbers[1:], [*numbers, 0]):
        with pytest.raises(AssertionError, match="Size mismatch"):
            data.update_data_attribute("age", wrong)


def test_wrong_attributes(data):
    """AvalancheDatasetTests.test_avldata_subset_size, test_disallowed_attribute_name."""
    with pytest.raises(ValueError, match="length"):
        AvalancheDataset([data], data_attributes=[DataAttribute([1, 2], "age")])
    with pytest.raises(ValueError, match="collate_fn"):
        make_avalanche_dataset(data, data_attributes=[DataAttribute([0] * len(data), "collate_fn")])


@pytest.mark.parametrize("wrap", ["subset", "concat"])
def test_torch_wrappers(data, wrap):
    """AvalancheDatasetTests.test_avalanche_dataset_from_pytorch_subset and ..._concat_dataset."""
    torch_data = Subset(data, [4, 2, 9]) if wrap == "subset" else ConcatDataset([data, data])
    order = [4, 2, 9] if wrap == "subset" else 2 * list(range(len(data)))
    again = make_avalanche_dataset(torch_data, data_attributes=[DataAttribute(torch.arange(len(order)), "number")])
    assert len(again) == len(order)
    assert all(torch.equal(again[number][0], data[place][0]) for number, place in enumerate(order))


def test_load_all_dataset(data):
    """AvalancheDatasetTests.test_avalanche_dataset_task_labels (load_all_dataset): all items in order."""
    images, labels, *_ = load_all_dataset(data)
    assert labels.tolist() == list(data.targets)
    assert torch.equal(images, batch_of(data)[0])


# tests/benchmarks/utils/test_data_attribute.py


@pytest.mark.parametrize("name", ["targets", "frame_row", "targets_task_labels"])
def test_data_attribute(data, name):
    """DataAttributeTests: uniques, count, val_to_idx, subset, concat."""
    attribute = getattr(data, name)
    values = list(attribute)
    assert attribute.uniques == set(values)
    assert dict(attribute.count) == {value: values.count(value) for value in values}
    places = {value: [place for place, other in enumerate(values) if other == value] for value in values}
    assert {value: list(found) for value, found in attribute.val_to_idx.items()} == places
    assert list(attribute.subset([3, 1]).data) == [values[3], values[1]]
    assert list(attribute.concat(attribute).data) == 2 * values


# tests/benchmarks/utils/test_flat_data.py


def test_many_subsets_and_concats(data):
    """AvalancheDatasetTests.test_flatdata_subset_concat_stack_overflow, test_merging: the depth stays the same."""
    part, order, draws, places = data, list(range(len(data))), random.Random(0), []
    depth = _flatdata_depth(data.subset([0]).concat(data))
    for _ in range(200):
        chosen = draws.sample(range(len(data)), 5)
        part = data.subset(chosen).concat(part.subset(range(min(len(part), 20))))
        order = [*chosen, *order[:20]]
        places.append(_flatdata_depth(part))
    assert max(places) <= depth + 1 and rows(part) == [rows(data)[place] for place in order]
    assert torch.equal(part[3][0], data[order[3]][0])


@pytest.mark.parametrize("empty_first", [True, False])
def test_concat_flattens(stream, empty_first):
    """FlatteningTests.test_concat_flattens_nc_scenario_dataset(2): two experiences, however often, are two parts."""
    first, second = (experience.dataset for experience in stream)
    both = concat_datasets([]) if empty_first else concat_datasets([second])
    for part in (first, second, first, second, first):
        both = part.concat(both)
    assert len(both._datasets) == 1
    assert sorted(set(rows(both))) == sorted(rows(stream))


@pytest.mark.parametrize("kind", [ReservoirSamplingBuffer, ClassBalancedBuffer], ids=lambda kind: kind.__name__)
def test_flattening_replay(stream, kind):
    """FlatteningTests.test_flattening_replay_ocl: Avalanche's buffers of our items stay flat."""
    buffer = kind(8) if kind is ReservoirSamplingBuffer else kind(8, adaptive_size=True)
    for experience in stream:
        for place in range(0, TRAINING, 4):
            buffer.update_from_dataset(experience.dataset.subset(range(place, place + 4)))
    assert len(buffer.buffer) == 8 and len(buffer.buffer._datasets) == 1
    assert set(rows(buffer.buffer)) <= set(rows(stream))
    labels = [int(item[1]) for item in buffer.buffer]
    assert labels == [int(label) for label in buffer.buffer.targets]
