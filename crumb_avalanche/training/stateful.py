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
from crumb_avalanche.system.named_values import attributes, selected
from crumb_avalanche.system.tensor_file import tensor_bytes, tensors_of
from crumb_avalanche.system.value_types import StateError

FROZEN = "feature_extractor."


class StatefulPlugin(SupervisedPlugin):
    """Base class of plugins whose attributes are saved in checkpoints and learners.

    A subclass lists the names of its own; those of base classes are added.

    Attributes:
        state_names: attributes that training resumes from, besides a replay buffer in
            ``storage_policy``: values, lists, tensors, NumPy generators, and objects
            with a state of their own.
        answer_state_names: attributes that evaluation needs, too, besides the model and
            the classes seen.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    answer_state_names: ClassVar[tuple[str, ...]] = ()

    def _all_state_names(self) -> list[str]:
        """Return what this class and its bases list in both attributes."""
        names: list[str] = []
        for cls in type(self).__mro__:
            names += vars(cls).get("state_names", ())
            names += vars(cls).get("answer_state_names", ())
        return names

    def _all_answer_state_names(self) -> list[str]:
        """Return what this class and its bases list in ``answer_state_names``."""
        names: list[str] = []
        for cls in type(self).__mro__:
            names += vars(cls).get("answer_state_names", ())
        return names

    @property
    def statistics_bytes(self) -> int:
        """Bytes of tensors that are kept besides a replay buffer, for the ledger."""
        state = attributes(self, self._all_state_names())
        return tensor_bytes(tensors_of(state))

    def state_dict(self) -> dict[str, Any]:
        """Return the state, by names of attributes without leading underscore."""
        return self._states_of(self._all_state_names())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned."""
        for name in self._all_state_names():
            _load(self, name, state[name.lstrip("_")])

    def answer_state(self, strategy) -> dict[str, Any]:
        """Return the part of the state that evaluation needs."""
        return self._states_of(self._all_answer_state_names())

    def load_answer_state(self, state: dict[str, Any]) -> None:
        """Load what ``answer_state`` returned; training cannot resume from it."""
        for name in self._all_answer_state_names():
            _load(self, name, state[name.lstrip("_")])

    def _states_of(self, names: list[str]) -> dict[str, Any]:
        return {name.lstrip("_"): _state_of(getattr(self, name)) for name in names}


def _state_of(value: Any) -> Any:
    """Return the state of an attribute: plain values and tensors."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, torch.Tensor):
        return value
    return value.state_dict() if hasattr(value, "state_dict") else copy.copy(value)


def _load(plugin: StatefulPlugin, name: str, state: Any) -> None:
    """Load what ``_state_of`` returned into an attribute, in place where it can be."""
    value = getattr(plugin, name)
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, torch.Tensor):
        value.copy_(state)
    elif hasattr(value, "load_state_dict"):
        value.load_state_dict(state)
    else:
        setattr(plugin, name, copy.copy(state))


def _plugins_with(strategy: Any, method: str) -> dict[str, Any]:
    """Return the strategy's plugins and metrics that have a method, by class name.

    A second one of a class is ``Name 2``.
    """
    counts: Counter[str] = Counter()
    by_name = {}
    for plugin in [*strategy.plugins, *getattr(strategy.evaluator, "metrics", ())]:
        class_name = type(plugin).__name__
        counts[class_name] += 1
        name = class_name
        if counts[class_name] > 1:
            name = f"{class_name} {counts[class_name]}"
        if hasattr(plugin, method):
            by_name[name] = plugin
    return by_name


def storage_policies(strategy: Any) -> Iterator[Any]:
    """Yield the storage policies of the strategy and its plugins, each once."""
    yielded = set()
    for owner in (strategy, *strategy.plugins):
        policy = getattr(owner, "storage_policy", None)
        if policy is not None and id(policy) not in yielded:
            yielded.add(id(policy))
            yield policy


def buffers(strategy: Any) -> list[Any]:
    """Return the storage policies that have a state, each once."""
    policies = []
    for policy in storage_policies(strategy):
        if hasattr(policy, "state_dict"):
            policies.append(policy)
    return policies


STATE_PARTS = (
    "model",
    "optimizer",
    "clock",
    "training",
    "seconds",
    "plugins",
    "buffers",
)


def strategy_state(strategy: Any) -> dict[str, Any]:
    """Return the state that training resumes from.

    See ``StreamStrategy.state_dict``.
    """
    plugin_states = {}
    for name, plugin in _plugins_with(strategy, "state_dict").items():
        plugin_state = plugin.state_dict()
        if plugin_state:
            plugin_states[name] = plugin_state
    clock = {}
    for name, value in vars(strategy.clock).items():
        if isinstance(value, int):
            clock[name] = value
    seconds = {}
    if hasattr(strategy.model, "stopwatch"):
        seconds = dict(strategy.model.stopwatch.seconds)
    return {
        "model": _model_state(strategy.model),
        "optimizer": _optimizer_state(strategy.optimizer, strategy.model),
        "clock": clock,
        "training": {
            "train_epochs": strategy.train_epochs,
            "train_mb_size": strategy.train_mb_size,
            "stopped": strategy._stop_training,
            "begun": strategy.optimized_param_id is not None,
        },
        "seconds": seconds,
        "plugins": plugin_states,
        "buffers": [buffer.state_dict() for buffer in buffers(strategy)],
    }


def load_strategy_state(
    strategy: Any, state: dict[str, Any], strict: bool = True
) -> None:
    """Load what ``strategy_state`` returned; see ``StreamStrategy.load_state_dict``."""
    # Check before changing anything.
    _check_is_state(state)
    live = _plugins_with(strategy, "state_dict")
    saved = state["plugins"]
    _check_plugins(live, saved, strict)
    policies = buffers(strategy)
    if len(policies) != len(state["buffers"]):
        raise StateError(
            f"the state holds {len(state['buffers'])} replay buffers, the strategy has "
            f"{len(policies)}; build the same one"
        )

    _load_model_state(strategy.model, state["model"])
    _load_optimizer_state(strategy.optimizer, strategy.model, state["optimizer"])
    vars(strategy.clock).update(state["clock"])
    training = state["training"]
    strategy.train_epochs = training["train_epochs"]
    strategy.train_mb_size = training["train_mb_size"]
    strategy._stop_training = training["stopped"]
    # If it were None, Avalanche would reset the optimiser's state at the next
    # experience.
    strategy.optimized_param_id = None
    if training["begun"]:
        strategy.optimized_param_id = dict(strategy.model.named_parameters())
    if hasattr(strategy.model, "stopwatch"):
        strategy.model.stopwatch.seconds.clear()
        strategy.model.stopwatch.seconds.update(state["seconds"])
    for policy, policy_state in zip(policies, state["buffers"]):
        policy.load_state_dict(policy_state)
    for name in saved.keys() & live.keys():
        live[name].load_state_dict(saved[name])


def _check_is_state(state: Any) -> None:
    """Raise StateError for what ``strategy_state`` cannot have returned."""
    problem = f"is of type {type(state).__name__}"
    if isinstance(state, dict):
        missing = [name for name in STATE_PARTS if name not in state]
        if not missing:
            return
        problem = f"lacks {', '.join(missing)}"
    raise StateError(
        f"this is no state of a strategy: it {problem}; give what its state_dict() "
        "returned"
    )


def _check_plugins(live: dict[str, Any], saved: dict[str, dict], strict: bool) -> None:
    """Raise StateError unless saved states are of the strategy's parts."""
    expected = {name: plugin.state_dict() for name, plugin in live.items()}
    with_state = {name for name, state in expected.items() if state}
    one_sided = with_state ^ saved.keys()
    if strict and one_sided:
        raise StateError(
            "only one of state and strategy has the plugins "
            f"{', '.join(sorted(one_sided))}; build the strategy with the same "
            "plugins, or load with strict=False, which leaves them out"
        )
    for name in saved.keys() & live.keys():
        if saved[name].keys() != expected[name].keys():
            raise StateError(
                f"the state of {name} holds {', '.join(saved[name])}, not "
                f"{', '.join(expected[name])}; it was written by another version"
            )


def answer_state(strategy: Any) -> dict[str, Any]:
    """Return what evaluation needs, which a run leaves as its learner.

    It lacks optimiser, replay buffer and, where answers draw none, RNG state.
    """
    plugin_states = {}
    for name, plugin in _plugins_with(strategy, "answer_state").items():
        plugin_state = plugin.answer_state(strategy)
        if plugin_state:
            plugin_states[name] = plugin_state
    return {"model": _model_state(strategy.model), "plugins": plugin_states}


def load_answer_state(strategy: Any, state: dict[str, Any]) -> None:
    """Load what ``answer_state`` of a strategy with the same settings returned."""
    _load_model_state(strategy.model, state["model"])
    live = _plugins_with(strategy, "load_answer_state")
    for name, saved in state["plugins"].items():
        if name not in live:
            raise StateError(
                f"the state has a part for {name}, which the strategy lacks; build the "
                "same strategy"
            )
        live[name].load_answer_state(saved)


def _model_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state dict of a model, without the frozen F of a ``SplitModel``."""
    state = model.state_dict()
    if not isinstance(model, SplitModel):
        return state
    trained = {}
    for name, tensor in state.items():
        if not name.startswith(FROZEN):
            trained[name] = tensor
    return trained


def _load_model_state(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    expected = _model_state(model)
    for name in {**expected, **state}:
        shape = _shape_of(state, name)
        expected_shape = _shape_of(expected, name)
        if shape != expected_shape:
            raise StateError(
                f"{name} is {shape} in the state, but {expected_shape} in the model: "
                "build the same network"
            )
    model.load_state_dict(state, strict=False)  # F is not in it


def _shape_of(tensors: dict[str, torch.Tensor], name: str) -> str:
    return str(tuple(tensors[name].shape)) if name in tensors else "missing"


def _optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> dict[str, Any]:
    """Return the state of an optimiser with the names of its weights.

    Avalanche adds those of F to it.
    """
    names = {id(weight): name for name, weight in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        named = [names.get(id(weight)) for weight in group["params"]]
        if None in named:
            raise StateError(
                "the optimizer holds weights that are not the model's; build it from "
                "model.parameters()"
            )
        groups.append(named)
    return {"weights": groups, **optimizer.state_dict()}


def _load_optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, state: dict[str, Any]
) -> None:
    """Load the state of an optimizer whose weights are listed by name.

    Raises:
        StateError: it has other groups, or weights that the model lacks.
    """
    weights = dict(model.named_parameters())
    groups = state["weights"]
    missing: list[str] = []
    for group in groups:
        missing += [name for name in group if name not in weights]
    if missing or len(groups) != len(optimizer.param_groups):
        raise StateError(
            f"the optimizer's state has {len(groups)} groups, not "
            f"{len(optimizer.param_groups)}, or weights that the model lacks "
            f"({', '.join(missing) or 'none'}); build the same strategy"
        )
    for group, names in zip(optimizer.param_groups, groups):
        group["params"] = [weights[name] for name in names]
    state_of_torch = selected(state, ("state", "param_groups"))
    optimizer.load_state_dict(copy.deepcopy(state_of_torch))
    for weight, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                # Restore the weight's memory format, which a file does not store.
                formatted = torch.empty_like(weight, dtype=value.dtype)
                values[name] = formatted.copy_(value).detach()
