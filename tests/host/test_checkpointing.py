"""The fact of Avalanche's ``tests/checkpointing``: a resumed run has the metrics of one without interruption, exactly.

The steps are those of its ``task_incremental_with_checkpointing.py``, with our stream and learners.
"""

from functools import cache

import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.evaluation.metrics import accuracy_metrics, class_accuracy_metrics, loss_metrics
from avalanche.models import SimpleMLP, as_multitask
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import (
    CWRStarPlugin,
    EvaluationPlugin,
    EWCPlugin,
    GDumbPlugin,
    LwFPlugin,
    ReplayPlugin,
    SynapticIntelligencePlugin,
)
from avalanche.training.supervised import Naive
from host_benchmarks import sgd
from host_streams import flat_model, joined, our_stream
from small_models import SIZE, make_model
from torch import nn

from crumb_avalanche import (
    CodeBuffer,
    CRUMBPlugin,
    CRUMBStrategy,
    ImageBuffer,
    LedgerMetric,
    MapBuffer,
    SeenClassesPlugin,
    patched_dill,
)

# The option --plugins of Avalanche's script.
PLUGINS = {
    "replay": lambda model: ReplayPlugin(mem_size=8),
    "gdumb": lambda model: GDumbPlugin(mem_size=8),
    "lwf": lambda model: LwFPlugin(),
    "si": lambda model: SynapticIntelligencePlugin(0.001),
    "ewc": lambda model: EWCPlugin(0.001),
    "cwr": lambda model: CWRStarPlugin(model, freeze_remaining_model=False),
}
BUFFERS = {"codes": CodeBuffer, "images": ImageBuffer, "maps": MapBuffer}


def make(kind: str, plugins=(), loggers=(), tasks: bool = False):
    """The benchmark of four experiences and a learner, as at the start of the script."""
    RNGManager.set_random_seeds(1234)
    benchmark = our_stream(classes_per_experience=1, frames_per_clip=3)
    if tasks:
        whole = (joined(stream) for stream in benchmark.streams.values())
        benchmark = nc_benchmark(*whole, 4, task_labels=True, fixed_class_order=benchmark.classes_order)
        model = as_multitask(SimpleMLP(4, 3 * SIZE * SIZE, 8), "classifier")
    else:
        model = flat_model() if kind == "Naive" else make_model()
    parts = {"epoch": True, "experience": True, "stream": True}
    metrics = [accuracy_metrics(**parts), loss_metrics(**parts), class_accuracy_metrics(stream=True), LedgerMetric()]
    common = {
        "model": model,
        "optimizer": sgd(model, 0.01),
        "criterion": nn.CrossEntropyLoss(),
        "train_mb_size": 3,
        "eval_mb_size": 16,
        "evaluator": EvaluationPlugin(*metrics, loggers=list(loggers)),
    }
    listed = [PLUGINS[name](model) for name in plugins]
    if kind == "Naive":
        return benchmark, Naive(**common, train_epochs=1, plugins=listed)
    where, buffer = kind.split()
    if where == "strategy":
        return benchmark, CRUMBStrategy(**common, storage_policy=BUFFERS[buffer](6), first_epochs=2, plugins=listed)
    seen = SeenClassesPlugin()
    return benchmark, Naive(**common, plugins=[seen, *listed, CRUMBPlugin(BUFFERS[buffer](6), seen=seen)])


def train(benchmark, strategy, start: int = 0, stop: int = 4) -> list[dict]:
    """Train on some experiences; return the metrics after each, without times."""
    results = []
    for experience in list(benchmark.train_stream)[start:stop]:
        strategy.train(experience)
        values = strategy.eval(benchmark.test_stream)
        times = ("Ledger/seconds", "Ledger/train_seconds", "Ledger/images_per_second", "Ledger/peak_rss")
        results.append({name: value for name, value in values.items() if not name.startswith(times)})
    return results


def avalanche_way(strategy, path):
    """Save with Avalanche's function; return a function that loads, and gives the next experience."""
    with patched_dill():
        save_checkpoint(strategy, path)
    return lambda other: maybe_load_checkpoint(other, path)


def our_way(strategy, path):
    """The same with the state dict of our strategies, which is read without running code."""
    torch.save({"strategy": strategy.state_dict(), "rng": torch.get_rng_state()}, path)

    def load(other):
        state = torch.load(path, weights_only=True)
        other.load_state_dict(state["strategy"])
        torch.set_rng_state(state["rng"])
        return other, other.clock.train_exp_counter

    return load


@cache
def uninterrupted(kind, plugins, tasks):
    """The learner and the metrics of a run without interruption."""
    benchmark, strategy = make(kind, plugins, tasks=tasks)
    return strategy, train(benchmark, strategy)


def check_resumed(tmp_path, way, kind, stop: int = 2, plugins=(), tasks: bool = False, loggers=()):
    """Compare a run that is resumed after some experiences with one without interruption; return both learners."""
    strategy, expected = uninterrupted(kind, plugins, tasks)
    arguments = {"plugins": plugins, "tasks": tasks, "loggers": loggers}
    benchmark, first = make(kind, **arguments)
    results = train(benchmark, first, stop=stop)
    load = way(first, tmp_path / "checkpoint.pkl")
    torch.rand(11)
    benchmark, second = make(kind, **arguments)
    torch.rand(5)
    second, start = load(second)
    assert start == stop
    results += train(benchmark, second, start)
    assert results == expected and len(results) == 4 and all(len(one) > 10 for one in results)
    for one, other in zip(strategy.model.state_dict().values(), second.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    return strategy, second


@pytest.mark.parametrize(
    "plugins", [(), *((name,) for name in PLUGINS), ("replay", "lwf"), ("replay", "ewc")], ids="+".join
)
def test_hosts_plugins_on_our_stream(tmp_path, plugins):
    """run_checkpointing_with_plugins_all.sh: every --plugins, with Naive."""
    check_resumed(tmp_path, avalanche_way, "Naive", plugins=plugins)


@pytest.mark.parametrize(
    ("way", "kind", "stop"),
    [
        *((avalanche_way, f"strategy {buffer}", stop) for buffer, stop in zip(BUFFERS, (1, 2, 3))),
        *((avalanche_way, f"plugin {buffer}", stop) for buffer, stop in zip(BUFFERS, (2, 3, 1))),
        *((our_way, f"strategy {buffer}", stop) for buffer, stop in zip(BUFFERS, (3, 1, 2))),
        (our_way, "strategy codes", 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_our_learners(tmp_path, way, kind, stop):
    """test_checkpointing.sh for our learners, with its --checkpoint_at: the memories are the same, too."""
    both = check_resumed(tmp_path, way, kind, stop)
    storing = [next(plugin for plugin in one.plugins if isinstance(plugin, CRUMBPlugin)) for one in both]
    memories = [list(plugin.storage_policy.buffer) for plugin in storing]
    assert len(memories[0]) == 6
    for one, other in zip(*memories, strict=True):
        assert torch.equal(one[0], other[0]) and int(one[1]) == int(other[1])
