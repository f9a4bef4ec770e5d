"""Registry entries of strategies, and the arguments that a strategy is built from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from crumb_avalanche.methods.method_settings import LearningSettings, NoSettings, method_settings
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.tensor_bytes import tensor_bytes
from crumb_avalanche.training.storage_policies import CompactBuffer
from crumb_avalanche.training.stream_strategy import StreamStrategy


@dataclass(frozen=True)
class Recipe:
    """Arguments that a strategy is built from.

    Attributes:
        model: the split model, on its device; with a codebook if ``Entry.codebook``.
        settings: settings that all strategies share.
        method: settings of the method, of type ``Entry.method``.
        mem_size: number of memories that the budget buys; 0 for a method that stores none.
        n_classes: number of classes of the whole stream, for statistics of a fixed size.
        seed: seed of the method's random draws.
        device: device of the strategy, as in Avalanche.
        host: keyword arguments for Avalanche, such as ``plugins`` and ``evaluator``.
    """

    model: SplitModel
    settings: LearningSettings
    method: Any
    mem_size: int
    n_classes: int
    seed: int
    device: str
    host: dict

    def optimizer(self, **changes: float) -> torch.optim.SGD:
        """Build SGD over all trainable weights, with the settings' rate, momentum and decay except for ``changes``."""
        arguments = dict(
            lr=self.settings.learning_rate,
            momentum=self.settings.momentum,
            weight_decay=self.settings.weight_decay,
        )
        learning = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return torch.optim.SGD(learning, **{**arguments, **changes})

    def common(self, *plugins: object) -> dict:
        """Return the arguments of ``StreamStrategy`` that all methods share, with ``plugins`` after the host's."""
        host = dict(self.host)
        return dict(
            model=self.model,
            clamp_gradients=self.settings.clamp_gradients,
            first_epochs=self.settings.first_epochs,
            train_epochs=self.settings.epochs,
            train_mb_size=self.settings.batch_size,
            eval_mb_size=self.settings.eval_batch_size,
            device=self.device,
            plugins=[*host.pop("plugins", ()), *plugins],
            **host,
        )


@dataclass(frozen=True)
class Entry:
    """One strategy of the registry.

    Attributes:
        name: name on the command line.
        summary: description in one line.
        source: publication of the method.
        stores: description of what it stores besides the network.
        build: function that builds the strategy.
        method: type of the method's settings, a frozen dataclass whose defaults are the values of the paper's authors.
        buffer: type of its replay buffer; ``None`` if it stores no memories or uses a storage of its own.
        item_bytes: function of model and method settings that returns the bytes of one memory; default the buffer's.
        fixed_bytes: function of model, method settings and number of classes that returns the bytes that do not depend
            on the number of memories (codebooks, class statistics). They are charged to the budget first.
        fit: function of model, method settings, number of classes and budget in bytes (``None`` if the number of
            memories is given) that returns the settings with which the budget is used best.
        round_up: whether the number of memories is rounded up if three quarters of a last one fit (CRUMB; gives the
            paper's 417).
        codebook: whether its model has a codebook.
        joint: whether it trains on all classes at once, shuffled (a bound instead of a stream learner).
        each_class: whether it needs a memory of each class.
        scores_answer: whether it predicts by scores that are not logits, such as distances. The loss of its head then
            decides the learning rate.
        tuning: method settings to change while the learning rate is tuned, to save time.
        gradient: whether it takes gradient steps, and needs a learning rate.
    """

    name: str
    summary: str
    source: str
    stores: str
    build: Callable[[Recipe], StreamStrategy]
    method: type = NoSettings
    buffer: type[CompactBuffer] | None = None
    item_bytes: Callable[[SplitModel, Any], int] | None = None
    fixed_bytes: Callable[[SplitModel, Any, int], int] = field(default=lambda model, method, n_classes: 0)
    fit: Callable[[SplitModel, Any, int, int | None], Any] = field(
        default=lambda model, method, n_classes, budget: method
    )
    round_up: bool = False
    codebook: bool = False
    joint: bool = False
    gradient: bool = True
    each_class: bool = False
    scores_answer: bool = False
    tuning: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def budgeted(self) -> bool:
        """Whether the budget decides how many memories there are."""
        return self.buffer is not None or self.item_bytes is not None

    def bytes_of_item(self, model: SplitModel, method: Any) -> int:
        """Return the bytes of one memory without its label."""
        return self.buffer.item_bytes(model) if self.item_bytes is None else self.item_bytes(model, method)

    def memories_in_budget(
        self,
        model: SplitModel,
        budget_bytes: int,
        n_classes: int,
        method: Any = None,
        charged: bool = True,
        exact: bool = False,
    ) -> int:
        """Compute how many memories a budget buys (supplement, S5): the rest after the fixed bytes by those of one.

        Args:
            model: model of the method.
            budget_bytes: the whole budget.
            n_classes: number of classes of the whole stream.
            method: settings of the method; default its defaults.
            charged: whether to subtract the fixed bytes from the budget.
            exact: whether to charge CRUMB's codebook with its four bytes per value, and never to round up.

        Raises:
            ValueError: the budget is too small for one memory.
        """
        if not self.budgeted:
            return 0
        method = self.method() if method is None else method
        fixed = self.fixed_bytes(model, method, n_classes) if charged else 0
        if self.codebook and exact:
            fixed = tensor_bytes([model.codebook.blocks])
        item = self.bytes_of_item(model, method)
        count = (budget_bytes - fixed + (item // 4 if self.round_up and not exact else 0)) // item
        if count < 1:
            raise ValueError(
                f"a budget of {budget_bytes} bytes holds no memory of {item} bytes"
                f"{f' beside fixed {fixed} bytes (codebooks, statistics)' if fixed else ''}; raise --budget-images or "
                "--budget-bytes"
            )
        return count

    def method_settings(self, changes: dict[str, Any] | None = None) -> Any:
        """Return the method's settings with some values changed; see ``method_settings``."""
        return method_settings(self.name, changes)
