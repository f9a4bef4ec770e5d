"""The buffers in Avalanche's own ReplayPlugin: images are stored and mixed into batches, codes and maps are refused."""

import re
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute, TaskAwareSupervisedClassificationDataset
from avalanche.benchmarks.utils.transform_groups import DefaultTransformGroups
from avalanche.models import SimpleMLP, as_multitask
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from PIL import Image
from small_crumb import make
from torch import nn
from torch.utils.data import TensorDataset
from torchvision import transforms

from crumb_avalanche.memory.selection import RULES
from crumb_avalanche.system.tensor_file import read_state, write_state
from crumb_avalanche.training.crumb import CRUMBPlugin
from crumb_avalanche.training.ledger import LedgerMetric
from crumb_avalanche.training.storage_policies import CodeBuffer, ImageBuffer, MapBuffer

pytestmark = pytest.mark.filterwarnings("ignore")
CIFAR = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
TO_FLOAT = transforms.ConvertImageDtype(torch.float32)
TRANSFORMS = {
    "uint8": None,
    "floats": TO_FLOAT,
    "normalised": transforms.Compose([TO_FLOAT, transforms.Normalize(*CIFAR)]),
}


def pixels_of(number):
    """The ten images of an experience, of which two are of black and white."""
    pixels = torch.randint(0, 256, (10, 3, 16, 16), generator=torch.Generator().manual_seed(number))
    return pixels.where(torch.arange(10)[:, None, None, None] > 1, 255 * (pixels > 127)).to(torch.uint8)


class IntLabels(TensorDataset):
    """Labels are int, as in most data sets."""

    def __getitem__(self, number):
        image, label = super().__getitem__(number)
        return image, int(label)


def make_stream(transform, tasks=(0, 0, 0), images=IntLabels):
    """Three experiences of two classes of five images each; without task labels if ``tasks`` is ``None``."""
    experiences = []
    for number in range(3):
        labels = [2 * number, 2 * number + 1] * 5
        attributes, kind = [DataAttribute(labels, "targets")], AvalancheDataset
        if tasks is not None:
            attributes.append(DataAttribute([tasks[number]] * 10, "targets_task_labels", use_in_getitem=True))
            kind = TaskAwareSupervisedClassificationDataset
        datasets = [images(pixels_of(number), torch.tensor(labels))]
        groups = DefaultTransformGroups((transform, None))
        experiences.append(kind(datasets, data_attributes=attributes, transform_groups=groups))
    return benchmark_from_datasets(train=experiences).train_stream


class Floats(nn.Module):
    """A linear layer, for images of any type."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 6))

    def forward(self, images):
        return self.layers(images.float())


class Batches(SupervisedPlugin):
    """Keeps each batch."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def before_forward(self, strategy, **kwargs):
        self.batches.append([part.clone() for part in strategy.mbatch])


def make_naive(model, buffer, *plugins):
    replay, evaluator = (
        ReplayPlugin(buffer.max_size, storage_policy=buffer),
        EvaluationPlugin(LedgerMetric(), loggers=[]),
    )
    return make(Naive, model, replay, *plugins, train_mb_size=4, evaluator=evaluator)


@pytest.mark.parametrize(
    "split, name, rule",
    [(True, name, rule) for name, rule in zip(TRANSFORMS, sorted(RULES), strict=True)]
    + [(False, name, "every_jth") for name in TRANSFORMS],
)
def test_images_are_stored_and_mixed_into_batches(make_model, split, name, rule):
    """In a SplitModel, and in one that knows nothing of pixels."""
    any_model = make_model(n_classes=6) if split else Floats()
    if split and name == "floats":
        any_model.set_normalization([0], [1])
    buffer, batches, stream = ImageBuffer(8, RULES[rule]()), Batches(), make_stream(TRANSFORMS[name])
    strategy = make_naive(any_model, buffer, batches)
    images = {}
    for number, experience in enumerate(stream):
        old = {label: list(shown) for label, shown in images.items()}
        batches.batches.clear()
        strategy.train(experience)
        for image, label, _ in experience.dataset:
            images.setdefault(label, []).append(image)
        held = Counter(label for label in buffer.labels.tolist() if label >= 0)
        assert held.keys() == images.keys() and max(held.values()) - min(held.values()) <= 1
        assert len(buffer) == held.total() > 8 - len(held)
        for row, label in zip(buffer.rows, buffer.labels.tolist()):
            assert label < 0 or (row == pixels_of(label // 2)[label % 2 :: 2]).flatten(1).all(1).any()
        for shown, labels, tasks in batches.batches:
            replayed = labels < 2 * number
            assert shown.dtype == experience.dataset[0][0].dtype and tasks.eq(0).all()
            assert int(replayed.sum()) == (4 if number else 0)
            for image, label in zip(shown[replayed], labels[replayed].tolist()):
                assert any(torch.allclose(image, one, atol=1e-6) for one in old[label])
    ledger = strategy.evaluator.metrics[0].result()
    assert (ledger["buffer_items"], ledger["buffer_bytes"]) == (len(buffer), 8 * 768)


@pytest.mark.parametrize("kind, contents", [(CodeBuffer, "codes"), (MapBuffer, "feature maps")])
def test_buffers_of_other_rows_are_refused(make_model, kind, contents):
    strategy = make_naive(make_model(n_classes=6), kind(8))
    name = kind.__name__
    facts = f"a {name} holds {contents}, not images.*CRUMBPlugin\\({name}.*ReplayPlugin an ImageBuffer.*own buffers"
    with pytest.raises(TypeError, match=facts):
        strategy.train(make_stream(TRANSFORMS["uint8"])[0])
    with pytest.raises(TypeError, match=facts):
        kind(8).update_from_dataset(make_stream(None)[0].dataset, strategy)


@pytest.mark.parametrize("kind", [CodeBuffer, ImageBuffer, MapBuffer])
def test_a_buffer_that_another_plugin_fills_is_left_alone(make_model, kind):
    buffer, stream = kind(8), make_stream(TRANSFORMS["uint8"])
    model = make_model(n_classes=6)
    strategy = make_naive(model, ImageBuffer(8), CRUMBPlugin(buffer))
    strategy.train(stream[0])
    rows, labels = buffer.rows.clone(), buffer.labels.clone()
    buffer.post_adapt(strategy, stream[1])
    assert torch.equal(buffer.rows, rows) and torch.equal(buffer.labels, labels)
    assert len(strategy.plugins[0].storage_policy) == 8  # the other buffer is filled by ReplayPlugin


@pytest.mark.parametrize("images, tasks", [(IntLabels, None), (TensorDataset, (0, 0, 0))])
def test_streams_of_other_items(images, tasks):
    """With or without task labels, and with labels that are int or tensors."""
    buffer, batches, stream = ImageBuffer(8), Batches(), make_stream(TRANSFORMS["floats"], tasks, images)
    strategy = make_naive(Floats(), buffer, batches)
    for experience in stream:
        strategy.train(experience)
    assert len(batches.batches[-1]) == (2 if tasks is None else 3) and bool((batches.batches[-1][1] < 4).any())
    assert type(buffer.buffer[0][1]) is type(stream[0].dataset[0][1])


def test_a_head_for_each_task_is_refused():
    model = as_multitask(SimpleMLP(num_classes=6, input_size=3 * 16 * 16), "classifier")
    strategy, buffer = SimpleNamespace(model=model, plugins=[]), ImageBuffer(8)
    first, second, _ = make_stream(TRANSFORMS["floats"], tasks=(0, 1, 2))
    buffer.post_adapt(strategy, first)
    with pytest.raises(ValueError, match=r"task label 0.*head for each task: use one of Avalanche's own buffers"):
        buffer.post_adapt(strategy, second)
    assert len(buffer) == 8 and buffer.classes == [0, 1]


def hidden(image):
    """A transform in which no Normalize can be found."""
    return TRANSFORMS["normalised"](image)


def test_a_hidden_normalisation_has_to_be_given(tmp_path, make_model):
    stream, buffer = make_stream(hidden), ImageBuffer(8)
    words = (
        r"pixels would be from -\d+.* to \d+.*mean \[0.0\] and deviation \[1.0\].*buffer.normalization = \(mean, std\)"
    )
    with pytest.raises(ValueError, match=words):
        buffer.update_from_dataset(stream[0].dataset)
    buffer = ImageBuffer(8)
    buffer.normalization = CIFAR
    buffer.update_from_dataset(stream[0].dataset)
    shown = [image for image, *_ in stream[0].dataset]
    write_state(tmp_path / "buffer.safetensors", buffer.state_dict(), {})
    buffer = ImageBuffer(8)
    buffer.load_state_dict(read_state(tmp_path / "buffer.safetensors")[0])  # with the format of its images
    assert all(any(torch.allclose(image, one, atol=1e-6) for one in shown) for image, *_ in buffer.buffer)
    model, buffer = make_model(n_classes=6).set_normalization(*CIFAR), ImageBuffer(8)
    make_naive(model, buffer).train(stream[0])
    assert all((pixels_of(0) == row).flatten(1).all(1).any() for row in buffer.rows)


def test_images_that_are_no_tensors_are_refused():
    stream = make_stream(lambda image: Image.new("RGB", (4, 4)))
    with pytest.raises(TypeError, match=re.escape("images are Image; an ImageBuffer stores") + ".*ToTensor"):
        ImageBuffer(8).update_from_dataset(stream[0].dataset)
    stream = make_stream(lambda image: image.long())
    with pytest.raises(TypeError, match=r"images are torch.int64; .*uint8 or normalised float"):
        ImageBuffer(8).update_from_dataset(stream[0].dataset)
