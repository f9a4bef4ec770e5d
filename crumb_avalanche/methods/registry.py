"""All methods by name, with their settings, their bytes and what builds them.

A method registers itself in its own file with ``register``. The names are read from the
text of this folder's files; torch and Avalanche are imported when a method is looked
up, and only its own file.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crumb_avalanche.methods.look_shares import WHOLE_IMAGE, check_looks
from crumb_avalanche.system import setting_ranges as ranges
from crumb_avalanche.system.named_values import field_names
from crumb_avalanche.training.replay_settings import Replay

if TYPE_CHECKING:
    import torch

    from crumb_avalanche.memory.buffers import MemoryBuffer
    from crumb_avalanche.methods.closed_form import ClosedForm
    from crumb_avalanche.models.split_model import SplitModel
    from crumb_avalanche.training.stream_strategy import StreamStrategy


@dataclass(frozen=True)
class LearningSettings(Replay):
    """Settings that all strategies share, with those of ``Replay``.

    Attributes:
        learning_rate, momentum, weight_decay: arguments of SGD over all trainable
            weights, codebook included.
        batch_size, eval_batch_size, first_epochs, epochs, clamp_gradients: see
            ``StreamStrategy``.
    """

    learning_rate: ranges.Rate = 1e-3
    momentum: ranges.Share = 0.9
    weight_decay: ranges.Decay = 1e-4
    batch_size: ranges.Count = 21
    eval_batch_size: ranges.Count = 128
    first_epochs: ranges.Epochs = 10
    epochs: ranges.Epochs = 1
    clamp_gradients: ranges.NotNegative | None = None

    @property
    def replay(self) -> dict[str, Any]:
        """Arguments of ``CRUMBPlugin`` for the replay of its memories."""
        arguments = {}
        for setting in fields(Replay):
            if setting.name != "selection_rule":
                arguments[setting.name] = getattr(self, setting.name)
        return arguments


# Settings that decide keyword arguments of Avalanche's strategies.
SETTING_OF_HOST_KEYWORD = {
    "train_mb_size": "batch_size",
    "eval_mb_size": "eval_batch_size",
    "train_epochs": "epochs",
    "optimizer": "learning_rate",
}


@dataclass(frozen=True)
class NoSettings(ranges.InRange):
    """Settings of a method that has none."""


@dataclass(frozen=True)
class FormSettings(ranges.InRange):
    """Base of the settings of closed forms, which have the text ``looks``."""

    def __post_init__(self) -> None:
        looks = vars(self)["looks"]
        if isinstance(looks, int | float):  # of ``--method.looks 0.6``
            object.__setattr__(self, "looks", f"{looks:g}")
        super().__post_init__()
        check_looks(vars(self)["looks"])


@dataclass(frozen=True)
class Recipe:
    """What a strategy is built from.

    Attributes:
        model: the split model, on its device; with a codebook if ``Entry.codebook``.
        settings: settings that all strategies share.
        method: settings of the method, of type ``Entry.settings``.
        mem_size: memories that the budget buys; 0 for a method that stores none.
        n_classes: classes of the whole stream.
        host: keyword arguments for Avalanche, such as ``plugins`` and ``evaluator``.
    """

    model: "SplitModel"
    settings: LearningSettings
    method: Any
    mem_size: int
    n_classes: int
    seed: int
    device: str
    host: dict

    def optimizer(self, **changes: float) -> "torch.optim.SGD":
        """Build SGD over all trainable weights.

        Args:
            changes: arguments of SGD that differ from the settings' rate, momentum and
                decay.
        """
        import torch

        from crumb_avalanche.models.layers import trainable

        arguments = {
            "lr": self.settings.learning_rate,
            "momentum": self.settings.momentum,
            "weight_decay": self.settings.weight_decay,
            **changes,
        }
        return torch.optim.SGD(trainable(self.model).values(), **arguments)

    def common(self, *plugins: object) -> dict:
        """Return the arguments of ``StreamStrategy`` that all methods share, by name.

        They are those of the run, and what the caller of ``build_strategy`` gives
        Avalanche, the host.

        Args:
            plugins: those of the method, which come after the host's.
        """
        host_arguments = dict(self.host)
        host_plugins = host_arguments.pop("plugins", ())
        return dict(
            model=self.model,
            clamp_gradients=self.settings.clamp_gradients,
            first_epochs=self.settings.first_epochs,
            train_epochs=self.settings.epochs,
            train_mb_size=self.settings.batch_size,
            eval_mb_size=self.settings.eval_batch_size,
            device=self.device,
            plugins=[*host_plugins, *plugins],
            **host_arguments,
        )


@dataclass(frozen=True)
class Entry:
    """One method.

    Attributes:
        name: name on the command line.
        summary: description in one line.
        source: publication of the method.
        stores: description of what it stores besides the network.
        build: function that builds the strategy.
        settings: type of the method's settings, a frozen dataclass whose defaults are
            the values of its authors.
        buffer: type of its replay buffer; ``None`` if it stores no memories or uses a
            storage of its own.
        item_bytes: bytes of one memory, from model and settings of the method; default
            the buffer's.
        fixed_bytes: bytes that are charged to the budget before any memory (codebooks,
            class statistics), from model, settings of the method and number of classes.
        round_up: whether the number of memories is rounded up if three quarters of a
            last one fit (CRUMB; gives the paper's 417).
        codebook: whether its model has a codebook.
        joint: whether it trains on all classes at once, shuffled (a bound instead of a
            stream learner).
        each_class: whether it needs a memory of each class.
        each_experience: whether it needs a memory of each experience.
        scores_answer: whether it predicts by scores that are not logits, such as
            distances. The loss of its head then decides the learning rate.
        tuning: settings of the method to change while the learning rate is tuned, to
            save time, or so that the accuracy shows what the layers learned.
        gradient: whether it takes gradient steps, and needs a learning rate.
        own_rate: whether its settings give it a learning rate, or train nothing, so
            that none is tuned.
        form: the class of a closed form; else ``None``.
    """

    name: str
    summary: str
    source: str
    stores: str
    build: "Callable[[Recipe], StreamStrategy]"
    settings: type = NoSettings
    buffer: "type[MemoryBuffer] | None" = None
    item_bytes: "Callable[[SplitModel, Any], int] | None" = None
    fixed_bytes: "Callable[[SplitModel, Any, int], int]" = field(
        default=lambda model, method, n_classes: 0
    )
    round_up: bool = False
    codebook: bool = False
    joint: bool = False
    each_class: bool = False
    each_experience: bool = False
    scores_answer: bool = False
    tuning: dict[str, Any] = field(default_factory=dict, hash=False)
    gradient: bool = True
    own_rate: Callable[[Any], bool] = field(default=lambda method: False)
    form: "type[ClosedForm] | None" = None

    @property
    def budgeted(self) -> bool:
        """Whether the budget decides how many memories there are."""
        return self.buffer is not None or self.item_bytes is not None

    def bytes_of_item(self, model: "SplitModel", method: Any) -> int:
        """Return the bytes of one memory without its label."""
        if self.item_bytes is not None:
            return self.item_bytes(model, method)
        assert self.buffer is not None, "only where the budget buys memories"
        return self.buffer.item_bytes(model)

    def memories_in_budget(
        self,
        model: "SplitModel",
        budget_bytes: int,
        n_classes: int,
        method: Any = None,
        charged: bool = True,
        exact: bool = False,
    ) -> int:
        """Compute how many memories a budget buys (supplement, S5).

        It is ``(budget - fixed bytes) / bytes of one memory``, rounded down; 0 for a
        method whose size does not depend on the budget.

        Args:
            model: of the run, for the sizes of its maps.
            budget_bytes: bytes that may be stored.
            n_classes: classes of the whole stream.
            method: settings of the method; default its defaults.
            charged: whether to subtract the fixed bytes from the budget.
            exact: whether to charge CRUMB's codebook with its four bytes per value,
                even if nothing else is charged, and never to round up.

        Raises:
            ValueError: the budget is too small for one memory.
        """
        if not self.budgeted:
            return 0
        if method is None:
            method = self.settings()
        fixed_bytes = 0
        if charged:
            fixed_bytes = self.fixed_bytes(model, method, n_classes)
        if self.codebook and exact:
            assert model.codebook is not None, "the method needs one"
            fixed_bytes = model.codebook.blocks.nbytes + model.codebook.buffer_bytes
        item_bytes = self.bytes_of_item(model, method)
        rounding = 0
        if self.round_up and not exact:
            rounding = item_bytes // 4  # a last memory counts if three quarters fit
        n_memories = (budget_bytes - fixed_bytes + rounding) // item_bytes
        if n_memories < 1:
            fixed_text = ""
            if fixed_bytes:
                fixed_text = (
                    f" beside fixed {fixed_bytes} bytes (codebooks, statistics)"
                )
            raise ValueError(
                f"a budget of {budget_bytes} bytes holds no memory of {item_bytes} "
                f"bytes{fixed_text}; raise --budget-images or --budget-bytes"
            )
        return n_memories

    def method_settings(self, changes: dict[str, Any] | None = None) -> Any:
        """Return the settings of the method, its defaults with some values changed.

        Args:
            changes: new values by name.

        Returns:
            An instance of the method's dataclass ``settings``.

        Raises:
            ValueError: a setting is unknown, or a value has another type or is out of
                its range.
        """
        changes = changes or {}
        known_names = field_names(self.settings)
        for name in changes:
            if name not in known_names:
                names_text = "none of its own"
                if known_names:
                    names_text = ", ".join(known_names)
                raise ValueError(
                    f"strategy {self.name} has no setting {name!r}; it has {names_text}"
                )
        return self.settings(**changes)


class Strategies(Mapping[str, Entry]):
    """The methods by name, in the order of their files.

    An entry is imported when it is looked up.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Add a method, or replace the one of its name."""
        self._entries[entry.name] = entry

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            import_module(f"{__package__}.{_modules()[name]}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in _modules()  # without importing it

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*_modules(), *self._entries]))

    def __len__(self) -> int:
        # A list of the mapping itself would ask for its length.
        return len([*iter(self)])


@cache
def _modules() -> dict[str, str]:
    """Return the module of each method of this folder.

    Names are read from the text of the calls of ``register``.
    """
    modules: dict[str, str] = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r'^@?register\(\s*"(\w+)"', text, re.MULTILINE):
            modules[name] = path.stem
    return modules


STRATEGIES = Strategies()


def register(
    name: str, *, summary: str, source: str, stores: str, **more: Any
) -> Callable[[Any], Any]:
    """Register what is decorated as a method.

    What is decorated is one of three:

    - a subclass of ``ClosedForm``, which declares its settings as annotated attributes.
      Its strategy and its bytes follow from it.
    - a plugin that is made from a ``Recipe`` and takes the settings as keyword-only
      arguments, whose types carry their range: ``def __init__(self, recipe, *, weight:
      Positive = 0.5)``. Its strategy is ``StreamStrategy``, or the type in its
      attribute ``strategy``, with the plugin as memory if it has a ``storage_policy``,
      of the type ``buffer``. ``sgd_arguments``, if it has that, are arguments of SGD
      that differ from the recipe's.
    - a function that builds the strategy from a ``Recipe``.

    Args:
        name: name on the command line; in this folder it stands in the text of the
            call, which ``STRATEGIES`` reads without importing the file.
        summary: description in one line.
        source: publication of the method.
        stores: description of what it stores besides the network.
        more: other attributes of ``Entry``.

    Raises:
        ValueError: another method of this folder has that name.
    """

    def register_method(method: Any) -> Any:
        """Register a class or function, and return it as it is."""
        _check_name(name, method)  # raises if another method has it
        # First what follows from the method's class, such as its settings.
        fields_of_entry = {**_derived_fields(method), **more}
        entry = Entry(
            name=name, summary=summary, source=source, stores=stores, **fields_of_entry
        )
        STRATEGIES.add(entry)
        return method

    return register_method


def _check_name(name: str, method: Any) -> None:
    """Raise ValueError if another file of this folder registers the name."""
    module = _modules().get(name)
    if module and method.__module__ != f"{__package__}.{module}":
        raise ValueError(
            f"{name!r} is the method of methods/{module}.py; register "
            f"{method.__name__} by another name"
        )


def _derived_fields(method: Any) -> dict[str, Any]:
    """Return the fields of an entry that follow from what is registered."""
    if not isinstance(method, type):
        return {"build": method}
    from crumb_avalanche.methods.closed_form import ClosedForm

    if issubclass(method, ClosedForm):
        return _fields_of_form(method)
    return {
        "build": partial(_build_with_plugin, method),
        "buffer": getattr(method, "buffer", None),
        "settings": plugin_settings(method),
    }


def _build_with_plugin(plugin: type, recipe: Recipe) -> "StreamStrategy":
    """Build the strategy of a plugin; see ``register``."""
    from crumb_avalanche.training.stream_strategy import StreamStrategy

    instance = plugin(recipe, **asdict(recipe.method))
    strategy_type = getattr(instance, "strategy", StreamStrategy)
    optimizer = recipe.optimizer(**getattr(instance, "sgd_arguments", {}))
    if hasattr(instance, "storage_policy"):
        return strategy_type(memory=instance, optimizer=optimizer, **recipe.common())
    return strategy_type(optimizer=optimizer, **recipe.common(instance))


def plugin_settings(plugin: type) -> type:
    """Make the dataclass of a method's settings from the plugin of the method.

    They are the keyword-only arguments of its constructor.

    Raises:
        TypeError: one of them has no type or no default.
    """
    constructor: Any = plugin.__init__  # type: ignore[misc]
    hints = ranges.hints_of(constructor)
    members: list[Any] = []  # name, type and default of each setting
    for name, parameter in inspect.signature(constructor).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            _check_is_setting(plugin, parameter, hints)
            members.append((name, hints[name], parameter.default))
    return _settings_class(plugin, members)


def _check_is_setting(
    plugin: type, parameter: inspect.Parameter, hints: dict[str, Any]
) -> None:
    """Raise TypeError for a setting of a plugin without a type or without a default.

    Args:
        plugin: of the method.
        parameter: of its constructor, keyword-only.
        hints: types of the parameters, by name.
    """
    missing = []
    if parameter.name not in hints:
        missing.append("type")
    if parameter.default is inspect.Parameter.empty:
        missing.append("default")
    if missing:
        raise TypeError(
            f"{plugin.__name__}.__init__ takes the setting {parameter.name} without a "
            f"{' and a '.join(missing)}; a keyword-only argument is a setting, so "
            f"write it as {parameter.name}: Positive = 0.5, with a type of "
            "crumb_avalanche.system.setting_ranges"
        )


def _fields_of_form(form: "type[ClosedForm]") -> dict[str, Any]:
    """Return the fields of an ``Entry`` that follow from a closed form's class.

    Settings of the method are those of its features and those of the form itself;
    ``parts_of`` divides them.

    Args:
        form: class of statistics that are updated without a gradient.

    Raises:
        TypeError: its ``by_class`` lacks ``counts``.
    """
    if "counts" not in form.by_class:
        raise TypeError(
            f"{form.__name__}.by_class names {', '.join(form.by_class) or 'nothing'}, "
            "but answers need the images of each class: add 'counts', a tensor "
            "(n_classes,) of torch.int32 that _allocate makes and add_counts updates"
        )
    from crumb_avalanche.methods.looks import parts_of

    def build(recipe: Recipe) -> "StreamStrategy":
        """Build the strategy of the form."""
        # By name, since it imports this module.
        closed_form_strategy = import_module(f"{__package__}.closed_form_strategy")
        return closed_form_strategy.build(form, recipe)

    def item_bytes(model: "SplitModel", method: Any) -> int:
        """Return the bytes of one item of each look, such as a direction."""
        # What computes the features, and settings of the form by name.
        features, form_settings = parts_of(method)
        bytes_of_look = form.item_bytes(features.length(model), form_settings)
        return len(features.looks) * bytes_of_look

    def fixed_bytes(model: "SplitModel", method: Any, n_classes: int) -> int:
        """Return the bytes of all looks before any item, with so many classes."""
        features, form_settings = parts_of(method)
        head_length = features.of_head().length(model)
        bytes_of_look = form.fixed_bytes(
            n_classes, features.length(model), head_length, form_settings
        )
        return len(features.looks) * bytes_of_look

    return {
        "build": build,
        "settings": closed_form_settings(form),
        "item_bytes": item_bytes if form.budgeted else None,
        "fixed_bytes": fixed_bytes,
        "gradient": False,
        "form": form,
    }


def closed_form_settings(form: "type[ClosedForm]") -> type:
    """Make the dataclass of the settings of a closed form, those of features first."""
    from crumb_avalanche.methods.features import FeatureMoments

    members: list[Any] = []  # name, type and default of each setting
    for name, hint in ranges.hints_of(FeatureMoments).items():
        default = form.moments.get(name, getattr(FeatureMoments, name))
        members.append((name, hint, default))
    members.append(("looks", str, WHOLE_IMAGE))
    for name, hint in ranges.setting_types(form).items():
        members.append((name, hint, getattr(form, name)))
    return _settings_class(form, members, base=FormSettings)


def _settings_class(
    method: type, members: list[Any], base: type = ranges.InRange
) -> type:
    """Make the dataclass of a method's settings.

    Args:
        method: gives the name.
        members: name, type and default of each setting.
        base: what the dataclass is derived from.
    """
    name = f"{method.__name__}Settings"
    return make_dataclass(name, members, bases=(base,), frozen=True)


def get_strategy(name: str) -> Entry:
    """Return the entry of a strategy.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in STRATEGIES:
        raise ValueError(
            f"strategy {name!r} is unknown; known are {', '.join(sorted(STRATEGIES))}; "
            "a method of your own is known where the file that registers it was "
            "imported: let that file end with a call of crumb_avalanche.cli.main, and "
            "write python FILE.py instead of crumb; or put it into "
            "crumb_avalanche/methods"
        )
    return STRATEGIES[name]


def is_own(name: str) -> bool:
    """Return whether a method is a user's, which a file outside this folder registers.

    Such a method is unknown to a command that does not import the file.
    """
    return name not in _modules()


def build_strategy(
    name: str,
    model: "SplitModel",
    settings: LearningSettings | None = None,
    mem_size: int = 0,
    seed: int = 0,
    device: str = "cpu",
    method: dict[str, Any] | None = None,
    **host,
) -> "StreamStrategy":
    """Build a strategy for one stream.

    The model of a method that takes gradient steps is calibrated on the first
    experience, unless that was done (see ``calibrate``).

    The upper bound ``offline`` takes a single experience of all images, as the streams
    of this project have with ``protocol="offline"``; a second one is a ValueError.

    Example:
        >>> from crumb_avalanche import build_strategy, split_backbone
        >>> model = split_backbone("small_cnn", None, n_classes=4, image_size=32)
        >>> strategy = build_strategy("slda", model, method={"shrinkage": 0.01})
        >>> strategy.statistics.shrinkage
        0.01
        >>> strategy.statistics_bytes
        67600

    Args:
        name: a name in ``STRATEGIES``.
        model: a split model, with a codebook if the method needs one; it moves to the
            device.
        settings: settings that all strategies share; default ``LearningSettings()``.
        mem_size: capacity of the buffer, in memories.
        seed: of the method's random draws.
        device: of the strategy, as in Avalanche.
        method: settings of the method that differ from their defaults.
        host: keyword arguments for Avalanche, such as ``plugins`` and ``evaluator``,
            but for what the settings decide: ``train_mb_size`` (``batch_size``),
            ``eval_mb_size`` (``eval_batch_size``), ``train_epochs`` (``epochs``),
            ``optimizer`` (``learning_rate``, ``momentum``, ``weight_decay``), and the
            names of ``LearningSettings``, such as ``first_epochs`` and
            ``clamp_gradients``.

    Raises:
        TypeError: an argument for Avalanche is decided by the settings, or the model is
            no ``SplitModel`` as it is.
        ValueError: the name or a setting is unknown, the model lacks the codebook that
            the method needs, or ``mem_size`` is below 1 for a method that stores
            memories.
    """
    from crumb_avalanche.models.split_model import check_split_model

    _check_host_keywords(host)
    entry = get_strategy(name)
    check_split_model(model, name)
    if entry.codebook and model.codebook is None:
        raise ValueError(
            f"{name} needs a codebook: build the model with codebook=Codebook()"
        )
    model = model.to(device)
    # Other methods do not train on quantized maps.
    model.quantized_training = entry.codebook
    recipe = Recipe(
        model=model,
        settings=LearningSettings() if settings is None else settings,
        method=entry.method_settings(method),
        mem_size=mem_size,
        n_classes=model.n_classes,
        seed=seed,
        device=device,
        host=host,
    )
    return entry.build(recipe)


def _check_host_keywords(host: dict[str, Any]) -> None:
    """Raise TypeError for a keyword argument for Avalanche that settings decide."""
    own_settings = field_names(LearningSettings)
    for keyword in host:
        setting = SETTING_OF_HOST_KEYWORD.get(keyword, keyword)
        if setting in own_settings:
            raise TypeError(
                f"{keyword} is decided by the settings: give "
                f"settings=LearningSettings({setting}=...) of "
                "crumb_avalanche.methods.registry"
            )


def recommended_strategy(
    model: "SplitModel", n_classes: int | None = None, *, mem_size: int, **host
) -> "StreamStrategy":
    """Build the most accurate strategy at the same bytes.

    It is ``rda``, regularised discriminant analysis, with its defaults; it is not in
    the paper.

    Args:
        model: a split model, which computes the features.
        n_classes: number of classes of the whole stream; default the model's, else the
            model gets a new head.
        mem_size: principal directions of all classes, at least one for each class. For
            a budget in bytes it is ``get_strategy("rda").memories_in_budget(model,
            budget_bytes, n_classes)``.
        host: keyword arguments for Avalanche, such as ``plugins`` and ``evaluator``.

    Raises:
        TypeError, ValueError: see ``build_strategy``.
    """
    from crumb_avalanche.models.split_model import check_split_model

    check_split_model(model, "rda")
    if n_classes not in (None, model.n_classes):
        model.reset_head(n_classes)
    return build_strategy("rda", model, mem_size=mem_size, **host)
