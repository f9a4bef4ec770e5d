"""Collect and load the state of a strategy, as plain values and tensors.

A state holds what training changes: rebuild a strategy from its settings before loading
it. Its tensors are not copies: write or copy it before the next training step.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.tensor_file import StateError, tensor_bytes, tensors_of

FROZEN = "feature_extractor."


class StatefulPlugin(SupervisedPlugin):
    """Base class of plugins with a state.

    Attributes:
        kept: names of attributes that training resumes from, besides a replay buffer in
            ``storage_policy``: values, lists, tensors, NumPy generators, and objects
            with a state of their own. Those of base classes count, too.
        answering: names of those that evaluation needs, besides the model and the
            classes seen.
    """

    kept: ClassVar[tuple[str, ...]] = ()
    answering: ClassVar[tuple[str, ...]] = ()

    def _attributes(self, *lists: str) -> list[str]:
        return [
            name
            for kind in type(self).__mro__
            for held in lists
            for name in vars(kind).get(held, ())
        ]

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the tensors among these attributes: what is kept besides a replay buffer."""
        return tensor_bytes(
            tensors_of(
                [getattr(self, name) for name in self._attributes("kept", "answering")]
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state, by names of attributes without leading underscore."""
        return {
            name.lstrip("_"): _state_of(getattr(self, name))
            for name in self._attributes("kept", "answering")
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned."""
        for name in self._attributes("kept", "answering"):
            _load(self, name, state[name.lstrip("_")])

    def answer_state(self, strategy) -> dict[str, Any]:
        """Return the part of the state that evaluation needs."""
        return {
            name.lstrip("_"): _state_of(getattr(self, name))
            for name in self._attributes("answering")
        }

    def load_answer_state(self, state: dict[str, Any]) -> None:
        """Load what ``answer_state`` returned; training cannot resume from it."""
        for name in self._attributes("answering"):
            _load(self, name, state[name.lstrip("_")])


def _state_of(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, torch.Tensor):
        return value
    return value.state_dict() if hasattr(value, "state_dict") else copy.copy(value)


def _load(plugin: StatefulPlugin, name: str, state: Any) -> None:
    held = getattr(plugin, name)
    if isinstance(held, np.random.Generator):
        held.bit_generator.state = state
    elif isinstance(held, torch.Tensor):
        held.copy_(state)
    elif hasattr(held, "load_state_dict"):
        held.load_state_dict(state)
    else:
        setattr(plugin, name, copy.copy(state))


def parts(strategy) -> dict[str, Any]:
    """Return the strategy's plugins and metrics by class name; a second one of a class is ``Name 2``."""
    seen: Counter[str] = Counter()
    found = {}
    for part in [*strategy.plugins, *getattr(strategy.evaluator, "metrics", ())]:
        name = type(part).__name__
        seen[name] += 1
        found[name if seen[name] == 1 else f"{name} {seen[name]}"] = part
    return found


def storage_policies(strategy) -> Iterator[Any]:
    """Yield the storage policies of the strategy and its plugins, each once."""
    known = set()
    for part in (strategy, *strategy.plugins):
        policy = getattr(part, "storage_policy", None)
        if policy is not None and id(policy) not in known:
            known.add(id(policy))
            yield policy


def buffers(strategy) -> list[Any]:
    """Return the storage policies that have a state, each once."""
    return [
        policy for policy in storage_policies(strategy) if hasattr(policy, "state_dict")
    ]


def strategy_state(strategy) -> dict[str, Any]:
    """Return the state that training resumes from; see ``StreamStrategy.state_dict``."""
    states = {
        name: part.state_dict()
        for name, part in parts(strategy).items()
        if hasattr(part, "state_dict")
    }
    return {
        "model": _model_state(strategy.model),
        "optimizer": _optimizer_state(strategy.optimizer, strategy.model),
        "clock": {
            name: value
            for name, value in vars(strategy.clock).items()
            if isinstance(value, int)
        },
        "training": {
            "train_epochs": strategy.train_epochs,
            "train_mb_size": strategy.train_mb_size,
            "stopped": strategy._stop_training,
            "begun": strategy.optimized_param_id is not None,
        },
        "seconds": dict(strategy.model.stopwatch.seconds)
        if hasattr(strategy.model, "stopwatch")
        else {},
        "plugins": {name: state for name, state in states.items() if state},
        "buffers": [buffer.state_dict() for buffer in buffers(strategy)],
    }


def load_strategy_state(strategy, state: dict[str, Any], strict: bool = True) -> None:
    """Load what ``strategy_state`` returned; see ``StreamStrategy.load_state_dict``."""
    needed = "model", "optimizer", "clock", "training", "seconds", "plugins", "buffers"
    if not isinstance(state, dict) or (
        missing := [name for name in needed if name not in state]
    ):
        found = (
            f"lacks {', '.join(missing)}"
            if isinstance(state, dict)
            else f"is of type {type(state).__name__}"
        )
        raise StateError(
            f"this is no state of a strategy: it {found}; give what its state_dict() returned"
        )
    live = {
        name: part
        for name, part in parts(strategy).items()
        if hasattr(part, "state_dict")
    }
    expected, saved = (
        {name: part.state_dict() for name, part in live.items()},
        state["plugins"],
    )
    training = state["training"]
    # Check before changing anything.
    if strict and (
        odd := {name for name, own in expected.items() if own} ^ saved.keys()
    ):
        raise StateError(
            f"only one of state and strategy has the plugins {', '.join(sorted(odd))}; build the strategy with the "
            "same plugins, or load with strict=False, which leaves them out"
        )
    for name in saved.keys() & live.keys():
        if saved[name].keys() != expected[name].keys():
            raise StateError(
                f"the state of {name} holds {', '.join(saved[name])}, not {', '.join(expected[name])}; it was written "
                "by another version"
            )
    mine = buffers(strategy)
    if len(mine) != len(state["buffers"]):
        raise StateError(
            f"the state holds {len(state['buffers'])} replay buffers, the strategy has {len(mine)}; build the same one"
        )
    _load_model_state(strategy.model, state["model"])
    _load_optimizer_state(strategy.optimizer, strategy.model, state["optimizer"])
    vars(strategy.clock).update(state["clock"])
    strategy.train_epochs = training["train_epochs"]
    strategy.train_mb_size = training["train_mb_size"]
    strategy._stop_training = training["stopped"]
    # If it were None, Avalanche would reset the optimiser's state at the next
    # experience.
    strategy.optimized_param_id = (
        dict(strategy.model.named_parameters()) if training["begun"] else None
    )
    if hasattr(strategy.model, "stopwatch"):
        strategy.model.stopwatch.seconds.clear()
        strategy.model.stopwatch.seconds.update(state["seconds"])
    for buffer, its_state in zip(mine, state["buffers"]):
        buffer.load_state_dict(its_state)
    for name in saved.keys() & live.keys():
        live[name].load_state_dict(saved[name])


def answer_state(strategy) -> dict[str, Any]:
    """Return what evaluation needs, without optimiser, replay buffer and, where answers draw none, RNG state."""
    live = {
        name: part
        for name, part in parts(strategy).items()
        if hasattr(part, "answer_state")
    }
    states = {name: part.answer_state(strategy) for name, part in live.items()}
    return {
        "model": _model_state(strategy.model),
        "plugins": {name: state for name, state in states.items() if state},
    }


def load_answer_state(strategy, state: dict[str, Any]) -> None:
    """Load what ``answer_state`` of a strategy with the same settings returned."""
    _load_model_state(strategy.model, state["model"])
    live = parts(strategy)
    for name, saved in state["plugins"].items():
        if not hasattr(live.get(name), "load_answer_state"):
            raise StateError(
                f"the state has a part for {name}, which the strategy lacks; build the same strategy"
            )
        live[name].load_answer_state(saved)


def _model_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state dict of a model, without the frozen F of a ``SplitModel``."""
    state = model.state_dict()
    if isinstance(model, SplitModel):
        return {
            name: tensor
            for name, tensor in state.items()
            if not name.startswith(FROZEN)
        }
    return state


def _load_model_state(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    mine = _model_state(model)
    for name in {**mine, **state}:
        given, wanted = (
            tuple(one[name].shape) if name in one else "missing"
            for one in (state, mine)
        )
        if given != wanted:
            raise StateError(
                f"{name} is {given} in the state, but {wanted} in the model: build the same network"
            )
    model.load_state_dict(state, strict=False)  # F is not in it


def _optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> dict[str, Any]:
    """Return the state of an optimiser with the names of its weights, to which Avalanche adds those of F."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    groups = [
        [names.get(id(weight)) for weight in group["params"]]
        for group in optimizer.param_groups
    ]
    if any(None in group for group in groups):
        raise StateError(
            "the optimizer holds weights that are not the model's; build it from model.parameters()"
        )
    return {"weights": groups, **optimizer.state_dict()}


def _load_optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, state: dict[str, Any]
) -> None:
    named, groups = dict(model.named_parameters()), state["weights"]
    missing = [name for group in groups for name in group if name not in named]
    if missing or len(groups) != len(optimizer.param_groups):
        raise StateError(
            f"the optimizer's state has {len(groups)} groups, not {len(optimizer.param_groups)}, or weights that the "
            f"model lacks ({', '.join(missing) or 'none'}); build the same strategy"
        )
    for group, names in zip(optimizer.param_groups, groups):
        group["params"] = [named[name] for name in names]
    optimizer.load_state_dict(
        copy.deepcopy({name: state[name] for name in ("state", "param_groups")})
    )
    for weight, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                # Restore the weight's memory format, which a file does not store.
                values[name] = (
                    torch.empty_like(weight, dtype=value.dtype).copy_(value).detach()
                )
