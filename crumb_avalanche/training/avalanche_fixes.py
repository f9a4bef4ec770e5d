"""Work-arounds for defects of avalanche-lib 0.6, one each, so that its own plugins train a ``SplitModel``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from avalanche.distributed import DistributedHelper
from avalanche.training.plugins import AGEMPlugin, MASPlugin, SynapticIntelligencePlugin
from avalanche.training.utils import ParamData
from torch import Tensor, nn

from crumb_avalanche.models.split_model import SplitModel


def keep_training_mode(strategy) -> None:
    """Put the model back in training mode, which ``RWalkPlugin`` leaves at the start of each step."""
    if not strategy.model.training:
        strategy.model.train()


class _LearningPart:
    """A view of a model for Avalanche's importances: only trainable weights, always in evaluation mode."""

    def __init__(self, model: nn.Module, outputs: Callable[[Tensor], Tensor]):
        self._model = model
        self._outputs = outputs

    def __call__(self, inputs: Tensor) -> Tensor:
        return self._outputs(self._model(inputs))

    def named_parameters(self):
        return [(name, weight) for name, weight in self._model.named_parameters() if weight.requires_grad]

    def modules(self):
        return self._model.modules()

    def train(self, mode: bool = True):
        return self

    eval = train


def values_of(kept: dict[str, ParamData]) -> dict:
    """Return the state of Avalanche's ``ParamData``, which have no ``state_dict``: tensors and device."""
    device = next((one.data.device.type for one in kept.values()), "cpu")
    return {"values": {name: one.data for name, one in kept.items()}, "device": device}


def parameters_of(state: dict) -> dict[str, ParamData]:
    """Rebuild the parameters that ``values_of`` returned; those of four axes in channels-last memory."""
    kept = {}
    for name, value in state["values"].items():
        order = torch.channels_last if value.dim() == 4 else torch.contiguous_format
        value = value.clone(memory_format=order).to(state["device"])
        kept[name] = ParamData(name, init_tensor=value, device=value.device)
    return kept


@contextmanager
def learning_view(strategy, outputs: Callable[[Tensor], Tensor]) -> Iterator[SimpleNamespace]:
    """Yield a stand-in for a strategy, on which Avalanche's plugins measure importances after an experience.

    Defects of ``EWCPlugin`` and ``MASPlugin``: they read ``experience.dataset`` past a feature cache; keep importances
    and copies of all of F; take gradients of batch means, whose squares are not the means over images of both papers
    (here a batch is one image); use outputs of classes not seen yet; and MAS measures in training mode.

    The mode is restored on exit. ``outputs`` is a function of ``(B, classes)`` logits, such as
    ``SeenClassesPlugin.mask``.
    """
    was_training = strategy.model.training
    strategy.model.eval()
    try:
        yield SimpleNamespace(
            model=_LearningPart(strategy.model, outputs),
            optimizer=strategy.optimizer,
            experience=SimpleNamespace(dataset=strategy.adapted_dataset),
            device=strategy.device,
            train_mb_size=1,
            clock=strategy.clock,
            _criterion=strategy._criterion,
        )
    finally:
        strategy.optimizer.zero_grad()
        strategy.model.train(was_training)


class PatchedMAS(MASPlugin):
    """Avalanche's MAS, which also works if a loss is 0.

    Defect: ``before_backward`` raises ``Loss is not available`` if the loss is exactly 0.
    """

    def before_backward(self, strategy, **kwargs):
        if strategy.clock.train_exp_counter == 0:
            return
        for name, weight in strategy.model.named_parameters():
            if name in self.importance:
                shift = weight - self.params[name].data
                strategy.loss = strategy.loss + self._lambda * (self.importance[name].data * shift.pow(2)).sum()

    def state_dict(self) -> dict:
        return {"importance": values_of(self.importance or {}), "params": values_of(self.params or {})}

    def load_state_dict(self, state: dict) -> None:
        self.importance = parameters_of(state["importance"]) or None
        self.params = parameters_of(state["params"]) or None


class PatchedSI(SynapticIntelligencePlugin):
    """Avalanche's SI, patched to equal Zenke et al., "Continual Learning Through Synaptic Intelligence", 2017.

    Defects: on a CPU, the weights it saves are views of the live ones, so every shift is 0; importances may become
    negative, and are limited to 0.001 at any strength; the path integral is over the gradient of loss and penalty
    together (eq. 3: of the loss); a trainable weight without a gradient raises an error.

    Args:
        weight: c of eq. 4, in front of the sum of importance times squared shift.
        damping: xi of eq. 5.
    """

    def __init__(self, weight: float, damping: float):
        super().__init__(si_lambda=2 * weight, eps=damping)  # Avalanche halves it

    @property
    def importances(self) -> dict[str, Tensor]:
        """Omega of eq. 5 by name, each flat."""
        return {name: kept.data for name, kept in self.ewc_data[1].items()}

    @property
    def kept(self) -> list[Tensor]:
        """The tensors that are kept between steps."""
        parts = [*self.ewc_data, *self.syn_data.values()]
        return [kept.data for part in parts for kept in part.values()]

    def before_training_exp(self, strategy, **kwargs):
        super().before_training_exp(strategy, **kwargs)
        _own(self.ewc_data[0])

    def before_training_iteration(self, strategy, **kwargs):
        super().before_training_iteration(strategy, **kwargs)
        _own(self.syn_data["old_theta"])

    @torch.no_grad()
    def after_backward(self, strategy, **kwargs):
        """Keep the gradient of the loss alone, before it is clamped."""
        for name, weight in self.allowed_parameters(strategy.model, self.excluded_parameters):
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            shift = self.syn_data["old_theta"][name].data - self.ewc_data[0][name].data
            penalty = self.si_lambda[0] * self.ewc_data[1][name].data * shift
            self.syn_data["grad"][name].data = gradient.flatten().cpu() - penalty

    @torch.no_grad()
    def after_training_iteration(self, strategy, **kwargs):
        for name, weight in self.allowed_parameters(strategy.model, self.excluded_parameters):
            step = weight.flatten().cpu() - self.syn_data["old_theta"][name].data
            self.syn_data["trajectory"][name].data += self.syn_data["grad"][name].data * step

    def after_training_exp(self, strategy, **kwargs):
        kept = self.ewc_data, self.syn_data
        self.update_ewc_data(strategy.model, *kept, float("inf"), self.excluded_parameters, 1, eps=self.eps)
        for kept in self.ewc_data[1].values():
            kept.data = kept.data.clamp(min=0)
        _own(self.syn_data["new_theta"])

    def state_dict(self) -> dict:
        return {
            "ewc_data": [values_of(kept) for kept in self.ewc_data],
            "syn_data": {name: values_of(kept) for name, kept in self.syn_data.items()},
        }

    def load_state_dict(self, state: dict) -> None:
        self.ewc_data = tuple(parameters_of(values) for values in state["ewc_data"])
        self.syn_data = {name: parameters_of(values) for name, values in state["syn_data"].items()}


def check_strategy(strategy) -> None:
    """Refuse several processes of ``torch.distributed``, growing heads, and Avalanche's ``AGEMPlugin``."""
    if DistributedHelper.world_size > 1:
        raise RuntimeError(
            f"this is one of {DistributedHelper.world_size} processes of torch.distributed; memories, class statistics "
            "and steps on them are not synchronised, so each process would learn another model: train in one process, "
            "without torchrun"
        )
    if isinstance(strategy.model, SplitModel):
        strategy.model.n_classes  # noqa: B018 (raises)
    if any(isinstance(one, AGEMPlugin) for one in strategy.plugins):
        raise ValueError(
            "Avalanche's AGEMPlugin fails on the weights of a SplitModel, which are in channels-last memory; use the "
            "method gem (crumb run --strategy gem), which projects gradients likewise"
        )


def group_frozen_weights(strategy) -> None:
    """Add frozen weights that no group of the optimiser has to the first one, where there are several.

    Defect: Avalanche adds every weight that is in no group, and fails where it cannot tell to which of several.
    """
    groups = strategy.optimizer.param_groups
    if len(groups) == 1:
        return
    known = {id(weight) for group in groups for weight in group["params"]}
    for name, weight in strategy.model.named_parameters():
        if id(weight) in known:
            continue
        if weight.requires_grad:
            raise ValueError(
                f"the optimizer has {len(groups)} groups of weights, and none has {name}: add it to one, or freeze it "
                "with requires_grad_(False)"
            )
        groups[0]["params"].append(weight)


def _own(weights: dict) -> None:
    """Replace views by copies."""
    for kept in weights.values():
        kept.data = kept.data.clone()


@contextmanager
def patched_dill() -> Iterator[None]:
    """Let dill find the classes of ``torch.optim`` by name in the ``with`` block, for ``save_checkpoint``.

    ::

        strategy, done = maybe_load_checkpoint(strategy, "checkpoint.pkl")
        for experience in benchmark.train_stream[done:]:
            strategy.train(experience)
            with patched_dill():
                save_checkpoint(strategy, "checkpoint.pkl")

    Defect: ``torch.optim`` deletes the attributes of its modules, such as ``torch.optim.sgd``, so dill pickles the
    optimiser's class by value, which fails in torch 2.14 and newer: ``PicklingError: Can't pickle sentinel``. Put the
    block around ``maybe_load_checkpoint`` too if you give it ``unique_objects``, which it pickles.
    """
    prefix = f"{torch.optim.__name__}."
    modules = {name.removeprefix(prefix): module for name, module in sys.modules.items() if name.startswith(prefix)}
    missing = {name: module for name, module in modules.items() if "." not in name and not hasattr(torch.optim, name)}
    vars(torch.optim).update(missing)
    try:
        yield
    finally:
        for name in missing:
            delattr(torch.optim, name)
