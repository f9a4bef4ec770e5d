"""A device that is played.

Its tensors are in CPU memory, and mixing it with the CPU is refused.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

CPU = torch.device("cpu")
DEVICE = torch.device("meta")


aten = torch.ops.aten
# Operations that take tensors of the CPU and of the device together.
MIXED = {aten.copy_, aten.index, aten.index_put, aten.index_put_}


class OnDevice(Tensor):
    """A tensor of the device; ``held`` is on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor):
        """Wrap a tensor in CPU memory."""
        wrapper = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            requires_grad=False,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        wrapper.held = held
        return wrapper

    def tolist(self):
        """Return the values; torch refuses those of subclasses."""
        return self.cpu().tolist()

    def __getitem__(self, index):
        """Index by tensors of the device.

        Of lists and of tensors on the CPU torch makes empty ones.
        """
        return super().__getitem__(_on_device(index))

    def __setitem__(self, index, value):
        """See ``__getitem__``."""
        super().__setitem__(_on_device(index), value)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        """Run on the CPU, outside of ``PlayedDevice``."""
        return run(function, arguments, keywords or {})


def _on_device(index):
    """Return an index whose lists and tensors are on the device."""
    if isinstance(index, tuple):
        return tuple(map(_on_device, index))
    if isinstance(index, list):
        index = torch.tensor(index)
    if isinstance(index, Tensor) and not isinstance(index, OnDevice):
        return OnDevice(index)
    return index


def run(function, arguments, keywords):
    """Run an operation on the CPU, and wrap what it returns if it is on the device."""
    packet = function._overloadpacket
    leaves = tree_leaves((arguments, keywords))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    inputs = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    if inputs and packet not in MIXED:
        _check_no_cpu_tensor(packet, tensors)
    device = keywords.get("device")
    on_device = bool(inputs)
    if device is not None:
        on_device = torch.device(device).type == DEVICE.type
        keywords = {**keywords, "device": "cpu"}
    cpu_arguments, cpu_keywords = tree_map_only(
        OnDevice, lambda tensor: tensor.held, (arguments, keywords)
    )
    result = function(*cpu_arguments, **cpu_keywords)
    if not on_device:
        return result
    is_moved = packet is aten._to_copy and not inputs
    if is_moved and result is cpu_arguments[0]:
        result = result.clone()
    return _wrapped(result, inputs)


def _check_no_cpu_tensor(packet, tensors):
    for tensor in tensors:
        if not isinstance(tensor, OnDevice) and tensor.dim():
            raise RuntimeError(
                f"{packet.__name__} has tensors of the device and of the CPU, which "
                "no GPU takes"
            )


def _wrapped(result, inputs):
    """Put results on the device; an operation in place returns its input."""
    wrappers = {id(tensor.held): tensor for tensor in inputs}

    def wrap(tensor):
        if id(tensor) in wrappers:
            return wrappers[id(tensor)]
        return OnDevice(tensor)

    return tree_map_only(Tensor, wrap, result)


class PlayedDevice(TorchDispatchMode):
    """Plays the device within a ``with`` block."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        """Run an operation."""
        return run(function, arguments, keywords or {})
