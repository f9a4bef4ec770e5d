"""A device that is played on the CPU: its tensors say that they are on ``meta``, and take none of the CPU."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

DEVICE = torch.device("meta")
aten = torch.ops.aten
MIXED = {aten.copy_, aten.index, aten.index_put, aten.index_put_}  # take tensors of the CPU, too


class OnDevice(Tensor):
    """A tensor of the device; ``held`` is on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor):
        """Wrap a tensor in CPU memory."""
        layout = dict(strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=DEVICE)
        wrapper = Tensor._make_wrapper_subclass(cls, held.shape, requires_grad=False, **layout)
        wrapper.held = held
        return wrapper

    def tolist(self):
        """Return the values; torch refuses those of subclasses."""
        return self.cpu().tolist()

    def __getitem__(self, index):
        """Index by tensors of the device: torch makes empty ones of lists and of tensors on the CPU."""
        return super().__getitem__(_moved(index))

    def __setitem__(self, index, value):
        """See ``__getitem__``."""
        super().__setitem__(_moved(index), value)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        """Run on the CPU, outside of ``PlayedDevice``."""
        return run(function, arguments, keywords or {})


def _moved(index):
    if isinstance(index, tuple):
        return tuple(map(_moved, index))
    index = torch.tensor(index) if isinstance(index, list) else index
    return OnDevice(index) if isinstance(index, Tensor) and not isinstance(index, OnDevice) else index


def run(function, arguments, keywords):
    """Run an operation on the CPU, and wrap what it returns if it is on the device."""
    packet = function._overloadpacket
    inputs: list[OnDevice] = []
    others: list[Tensor] = []
    tree_map_only(
        Tensor, lambda one: (inputs if isinstance(one, OnDevice) else others).append(one), (arguments, keywords)
    )
    if inputs and packet not in MIXED and any(other.dim() for other in others):
        raise RuntimeError(f"{packet.__name__} has tensors of the device and of the CPU, which no GPU takes")
    to = keywords.get("device")
    on_device = bool(inputs) if to is None else torch.device(to).type == DEVICE.type
    if to is not None:
        keywords = {**keywords, "device": "cpu"}
    given = tree_map_only(OnDevice, lambda tensor: tensor.held, (arguments, keywords))
    result = function(*given[0], **given[1])
    if packet is aten._to_copy and inputs == [] and on_device:
        result = result.clone() if result is given[0][0] else result
    if not on_device:
        return result
    known = {id(tensor.held): tensor for tensor in inputs}  # an operation in place returns its input
    return tree_map_only(Tensor, lambda tensor: known[id(tensor)] if id(tensor) in known else OnDevice(tensor), result)


class PlayedDevice(TorchDispatchMode):
    """Plays the device within a ``with`` block."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        """Run an operation."""
        return run(function, arguments, keywords or {})
