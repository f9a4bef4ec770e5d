"""The criterion of a strategy, over the classes seen so far."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# Logit of a class not seen yet in training: its probability is 0, and cross-entropy
# stays finite.
UNSEEN_LOGIT = -1e4


class SeenClassesLoss:
    """A criterion over the classes seen so far; ``SeenClassesPlugin`` puts it in the place of a strategy's own.

    The criterion gets the ``(B, k)`` outputs of the ``k`` classes seen, in ascending
    order of the classes, and labels counted among these; of ``(B, classes)`` targets it
    gets the columns of these classes. Its tensors with an entry for each output, such
    as ``weight``, are cut likewise, and ``ignore_index`` is counted among the classes
    seen. If an image of an evaluation is of a class not seen yet, this class is one of
    the ``k``, with a probability of 1e-6.

    Cross-entropy without label smoothing gets all outputs: the loss is the same, since
    classes not seen have the probability 0, and nothing is copied. A criterion with a
    true attribute ``all_outputs`` gets all of them, too.

    Args:
        criterion: loss of ``(logits, labels)``: a module, a function or a partial
            function of one.
        unseen: returns which of a number of classes are not seen yet, ``(classes,)``
            bool on a device; all before training.
    """

    def __init__(
        self,
        criterion: Callable[[Tensor, Tensor], Tensor],
        unseen: Callable[[int, torch.device], Tensor],
    ):
        self.criterion = criterion
        self.unseen = unseen

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss, a scalar, of masked ``(B, classes)`` logits and labels or targets of all classes.

        Raises:
            ValueError: the criterion returns more than one number, does not take the
                outputs of the classes seen, or is a function with a table of all
                classes.
        """
        loss = self._loss(logits, labels)
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise ValueError(
                f"the criterion returns a loss of shape {tuple(loss.shape)}; a step needs one number: use "
                "reduction='mean' or 'sum'"
            )
        return loss

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if (
            getattr(self.criterion, "all_outputs", False)
            or not isinstance(logits, Tensor)
            or logits.dim() != 2
        ):
            return self.criterion(logits, labels)
        classes = logits.shape[1]
        unseen = self.unseen(classes, logits.device)
        unseen = unseen & ~unseen.all()  # before training, all outputs count
        by_column = labels.shape == logits.shape
        if (
            type(self.criterion) is nn.CrossEntropyLoss
            and self.criterion.label_smoothing == 0
        ):
            ruled_out = unseen & (logits <= UNSEEN_LOGIT).all(0) if by_column else None
            return self.criterion(
                logits,
                labels if ruled_out is None else labels.masked_fill(ruled_out, 0),
            )
        numbers = torch.arange(classes, device=logits.device)
        taken = ~(logits <= UNSEEN_LOGIT).all(0)  # another plugin may rule classes out
        present = (
            taken & (labels != 0).any(0)
            if by_column
            else (labels[:, None] == numbers).any(0)
        )
        columns = (taken & ~unseen | present).nonzero().flatten()
        if len(columns) == classes:
            return self.criterion(logits, labels)
        places = torch.full_like(numbers, -1)
        places[columns] = numbers[: len(columns)]
        if by_column:
            labels = labels[:, columns]
        else:  # a label that is not a class, such as an ignore_index of -100, stays
            known = (labels >= 0) & (labels < classes)
            labels = torch.where(known, places[labels.clamp(0, classes - 1)], labels)
        _check_function(self.criterion, classes)
        with _cut(self.criterion, columns, places):
            try:
                return self.criterion(logits[:, columns], labels)
            except (RuntimeError, ValueError, IndexError) as error:
                raise ValueError(
                    f"the criterion fails on the outputs of the {len(columns)} classes seen of {classes} ({error}). It "
                    "gets (B, k) logits and labels counted among the k classes: take their number from "
                    f"logits.shape[1]; or set criterion.all_outputs = True, which gives it all {classes} outputs, with "
                    f"{UNSEEN_LOGIT:g} for classes not seen"
                ) from error


@contextmanager
def _cut(criterion: Any, columns: Tensor, places: Tensor) -> Iterator[None]:
    """Cut the tensors of a criterion with an entry for each class to ``columns``; ``places`` are those among them."""
    owner = criterion.__self__ if inspect.ismethod(criterion) else criterion
    parts = list(owner.modules()) if isinstance(owner, nn.Module) else [owner]
    homes = [
        getattr(part, name, None)
        for part in parts
        for name in ("__dict__", "_parameters", "_buffers")
    ]
    homes += [criterion.keywords] if isinstance(criterion, functools.partial) else []
    before = []
    try:
        for home in homes:
            for name, value in list((home or {}).items()):
                new = value
                if isinstance(value, Tensor):
                    for axis, length in enumerate(value.shape):
                        if length == len(places):
                            new = new.index_select(axis, columns.to(value.device))
                elif name == "ignore_index" and 0 <= value < len(places):
                    new = int(places[value]) if places[value] >= 0 else -100
                if new is not value:
                    before.append((home, name, value))
                    home[name] = new
        yield
    finally:
        for home, name, value in before:
            home[name] = value


def _check_function(criterion: Any, classes: int) -> None:
    if not inspect.isfunction(criterion):
        return
    used = inspect.getclosurevars(criterion)
    for name, value in {**used.globals, **used.nonlocals}.items():
        if isinstance(value, Tensor) and classes in value.shape:
            raise ValueError(
                f"the criterion uses {name}, which has an entry for each of the {classes} classes, but it gets the "
                f"outputs of the classes seen: hand it over with functools.partial(criterion, {name}=...), or keep "
                "it in an nn.Module, where it is cut likewise; or set criterion.all_outputs = True to get all outputs"
            )
