"""Check values that were read from a file, or will be written to one, against declared types, with pydantic.

::

    kind = record(names=each(text(40)), means=array(torch.float32, None, 8)) check(kind,
    {"names": ["cup"], "means": torch.zeros(2, 9)})  # StateError: means is float32 (2,
    9), ...
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)
from typing_extensions import NotRequired, TypedDict

if TYPE_CHECKING:  # reports check their files without torch
    import torch

LARGEST = 1e30  # of a value in float32, whose products are finite in float64


class StateError(ValueError):
    """A state that cannot be stored, or does not belong to this object; says where in it."""


def check(kind: Any, value: Any, place: str = "") -> None:
    """Raise if a value is none of a type.

    Args:
        kind: made by the functions below, or a type such as ``bool``.
        value: plain values and tensors.
        place: where it stands, for the error.

    Raises:
        StateError: names the first place with another value, what it is, and the rule.
    """
    try:
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)
        first, found, depth = wrong[0], value, 0
        for part in first["loc"]:
            try:
                found = found if first["type"] == "missing" else found[part]
            except (
                IndexError,
                KeyError,
                TypeError,
            ):  # the rest of the place names a type, or says that a key is wrong
                break
            plain = isinstance(part, str) and part.isidentifier() and len(part) < 80
            place, depth = (
                f"{place}{'.' * bool(place)}{part}"
                if plain
                else f"{place}[{shown(part)}]",
                depth + 1,
            )
        if (
            what := {"missing": "missing", "extra_forbidden": "unknown"}.get(
                first["type"]
            )
        ) is not None:
            raise StateError(f"{place} is {what}") from error
        about, found = first["loc"][:depth], first["input"]
        rules = [
            one["msg"]
            for one in wrong
            if one["loc"][:depth] == about and one["input"] is found
        ]
        rule = (
            " or ".join(rules)
            .replace("Input should be", "has to be")
            .replace("Value error,", "has to be")
        )
        raise StateError(
            f"{place or 'the value'} is {shown(found)}, but {rule}"
        ) from error


_adapter = lru_cache(maxsize=64)(TypeAdapter)  # making one takes milliseconds


def shown(value: Any) -> str:
    """Return a value as text of at most 80 characters, safe to print."""
    if hasattr(value, "dtype"):
        return f"{_name(value.dtype)} {tuple(value.shape)}"
    if isinstance(value, dict | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    text = (
        f"a text of {len(value)}: {value[:60]!r}"
        if isinstance(value, str) and len(value) > 60
        else None
    )
    try:
        return text or repr(value)[:80]
    except ValueError:  # too many digits
        return "a number of thousands of digits"


def _name(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


def record(further: bool = False, **kinds: Any) -> Any:
    """Return the type of a dictionary with these keys, or also others; one that ends in ``?`` may be absent."""
    members = {
        name.rstrip("?"): NotRequired[kind] if name.endswith("?") else kind  # type: ignore[valid-type]
        for name, kind in kinds.items()
    }
    made = TypedDict("made", members)  # type: ignore[misc]
    made.__pydantic_config__ = ConfigDict(extra="allow" if further else "forbid")  # type: ignore[attr-defined]
    return made


def whole(low: int = 0, high: int = 2**63 - 1) -> Any:
    """Return the type of a whole number from ``low`` to ``high``."""
    return Annotated[int, Field(ge=low, le=high)]


def real(low: float, high: float) -> Any:
    """Return the type of a finite number from ``low`` to ``high``."""
    return Annotated[float, Field(ge=low, le=high, allow_inf_nan=False)]


def text(most: int = 300, rule: Callable[[str], object] = str) -> Any:
    """Return the type of a text of at most ``most`` characters; ``rule`` raises ValueError for those not allowed."""

    def allowed(value: str) -> str:
        try:
            rule(value)
        except ValueError as error:
            raise ValueError(f"another text: {error}") from error
        return value

    return Annotated[str, Field(max_length=most), AfterValidator(allowed)]


def each(kind: Any, size: int | None = None, most: int = 10**7) -> Any:
    """Return the type of a list of a size, or of at most ``most``."""
    most = most if size is None else size
    return Annotated[
        list[kind], Field(min_length=size or 0, max_length=most, fail_fast=True)
    ]  # type: ignore[valid-type]


def table(key: Any, value: Any, most: int = 10**5) -> Any:
    """Return the type of a dictionary whose keys and values are of types."""
    return Annotated[dict[key, value], Field(max_length=most)]


def maybe(kind: Any) -> Any:
    """Return the type of a value that may be ``None``."""
    return kind | None


def array(
    dtypes: Any,
    *shape: Any,
    low: float = -LARGEST,
    high: float = LARGEST,
    but: float | None = None,
) -> Any:
    """Return the type of a tensor whose values lie in a range and are finite.

    Args:
        dtypes: its type, or several.
        shape: numbers, or ``None`` for any; ``...`` at the end for any further ones.
        low, high: of its values.
        but: a value besides these.
    """
    import torch

    dtypes = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    sizes, further = (shape[:-1], True) if shape[-1:] == (...,) else (shape, False)

    def allowed(value: Any) -> torch.Tensor:
        fits = isinstance(value, torch.Tensor) and value.dtype in dtypes
        fits = fits and (
            value.dim() == len(sizes) or (further and value.dim() > len(sizes))
        )
        if not fits or not all(
            size in (None, found) for size, found in zip(sizes, value.shape)
        ):
            words = ", ".join(
                "..." if size in (None, ...) else str(size) for size in shape
            )
            raise ValueError(f"{' or '.join(map(_name, dtypes))} ({words})")
        values = value if but is None else value[value != but]
        if values.numel() and values.dtype != torch.bool:
            least, most = (float(one) for one in values.aminmax())
            if not (low <= least and most <= high):  # comparisons with NaN are false
                wrong = most if not most <= high else least
                raise ValueError(
                    f"of values from {low:g} to {high:g}, and holds {wrong:g}"
                )
        return value

    return Annotated[Any, PlainValidator(allowed)]


def _plain(value: Any, depth: int = 6) -> Any:
    if isinstance(value, dict | list | tuple):
        if not depth:
            raise ValueError("nested in fewer levels")
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            _plain(one, depth - 1)
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise ValueError("a plain value")
    return value


PLAIN: Any = Annotated[
    Any, PlainValidator(_plain)
]  # what JSON holds, in at most six levels
PLAIN_VALUES = table(text(), PLAIN)
