"""The state of a learner as JSON and tensors, and back: complete enough to go on bit for bit, and free of pickle.

Nothing of a file is run or imported on reading: values are put into a learner that was built from its settings, and the
only objects made are those of classes of this package that the learner would have made itself.
"""

import json
import sys
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import torch
from avalanche.training.utils import ParamData
from torch import Tensor, nn

from crumb_avalanche.training.state_packing import OWN, Packer, StateError, name_of

NUMBERS = "biufc"  # numpy's letters of the kinds whose values take no more room than their type says


class Restorer:
    """Puts packed values into a live learner.

    Args:
        tensors: as ``Packer.tensors``.
    """

    def __init__(self, tensors: dict[str, Tensor]):
        self.tensors = tensors
        self._made: dict[int, Any] = {}

    def restore(self, node: Any, live: Any, place: str) -> Any:
        """The value of a node; a live object or parameter is filled in place.

        Raises:
            StateError: the node does not fit the live object.
        """
        if not isinstance(node, dict):
            return node
        kind = node["kind"]
        if kind == "again":
            # What was left as it is may be there under several names; each name keeps its own.
            return self._made.get(node["number"], live)
        if kind == "left":
            return live
        if kind == "size":
            return torch.Size(node["items"])
        if kind == "scalar":
            return self._scalar(node, place)
        if kind == "tuple":
            there = (
                live if isinstance(live, tuple) and len(live) == len(node["items"]) else (None,) * len(node["items"])
            )
            pairs = enumerate(zip(node["items"], there))
            return tuple(self.restore(item, old, f"{place}[{i}]") for i, (item, old) in pairs)
        make = getattr(self, f"_{kind}", None)
        if make is None:
            raise StateError(f"{place} is of kind {kind!r}, which this version does not know")
        return make(node, live, place)

    def _scalar(self, node: dict, place: str) -> np.generic:
        kind, value = node["type"], node["value"]
        try:
            if np.dtype(kind).kind in NUMBERS and isinstance(value, bool | int | float):
                return np.dtype(kind).type(value)
        except (TypeError, ValueError, OverflowError):
            pass
        raise StateError(
            f"{place} is a numpy scalar of type {kind!r} with the value {value!r:.40}, but only numbers that fit their "
            "type are kept: the checkpoint is not of this program; remove it to start over"
        )

    def _keep(self, node: dict, value: Any) -> Any:
        self._made[node["number"]] = value
        return value

    def _value(self, node: dict) -> Tensor:
        value = self.tensors[node["tensor"]]
        return value.contiguous(memory_format=torch.channels_last) if node["channels_last"] else value

    def _tensor(self, node, live, place):
        value = self._value(node)
        if isinstance(live, nn.Parameter):
            if live.shape != value.shape:
                raise StateError(
                    f"{place} has the shape {tuple(value.shape)} in the checkpoint, but {tuple(live.shape)} here: it "
                    "is of another network"
                )
            with torch.no_grad():
                live.copy_(value)
            return self._keep(node, live)
        # Another tensor takes the place of one that is no parameter: the old one may be a view of somebody's data.
        device = live.device if isinstance(live, Tensor) else node["device"]
        value = value.clone().to(device)
        return self._keep(node, nn.Parameter(value) if node["parameter"] else value)

    def _array(self, node, live, place):
        return self._keep(node, self._value(node).numpy().copy())

    def _generator(self, node, live, place):
        generator = live if isinstance(live, np.random.Generator) else np.random.default_rng()
        generator.bit_generator.state = self.restore(node["state"], None, place)
        return self._keep(node, generator)

    def _torch_generator(self, node, live, place):
        generator = live if isinstance(live, torch.Generator) else torch.Generator()
        generator.set_state(self._value(node))
        return self._keep(node, generator)

    def _dict(self, node, live, place):
        known = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
        if not isinstance(live, dict) or type(live).__name__ != node["type"]:
            if node["type"] not in known:
                raise StateError(f"{place} is a {node['type']}, which has to be there before it is filled")
            live = known[node["type"]]()
        self._keep(node, live)
        before = dict(live)
        live.clear()
        for key_node, part in node["pairs"]:
            key = self.restore(key_node, None, place)
            live[key] = self.restore(part, before.get(key), f"{place}[{key!r}]")
        return live

    def _sequence(self, node, live, place):
        items, kind = node["items"], node["type"]
        if kind == "list":
            live = live if type(live) is list else []
            self._keep(node, live)
            before = list(live)
            before += [None] * (len(items) - len(before))
            live[:] = [self.restore(item, before[i], f"{place}[{i}]") for i, item in enumerate(items)]
            return live
        values = [self.restore(item, None, f"{place}[{i}]") for i, item in enumerate(items)]
        if kind == "deque":
            return self._keep(node, deque(values, live.maxlen if isinstance(live, deque) else None))
        return self._keep(node, set(values) if kind == "set" else frozenset(values))

    def _optimizer(self, node, live, place):
        # The host adds a model's weights to it at the first experience, so groups are taken over with their weights,
        # which are the live model's own: a model is always restored before its optimiser.
        live.param_groups[:] = self.restore(node["groups"], None, place)
        live.state.clear()
        live.state.update({weight: kept for weight, kept in self.restore(node["state"], None, place)})
        return self._keep(node, live)

    def _object(self, node, live, place):
        if live is None or name_of(type(live)) != node["class"]:
            live = empty(node["class"], place)
        self._keep(node, live)
        for path, number in node.get("outside", {}).items():
            self._made[number] = live.get_parameter(path)
        for part, content in node.get("inside", {}).items():  # in the order of packing
            setattr(live, part, self.restore(content, getattr(live, part, None), f"{place}.{part}"))
        for part, content in node["attributes"].items():
            if not isinstance(content, dict) or content["kind"] != "left":
                object.__setattr__(live, part, self.restore(content, getattr(live, part, None), f"{place}.{part}"))
        return live


def empty(name: str, place: str) -> Any:
    """An object of a class of this package, before anything is put into it.

    Raises:
        StateError: a class of anything else: it would be made by code that nobody vouches for.
    """
    if name == name_of(ParamData):  # what the host's regularisers keep their numbers in
        return ParamData("", (0,))
    module, _, kind = name.partition(":")
    if not module.startswith(OWN) or "." in kind:
        raise StateError(f"{place} would have to be made as a {name}, but only classes of {OWN[:-1]} are made")
    # A learner that was built from the same settings has loaded all modules of its parts.
    if module not in sys.modules:
        raise StateError(
            f"{place} would have to be made as a {name}, but this learner uses no module {module}: the checkpoint is "
            "of another learner"
        )
    found = vars(sys.modules[module]).get(kind)
    if not isinstance(found, type) or found.__module__ != module or issubclass(found, nn.Module):
        raise StateError(f"{place} would have to be made as a {name}, which is no class that can be made empty")
    return found.__new__(found)


def packed(state: dict[str, Any]) -> tuple[str, dict[str, Tensor]]:
    """JSON and tensors of named values, such as ``{"strategy": strategy}``."""
    packer = Packer()
    nodes = {name: packer.pack(value, name) for name, value in state.items()}
    return json.dumps(nodes), packer.tensors


def restored(text: str, tensors: dict[str, Tensor], live: dict[str, Any]) -> dict[str, Any]:
    """Fill live values with packed ones; what has no live counterpart is made.

    Returns:
        All values by name.

    Raises:
        StateError: they do not fit.
    """
    restorer = Restorer(tensors)
    return {name: restorer.restore(node, live.get(name), name) for name, node in json.loads(text).items()}
