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
        class_numbers: names of the entries of ``state_dict`` that hold class numbers;
            ``class_numbers_in`` looks for them in no other entries.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    answer_state_names: ClassVar[tuple[str, ...]] = ()
    class_numbers: ClassVar[tuple[str, ...]] = ()

    def _all_state_names(self) -> list[str]:
        """Return what this class and its bases list in both attributes."""
        return _names_listed(self, "state_names", "answer_state_names")

    def _all_answer_state_names(self) -> list[str]:
        """Return what this class and its bases list in ``answer_state_names``."""
        return _names_listed(self, "answer_state_names")

    @property
    def statistics_bytes(self) -> int:
        """Bytes of tensors that are kept besides a replay buffer, for the ledger."""
        state = attributes(self, self._all_state_names())
        return tensor_bytes(tensors_of(state))

    def state_dict(self) -> dict[str, Any]:
        """Return the state, by names of attributes."""
        return self._attribute_states(self._all_state_names())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned."""
        for name in self._all_state_names():
            _load_attribute(self, name, state[name])

    def answer_state(self, strategy) -> dict[str, Any]:
        """Return the part of the state that evaluation needs."""
        return self._attribute_states(self._all_answer_state_names())

    def load_answer_state(self, state: dict[str, Any]) -> None:
        """Load what ``answer_state`` returned; training cannot resume from it."""
        for name in self._all_answer_state_names():
            _load_attribute(self, name, state[name])

    def _attribute_states(self, names: list[str]) -> dict[str, Any]:
        """Return the states of attributes, by name."""
        return {name: _attribute_state(getattr(self, name)) for name in names}


def _names_listed(owner: Any, *attributes_with_names: str) -> list[str]:
    """Return the names that the class of an object and its bases list, its own first.

    Args:
        owner: the object.
        attributes_with_names: class attributes, each a tuple of names.
    """
    names: list[str] = []
    for cls in type(owner).__mro__:
        for attribute in attributes_with_names:
            names += vars(cls).get(attribute, ())
    return names


def _attribute_state(attribute: Any) -> Any:
    """Return the state of a plugin's attribute, as plain values and tensors."""
    if isinstance(attribute, np.random.Generator):
        return attribute.bit_generator.state
    if isinstance(attribute, torch.Tensor):
        return attribute
    if hasattr(attribute, "state_dict"):
        return attribute.state_dict()
    return copy.copy(attribute)


def _load_attribute(plugin: StatefulPlugin, name: str, state: Any) -> None:
    """Load the state of an attribute of a plugin, in place where it can be.

    Args:
        plugin: its attribute is changed.
        name: of the attribute.
        state: what ``_attribute_state`` returned of it: a generator's or an object's
            state dict, a tensor, or a plain value.
    """
    attribute = getattr(plugin, name)
    if isinstance(attribute, np.random.Generator):
        attribute.bit_generator.state = state
    elif isinstance(attribute, torch.Tensor):
        attribute.copy_(state)
    elif hasattr(attribute, "load_state_dict"):
        attribute.load_state_dict(state)
    else:
        setattr(plugin, name, copy.copy(state))


def _plugins_with(method: str, strategy: Any) -> dict[str, Any]:
    """Return the plugins and metrics of a strategy that have a method, by class name.

    The second one of a class has the name ``Class 2``, and so on.

    Args:
        method: name of the method, such as ``state_dict``.
        strategy: an Avalanche strategy.
    """
    metrics = getattr(strategy.evaluator, "metrics", ())
    counts: Counter[str] = Counter()
    by_name = {}
    for plugin in [*strategy.plugins, *metrics]:
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


def class_numbers_in(
    strategy: Any, state: dict[str, Any]
) -> Iterator[tuple[str, list[int]]]:
    """Yield the class numbers in a state of a strategy, entry by entry, with its name.

    Plugins, buffers and selection rules say in ``class_numbers`` which of their entries
    hold such. An entry of the same name of another class may hold anything.

    Args:
        strategy: built from the settings of the one that the state is of.
        state: what ``strategy_state`` returned, of as many buffers.
    """
    plugins = _plugins_with("state_dict", strategy)
    for name in state["plugins"].keys() & plugins.keys():
        yield from _class_numbers_of(plugins[name], state["plugins"][name])
    for policy, policy_state in zip(buffers(strategy), state["buffers"]):
        yield from _class_numbers_of(policy, policy_state)
        rule = getattr(policy, "rule", None)  # storage policies of a user have none
        if rule is None:
            continue
        yield from _class_numbers_of(rule, policy_state["rule"])
        if rule.groups_are_classes:
            yield "by_class", list(policy_state["by_class"])


def _class_numbers_of(
    owner: Any, state: dict[str, Any]
) -> Iterator[tuple[str, list[int]]]:
    """Yield the class numbers in the state of a plugin, a buffer or a selection rule.

    They are each value of a tensor or a list, and each key of a dictionary. A subclass
    may keep something else by that name, which is passed over.

    Args:
        owner: whose state it is; its class and the bases say which entries.
        state: what its ``state_dict`` returned.
    """
    for name in _names_listed(owner, "class_numbers"):
        entry = state.get(name)
        if isinstance(entry, torch.Tensor | np.ndarray):
            yield name, entry.reshape(-1).tolist()
        elif isinstance(entry, list | dict):
            yield name, list(entry)


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
    """Return the state that training resumes from, as plain values and tensors.

    It holds what training changes; tensors are not copied.

    Args:
        strategy: an Avalanche strategy, between two steps.

    Returns:
        ``model`` and ``optimizer``, counts of the ``clock``, how far ``training`` is,
        ``seconds`` of the parts of the model, and the states of ``plugins`` and
        ``buffers``.
    """
    clock_counts = {}  # of experiences, epochs and iterations
    for name, value in vars(strategy.clock).items():
        if isinstance(value, int):
            clock_counts[name] = value
    stopwatch_seconds = {}
    if hasattr(strategy.model, "stopwatch"):
        stopwatch_seconds = dict(strategy.model.stopwatch.seconds)
    training = {
        "train_epochs": strategy.train_epochs,
        "train_mb_size": strategy.train_mb_size,
        "stopped": strategy._stop_training,
        # Avalanche sets these ids when the first experience begins.
        "begun": strategy.optimized_param_id is not None,
    }
    return {
        "model": _model_state(strategy.model),
        "optimizer": _optimizer_state(strategy.optimizer, strategy.model),
        "clock": clock_counts,
        "training": training,
        "seconds": stopwatch_seconds,
        "plugins": _plugin_states(strategy),
        "buffers": [buffer.state_dict() for buffer in buffers(strategy)],
    }


def _plugin_states(strategy: Any) -> dict[str, dict[str, Any]]:
    """Return the states of plugins and metrics by class name, but for empty ones."""
    plugin_states = {}
    for name, plugin in _plugins_with("state_dict", strategy).items():
        plugin_state = plugin.state_dict()
        if plugin_state:
            plugin_states[name] = plugin_state
    return plugin_states


def load_strategy_state(
    strategy: Any, state: dict[str, Any], strict: bool = True
) -> None:
    """Load a state that training resumes from, as ``strategy_state`` returned it.

    Names and shapes of weights, the optimizer's groups, plugins and buffers are
    compared before anything is changed.

    Args:
        strategy: built from the settings of the one that the state is of; changed.
        state: its parts by name, those of ``STATE_PARTS``: model, optimizer and so on.
        strict: whether the plugins that have a state must be the same.

    Raises:
        StateError: a part of the state does not fit the strategy.
    """
    _check_is_state(state)
    plugins = _plugins_with("state_dict", strategy)
    plugin_states = state["plugins"]
    _check_plugin_states(plugin_states, plugins, strict)
    policies = buffers(strategy)
    _check_buffer_states(state["buffers"], policies)
    _check_model_state(strategy.model, state["model"])
    _check_optimizer_state(strategy.optimizer, strategy.model, state["optimizer"])

    strategy.model.load_state_dict(state["model"], strict=False)  # without F
    _load_optimizer_state(strategy.optimizer, strategy.model, state["optimizer"])
    vars(strategy.clock).update(state["clock"])
    _load_training(strategy, state["training"])
    if hasattr(strategy.model, "stopwatch"):
        strategy.model.stopwatch.seconds.clear()
        strategy.model.stopwatch.seconds.update(state["seconds"])
    for policy, policy_state in zip(policies, state["buffers"]):
        policy.load_state_dict(policy_state)
    for name in plugin_states.keys() & plugins.keys():
        plugins[name].load_state_dict(plugin_states[name])


def _load_training(strategy: Any, training: dict[str, Any]) -> None:
    """Set a strategy's epochs, size of batches, and whether it began and was stopped.

    Args:
        strategy: an Avalanche strategy, which is changed.
        training: the part ``training`` of what ``strategy_state`` returned.
    """
    strategy.train_epochs = training["train_epochs"]
    strategy.train_mb_size = training["train_mb_size"]
    strategy._stop_training = training["stopped"]
    # If it were None, Avalanche would reset the optimiser's state at the next
    # experience.
    strategy.optimized_param_id = None
    if training["begun"]:
        strategy.optimized_param_id = dict(strategy.model.named_parameters())


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


def _check_plugin_states(
    saved: dict[str, dict], plugins: dict[str, Any], strict: bool
) -> None:
    """Raise StateError unless saved states are those of a strategy's plugins.

    Args:
        saved: states by class name of the plugin.
        plugins: plugins of the strategy by class name.
        strict: whether all plugins with a state must be on both sides.
    """
    expected = {name: plugin.state_dict() for name, plugin in plugins.items()}
    with_state = {name for name, state in expected.items() if state}
    one_sided = with_state ^ saved.keys()  # in the strategy or in the state alone
    if strict and one_sided:
        raise StateError(
            "only one of state and strategy has the plugins "
            f"{', '.join(sorted(one_sided))}; build the strategy with the same "
            "plugins, or load with strict=False, which leaves them out"
        )
    for name in saved.keys() & plugins.keys():
        if saved[name].keys() != expected[name].keys():
            raise StateError(
                f"the state of {name} holds {', '.join(saved[name])}, not "
                f"{', '.join(expected[name])}; it was written by another version"
            )


def _check_buffer_states(saved: list[dict[str, Any]], policies: list[Any]) -> None:
    """Raise StateError unless saved states are those of a strategy's buffers.

    Args:
        saved: states of the buffers, in order.
        policies: storage policies of the strategy that have a state.
    """
    if len(policies) != len(saved):
        raise StateError(
            f"the state holds {len(saved)} replay buffers, the strategy has "
            f"{len(policies)}; build the same one"
        )
    for policy, policy_state in zip(policies, saved):
        if hasattr(policy, "check_state"):  # storage policies of a user may lack it
            policy.check_state(policy_state)


def answer_state(strategy: Any) -> dict[str, Any]:
    """Return what evaluation needs, which a run leaves as its learner.

    That is the weights that training changes, and the answer states of the plugins:
    neither optimiser nor replay buffer, and RNG states only of plugins whose answers
    are drawn at random.
    """
    plugin_states = {}
    for name, plugin in _plugins_with("answer_state", strategy).items():
        plugin_state = plugin.answer_state(strategy)
        if plugin_state:
            plugin_states[name] = plugin_state
    return {"model": _model_state(strategy.model), "plugins": plugin_states}


def load_answer_state(strategy: Any, state: dict[str, Any]) -> None:
    """Load what evaluation needs, as ``answer_state`` of a like strategy returned it.

    Args:
        strategy: with the same settings; its model and plugins are changed.
        state: the weights of the model by name, and the states of plugins by the names
            of their classes.

    Raises:
        StateError: the state is of a plugin that the strategy lacks, or of another
            network.
    """
    _check_model_state(strategy.model, state["model"])
    strategy.model.load_state_dict(state["model"], strict=False)  # without F
    plugins = _plugins_with("load_answer_state", strategy)
    for name, plugin_state in state["plugins"].items():
        if name not in plugins:
            raise StateError(
                f"the state has a part for {name}, which the strategy lacks; build the "
                "same strategy"
            )
        plugins[name].load_answer_state(plugin_state)


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


def _check_model_state(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Raise StateError if a weight is missing, or has another shape in the model.

    Args:
        model: its weights are compared.
        state: what ``_model_state`` returned: all weights but those of the feature
            extractor, by name.
    """
    expected = _model_state(model)
    for name in {**expected, **state}:
        shape = _shape_text(state, name)
        expected_shape = _shape_text(expected, name)
        if shape != expected_shape:
            raise StateError(
                f"{name} is {shape} in the state, but {expected_shape} in the model: "
                "build the same network"
            )


def _shape_text(tensors: dict[str, torch.Tensor], name: str) -> str:
    """Return the shape of a named weight as text; ``missing`` without it."""
    return str(tuple(tensors[name].shape)) if name in tensors else "missing"


def _optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> dict[str, Any]:
    """Return the state dict of an optimiser, and the names of its weights.

    Names tell the weights of each parameter group, which torch's state dict does not:
    Avalanche adds frozen ones to them.

    Args:
        optimizer: of weights of the model.
        model: has the names.

    Returns:
        torch's state dict, and ``weights``: a list of names for each group.
    """
    names = {id(weight): name for name, weight in model.named_parameters()}
    names_of_groups = []
    for group in optimizer.param_groups:
        names_of_group = [names.get(id(weight)) for weight in group["params"]]
        if None in names_of_group:
            raise StateError(
                "the optimizer holds weights that are not the model's; build it from "
                "model.parameters()"
            )
        names_of_groups.append(names_of_group)
    return {"weights": names_of_groups, **optimizer.state_dict()}


def _check_optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, state: dict[str, Any]
) -> None:
    """Raise StateError for other groups, or for weights that the model lacks.

    Args:
        optimizer: its groups are counted.
        model: has the weights.
        state: what ``_optimizer_state`` returned.
    """
    weights = dict(model.named_parameters())
    names_of_groups: list[list[str]] = state["weights"]
    missing: list[str] = []
    for names in names_of_groups:
        missing += [name for name in names if name not in weights]
    if missing or len(names_of_groups) != len(optimizer.param_groups):
        raise StateError(
            f"the optimizer's state has {len(names_of_groups)} groups, not "
            f"{len(optimizer.param_groups)}, or weights that the model lacks "
            f"({', '.join(missing) or 'none'}); build the same strategy"
        )


def _load_optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, state: dict[str, Any]
) -> None:
    """Load the state of an optimizer whose weights are listed by name.

    Each parameter group gets the weights that it had, those that Avalanche added too,
    so that torch finds the state of each.

    Args:
        optimizer: its groups and its state are replaced.
        model: has the weights.
        state: torch's state dict, and ``weights``: a list of names for each group; as
            ``_check_optimizer_state`` checks it.
    """
    weights = dict(model.named_parameters())
    for group, names in zip(optimizer.param_groups, state["weights"]):
        group["params"] = [weights[name] for name in names]
    torch_state = selected(state, ("state", "param_groups"))
    # A copy: torch would go on with the tensors of the state itself.
    optimizer.load_state_dict(copy.deepcopy(torch_state))
    for weight, state_of_weight in optimizer.state.items():
        for name, value in state_of_weight.items():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                # Restore the weight's memory format, which a file does not store.
                formatted = torch.empty_like(weight, dtype=value.dtype)
                state_of_weight[name] = formatted.copy_(value).detach()
