"""Input of the head, the penultimate activation, of any network."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set a network to evaluation mode within the ``with`` block."""
    training_modules = [child for child in module.modules() if child.training]
    # Setting what is set takes a twentieth of the time of a small network.
    if training_modules:
        module.eval()
    try:
        yield
    finally:
        for child in training_modules:
            child.training = True


class HeadInput:
    """Records the input of the head, the penultimate activation, in a forward pass."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._recorded_inputs: list[Tensor] = []  # P may take a batch in parts
        self._is_recording = False

    def attach(self, model: nn.Module, images: Tensor | None = None) -> None:
        """Record what enters the head of a ``SplitModel`` from now on, until ``take``.

        Args:
            model: gets hooks.
            images: the very tensor whose latest pass through the model is recorded;
                default any pass of its plastic layers.
        """
        self.take()  # ends a recording that nobody took
        head = model.plastic_layers.get_submodule(model.head)
        self._handles = [head.register_forward_pre_hook(self._record_input)]
        self._is_recording = images is None
        if images is None:
            return

        def begin_pass(model: nn.Module, arguments: tuple) -> None:
            # Of several passes of the images, the latest one is recorded.
            self._is_recording = arguments[0] is images
            if self._is_recording:
                self._recorded_inputs = []

        def end_pass(model: nn.Module, arguments: tuple, logits: Tensor) -> None:
            self._is_recording = False

        self._handles += [
            model.register_forward_pre_hook(begin_pass),
            model.register_forward_hook(end_pass),
        ]

    def _record_input(self, head: nn.Module, arguments: tuple) -> None:
        """Record the input of the head; a hook that torch calls before it."""
        if self._is_recording:
            self._recorded_inputs.append(arguments[0])

    def take(self) -> Tensor | None:
        """Stop recording, and return what was recorded since ``attach``.

        Returns:
            ``(B, D, ...)`` float32, or ``None`` if there was no pass.
        """
        for handle in self._handles:
            handle.remove()
        self._handles = []
        recorded_inputs = self._recorded_inputs
        self._recorded_inputs = []
        if not recorded_inputs:
            return None
        return torch.cat(recorded_inputs).float()

    def take_averaged(self) -> Tensor | None:
        """Stop recording, and return what ``take`` returns, averaged over locations.

        Returns:
            ``(B, D)`` float32, or ``None`` if there was no pass.
        """
        inputs = self.take()
        return None if inputs is None else averaged(inputs)


def head_input(
    model: nn.Module, maps: Tensor, classify: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Compute the input of a ``SplitModel``'s head, in the model's mode.

    The plastic layers run on the maps, and a hook records what enters the head.

    Args:
        model: the model.
        maps: ``(B, C, H, W)`` feature maps.
        classify: the plastic layers, called with the maps; default ``model.classify``.

    Returns:
        ``(B, D, ...)``, with gradients.
    """
    recorder = HeadInput()  # of what enters the head
    recorder.attach(model)
    try:
        (classify or model.classify)(maps)
    finally:
        features = recorder.take()  # removes the hook, too
    return features


def penultimate(model: nn.Module, maps: Tensor) -> Tensor:
    """Compute ``head_input`` averaged over locations, ``(B, D)``."""
    return averaged(head_input(model, maps))


def unpooled_head_input(model: nn.Module, maps: Tensor) -> tuple[Tensor, bool]:
    """Compute the input of the head, before it is averaged over locations if it is.

    Args:
        model: a ``SplitModel``.
        maps: ``(B, C, H, W)`` feature maps, which enter its plastic layers.

    Returns:
        ``(B, D, H, W)`` and ``True`` if it is averaged before the head, else ``(B,
        D)`` and ``False``.
    """
    inputs_of_pool: list[Tensor] = []  # the layers may take a batch in parts

    def record_input(pool: nn.Module, arguments: tuple) -> None:
        """Note what enters the pool: a hook before its pass."""
        inputs_of_pool.append(arguments[0])

    last_pool = None  # others, of squeeze-and-excitation, come before it
    for layer in model.plastic_layers.modules():
        if isinstance(layer, nn.AdaptiveAvgPool2d):
            last_pool = layer
    handle = None
    if last_pool is not None:
        handle = last_pool.register_forward_pre_hook(record_input)
    try:
        values = head_input(model, maps)
    finally:
        if handle is not None:
            handle.remove()
    if values.dim() == 2 and inputs_of_pool:
        # The pool averages the head's input only if their values agree.
        unpooled = torch.cat(inputs_of_pool).float()
        means = averaged(unpooled)
        has_same_shape = means.shape == values.shape
        if has_same_shape and torch.allclose(means, values, rtol=1e-4, atol=1e-5):
            return unpooled, True
    return values, False


def averaged(values: Tensor) -> Tensor:
    """Average ``(B, D, H, W)`` over locations; ``(B, D)`` is returned as it is."""
    if values.dim() == 2:
        return values
    return values.flatten(2).mean(2)
