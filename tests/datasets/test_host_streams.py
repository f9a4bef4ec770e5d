"""Avalanche's own benchmarks as tables and back, and as benchmarks of a run by name."""

from types import SimpleNamespace

import pytest
import torch
from avalanche.benchmarks import classic, nc_benchmark
from torch.utils.data import Subset, TensorDataset
from torchvision.transforms import Normalize

from benchmarks_toybox_ilab import BadFrameError, frames_of, from_capymoa, get_benchmark, make_benchmark
from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform


def images(per_class, seed):
    """Six classes of uint8 images of 8 x 8 pixels, in random order."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(6).repeat(per_class)[torch.randperm(6 * per_class, generator=random)]
    data = TensorDataset(torch.randint(0, 256, (len(labels), 3, 8, 8), dtype=torch.uint8, generator=random), labels)
    data.targets = labels.tolist()
    return data


def Digits(n_experiences, *, seed=None, train_transform=None, eval_transform=None, dataset_root=None):
    return nc_benchmark(images(4, 0), images(2, 1), n_experiences, False, seed=seed, train_transform=train_transform)


def test_a_benchmark_of_avalanche_as_a_table_and_back():
    theirs = Digits(3, seed=1)
    table = frames_of(theirs)
    ours = make_benchmark(table, "table", 0, None, PixelTransform(8), PixelTransform(8))
    assert ours.n_classes == 6 and ours.n_classes_per_exp == [2, 2, 2]
    assert ours.original_classes_in_exp == theirs.original_classes_in_exp
    for mine, other in ((ours.train_stream, theirs.train_stream), (ours.test_stream, theirs.test_stream)):
        for one, two in zip(mine, other, strict=True):
            assert list(one.dataset.targets) == list(two.dataset.targets)
            assert all(torch.equal(a[0], b[0]) for a, b in zip(one.dataset, two.dataset, strict=True))
    assert frames_of(Digits(3, seed=1, train_transform=Normalize([9.0] * 3, [1.0] * 3))).read(0).size == (8, 8)


def test_tensors_that_are_no_images():
    data = TensorDataset(torch.full((6, 3, 8, 8), -1.0), torch.arange(6))
    data.targets = [*range(6)]
    with pytest.raises(BadFrameError, match="not within 0 and 1; make the stream avalanche without Normalize"):
        frames_of(nc_benchmark(data, data, 3, False)).read(0)


@pytest.mark.parametrize("shape", [(768,), (3, 8, 8)], ids=["features", "images"])
def test_a_scenario_of_capymoa(shape):
    labels = torch.arange(6).repeat(4)
    data = TensorDataset(torch.rand(24, *shape), labels)
    order = [[2, 5], [0, 1], [3, 4]]  # as its partition_by_schedule makes tasks: subsets, or tensors when preloaded
    rows = [[row for row in range(24) if int(labels[row]) in classes] for classes in order]
    tests = [TensorDataset(*data[task[:4]]) for task in rows]
    theirs = SimpleNamespace(train_tasks=[Subset(data, task) for task in rows], test_tasks=tests)
    benchmark = from_capymoa(theirs)
    assert [set(one.classes_in_this_experience) for one in benchmark.train_stream] == list(map(set, order))
    for stream, tasks in ((benchmark.train_stream, theirs.train_tasks), (benchmark.test_stream, tests)):
        for experience, task in zip(stream, tasks, strict=True):
            items = [(item, label) for item, label, _ in experience.dataset]
            assert all(torch.equal(x, item) and y == label for (x, y), (item, label) in zip(task, items, strict=True))
    if shape != (768,):
        assert frames_of(benchmark).counts()["5"] == {"train": 4, "test": 2}


def test_a_run_on_a_stream_of_avalanche(monkeypatch, crumb, tiny, tmp_path):
    monkeypatch.setattr(classic, "Digits", Digits, raising=False)
    values = {"clip_folder": "avalanche:Digits:n_experiences=3"}
    words = [values.get(word, word) for word in tiny]
    at = words.index("--dataset-root")
    code, _, err = crumb(*words[:at], *words[at + 2 :], "--protocol", "table", "--output", tmp_path / "run")
    assert code == 0, err
    assert "benchmark: avalanche:Digits:n_experiences=3" in (tmp_path / "run/config.yaml").read_text()
    for name, words in {
        "avalanche:Didgits": "Avalanche has no generator 'Didgits'; it has CLEAR",
        "avalanche:Digits": "avalanche:Digits takes n_experiences, seed.*; n_experiences is unknown, or is missing",
        "avalanche:Digits:seed": "is not avalanche:GENERATOR or avalanche:GENERATOR:KEY=VALUE",
    }.items():
        with pytest.raises(ValueError, match=words):
            get_benchmark(name).table(None, 0)
