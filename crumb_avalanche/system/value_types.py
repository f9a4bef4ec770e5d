"""Types of values that were read from a file, or will be written to one, with pydantic.

::

    kind = record(names=each(text(40)), means=array(torch.float32, None, 8))
    check(kind, {"names": ["cup"], "means": torch.zeros(2, 9)})
    # StateError: means is float32 (2, 9), but has to be float32 (..., 8)
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
    with_config,
)
from typing_extensions import NotRequired, TypedDict

if TYPE_CHECKING:  # reports check their files without torch
    import torch

LARGEST = 1e30  # of a value in float32, whose products are finite in float64


class StateError(ValueError):
    """A state that cannot be stored, or does not belong to this object; says where."""


def check(kind: Any, value: Any, path: str = "") -> None:
    """Raise if a value is not of a type.

    Args:
        kind: made by the functions below, or a type such as ``bool``.
        value: plain values and tensors.
        path: where it stands, for the error.

    Raises:
        StateError: names the first place with another value, what it is, and the rule.
    """
    try:
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise StateError(_first_problem(problems, value, path)) from error


_adapter = lru_cache(maxsize=64)(TypeAdapter)  # making one takes milliseconds


def _first_problem(problems: list[Any], value: Any, path: str) -> str:
    """Return the first of pydantic's problems with a value in words.

    Of a union, pydantic has a problem for each of its types; all their rules are named.

    Args:
        problems: pydantic's, dictionaries with the ``type`` of a problem, the ``loc``
            of the wrong member, its value as ``input``, and the rule as ``msg``.
        value: that was checked.
        path: of the value in a larger one.
    """
    first = problems[0]
    # The wrong member in words, such as lessons[2].images, and the number of keys and
    # indices to it, with which ``loc`` begins; names of types of a union may follow.
    wrong_path, n_steps = _path_in_value(first, value, path)
    if first["type"] == "missing":
        return f"{wrong_path} is missing"
    if first["type"] == "extra_forbidden":
        return f"{wrong_path} is unknown"
    wrong_value = first["input"]
    location = first["loc"][:n_steps]
    rules = []
    for problem in problems:
        # Problems of members of the wrong value begin with its location, too, but have
        # another input; and one small number may be the input at several locations.
        is_same_value = problem["input"] is wrong_value
        if is_same_value and problem["loc"][:n_steps] == location:
            rules.append(problem["msg"])
    rule = " or ".join(rules)
    rule = rule.replace("Input should be", "has to be")
    rule = rule.replace("Value error,", "has to be")
    return f"{wrong_path or 'the value'} is {shown(wrong_value)}, but {rule}"


def _path_in_value(problem: Any, value: Any, path: str) -> tuple[str, int]:
    """Return where in a value one of pydantic's problems is.

    Args:
        problem: whose ``loc`` lists the steps to the wrong member: keys and indices.
            The last steps may name a type of a union, or say that a key is wrong.
        value: that was checked.
        path: of the value in a larger one.

    Returns:
        The path of the wrong member, and the number of steps to it.
    """
    n_steps = 0
    for step in problem["loc"]:
        # The value of a key that is missing cannot be looked up.
        if problem["type"] != "missing":
            try:
                value = value[step]
            except (IndexError, KeyError, TypeError):
                break
        is_name = isinstance(step, str) and step.isidentifier() and len(step) < 80
        if is_name:
            path = f"{path}.{step}" if path else str(step)
        else:
            path = f"{path}[{shown(step)}]"
        n_steps += 1
    return path, n_steps


def shown(value: Any) -> str:
    """Return a value of a file as text of at most 80 characters, safe to print."""
    if hasattr(value, "dtype"):
        return f"{_dtype_name(value.dtype)} {tuple(value.shape)}"
    if isinstance(value, dict | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str) and len(value) > 60:
        return f"a text of {len(value)}: {value[:60]!r}"
    try:
        return repr(value)[:80]
    except ValueError:  # too many digits
        return "a number of thousands of digits"


def _dtype_name(dtype: "torch.dtype") -> str:
    """Return the name of a dtype as errors give it: ``float32``."""
    return str(dtype).removeprefix("torch.")


def record(further: bool = False, **kinds: Any) -> Any:
    """Return the type of a dictionary with these keys, for ``check``.

    As in ``record(name=str, size=int)``.

    Args:
        further: whether it may have other keys as well.
        **kinds: types of the values; a key that ends in ``?`` may be absent.
    """
    member_types = {}
    for name, kind in kinds.items():
        if name.endswith("?"):
            optional = NotRequired[kind]  # type: ignore[valid-type]
            member_types[name.removesuffix("?")] = optional
        else:
            member_types[name] = kind
    record_type = TypedDict("dictionary", member_types)  # type: ignore[misc]
    config = ConfigDict(extra="allow" if further else "forbid")
    return with_config(config)(record_type)


def whole(low: int = 0, high: int = 2**63 - 1) -> Any:
    """Return the type of a whole number from ``low`` to ``high``."""
    return Annotated[int, Field(ge=low, le=high)]


def real(low: float, high: float) -> Any:
    """Return the type of a finite number from ``low`` to ``high``."""
    return Annotated[float, Field(ge=low, le=high, allow_inf_nan=False)]


def text(most: int = 300, rule: Callable[[str], object] = str) -> Any:
    """Return the type of a text of at most ``most`` characters, for ``check``.

    Args:
        most: number of characters.
        rule: is called with the text, and raises ValueError if it is not allowed.
    """

    def check_rule(checked_text: str) -> str:
        try:
            rule(checked_text)
        except ValueError as error:
            # ``check`` writes "name is 'a/b', but has to be" before it.
            raise ValueError(f"another text: {error}") from error
        return checked_text

    return Annotated[str, Field(max_length=most), AfterValidator(check_rule)]


def each(kind: Any, size: int | None = None, most: int = 10**7) -> Any:
    """Return the type of a list of a size, or of at most ``most`` members.

    Args:
        kind: type of the members.
        size: their number; default any up to ``most``.
        most: largest number of members.
    """
    if size is None:
        limits = Field(max_length=most, fail_fast=True)
    else:
        limits = Field(min_length=size, max_length=size, fail_fast=True)
    return Annotated[list[kind], limits]  # type: ignore[valid-type]


def table(key: Any, value: Any, most: int = 10**5) -> Any:
    """Return the type of a dictionary of at most ``most`` keys and values of types."""
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
    """Return the type of a tensor of finite values in a range, for ``check``.

    As in ``array(torch.float32, None, 3, low=0)``: a float32 tensor of three columns,
    any number of rows, and no negative values.

    Args:
        dtypes: the allowed data type, or a tuple of several.
        shape: size of each axis, or ``None`` for any; ``...`` at the end for any
            further axes.
        low, high: range of the values.
        but: a value outside of the range that is allowed, too, such as -inf.
    """
    allowed_dtypes = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    dtype_names = " or ".join(map(_dtype_name, allowed_dtypes))
    sizes = ", ".join(map(_size_text, shape))
    rule = f"{dtype_names} ({sizes})"  # ``check`` writes "has to be" before it

    def check_tensor(tensor: Any) -> "torch.Tensor":
        """Return a tensor of this type; raise ValueError for any other."""
        if not _is_tensor(tensor, allowed_dtypes) or not _has_shape(tensor, shape):
            raise ValueError(rule)
        ranged_values = tensor
        if but is not None:
            ranged_values = tensor[tensor != but]
        _check_range(ranged_values, low, high)
        return tensor

    return Annotated[Any, PlainValidator(check_tensor)]


def _is_tensor(value: Any, dtypes: tuple["torch.dtype", ...]) -> bool:
    """Whether a value is a tensor of one of some dtypes."""
    import torch

    return isinstance(value, torch.Tensor) and value.dtype in dtypes


def _has_shape(tensor: "torch.Tensor", shape: tuple[Any, ...]) -> bool:
    """Whether a tensor has a shape.

    Args:
        tensor: of any shape.
        shape: sizes, ``None`` for any size, ``...`` at the end for further axes.
    """
    may_have_more_axes = shape[-1:] == (...,)
    sizes = shape[:-1] if may_have_more_axes else shape
    n_further_axes = tensor.dim() - len(sizes)
    if n_further_axes < 0 or (n_further_axes > 0 and not may_have_more_axes):
        return False
    return all(
        size is None or size == actual for size, actual in zip(sizes, tensor.shape)
    )


def _size_text(size: Any) -> str:
    """Return the size of an axis as errors give it, ``...`` for any."""
    return "..." if size in (None, ...) else str(size)


def _check_range(values: "torch.Tensor", low: float, high: float) -> None:
    """Raise ValueError unless values lie in a range, which NaN does not."""
    import torch

    if not values.numel() or values.dtype == torch.bool:
        return
    lowest, highest = map(float, values.aminmax())
    if low <= lowest and highest <= high:  # comparisons with NaN are false
        return
    wrong_value = highest
    if highest <= high:
        wrong_value = lowest
    raise ValueError(f"of values from {low:g} to {high:g}, and holds {wrong_value:g}")


MOST_LEVELS = 6  # of lists and dictionaries in each other


def _check_plain(value: Any, levels: int = MOST_LEVELS) -> Any:
    """Return a value that JSON can hold; raise ValueError for any other.

    Args:
        value: of ``None``, bool, int, float, str, list, tuple and dict.
        levels: of lists and dictionaries in each other that it may have.
    """
    if isinstance(value, dict | list | tuple):
        if not levels:
            raise ValueError("nested in fewer levels")
        for member in value:  # a key, if it is a dictionary
            _check_plain(member, levels - 1)
        if isinstance(value, dict):
            for member in value.values():
                _check_plain(member, levels - 1)
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise ValueError("a plain value")
    return value


# What JSON holds, in at most MOST_LEVELS levels.
PLAIN: Any = Annotated[Any, PlainValidator(_check_plain)]
PLAIN_VALUES = table(text(), PLAIN)
