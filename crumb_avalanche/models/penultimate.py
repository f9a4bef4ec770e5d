"""Input of the head, the penultimate activation, of any network."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set a module to evaluation mode within the ``with`` block."""
    training = [part for part in module.modules() if part.training]
    if training:  # setting what is set takes a twentieth of the time of a small network
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


class HeadInput:
    """Records the input of the head, the penultimate activation, in a forward pass."""

    def __init__(self):
        self._handles = []
        self._recorded: list[Tensor] = []  # P may take a batch in parts
        self._recording = False

    def attach(self, model: nn.Module, images: Tensor | None = None) -> None:
        """Record the next pass of a ``SplitModel``: the latest of this very tensor, by default any of P."""
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

        self._handles += [
            model.register_forward_pre_hook(begin),
            model.register_forward_hook(end),
        ]

    def _record(self, module: nn.Module, arguments: tuple) -> None:
        if self._recording:
            self._recorded.append(arguments[0])

    def take(self) -> Tensor | None:
        """Stop recording; return ``(B, D, ...)`` float32, or ``None`` if there was no pass since ``attach``."""
        for handle in self._handles:
            handle.remove()
        parts, self._recorded, self._handles = self._recorded, [], []
        return torch.cat(parts).float() if parts else None

    def release(self) -> Tensor | None:
        """Stop recording; return ``(B, D)`` float32 averaged over locations, or ``None`` if there was no pass."""
        recorded = self.take()
        return None if recorded is None else averaged(recorded)


def head_input(
    model: nn.Module, maps: Tensor, take_in: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Compute the input of a ``SplitModel``'s head, ``(B, D, ...)`` with gradients, in the model's mode.

    ``take_in`` is called with the ``(B, C, H, W)`` maps; default ``model.classify``.
    """
    head = HeadInput()
    head.attach(model)
    try:
        (take_in or model.classify)(maps)
    finally:
        features = head.take()
    return features


def penultimate(model: nn.Module, maps: Tensor) -> Tensor:
    """Compute ``head_input`` averaged over locations, ``(B, D)``."""
    return averaged(head_input(model, maps))


def unpooled_head_input(model: nn.Module, maps: Tensor) -> tuple[Tensor, bool]:
    """Compute the input of the head: ``(B, D, H, W)`` and ``True`` if it is averaged before it, else ``(B, D)``."""
    pooled: list[Tensor] = []
    pools = [
        layer
        for layer in model.plastic_layers.modules()
        if isinstance(layer, nn.AdaptiveAvgPool2d)
    ]
    # Others, of squeeze-and-excitation, come before the last one.
    handles = [
        pool.register_forward_pre_hook(lambda _, given: pooled.append(given[0]))
        for pool in pools[-1:]
    ]
    try:
        values = head_input(model, maps)
    finally:
        for handle in handles:
            handle.remove()
    if values.dim() == 2 and pooled:
        before = torch.cat(pooled).float()
        means = averaged(before)
        if means.shape == values.shape and torch.allclose(
            means, values, rtol=1e-4, atol=1e-5
        ):
            return before, True
    return values, False


def averaged(values: Tensor) -> Tensor:
    """Average ``(B, D, H, W)`` over locations; ``(B, D)`` is returned as it is."""
    return values if values.dim() == 2 else values.flatten(2).mean(2)
