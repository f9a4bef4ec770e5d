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
    """Catches what goes into the head in one forward pass: the penultimate activation, whatever layer the head is."""

    def __init__(self):
        self._handle = None
        self._caught: list[Tensor] = []  # P may take a batch in parts

    def attach(self, model: nn.Module) -> None:
        """Catch the next pass of a ``SplitModel``."""
        self.release()
        head = model.plastic_layers.get_submodule(model.head)
        self._handle = head.register_forward_pre_hook(self._catch)

    def _catch(self, module: nn.Module, arguments: tuple) -> None:
        self._caught.append(arguments[0])

    def take(self) -> Tensor | None:
        """``(B, D, ...)`` float32 as it was; ``None`` if there was no pass since ``attach``."""
        if self._handle is not None:
            self._handle.remove()
        parts, self._caught, self._handle = self._caught, [], None
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
