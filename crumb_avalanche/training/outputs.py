"""Evaluate a strategy on images without labels."""

from typing import Any

from avalanche.benchmarks import benchmark_from_datasets, with_task_labels
from avalanche.benchmarks.utils import ConstantSequence, DataAttribute, TaskAwareSupervisedClassificationDataset
from torch import Tensor
from torch.utils.data import Dataset

from crumb_avalanche.training.stateful import StatefulPlugin


class OutputsPlugin(StatefulPlugin):
    """Record the outputs of the latest evaluation.

    Attributes:
        outputs: of each batch, ``(B, classes)`` float32 on the CPU.
    """

    def __init__(self):
        super().__init__()
        self.outputs: list[Tensor] = []

    def before_eval(self, strategy, **kwargs):
        self.outputs = []

    def after_eval_iteration(self, strategy, **kwargs):
        self.outputs.append(strategy.mb_output.float().cpu())


class _Images(Dataset):
    """Images with label 0, which evaluation wants for its loss."""

    def __init__(self, pixels: Tensor):
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.pixels[index], 0


def unlabelled_experience(pixels: Tensor) -> Any:
    """Make an experience for ``strategy.eval``, whose metrics mean nothing.

    Args:
        pixels: ``(B, 3, h, w)`` uint8.
    """
    attributes = [
        DataAttribute(ConstantSequence(0, len(pixels)), "targets"),
        DataAttribute(ConstantSequence(0, len(pixels)), "targets_task_labels", use_in_getitem=True),
    ]
    dataset = TaskAwareSupervisedClassificationDataset([_Images(pixels)], data_attributes=attributes)
    return with_task_labels(benchmark_from_datasets(test=[dataset])).test_stream[0]
