"""The buffers in Avalanche's own ReplayPlugin: images are stored and mixed into batches, codes and maps are refused."""

from types import SimpleNamespace

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute, TaskAwareSupervisedClassificationDataset
from avalanche.benchmarks.utils.transform_groups import DefaultTransformGroups
from avalanche.models import SimpleMLP, as_multitask
from avalanche.training.plugins import ReplayPlugin
from avalanche.training.supervised import Naive
from PIL import Image
from small_crumb import make
from torch.utils.data import TensorDataset
from torchvision import transforms

from crumb_avalanche.system.tensor_file import read_state, write_state
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


def make_naive(model, buffer):
    return make(Naive, model, ReplayPlugin(buffer.max_size, storage_policy=buffer), train_mb_size=4)


@pytest.mark.parametrize("kind, contents", [(CodeBuffer, "codes"), (MapBuffer, "feature maps")])
def test_buffers_of_other_rows_are_refused(make_model, kind, contents):
    name = kind.__name__
    facts = f"a {name} holds {contents}, not images.*CRUMBPlugin\\({name}.*ReplayPlugin an ImageBuffer.*own buffers"
    with pytest.raises(TypeError, match=facts):
        make_naive(make_model(n_classes=6), kind(8)).train(make_stream(TRANSFORMS["uint8"])[0])


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
    for transform, words in (
        (lambda image: Image.new("RGB", (4, 4)), "images are Image; an ImageBuffer stores .*ToTensor"),
        (lambda image: image.long(), r"images are torch.int64; .*uint8 or normalised float"),
    ):
        with pytest.raises(TypeError, match=words):
            ImageBuffer(8).update_from_dataset(make_stream(transform)[0].dataset)
