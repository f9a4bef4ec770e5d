"""State to JSON and tensors and back: values, what is shared, what is left, and what is refused."""

import json
import re
import sys
import tracemalloc
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from crumb_avalanche.memory.selection import Slots
from crumb_avalanche.models.stopwatch import Stopwatch
from crumb_avalanche.system.rng_state import get_rng_state, set_rng_state
from crumb_avalanche.training.state_packing import StateError
from crumb_avalanche.training.state_tree import packed, restored

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda parts: (
        st.lists(parts)
        | st.tuples(parts, parts)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), parts)
    ),
)


def there_and_back(value, live=None):
    text, tensors = packed({"value": value})
    return restored(json.loads(json.dumps(text)), tensors, {"value": live})["value"]


@given(plain)
def test_plain_values(value):
    back = there_and_back(value)
    assert back == value and repr(back) == repr(value)


def test_other_values():
    value = {
        "set": {3, 1, 2},
        "frozen": frozenset({"a"}),
        "deque": deque([1, 2]),
        "counter": Counter("aab"),
        "ordered": OrderedDict(b=1, a=2),
        "scalar": np.float32(0.1),
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "size": torch.Size([2, 3]),
        "big": 2**127,
        "inf": float("inf"),
    }
    back = there_and_back(value)
    assert np.array_equal(back.pop("array"), value.pop("array"))
    assert back == value and [type(part) for part in back.values()] == [type(part) for part in value.values()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_tensors_keep_type_values_and_memory_format(dtype):
    tensor = torch.randint(0, 2, (2, 3, 4, 5)).to(dtype).contiguous(memory_format=torch.channels_last)
    back = there_and_back([tensor, tensor.contiguous(), torch.tensor(3).to(dtype)])
    assert all(torch.equal(one, other) for one, other in zip(back, [tensor, tensor, torch.tensor(3).to(dtype)]))
    assert [one.stride() for one in back[:2]] == [tensor.stride(), tensor.contiguous().stride()]


def test_what_is_one_thing_stays_one_thing():
    shared = [1]
    tensor = torch.ones(2)
    back = there_and_back({"a": shared, "b": shared, "c": tensor, "d": (tensor,)})
    back["a"].append(2)
    assert back["b"] == [1, 2] and back["c"] is back["d"][0]
    circle: list = []
    circle.append(circle)
    back = there_and_back(circle)
    assert back[0] is back


def test_generators_go_on():
    generator, torch_generator = np.random.default_rng(3), torch.Generator().manual_seed(3)
    generator.random(5), torch.rand(5, generator=torch_generator)
    live = [np.random.default_rng(), torch.Generator()]
    back = there_and_back([generator, torch_generator], live)
    assert back[0] is not generator and back[0].random() == generator.random()
    assert torch.equal(torch.rand(3, generator=back[1]), torch.rand(3, generator=torch_generator))


def test_global_rng_state():
    text, tensors = packed({"random": get_rng_state()})
    expected = torch.rand(3), np.random.rand(3)
    torch.rand(9), np.random.rand(9)
    set_rng_state(restored(text, tensors, {})["random"])
    assert torch.equal(torch.rand(3), expected[0]) and np.array_equal(np.random.rand(3), expected[1])


@pytest.mark.parametrize("here", [0, 1, 2, 3])
def test_rng_states_of_as_many_gpus_as_there_are(monkeypatch, here):
    now, taken = get_rng_state(), []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: taken.append((state, device)))
    states = {**now, "cuda": ["of 0", "of 1"]}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        set_rng_state(states)
    assert taken == [("of 0", 0), ("of 1", 1)][:here]
    words = rf"of 2 GPUs, but {here} are here.*use 2 GPUs"
    assert [bool(re.search(words, str(one.message))) for one in said] == [True] * (here < 2)


def test_own_objects_are_filled_or_made():
    slots = Slots(4, seed=1)
    slots.take(7), slots.take(7), slots.take(2)
    for live in (None, Slots(4, seed=9)):
        back = there_and_back(slots, live)
        assert (back is live) == (live is not None)
        assert back.by_class == slots.by_class and back.free == slots.free
        assert back.random.bit_generator.state == slots.random.bit_generator.state


def test_a_module_is_filled_in_place_and_its_optimiser_knows_the_weights():
    def made():
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
        return SimpleNamespace(network=network, optimizer=torch.optim.SGD(network.parameters(), 0.1, momentum=0.9))

    def step(one):
        one.optimizer.zero_grad()
        one.network(torch.ones(2, 3, 5, 5)).square().sum().backward()
        one.optimizer.step()

    torch.manual_seed(0)
    first = made()
    step(first)
    first.optimizer.param_groups[0]["lr"] = 0.05
    second = made()
    weight = second.network[0].weight
    text, tensors = packed(vars(first))
    restored(text, tensors, vars(second))
    assert second.network[0].weight is weight and second.optimizer.param_groups[0]["lr"] == 0.05
    for one in (first, second):
        step(one)
    for mine, other in zip(first.network.state_dict().values(), second.network.state_dict().values()):
        assert torch.equal(mine, other)


def test_the_frozen_front_is_not_kept_though_an_optimiser_holds_it(make_model):
    def made():
        model = make_model()
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)}

    first, second = made(), made()
    text, tensors = packed(first)
    convolution = first["model"].feature_extractor[0].weight
    assert convolution.shape not in {value.shape for value in tensors.values()}
    restored(text, tensors, second)
    (group,) = second["optimizer"].param_groups
    assert [*map(id, group["params"])] == [*map(id, second["model"].parameters())]


def test_methods_and_foreign_objects_are_left():
    live = {"a": len, "b": nn.CrossEntropyLoss}
    assert there_and_back({"a": print, "b": nn.Module}, live) == live


def test_a_value_that_nobody_knows_is_named():
    words = r"value\[0\]\['x'\] is of type types.SimpleNamespace, which a checkpoint cannot keep"
    with pytest.raises(StateError, match=words):
        packed({"value": [{"x": SimpleNamespace()}]})


@pytest.mark.parametrize(
    "name", ["os:system", "subprocess:Popen", "crumb_avalanche.models.weights:Path", "crumb_avalanche.cli:main"]
)
def test_no_class_of_anybody_else_is_made(name):
    text = json.dumps({"value": {"kind": "object", "class": name, "attributes": {}, "number": 0}})
    with pytest.raises(StateError, match="value would have to be made as"):
        restored(text, {}, {})


def test_no_module_is_imported_for_a_class(monkeypatch):
    text, _ = packed({"value": Slots(4, seed=1)})
    monkeypatch.delitem(sys.modules, Slots.__module__)
    words = f"made as a {Slots.__module__}:Slots, but this learner uses no module {Slots.__module__}: the checkpoint is"
    with pytest.raises(StateError, match=words):
        restored(text, {}, {})
    assert Slots.__module__ not in sys.modules


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *[("V", 500_000_000), ("S500000000", 1), ("500000000f4", 1), ("f4,f4", 1), ("O", 1), ("U9", 1)],
        *[("|i1", 300), ("<f4", [1.0, 2.0]), ("<f4", "nan"), ("<f4", None), ("nonsense", 1), (None, "1")],
    ],
)
def test_a_scalar_that_is_no_number_is_refused_before_it_takes_memory(kind, value):
    text = json.dumps({"value": {"kind": "scalar", "type": kind, "value": value}})
    tracemalloc.start()
    try:
        with pytest.raises(StateError, match=r"value is a numpy scalar of type .* with the value .*, but only numbers"):
            restored(text, {}, {})
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "value", [np.bool_(True), np.int8(-3), np.uint64(2**64 - 1), np.float16(0.1), np.float32("inf")]
)
def test_scalars_of_all_kinds(value):
    back = there_and_back(value)
    assert back == value and type(back) is type(value)


def test_another_network_is_refused():
    text, tensors = packed({"network": nn.Linear(2, 3)})
    with pytest.raises(StateError, match=r"network.weight has the shape \(3, 2\) in the checkpoint, but \(4, 2\) here"):
        restored(text, tensors, {"network": nn.Linear(2, 4)})


def test_a_dictionary_with_a_default_has_to_be_there():
    text, tensors = packed({"value": defaultdict(float, a=1.0)})
    assert restored(text, tensors, {"value": defaultdict(float)})["value"]["b"] == 0
    with pytest.raises(StateError, match="value is a defaultdict, which has to be there before it is filled"):
        restored(text, tensors, {})


def test_a_stopwatch_counts_on():
    watch, again = Stopwatch(), Stopwatch()
    watch.seconds["features"] = 2.5
    assert there_and_back(watch, again).seconds["features"] == 2.5 and again.seconds["search"] == 0
