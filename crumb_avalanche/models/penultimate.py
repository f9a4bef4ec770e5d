"""The input of the head, the penultimate activation, whatever layers a network is made of."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode for the length of the ``with`` block."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


class HeadInput:
    """Records the input of the head in a forward pass: the penultimate activation, whatever layer the head is."""

    def __init__(self):
        self._handles = []
        self._recorded: list[Tensor] = []  # P may take a batch in parts
        self._recording = False

    def attach(self, model: nn.Module, images: Tensor | None = None) -> None:
        """Record the next pass of a ``SplitModel``.

        Args:
            images: the very tensor whose pass is recorded, the latest if there are several; default any pass of the
                plastic layers.
        """
        self.release()
        head = model.plastic_layers.get_submodule(model.head)
        self._handles = [head.register_forward_pre_hook(self._record)]
        self._recording = images is None
        if images is None:
            return

        def begin(module: nn.Module, arguments: tuple) -> None:
            self._recording = arguments[0] is images
            if self._recording:
                self._recorded = []

        def end(module: nn.Module, arguments: tuple, logits: Tensor) -> None:
            self._recording = False

        self._handles += [model.register_forward_pre_hook(begin), model.register_forward_hook(end)]

    def _record(self, module: nn.Module, arguments: tuple) -> None:
        if self._recording:
            self._recorded.append(arguments[0])

    def take(self) -> Tensor | None:
        """``(B, D, ...)`` float32 as it was; ``None`` if there was no pass since ``attach``."""
        for handle in self._handles:
            handle.remove()
        parts, self._recorded, self._handles = self._recorded, [], []
        return torch.cat(parts).float() if parts else None

    def release(self) -> Tensor | None:
        """``(B, D)`` float32, averaged over locations; ``None`` if there was no pass since ``attach``."""
        caught = self.take()
        return None if caught is None else averaged(caught)


def head_input(model: nn.Module, maps: Tensor, take_in: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """What a ``SplitModel``'s head gets, ``(B, D, ...)`` with gradients, of ``(B, C, H, W)`` maps; in its mode.

    Args:
        take_in: what is called with the maps; default ``model.classify``.
    """
    head = HeadInput()
    head.attach(model)
    try:
        (take_in or model.classify)(maps)
    finally:
        features = head.take()
    return features


def penultimate(model: nn.Module, maps: Tensor) -> Tensor:
    """The same averaged over locations, ``(B, D)``."""
    return averaged(head_input(model, maps))


def averaged(values: Tensor) -> Tensor:
    """``(B, D)``: the mean over locations of ``(B, D, H, W)``, or ``(B, D)`` as it is."""
    return values if values.dim() == 2 else values.flatten(2).mean(2)
