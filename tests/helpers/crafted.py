"""Change values of a state at random, as somebody would who writes files by hand with
right checksums.

``crafted`` changes nested plain values and tensors as hypothesis draws it: a value is
replaced by an odd one, an entry is left out, added or doubled, a tensor gets other
values, another shape or another type.
"""

import copy
import json

import torch
from hypothesis import strategies as st
from torch import Tensor

DEEP = "@deep"  # in a JSON text, lists in lists; see ``json_of``
ODD = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**70,
    10**5000,
    -(10**12),
    0.5,
    -1.0,
    1e300,
    float("nan"),
    float("inf"),
)
ODD += ("", "x" * 100_000, "\ud800", "a\x1b[2Jb", "a/b", "../x", "\u202ecod", "PCG64")
ODD += ([], {}, [None], {"x": 1}, [[1]], DEEP)
DTYPES = (
    torch.float64,
    torch.float16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
)

KINDS = (
    "value",
    "value",
    "dtype",
    "longer",
    "shorter",
    "empty",
    "scaled",
    "flat",
    "tenfold",
)
ODD_FLOATS = (float("nan"), float("inf"), -1.0, 1e30)
ODD_INTEGERS = (-1, 1, 100, 127)


def json_of(value):
    """JSON of a value that may hold ``DEEP``."""
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 10**5 + "]" * 10**5)


def paths_in(value, path=()):
    """Yield the paths of all entries of a nested value: their keys, from outside in."""
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list | tuple):
        entries = enumerate(value[:3])
    else:
        return
    for key, entry in entries:
        yield (*path, key)
        yield from paths_in(entry, (*path, key))


def changed_tensor(draw, tensor):
    """Return a tensor like another, with something wrong."""
    kind = draw(st.sampled_from(KINDS))
    if kind == "value" and tensor.numel():
        return _with_other_value(draw, tensor)
    if kind == "dtype":
        return tensor.to(draw(st.sampled_from(DTYPES)))
    if kind == "scaled":
        return ~tensor if tensor.dtype == torch.bool else tensor * 3
    if kind == "flat" or not tensor.dim():
        return tensor.reshape(-1)
    if kind == "empty":
        return tensor[:0]
    if kind == "shorter":
        return tensor[:-1]
    if kind == "longer":
        return torch.cat([tensor, tensor[:1]])
    return torch.cat([tensor] * 10)


def _with_other_value(draw, tensor):
    """Return a tensor with an odd value somewhere."""
    odd_values = ODD_FLOATS if tensor.is_floating_point() else ODD_INTEGERS
    value = draw(st.sampled_from(odd_values))
    changed = tensor.clone()
    flat = changed.view(-1)
    position = draw(st.integers(0, len(flat) - 1))
    flat[position] = value
    return changed


def changed_value(draw, value):
    """Return a value other than the given one: one like it, or an odd one."""
    if isinstance(value, Tensor) and draw(st.integers(0, 4)):
        return changed_tensor(draw, value)
    if isinstance(value, dict) and value and draw(st.booleans()):
        return _changed_dict(draw, value)
    if isinstance(value, list | tuple) and value and draw(st.booleans()):
        return _changed_list(draw, value)
    if isinstance(value, int) and not isinstance(value, bool) and draw(st.booleans()):
        return value + draw(st.sampled_from([-1, 1, 1000]))
    # A later change may change the entries of an odd value.
    return copy.deepcopy(draw(st.sampled_from(ODD)))


def _changed_dict(draw, value):
    """Return a dictionary in which one entry stands for another, or a new one."""
    keys = list(value)
    key = draw(st.sampled_from(keys))
    other_key = draw(st.sampled_from(keys))
    changed = {**value, key: value[other_key]}
    if draw(st.booleans()):
        changed[f"{key}2"] = value[other_key]
    return changed


def _changed_list(draw, value):
    """Return a list with an entry twice, or without its first one."""
    entries = list(value)
    if draw(st.booleans()):
        return [*entries, draw(st.sampled_from(entries))]
    return entries[1:]


def crafted(draw, value):
    """Return a copy of a nested value with one to three changes."""
    changed = copy.deepcopy(value)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        paths = list(paths_in(changed))
        if not paths:
            break
        *outer_keys, last_key = draw(st.sampled_from(paths))
        container = _container_at(changed, outer_keys)
        is_left_out = draw(st.integers(0, 5)) == 0
        if is_left_out:
            del container[last_key]
        else:
            container[last_key] = changed_value(draw, container[last_key])
    return changed


def _container_at(value, keys):
    """Return the list or dictionary at a path; tuples on the way become lists."""
    container = value
    for key in keys:
        if isinstance(container[key], tuple):
            container[key] = list(container[key])
        container = container[key]
    return container
