"""Values turned into nodes that JSON can hold, and tensors beside them: the writing half of ``state_tree``."""

import types
from collections import deque
from typing import Any

import numpy as np
import torch
from avalanche.core import BasePlugin
from avalanche.training.utils import ParamData
from torch import Tensor, nn

OWN = "crumb_avalanche."
# Objects of these stay as they were built.
LEFT = ("avalanche.", "torch.", "builtins.", "tqdm.", "pathlib.")
MODULE_INSIDES = set(vars(nn.Module())) | {"training"}


class StateError(ValueError):
    """A state that cannot be kept, or does not belong to this learner; says where in it."""


def name_of(kind: type) -> str:
    """``module:qualified name`` of a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object that are state: all but those that its class lists in ``unsaved``."""
    found = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot) and slot not in ("__dict__", "__weakref__"):
                found[slot] = getattr(value, slot)
    unsaved = set(getattr(type(value), "unsaved", ()))
    if isinstance(value, nn.Module):
        unsaved |= MODULE_INSIDES
    # The model first: others refer to its weights.
    return {name: found[name] for name in sorted(found, key=lambda name: name != "model") if name not in unsaved}


class Packer:
    """Turns values into nodes that JSON can hold; what is met twice is kept once and stays one thing.

    Attributes:
        tensors: name -> contiguous copy on the CPU.
    """

    def __init__(self):
        self.tensors: dict[str, Tensor] = {}
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no identity is given to another object meanwhile

    def pack(self, value: Any, place: str) -> Any:
        """The node of a value.

        Args:
            value: to be kept.
            place: where it is, for errors.

        Raises:
            StateError: a value of a kind that is not known.
        """
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            return {"kind": "scalar", "type": value.dtype.str, "value": value.item()}
        if isinstance(value, tuple) and type(value) is tuple:
            return {"kind": "tuple", "items": [self.pack(item, f"{place}[{i}]") for i, item in enumerate(value)]}
        if isinstance(value, torch.Size):
            return {"kind": "size", "items": list(value)}
        if isinstance(value, torch.device | torch.dtype | type | types.ModuleType) or callable_only(value):
            return {"kind": "left"}
        number = self._numbers.get(id(value))
        if number is not None:
            return {"kind": "again", "number": number}
        number = self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        return {**self._pack_mutable(value, place), "number": number}

    def _pack_mutable(self, value: Any, place: str) -> dict:
        if isinstance(value, Tensor):
            return {"kind": "tensor", **self._tensor(value), "parameter": isinstance(value, nn.Parameter)}
        if isinstance(value, np.memmap):
            return {"kind": "left"}
        if isinstance(value, np.ndarray):
            return {"kind": "array", **self._tensor(torch.from_numpy(np.ascontiguousarray(value)))}
        if isinstance(value, np.random.Generator):
            return {"kind": "generator", "state": self.pack(value.bit_generator.state, place)}
        if isinstance(value, torch.Generator):
            return {"kind": "torch_generator", **self._tensor(value.get_state())}
        if isinstance(value, dict):
            pairs = [
                [self.pack(key, f"{place} key"), self.pack(part, f"{place}[{key!r}]")] for key, part in value.items()
            ]
            return {"kind": "dict", "type": type(value).__name__, "pairs": pairs}
        if isinstance(value, list | set | frozenset | deque):
            # A set has no order of its own; sorting by what it looks like makes equal states equal files.
            items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            return {
                "kind": "sequence",
                "type": type(value).__name__,
                "items": [self.pack(item, f"{place}[{i}]") for i, item in enumerate(items)],
            }
        if isinstance(value, torch.optim.Optimizer):
            groups = [dict(group) for group in value.param_groups]
            state = [[weight, dict(kept)] for weight, kept in value.state.items()]
            return {"kind": "optimizer", "groups": self.pack(groups, place), "state": self.pack(state, place)}
        name = name_of(type(value))
        if isinstance(value, nn.Module | BasePlugin | ParamData) or name.startswith(OWN):
            parts = attributes(value)
            node = {"kind": "object", "class": name}
            if isinstance(value, nn.Module):
                own = name.startswith(OWN)
                inside = {**value._parameters, **value._buffers, **value._modules}
                hidden = getattr(type(value), "unsaved", ())
                inside = {part: content for part, content in inside.items() if part not in hidden}
                # Weights of a part that is not kept, as an optimiser may hold them: they stay the live ones.
                node["outside"] = {}
                for part in (part for part in hidden if part in value._modules):
                    for path, weight in value._modules[part].named_parameters(part):
                        node["outside"][path] = self._numbers[id(weight)] = len(self._numbers)
                        self._alive.append(weight)
                node["inside"] = {part: self.pack(content, f"{place}.{part}") for part, content in inside.items()}
                parts = parts if own else {}
            node["attributes"] = {part: self.pack(content, f"{place}.{part}") for part, content in parts.items()}
            return node
        if name.startswith(LEFT):
            return {"kind": "left"}
        raise StateError(
            f"{place} is of type {name.replace(':', '.')}, which a checkpoint cannot keep: make it of numbers, "
            "tensors, lists, dictionaries and objects of this package, or list it in the class attribute 'unsaved'"
        )

    def _tensor(self, value: Tensor) -> dict:
        name = f"t{len(self.tensors)}"
        value = value.detach()
        last = value.dim() == 4 and not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last)
        self.tensors[name] = value.cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name, "channels_last": last, "device": value.device.type}


def callable_only(value: Any) -> bool:
    """Functions and methods: they are what they were built as."""
    kinds = types.FunctionType | types.MethodType | types.BuiltinFunctionType | types.BuiltinMethodType
    return isinstance(value, kinds)
