"""Every kind of Avalanche benchmark over a few tiny images, and plugins that record what a strategy does."""

import torch
from avalanche.benchmarks import (
    benchmark_from_datasets,
    class_incremental_benchmark,
    nc_benchmark,
    task_incremental_benchmark,
)
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from small_models import SIZE, make_model
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

N_CLASSES, PER_EXPERIENCE = 6, 2
PER_CLASS = 8  # training images
# Batches are (x, y, task label), but (x, y) of "from_datasets".
KINDS = ("nc", "nc_tasks", "class_incremental", "task_incremental", "from_datasets")


class LabelledImages(TensorDataset):
    """``(N, 3, 16, 16)`` normalised float images and their labels, with the ``targets`` that Avalanche reads."""

    def __init__(self, images: Tensor, labels: Tensor):
        super().__init__(images, labels)
        self.targets = labels.tolist()


def coloured_images(per_class: int = PER_CLASS, seed: int = 0, n_classes: int = N_CLASSES) -> LabelledImages:
    """Noisy images of one colour a class, in random order."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(per_class * n_classes) % n_classes
    labels = labels[torch.randperm(len(labels), generator=random)]
    angles = labels[:, None] * 2 * torch.pi / n_classes + torch.tensor([0.0, 2.1, 4.2])
    noise = torch.randn(len(labels), 3, SIZE, SIZE, generator=random)
    # No pixel below 0 or above 255 once the normalisation is undone.
    return LabelledImages((1.5 * angles.cos()[:, :, None, None] + 0.5 * noise).clamp(-1.7, 2.2), labels)


def of_classes(data: LabelledImages, first: int, count: int = PER_EXPERIENCE):
    """The images of some consecutive classes as an Avalanche data set, which gives (x, y)."""
    rows = [row for row, label in enumerate(data.targets) if first <= label < first + count]
    part = Subset(data, rows)
    part.targets = [data.targets[row] for row in rows]
    return as_classification_dataset(part)


def host_benchmark(kind: str = "nc", per_class: int = PER_CLASS, n_classes: int = N_CLASSES):
    """Experiences of two classes each, in the order of the labels; two test images a class."""
    train, test = coloured_images(per_class, 0, n_classes), coloured_images(2, 1, n_classes)
    experiences = n_classes // PER_EXPERIENCE
    if kind.startswith("nc"):
        order = dict(shuffle=False, fixed_class_order=list(range(n_classes)))
        return nc_benchmark(train, test, n_experiences=experiences, task_labels=kind == "nc_tasks", **order)
    if kind == "class_incremental":
        parts = {"train": train, "test": test}
        return class_incremental_benchmark(parts, class_order=list(range(n_classes)), num_experiences=experiences)
    streams = {
        name: [of_classes(data, PER_EXPERIENCE * number) for number in range(experiences)]
        for name, data in (("train", train), ("test", test))
    }
    benchmark = benchmark_from_datasets(**streams)
    return task_incremental_benchmark(benchmark) if kind == "task_incremental" else benchmark


def sgd(model: nn.Module, lr: float = 0.02, momentum: float = 0.9) -> torch.optim.SGD:
    """SGD over the weights that are trained."""
    return torch.optim.SGD([w for w in model.parameters() if w.requires_grad], lr=lr, momentum=momentum)


def quiet() -> EvaluationPlugin:
    """An evaluator without metrics and loggers."""
    return EvaluationPlugin(loggers=[])


def host_model(seed: int = 0, n_classes: int = N_CLASSES, codebook: bool = True):
    """The small ``SplitModel`` with an output for each class; see ``small_models.make_model``."""
    return make_model(seed, n_classes, codebook)


class Trace(SupervisedPlugin):
    """Records the epochs and the labels of the batches of each experience."""

    def __init__(self):
        super().__init__()
        self.epochs: list[int] = []
        self.labels: list[list[int]] = []

    def before_training_exp(self, strategy, **kwargs):
        self.epochs.append(0)
        self.labels.append([])

    def after_training_epoch(self, strategy, **kwargs):
        self.epochs[-1] += 1

    def after_training_iteration(self, strategy, **kwargs):
        self.labels[-1] += strategy.mb_y.tolist()
