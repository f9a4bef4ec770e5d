"""Work-arounds for defects of avalanche-lib 0.6, so that its own plugins train a ``SplitModel``.

And labels of its data sets and batches, and an experience without any.
"""

import sys
from typing import Any

import torch
from avalanche.benchmarks import benchmark_from_datasets, with_task_labels
from avalanche.benchmarks.utils import (
    ConstantSequence,
    DataAttribute,
    TaskAwareSupervisedClassificationDataset,
)
from avalanche.distributed import DistributedHelper
from avalanche.training.plugins import AGEMPlugin
from torch import Tensor
from torch.utils.data import TensorDataset

from crumb_avalanche.models.split_model import SplitModel

# ``torch.optim`` deletes the attributes of its modules, such as ``torch.optim.sgd``. So
# dill, with which Avalanche's ``save_checkpoint`` pickles, takes an optimiser's class
# by value, which fails in torch 2.14 and newer.
for _place, _module in list(sys.modules.items()):
    _parent, _, _name = _place.rpartition(".")
    if _parent == torch.optim.__name__ and not hasattr(torch.optim, _name):
        setattr(torch.optim, _name, _module)


def keep_training_mode(strategy) -> None:
    """Put the model back in training mode, which ``RWalkPlugin`` leaves at the start of each step."""
    if not strategy.model.training:
        strategy.model.train()


def check_strategy(strategy) -> None:
    """Refuse several processes of ``torch.distributed``, growing heads, and Avalanche's ``AGEMPlugin``."""
    if DistributedHelper.world_size > 1:
        raise RuntimeError(
            f"this is one of {DistributedHelper.world_size} processes of torch.distributed; memories, class statistics "
            "and steps on them are not synchronised, so each process would learn another model: train in one process, "
            "without torchrun"
        )
    if isinstance(strategy.model, SplitModel):
        strategy.model.n_classes  # noqa: B018 (raises)
    if any(isinstance(one, AGEMPlugin) for one in strategy.plugins):
        raise ValueError(
            "Avalanche's AGEMPlugin fails on the weights of a SplitModel, which are in channels-last memory; use the "
            "method gem (crumb run --strategy gem), which projects gradients likewise"
        )


def group_frozen_weights(strategy) -> None:
    """Add frozen weights that no group of the optimiser has to the first one, where there are several.

    Defect: Avalanche adds every weight that is in no group, and fails where it cannot
        tell to which of several.
    """
    groups = strategy.optimizer.param_groups
    if len(groups) == 1:
        return
    known = {id(weight) for group in groups for weight in group["params"]}
    for name, weight in strategy.model.named_parameters():
        if id(weight) in known:
            continue
        if weight.requires_grad:
            raise ValueError(
                f"the optimizer has {len(groups)} groups of weights, and none has {name}: add it to one, or freeze it "
                "with requires_grad_(False)"
            )
        groups[0]["params"].append(weight)


def labels_of(dataset: Any) -> list[int]:
    """Return the label of each item, as ``targets`` of Avalanche's data sets of classes say."""
    return list(map(int, dataset.targets))


def use_int64_labels(strategy: Any, targets: bool = False) -> None:
    """Convert the labels of a strategy's batch to int64: losses take no other, data sets have ``int16`` and ``int32``.

    With ``targets``, the batch may have ``(B, classes)`` targets instead, which stay as
    they are.
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
    images = TensorDataset(
        pixels, torch.zeros(len(pixels), dtype=torch.int64)
    )  # evaluation wants labels for its loss
    attributes = [
        DataAttribute(ConstantSequence(0, len(pixels)), "targets"),
        DataAttribute(
            ConstantSequence(0, len(pixels)), "targets_task_labels", use_in_getitem=True
        ),
    ]
    dataset = TaskAwareSupervisedClassificationDataset(
        [images], data_attributes=attributes
    )
    return with_task_labels(benchmark_from_datasets(test=[dataset])).test_stream[0]
