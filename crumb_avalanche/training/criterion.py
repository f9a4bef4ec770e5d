"""The criterion of a strategy, over the classes seen so far."""

import copy
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Logit of a class not seen yet in training: its probability is 0, and cross-entropy
# stays finite.
UNSEEN_LOGIT = -1e4
IGNORED = -100  # a label that torch's criteria leave out, where no class is


class SeenClassesLoss:
    """A criterion over the classes seen so far.

    ``SeenClassesPlugin`` puts it in the place of a strategy's own.

    The criterion gets the ``(B, k)`` outputs of the ``k`` classes seen, in ascending
    order of the classes, and labels counted among these; of ``(B, classes)`` targets it
    gets the columns of these classes. Its tensors with an entry for each output, such
    as ``weight``, are cut likewise, in a copy, and ``ignore_index`` is counted among
    the classes seen. If an image of an evaluation is of a class not seen yet, this
    class is one of the ``k``, with a probability of 1e-6.

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
        """Compute the loss, a scalar, over the classes seen.

        Args:
            logits: ``(B, classes)`` float, masked; those of unseen classes are at most
                ``UNSEEN_LOGIT``.
            labels: ``(B,)`` int64, or ``(B, classes)`` targets, of all classes.

        Raises:
            ValueError: the criterion returns more than one number, does not take the
                outputs of the classes seen, or is a function with a table of all
                classes.
        """
        loss = self._loss(logits, labels)
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise ValueError(
                f"the criterion returns a loss of shape {tuple(loss.shape)}; a step "
                "needs one number: use reduction='mean' or 'sum'"
            )
        return loss

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if getattr(self.criterion, "all_outputs", False):
            return self.criterion(logits, labels)
        if not isinstance(logits, Tensor) or logits.dim() != 2:
            return self.criterion(logits, labels)
        unseen = self.unseen(logits.shape[1], logits.device)
        unseen = unseen & ~unseen.all()  # before training, all outputs count
        if _is_plain_cross_entropy(self.criterion):
            return self._of_all_outputs(logits, labels, unseen)
        return self._of_some_outputs(logits, labels, unseen)

    def _of_all_outputs(self, logits: Tensor, labels: Tensor, unseen: Tensor) -> Tensor:
        """Compute the loss of all outputs, in which unseen classes do not count."""
        if labels.shape == logits.shape:
            labels = labels.masked_fill(unseen & _ruled_out(logits), 0)
        return self.criterion(logits, labels)

    def _of_some_outputs(
        self, logits: Tensor, labels: Tensor, unseen: Tensor
    ) -> Tensor:
        """Compute the loss of the outputs of seen classes, and of those of labels."""
        classes = logits.shape[1]
        numbers = torch.arange(classes, device=logits.device)
        possible = ~_ruled_out(logits)  # another plugin may rule classes out
        if labels.shape == logits.shape:
            present = possible & (labels != 0).any(0)
        else:
            present = (labels[:, None] == numbers).any(0)
        columns = (possible & ~unseen | present).nonzero().flatten()
        if len(columns) == classes:
            return self.criterion(logits, labels)

        columns_of_classes = torch.full_like(numbers, -1)
        columns_of_classes[columns] = numbers[: len(columns)]
        if labels.shape == logits.shape:
            labels = labels[:, columns]
        else:  # a label that is not a class, such as an ignore_index of -100, stays
            is_class = (labels >= 0) & (labels < classes)
            indices = labels.clamp(0, classes - 1)
            labels = torch.where(is_class, columns_of_classes[indices], labels)
        _check_function(self.criterion, classes)
        with _cut(self.criterion, columns, columns_of_classes) as criterion:
            try:
                return criterion(logits[:, columns], labels)
            except (RuntimeError, ValueError, IndexError) as error:
                raise ValueError(
                    f"the criterion fails on the outputs of the {len(columns)} classes "
                    f"seen of {classes} ({error}). It gets (B, k) logits and labels "
                    "counted among the k classes: take their number from "
                    "logits.shape[1]; or set criterion.all_outputs = True, which gives "
                    f"it all {classes} outputs, with {UNSEEN_LOGIT:g} for classes not "
                    "seen"
                ) from error


def _is_plain_cross_entropy(criterion: Any) -> bool:
    return type(criterion) is nn.CrossEntropyLoss and criterion.label_smoothing == 0


def _ruled_out(logits: Tensor) -> Tensor:
    """Return which classes no image may have, ``(classes,)`` bool."""
    return (logits <= UNSEEN_LOGIT).all(0)


# Where a module keeps its tensors and its parts, among its attributes.
TENSORS_OF_MODULES = ("_parameters", "_buffers")
PARTS_OF_MODULES = (*TENSORS_OF_MODULES, "_modules")


@dataclass
class _Copy:
    """A copy of an object with cut tensors.

    Attributes:
        original: the object.
        copied: its copy, which a criterion may change.
        attributes: the values that the copy began with, by name.
        tensors: of a module those of each of ``TENSORS_OF_MODULES``, by name.
    """

    original: Any
    copied: Any
    attributes: dict[str, Any]
    tensors: dict[str, dict[str, Any]]

    def hand_back(self) -> None:
        """Give the original what the copy assigned to itself, such as a count."""
        original = vars(self.original)
        copied = vars(self.copied)
        for name, value in copied.items():
            is_new = value is not self.attributes.get(name)
            if is_new and name not in PARTS_OF_MODULES:
                original[name] = value
        for kind, tensors in self.tensors.items():
            for name, value in copied[kind].items():
                if value is not tensors.get(name):
                    original[kind][name] = value


class _Cutter:
    """Copies criteria with their tensors cut to some classes.

    Args:
        columns: ``(k,)`` int64, the classes that stay.
        columns_of_classes: ``(classes,)`` int64, the column of each class; -1 for those
            that are cut off.
    """

    def __init__(self, columns: Tensor, columns_of_classes: Tensor):
        self.columns = columns
        self.columns_of_classes = columns_of_classes
        self.copies: dict[int, _Copy] = {}  # by id of the original

    def value(self, name: str, value: Any) -> Any:
        """Return a value of a criterion cut; itself if it has no entry a class."""
        classes = len(self.columns_of_classes)
        if isinstance(value, Tensor):
            for axis, length in enumerate(value.shape):
                if length == classes:
                    value = value.index_select(axis, self.columns.to(value.device))
        elif name == "ignore_index" and 0 <= value < classes:
            column = int(self.columns_of_classes[value])
            return IGNORED if column < 0 else column
        return value

    def criterion(self, criterion: Any) -> Any:
        """Return a copy of a criterion, a callable of any kind."""
        if isinstance(criterion, functools.partial):
            keywords = {
                name: self.value(name, value)
                for name, value in criterion.keywords.items()
            }
            function = self.criterion(criterion.func)
            return functools.partial(function, *criterion.args, **keywords)
        if inspect.ismethod(criterion):
            owner = self.owner(criterion.__self__)
            return types.MethodType(criterion.__func__, owner)
        if inspect.isroutine(criterion) or isinstance(criterion, type):
            return criterion
        return self.owner(criterion)

    def owner(self, original: Any) -> Any:
        """Return a shallow copy of an object, whose modules are copied, too."""
        if id(original) in self.copies:
            return self.copies[id(original)].copied
        if not hasattr(original, "__dict__"):
            return original
        attributes = self._cut_all(vars(original))
        tensors: dict[str, dict[str, Any]] = {}
        if isinstance(original, nn.Module):
            for kind in TENSORS_OF_MODULES:
                tensors[kind] = self._cut_all(vars(original)[kind])
                # A dictionary of the copy's own, in which it may assign.
                attributes[kind] = dict(tensors[kind])
            attributes["_modules"] = self._copied_modules(original)
        copied = copy.copy(original)
        vars(copied).update(attributes)
        self.copies[id(original)] = _Copy(original, copied, attributes, tensors)
        return copied

    def _copied_modules(self, parent: nn.Module) -> dict[str, nn.Module | None]:
        """Return copies of the modules of a module, by name; some may be None."""
        modules: dict[str, nn.Module | None] = {}
        for name, module in vars(parent)["_modules"].items():
            modules[name] = None if module is None else self.owner(module)
        return modules

    def _cut_all(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: self.value(name, value) for name, value in values.items()}


@contextmanager
def _cut(
    criterion: Any, columns: Tensor, columns_of_classes: Tensor
) -> Iterator[Callable[[Tensor, Tensor], Tensor]]:
    """Yield a copy of a criterion whose tensors have entries of some classes only."""
    cutter = _Cutter(columns, columns_of_classes)
    yield cutter.criterion(criterion)
    for criterion_copy in cutter.copies.values():
        criterion_copy.hand_back()


def _check_function(criterion: Any, classes: int) -> None:
    """Raise ValueError for a function that uses a table of all classes from outside."""
    if not inspect.isfunction(criterion):
        return
    used = inspect.getclosurevars(criterion)
    for name, value in {**used.globals, **used.nonlocals}.items():
        if isinstance(value, Tensor) and classes in value.shape:
            raise ValueError(
                f"the criterion uses {name}, which has an entry for each of the "
                f"{classes} classes, but it gets the outputs of the classes seen: hand "
                f"it over with functools.partial(criterion, {name}=...), or keep it in "
                "an nn.Module, where it is cut likewise; or set criterion.all_outputs "
                "= True to get all outputs"
            )
