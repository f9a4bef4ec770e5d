"""Labels of data sets and batches; and data sets without labels."""

from typing import Any

import torch
from avalanche.benchmarks import benchmark_from_datasets, with_task_labels
from avalanche.benchmarks.utils import ConstantSequence, DataAttribute, TaskAwareSupervisedClassificationDataset
from torch import Tensor
from torch.utils.data import TensorDataset


def labels_of(dataset: Any) -> list[int]:
    """Return the label of each item, as ``targets`` of Avalanche's data sets of classes say."""
    return list(map(int, dataset.targets))


def use_int64_labels(strategy: Any, targets: bool = False) -> None:
    """Convert the labels of a strategy's batch to int64: losses take no other, data sets have ``int16`` and ``int32``.

    With ``targets``, the batch may have ``(B, classes)`` targets instead, which stay as they are.
    """
    labels = strategy.mb_y
    if targets and labels.dim() == 2:
        return
    if labels.is_floating_point() or labels.dim() != 1:
        raise TypeError(
            f"the labels of a batch are {labels.dtype} of shape {tuple(labels.shape)}; give each image the number of "
            "its class, a whole one"
        )
    if labels.dtype != torch.int64:
        strategy.mbatch[1] = labels.long()


def unlabelled_experience(pixels: Tensor) -> Any:
    """Make an experience of ``(B, 3, h, w)`` uint8 images for ``strategy.eval``, whose metrics mean nothing."""
    images = TensorDataset(pixels, torch.zeros(len(pixels), dtype=torch.int64))  # evaluation wants labels for its loss
    attributes = [
        DataAttribute(ConstantSequence(0, len(pixels)), "targets"),
        DataAttribute(ConstantSequence(0, len(pixels)), "targets_task_labels", use_in_getitem=True),
    ]
    dataset = TaskAwareSupervisedClassificationDataset([images], data_attributes=attributes)
    return with_task_labels(benchmark_from_datasets(test=[dataset])).test_stream[0]
