"""Work-arounds for defects of avalanche-lib 0.6, and what its data sets say.

With them its own plugins train a ``SplitModel``. Labels of its data sets and batches,
and an experience without any.
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
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from crumb_avalanche.models.split_model import SplitModel


def _restore_names_of_optimizers() -> None:
    """Set attributes that ``torch.optim`` deletes, such as ``torch.optim.sgd``.

    Without them dill, with which Avalanche's ``save_checkpoint`` pickles, takes an
    optimiser's class by value, which fails in torch 2.14 and newer.
    """
    for module_name, module in list(sys.modules.items()):
        parent, _, name = module_name.rpartition(".")
        if parent == torch.optim.__name__ and not hasattr(torch.optim, name):
            setattr(torch.optim, name, module)


_restore_names_of_optimizers()


def keep_training_mode(strategy: Any) -> None:
    """Put the model back in training mode, which ``RWalkPlugin`` leaves in a step."""
    if not strategy.model.training:
        strategy.model.train()


def check_strategy(strategy: Any) -> None:
    """Refuse what a strategy cannot train with, before its first step.

    Args:
        strategy: its model and plugins are looked at.

    Raises:
        RuntimeError: this is one of several processes of ``torch.distributed``.
        TypeError: the head grows.
        ValueError: the model was compiled, or the plugins include ``AGEMPlugin``.
    """
    if DistributedHelper.world_size > 1:
        raise RuntimeError(
            f"this is one of {DistributedHelper.world_size} processes of "
            "torch.distributed; memories, class statistics and steps on them are not "
            "synchronised, so each process would learn another model: train in one "
            "process, without torchrun"
        )
    if isinstance(strategy.model, SplitModel):
        # Reading it raises TypeError for a head without a fixed number of outputs.
        strategy.model.n_classes  # noqa: B018
        _check_not_compiled(strategy.model)
    if any(isinstance(plugin, AGEMPlugin) for plugin in strategy.plugins):
        raise ValueError(
            "Avalanche's AGEMPlugin fails on the weights of a SplitModel, which are in "
            "channels-last memory; use the method gem (crumb run --strategy gem), "
            "which projects gradients likewise"
        )


def _check_not_compiled(model: nn.Module) -> None:
    """Raise ValueError after ``model.compile()``, which fails in torch's compiler."""
    if getattr(model, "_compiled_call_impl", None) is not None:
        raise ValueError(
            "the model was compiled with model.compile(), which cannot follow the "
            "search for codes: compile its parts, model.feature_extractor.compile() "
            "and model.plastic_layers.compile()"
        )


def group_frozen_weights(strategy: Any) -> None:
    """Put frozen weights that no parameter group has into the optimiser's first group.

    It has an effect only with several groups.

    Defect: Avalanche adds every weight that is in no group, and fails where it cannot
        tell to which of several.

    Args:
        strategy: the first group of its optimiser is changed in place.

    Raises:
        ValueError: a trainable weight is in no group.
    """
    groups = strategy.optimizer.param_groups
    if len(groups) == 1:
        return
    ids_in_groups = {id(weight) for group in groups for weight in group["params"]}
    for name, weight in strategy.model.named_parameters():
        if id(weight) in ids_in_groups:
            continue
        if weight.requires_grad:
            raise ValueError(
                f"the optimizer has {len(groups)} groups of weights, and none has "
                f"{name}: add it to one, or freeze it with requires_grad_(False)"
            )
        groups[0]["params"].append(weight)


def labels_of(dataset: Any) -> list[int]:
    """Return the label of each item, as ``targets`` of a data set of classes say.

    Raises:
        ValueError: the data set has no targets.
    """
    targets = getattr(dataset, "targets", None)
    if targets is None:
        raise ValueError(
            f"the data set is {type(dataset).__name__} without targets, the number of "
            "the class of each item; make it with as_classification_dataset(...), or "
            "give it targets"
        )
    return list(map(int, targets))


def classes_announced(experience: Any) -> set[int]:
    """Return the classes that the benchmark says come after an experience.

    Benchmarks without a timeline of classes, such as those of
    ``benchmark_from_datasets``, say nothing.
    """
    return set(getattr(experience, "future_classes", None) or ())


def use_int64_labels(strategy: Any, targets: bool = False) -> None:
    """Convert the labels of a strategy's batch to int64, as losses take no other type.

    Data sets have ``int16`` and ``int32``.

    Args:
        strategy: an Avalanche strategy; its batch ``mbatch`` is changed in place.
        targets: whether the batch may have ``(B, classes)`` targets instead, which stay
            as they are.

    Raises:
        TypeError: the labels are fractions, or not one for each image.
    """
    labels = strategy.mb_y
    if targets and labels.dim() == 2:
        return
    if labels.is_floating_point() or labels.dim() != 1:
        raise TypeError(
            f"the labels of a batch are {labels.dtype} of shape {tuple(labels.shape)}; "
            "give each image the number of its class, a whole one"
        )
    if labels.dtype != torch.int64:
        strategy.mbatch[1] = labels.long()


def unlabelled_experience(pixels: Tensor) -> Any:
    """Make an Avalanche experience of images without labels, for ``strategy.eval``.

    All have label 0 and task 0, since evaluation wants some: its metrics mean nothing,
    its outputs are those of the images.

    Args:
        pixels: ``(B, 3, h, w)`` uint8.
    """
    labels = torch.zeros(len(pixels), dtype=torch.int64)
    zeros = ConstantSequence(0, len(pixels))
    dataset = TaskAwareSupervisedClassificationDataset(
        [TensorDataset(pixels, labels)],
        data_attributes=[
            DataAttribute(zeros, "targets"),
            DataAttribute(zeros, "targets_task_labels", use_in_getitem=True),
        ],
    )
    return with_task_labels(benchmark_from_datasets(test=[dataset])).test_stream[0]
