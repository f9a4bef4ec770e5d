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

# Those of torch whose ``weight`` has a number for each class.
LOSSES_WITH_CLASS_WEIGHTS = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)


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

    Outside of an evaluation, logits of classes not seen are masked here, if that was
    not done: plugins such as Avalanche's ``EWCPlugin`` call the criterion on what the
    model returns.

    Args:
        criterion: loss of ``(logits, labels)``: a module, a function or a partial
            function of one.
        unseen_mask: function of the number of classes and a device, which returns the
            classes not seen yet as ``(classes,)`` bool; all of them before training.

    Attributes:
        in_evaluation: whether unseen classes have a probability above 0, as in an
            evaluation, and are not masked here.
    """

    def __init__(
        self,
        criterion: Callable[[Tensor, Tensor], Tensor],
        unseen_mask: Callable[[int, torch.device], Tensor],
    ):
        self.criterion = criterion
        self.unseen_mask = unseen_mask
        self.in_evaluation = False

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss, a scalar, over the classes seen.

        Args:
            logits: ``(B, classes)`` float, as the model returns them or masked.
            labels: ``(B,)`` int64, or ``(B, classes)`` targets, of all classes.

        Raises:
            ValueError: the criterion returns more than one number, does not take the
                outputs of the classes seen, has weights of another number of classes,
                or is a function with a table of all classes.
        """
        loss = self._loss_of_classes_seen(logits, labels)
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise ValueError(
                f"the criterion returns a loss of shape {tuple(loss.shape)}; a step "
                "needs one number: use reduction='mean' or 'sum'"
            )
        return loss

    def _loss_of_classes_seen(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the criterion over the classes seen so far.

        Outputs of other shapes than ``(B, classes)`` are left to the criterion. A
        criterion that has a true attribute ``all_outputs`` gets all outputs, too.

        Args:
            logits: ``(B, classes)`` float, as the model returns them or masked.
            labels: ``(B,)`` int64, or ``(B, classes)`` targets, of all classes.
        """
        if not isinstance(logits, Tensor) or logits.dim() != 2:
            return self.criterion(logits, labels)
        unseen = self.unseen_mask(logits.shape[1], logits.device)  # (classes,) bool
        # Before training, when no class was seen, all outputs count: none is unseen.
        # Without an ``if``, which would wait for a GPU.
        is_before_training = unseen.all()
        unseen = unseen & ~is_before_training
        if not self.in_evaluation:
            # Another plugin may have masked a class lower.
            is_unmasked = unseen & (logits > UNSEEN_LOGIT)
            logits = logits.masked_fill(is_unmasked, UNSEEN_LOGIT)
        if getattr(self.criterion, "all_outputs", False):
            return self.criterion(logits, labels)
        _check_class_weights(self.criterion, logits.shape[1])
        if _is_plain_cross_entropy(self.criterion):
            return self._loss_of_all_outputs(logits, labels, unseen)
        return self._loss_of_seen_outputs(logits, labels, unseen)

    def _loss_of_all_outputs(
        self, logits: Tensor, labels: Tensor, unseen: Tensor
    ) -> Tensor:
        """Compute the loss of all outputs, in which unseen classes do not count.

        Their logits are so low that their probability is 0, so that only targets
        ``(B, classes)`` have to be cleared of them.

        Args:
            logits: ``(B, classes)`` float.
            labels: ``(B,)`` int64, or ``(B, classes)`` targets.
            unseen: ``(classes,)`` bool, classes that training has not seen.
        """
        has_targets = labels.shape == logits.shape
        if has_targets:
            # An unseen class whose logits are not masked counts, as in an evaluation.
            labels = labels.masked_fill(unseen & _classes_ruled_out(logits), 0)
        return self.criterion(logits, labels)

    def _loss_of_seen_outputs(
        self, logits: Tensor, labels: Tensor, unseen: Tensor
    ) -> Tensor:
        """Compute the loss of the outputs of seen classes and of classes of the batch.

        An image of an evaluation may be of a class that training has not seen. The
        criterion gets the columns of these classes, and labels counted among them; a
        copy of it is called, whose tensors, such as class weights, are cut likewise.

        Args:
            logits: ``(B, classes)`` float.
            labels: ``(B,)`` int64, or ``(B, classes)`` targets.
            unseen: ``(classes,)`` bool, classes that training has not seen.
        """
        n_classes = logits.shape[1]
        columns = _columns_of_loss(logits, labels, unseen)  # of the classes that count
        if len(columns) == n_classes:
            return self.criterion(logits, labels)

        # The number of each class among the columns; -1 for classes left out.
        column_of_class = torch.full((n_classes,), -1, device=logits.device)
        column_of_class[columns] = torch.arange(len(columns), device=logits.device)
        # Raises if it is a function that uses a tensor from outside, such as class
        # weights: in a function nothing can be cut.
        _check_function(self.criterion, n_classes)
        with _cut_copy(self.criterion, columns, column_of_class) as cut_criterion:
            cut_labels = _labels_among(labels, columns, column_of_class)
            try:
                return cut_criterion(logits[:, columns], cut_labels)
            except (RuntimeError, ValueError, IndexError) as error:
                raise ValueError(
                    f"the criterion fails on the outputs of the {len(columns)} classes "
                    f"seen of {n_classes} ({error}). It gets (B, k) logits and labels "
                    "counted among the k classes: take their number from "
                    "logits.shape[1]; or set criterion.all_outputs = True, which gives "
                    f"it all {n_classes} outputs, with {UNSEEN_LOGIT:g} for classes "
                    "not seen"
                ) from error


def _is_plain_cross_entropy(criterion: Any) -> bool:
    """Return whether a criterion is torch's cross-entropy without label smoothing."""
    return type(criterion) is nn.CrossEntropyLoss and criterion.label_smoothing == 0


def _check_class_weights(criterion: Any, n_classes: int) -> None:
    """Raise ValueError for weights of a loss of torch that are not one for each class.

    Args:
        criterion: any; others than torch's with class weights are not looked at.
        n_classes: outputs of the model.
    """
    if not isinstance(criterion, LOSSES_WITH_CLASS_WEIGHTS):
        return
    weights = criterion.weight
    if weights is not None and weights.shape != (n_classes,):
        raise ValueError(
            f"the weight of the criterion is of shape {tuple(weights.shape)}, but the "
            f"model has outputs of {n_classes} classes: give {n_classes} numbers, one "
            "for each class of the whole stream in ascending order, also for classes "
            "that come later"
        )


def _columns_of_loss(logits: Tensor, labels: Tensor, unseen: Tensor) -> Tensor:
    """Return the columns of classes that count in a loss: seen ones and the batch's.

    Args:
        logits: ``(B, classes)`` float.
        labels: ``(B,)`` int64, or ``(B, classes)`` targets.
        unseen: ``(classes,)`` bool, classes that training has not seen.

    Returns:
        ``(k,)`` int64, ascending.
    """
    # (classes,) bool: another plugin may mask the logits of a class for all images.
    is_possible = ~_classes_ruled_out(logits)
    if labels.shape == logits.shape:  # targets
        is_in_batch = is_possible & (labels != 0).any(0)
    else:
        classes = torch.arange(logits.shape[1], device=logits.device)
        is_in_batch = (labels[:, None] == classes).any(0)
    is_seen = is_possible & ~unseen
    counts_in_loss = is_seen | is_in_batch
    return counts_in_loss.nonzero().flatten()


def _labels_among(labels: Tensor, columns: Tensor, column_of_class: Tensor) -> Tensor:
    """Return labels of all classes as labels among the ``k`` classes that are left.

    A label that is not a class, such as an ``ignore_index`` of -100, stays.

    Args:
        labels: ``(B,)`` int64, or ``(B, classes)`` targets.
        columns: ``(k,)`` int64, the classes that are left.
        column_of_class: ``(classes,)`` int64, number of each class among these; -1 for
            the others.

    Returns:
        ``(B,)`` int64, or ``(B, k)`` targets.
    """
    n_classes = len(column_of_class)
    if labels.dim() == 2 and labels.shape[1] == n_classes:  # targets
        return labels[:, columns]
    is_class = (labels >= 0) & (labels < n_classes)
    indices = labels.clamp(0, n_classes - 1)  # valid where no class is, too
    return torch.where(is_class, column_of_class[indices], labels)


def _classes_ruled_out(logits: Tensor) -> Tensor:
    """Return which classes no image may have, ``(classes,)`` bool.

    Their logits ``(B, classes)`` are masked for all images.
    """
    return (logits <= UNSEEN_LOGIT).all(0)


# Where a module keeps its tensors and its parts, among its attributes.
TENSORS_OF_MODULES = ("_parameters", "_buffers")
PARTS_OF_MODULES = (*TENSORS_OF_MODULES, "_modules")


@dataclass
class _Copy:
    """A copy of a criterion, or of an object that it belongs to, for some classes.

    Attributes:
        original: the object.
        copied: its copy, which a criterion may change.
        first_attributes: the values that the copy began with, by name.
        first_tensors: those of a module, by name, in each of ``TENSORS_OF_MODULES``.
    """

    original: Any
    copied: Any
    first_attributes: dict[str, Any]
    first_tensors: dict[str, dict[str, Any]]

    def hand_back(self) -> None:
        """Give the original what the copied criterion assigned to itself.

        A criterion may count its calls, for instance. Attributes that the copy left
        alone stay as they are in the original, whose tensors have entries of all
        classes.
        """
        original_attributes = vars(self.original)
        copied_attributes = vars(self.copied)
        for name, attribute in copied_attributes.items():
            # By identity: two tensors compared with == give a tensor, not a bool.
            was_assigned = attribute is not self.first_attributes.get(name)
            if was_assigned and name not in PARTS_OF_MODULES:
                original_attributes[name] = attribute
        # A module has its tensors in dictionaries, "_parameters" and "_buffers".
        for dictionary, first_tensors in self.first_tensors.items():
            for name, tensor in copied_attributes[dictionary].items():
                if tensor is not first_tensors.get(name):
                    original_attributes[dictionary][name] = tensor


class _Cutter:
    """Copies criteria with their tensors cut to some classes.

    The user's criterion stays as it is, whatever the loss does with its tensors.

    Args:
        columns: ``(k,)`` int64, the classes that stay.
        column_of_class: ``(classes,)`` int64, the column of each class; -1 for those
            that are cut off.
    """

    def __init__(self, columns: Tensor, column_of_class: Tensor):
        self.columns = columns
        self.column_of_class = column_of_class
        self.copies: dict[int, _Copy] = {}  # by id of the original

    def cut_attribute(self, name: str, value: Any) -> Any:
        """Return an attribute of a criterion, cut if it has an entry for each class.

        Tensors are cut to the classes that are left, along each axis of that length. An
        ``ignore_index`` that is a class becomes the number of that class among these.

        Args:
            name: of the attribute.
            value: of any type; others are returned as they are.
        """
        n_classes = len(self.column_of_class)
        if isinstance(value, Tensor):
            for axis, length in enumerate(value.shape):
                if length == n_classes:
                    value = value.index_select(axis, self.columns.to(value.device))
        elif name == "ignore_index" and 0 <= value < n_classes:
            column = int(self.column_of_class[value])
            was_cut_off = column < 0
            return IGNORED if was_cut_off else column
        return value

    def copy_criterion(self, criterion: Any) -> Any:
        """Return a copy of a criterion, a callable of any kind."""
        if isinstance(criterion, functools.partial):
            keywords = self._cut_all(criterion.keywords)
            function = self.copy_criterion(criterion.func)
            return functools.partial(function, *criterion.args, **keywords)
        if inspect.ismethod(criterion):
            owner = self.copy_object(criterion.__self__)
            return types.MethodType(criterion.__func__, owner)
        if inspect.isroutine(criterion) or isinstance(criterion, type):
            return criterion
        return self.copy_object(criterion)

    def copy_object(self, original: Any) -> Any:
        """Return a copy of a criterion, or of what it belongs to, for some classes.

        Tensors that have an entry for each class are cut: in the copy they have those
        of the classes that stay. The copy is shallow, but modules in it are copied,
        too. An object that several parts of a criterion share is copied once.

        Args:
            original: an object of any type; one without attributes is returned itself.
        """
        if id(original) in self.copies:
            return self.copies[id(original)].copied
        if not hasattr(original, "__dict__"):
            return original
        # What the copy begins with is noted: whatever differs after the call was
        # assigned by the criterion, and is handed to the original.
        first_attributes = self._cut_all(vars(original))
        first_tensors: dict[str, dict[str, Any]] = {}
        if isinstance(original, nn.Module):
            for dictionary in TENSORS_OF_MODULES:  # "_parameters", "_buffers"
                first_tensors[dictionary] = self._cut_all(vars(original)[dictionary])
                # Another dictionary for the copy, which may assign in it.
                first_attributes[dictionary] = dict(first_tensors[dictionary])
            first_attributes["_modules"] = self._copied_modules(original)
        copied = copy.copy(original)
        vars(copied).update(first_attributes)
        self.copies[id(original)] = _Copy(
            original, copied, first_attributes, first_tensors
        )
        return copied

    def _copied_modules(self, parent: nn.Module) -> dict[str, nn.Module | None]:
        """Return copies of the modules of a module, by name; some may be None."""
        modules: dict[str, nn.Module | None] = {}
        for name, module in vars(parent)["_modules"].items():
            modules[name] = None if module is None else self.copy_object(module)
        return modules

    def _cut_all(self, values: dict[str, Any]) -> dict[str, Any]:
        """Cut attributes or arguments of a criterion, by name."""
        return {name: self.cut_attribute(name, value) for name, value in values.items()}


@contextmanager
def _cut_copy(
    criterion: Any, columns: Tensor, column_of_class: Tensor
) -> Iterator[Callable[[Tensor, Tensor], Tensor]]:
    """Yield a copy of a criterion whose tensors have entries of some classes only.

    What the copy assigns to itself, such as a count of calls, is given to the original.
    See ``_Cutter`` for the arguments.
    """
    cutter = _Cutter(columns, column_of_class)
    yield cutter.copy_criterion(criterion)
    for object_copy in cutter.copies.values():
        object_copy.hand_back()


def _check_function(criterion: Any, n_classes: int) -> None:
    """Raise ValueError for a function that uses a table of all classes from outside."""
    if not inspect.isfunction(criterion):
        return
    outside = inspect.getclosurevars(criterion)
    for name, variable in {**outside.globals, **outside.nonlocals}.items():
        if isinstance(variable, Tensor) and n_classes in variable.shape:
            raise ValueError(
                f"the criterion uses {name}, which has an entry for each of the "
                f"{n_classes} classes, but it gets the outputs of the classes seen: "
                f"hand it over with functools.partial(criterion, {name}=...), or keep "
                "it in an nn.Module, where it is cut likewise; or set "
                "criterion.all_outputs = True to get all outputs"
            )
