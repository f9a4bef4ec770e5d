"""Parts of mappings, objects and dataclasses, chosen by name."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

Value = TypeVar("Value")


def field_names(settings: Any) -> list[str]:
    """Return the names of the fields of a dataclass, or of an instance, in order."""
    return [entry.name for entry in fields(settings)]


def attributes(owner: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return some attributes of an object, by name.

    Raises:
        AttributeError: the object lacks an attribute.
    """
    return {name: getattr(owner, name) for name in names}


def selected(values: Mapping[str, Value], names: Iterable[str]) -> dict[str, Value]:
    """Return the entries of a mapping under some names, in the order of the names.

    Raises:
        KeyError: an entry is missing.
    """
    return {name: values[name] for name in names}


def without(values: Mapping[str, Value], *names: str) -> dict[str, Value]:
    """Return the entries of a mapping but those of some names, which may be missing."""
    return {name: value for name, value in values.items() if name not in names}
