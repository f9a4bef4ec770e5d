"""What the registry knows of a strategy, and what a strategy is built from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from crumb_avalanche.baselines.method_settings import LearningSettings, NoSettings, method_settings
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.tensor_bytes import tensor_bytes
from crumb_avalanche.training.storage_policies import CompactBuffer
from crumb_avalanche.training.stream_strategy import StreamStrategy


@dataclass(frozen=True)
class Recipe:
    """All that a strategy is built from.

    Attributes:
        model: the split model, on its device; with a codebook where the entry says so.
        settings: what all strategies know.
        method: the method's own settings, of the entry's type.
        mem_size: memories that the budget buys; 0 for a method that stores none.
        n_classes: classes of the whole stream, for statistics of a fixed size.
        seed: of all random draws of the method.
        device: as for every Avalanche strategy.
        host: ``plugins``, ``evaluator`` and so on, for Avalanche.
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
        """SGD over all weights that learn, with the settings' rate, momentum and decay, or others."""
        arguments = dict(
            lr=self.settings.learning_rate,
            momentum=self.settings.momentum,
            weight_decay=self.settings.weight_decay,
        )
        learning = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return torch.optim.SGD(learning, **{**arguments, **changes})

    def common(self, *plugins: object) -> dict:
        """Arguments of ``StreamStrategy`` that all methods share; a method's plugins come after the host's."""
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
        name: what it is called on the command line.
        summary: one line for the list: what it does.
        source: who proposed it, where and when.
        stores: what it keeps besides the network, in words.
        build: makes it.
        method: type of its own settings, a frozen dataclass whose defaults are the values of the paper's authors.
        buffer: what it stores its memories in; ``None`` if it stores none, or in something of its own.
        item_bytes: bytes of one memory, of a model and the method's settings; default the buffer's.
        fixed_bytes: bytes kept whatever is stored (codebooks, class statistics), of model, settings and number of
            classes. They are taken from the budget before memories are counted.
        round_up: whether a last memory is granted if three quarters of it fit (CRUMB; gives the paper's 417).
        codebook: whether its model has a codebook.
        joint: whether it is trained on all classes at once, shuffled (a bound, no stream learner).
        each_class: whether its buffer must have room for a memory of each class.
        scores_answer: whether its answers are scores of which no probability follows, such as distances; its learning
            rate is then tuned by the loss of its head.
        tuning: own settings that are other ones while the learning rate is tuned, to save time.
        gradient: whether it learns by gradient steps, so that a learning rate matters.
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
        """Bytes of one memory, its label left out."""
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
        """How many memories a budget buys (supplement, S5): what is left after the fixed bytes, by the bytes of one.

        Args:
            model: built for the method.
            budget_bytes: for all.
            n_classes: of the whole stream.
            method: the method's own settings.
            charged: whether the fixed bytes are taken from the budget.
            exact: CRUMB's codebook counts the four bytes a value that it really takes, and nothing is granted on top.

        Raises:
            ValueError: not even one memory fits.
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
        """The method's own settings, with some values changed; see ``method_settings``."""
        return method_settings(self.name, changes)
