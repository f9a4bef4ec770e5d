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


def json_of(value):
    """JSON of a value that may hold ``DEEP``."""
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 10**5 + "]" * 10**5)


def places(value, path=()):
    """The paths of all entries of a nested value."""
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value[:3])
    else:
        return
    for key, entry in inner:
        yield (*path, key)
        yield from places(entry, (*path, key))


def tensor_of(draw, tensor):
    """A tensor like another, with something wrong."""
    kind = draw(
        st.sampled_from(
            [
                "value",
                "value",
                "dtype",
                "longer",
                "shorter",
                "empty",
                "scaled",
                "flat",
                "tenfold",
            ]
        )
    )
    if kind == "value" and tensor.numel():
        changed = tensor.clone()
        odd = (
            (float("nan"), float("inf"), -1.0, 1e30)
            if tensor.is_floating_point()
            else (-1, 1, 100, 127)
        )
        value = draw(st.sampled_from(odd))
        flat = changed.view(-1)
        flat[draw(st.integers(0, len(flat) - 1))] = value
        return changed
    if kind == "dtype":
        return tensor.to(draw(st.sampled_from(DTYPES)))
    if kind == "scaled":
        return tensor * 3 if tensor.dtype != torch.bool else ~tensor
    if kind == "flat" or not tensor.dim():
        return tensor.reshape(-1)
    if kind == "empty":
        return tensor[:0]
    if kind == "shorter":
        return tensor[:-1]
    return torch.cat([tensor, tensor[:1]] if kind == "longer" else [tensor] * 10)


def wrong(draw, value):
    """Another value in the place of one."""
    if isinstance(value, Tensor) and draw(st.integers(0, 4)):
        return tensor_of(draw, value)
    if isinstance(value, dict) and value and draw(st.booleans()):
        key, second = (draw(st.sampled_from(list(value))) for _ in range(2))
        return {
            **value,
            key: value[second],
            **({f"{key}2": value[second]} if draw(st.booleans()) else {}),
        }
    if isinstance(value, list | tuple) and value and draw(st.booleans()):
        return (
            [*value, draw(st.sampled_from(list(value)))]
            if draw(st.booleans())
            else list(value[1:])
        )
    if isinstance(value, int) and not isinstance(value, bool) and draw(st.booleans()):
        return value + draw(st.sampled_from([-1, 1, 1000]))
    return copy.deepcopy(
        draw(st.sampled_from(ODD))
    )  # a later change may change its entries


def crafted(draw, value):
    """A copy of a nested value with one to three changes."""
    changed = copy.deepcopy(value)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        if not (all_places := list(places(changed))):
            break
        *inner, last = draw(st.sampled_from(all_places))
        held = changed
        for key in inner:
            if isinstance(held[key], tuple):
                held[key] = list(held[key])
            held = held[key]
        if draw(st.integers(0, 5)) == 0:
            del held[last]
        else:
            held[last] = wrong(draw, held[last])
    return changed
