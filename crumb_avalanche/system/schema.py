"""Check values that were read from a file, or will be written to one, against a declared schema.

A schema is a tree of rules. A dictionary is the rule of a record, with a rule for each of its keys; a key that ends in
``?`` may be absent. A type, such as ``bool``, stands for any value of it, and ``None`` for itself. Sizes may have
names: all lists and axes with the same name have the same length.

::

    schema = {"names": Each(Text(), "classes"), "means": Array(torch.float32, "classes", "length")}
    check(schema, {"names": ["cup"], "means": torch.zeros(2, 8)})  # StateError: means is float32 (2, 8), but ...
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.system.tensor_file import StateError

Sizes = dict[str, int]
Schema = Any  # a rule, a type, None, or a dictionary of schemas
LARGEST = 1e30  # of a value in float32, whose products are finite in float64


def check(schema: Schema, value: Any, limits: Mapping[str, int] | None = None) -> None:
    """Raise if a value breaks a rule.

    Args:
        schema: rules, see above.
        value: plain values and tensors.
        limits: largest number for named sizes.

    Raises:
        StateError: names the first place with another value, what it is, and the rule.
    """
    _check(schema, value, "", _Context(dict(limits or {})))


class Rule(ABC):
    """What a value may be."""

    @abstractmethod
    def broken(self, value: Any, place: str, context: "_Context") -> str | None:
        """Return the rule in words if a value breaks it, or raise ``StateError`` for a part of it."""


class _Context:
    def __init__(self, limits: Sizes):
        self.limits, self.sizes = limits, Sizes()

    def same(self, size: int | str, found: int) -> bool:
        """Whether a length is the one of its name; the first one that is met sets it."""
        if isinstance(size, str):
            return self.sizes.setdefault(size, found) == found and found <= self.limits.get(size, found)
        return found == size

    def shown(self, size: Any) -> str:
        """Return a size in words."""
        if not isinstance(size, str):
            return "..." if size is ... else str(size)
        limit = f" of at most {self.limits[size]:,}" if size in self.limits else ""
        return f"{size}={self.sizes.get(size, '?')}{limit}"

    def bound(self, high: float | str) -> float:
        """Return the largest value; that of a named size is the last index."""
        return self.sizes[high] - 1 if isinstance(high, str) else high


def _check(schema: Schema, value: Any, place: str, context: _Context) -> None:
    if not isinstance(schema, dict):
        if schema is None or isinstance(schema, type):
            fits = value is None if schema is None else isinstance(value, schema)
            rule = None if fits else "nothing" if schema is None else f"a {schema.__name__}"
        else:
            rule = schema.broken(value, place, context)
        if rule is not None:
            raise StateError(f"{place or 'the value'} is {shown(value)}, but has to be {rule}")
        return
    if not isinstance(value, dict):
        raise StateError(f"{place or 'the value'} is {shown(value)}, but has to hold {', '.join(schema)}")
    rules = {name.rstrip("?"): rule for name, rule in schema.items()}
    inner = f"{place}." if place else ""
    for name in schema:
        if not name.endswith("?") and name not in value:
            raise StateError(f"{inner}{name} is missing")
    for name in value:
        if name not in rules:
            raise StateError(f"{inner}{shown(name)} is unknown; known are {', '.join(rules)}")
    for name, rule in rules.items():
        if name in value:
            _check(rule, value[name], f"{inner}{name}", context)


def shown(value: Any) -> str:
    """Return a value as text of at most 80 characters, safe to print."""
    if isinstance(value, Tensor):
        return f"{_name(value.dtype)} {tuple(value.shape)}"
    if isinstance(value, dict | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    text = f"a text of {len(value)}: {value[:60]!r}" if isinstance(value, str) and len(value) > 60 else None
    try:
        return text or repr(value)[:80]
    except ValueError:  # too many digits
        return "a number of thousands of digits"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Whole(Rule):
    """A whole number from ``low`` to ``high``."""

    low: int = 0
    high: int = 2**63 - 1
    size: str | None = None  # whose length it is

    def broken(self, value: Any, place: str, context: _Context) -> str | None:
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            return f"a whole number from {self.low:,} to {self.high:,}"
        if self.size is not None and not context.same(self.size, value):
            return context.shown(self.size)
        return None


@dataclass(frozen=True)
class Real(Rule):
    """A finite number from ``low`` to ``high``."""

    low: float = -LARGEST
    high: float = LARGEST

    def broken(self, value: Any, place: str, context: _Context) -> str | None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if number and self.low <= value <= self.high else f"a number from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Text(Rule):
    """A text of at most ``most`` characters.

    Attributes:
        most: see above.
        among: the only texts allowed; default any.
        rule: function that raises ValueError for a text that is not allowed.
    """

    most: int = 300
    among: tuple[str, ...] = ()
    rule: Callable[[str], object] | None = None

    def broken(self, value: Any, place: str, context: _Context) -> str | None:
        if not isinstance(value, str) or len(value) > self.most:
            return f"a text of at most {self.most} characters"
        if self.among and value not in self.among:
            return f"one of {', '.join(self.among)}"
        try:
            if self.rule is not None:
                self.rule(value)
        except ValueError as error:
            return f"another text: {error}"
        return None


@dataclass(frozen=True)
class Plain(Rule):
    """Any plain value that JSON holds, in at most ``depth`` levels."""

    depth: int = 6

    def broken(self, value: Any, place: str, context: _Context) -> str | None:
        inner: list[Any] = []
        if isinstance(value, dict):
            inner = [*value, *value.values()]
        elif isinstance(value, list | tuple):
            inner = list(value)
        elif not (value is None or isinstance(value, bool | int | float | str)):
            return "a plain value"
        if not self.depth:
            return "nested in fewer levels"
        return next(filter(None, (Plain(self.depth - 1).broken(one, place, context) for one in inner)), None)


@dataclass(frozen=True)
class AnyOf(Rule):
    """What one of several schemas allows; of dictionaries, the last one says what is wrong."""

    schemas: tuple[Schema, ...]

    def broken(self, value: Any, place: str, context: _Context) -> str | None:
        for schema in self.schemas[:-1]:
            try:
                _check(schema, value, place, context)
                return None
            except StateError:
                continue
        _check(self.schemas[-1], value, place, context)
        return None


def maybe(schema: Schema) -> AnyOf:
    """Return the rule of a value that may be ``None``."""
    return AnyOf((None, schema))


@dataclass(frozen=True)
class Each(Rule):
    """A list whose items follow a schema, of a size with a name, or of at most ``most``."""

    schema: Schema
    size: int | str | None = None
    most: int = 10**7

    def broken(self, value: Any, place: str, context: _Context) -> str | None:
        if not isinstance(value, list | tuple) or len(value) > self.most:
            return f"a list of at most {self.most:,}"
        if self.size is not None and not context.same(self.size, len(value)):
            return f"a list of {context.shown(self.size)}"
        for number, item in enumerate(value):
            _check(self.schema, item, f"{place}[{number}]", context)
        return None


@dataclass(frozen=True)
class Table(Rule):
    """A dictionary whose keys and values follow schemas."""

    key: Schema
    value: Schema
    most: int = 10**5

    def broken(self, value: Any, place: str, context: _Context) -> str | None:
        if not isinstance(value, dict) or len(value) > self.most:
            return f"a dictionary of at most {self.most:,}"
        for key, item in value.items():
            _check(self.key, key, f"a key of {place}", context)
            _check(self.value, item, f"{place}[{shown(key)}]", context)
        return None


class Array(Rule):
    """A tensor of a type and a shape, whose values lie in a range and are finite.

    Args:
        dtype: its type, or several.
        shape: numbers or names of sizes; ``...`` at the end for any further ones.
        low, high: of its values; a name as ``high`` is the index of one of so many.
        but: a value besides these: ``nan`` or ``-inf``.
    """

    def __init__(
        self, dtype: Any, *shape: Any, low: float = -LARGEST, high: float | str = LARGEST, but: float | None = None
    ):
        self.dtypes = dtype if isinstance(dtype, tuple) else (dtype,)
        self.shape, self.low, self.high, self.but = shape, low, high, but

    def broken(self, value: Any, place: str, context: _Context) -> str | None:
        shape = self.shape[:-1] if self.shape[-1:] == (...,) else self.shape
        fits = isinstance(value, Tensor) and value.dtype in self.dtypes
        fits = fits and (value.dim() == len(shape) or (len(shape) < len(self.shape) and value.dim() > len(shape)))
        if not fits or not all(context.same(size, found) for size, found in zip(shape, value.shape)):
            sizes = ", ".join(map(context.shown, self.shape))
            return f"{' or '.join(map(_name, self.dtypes))} ({sizes})"
        values = value
        if self.but is not None:
            values = value[~(value.isnan() if math.isnan(self.but) else value == self.but)]
        if not values.numel() or values.dtype == torch.bool:
            return None
        high = context.bound(self.high)
        least, most = (float(one) for one in values.aminmax())
        if not (self.low <= least and most <= high):  # comparisons with NaN are false
            wrong = most if not most <= high else least
            return f"of values from {self.low:g} to {high:g}, and holds {wrong:g}"
        return None
