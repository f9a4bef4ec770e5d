"""Workers fill the feature cache of a run; the run ends with the same bits."""

import json
import sys
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from learned import tensors_of

from benchmarks_toybox_ilab.streams.torch_dataset import FrameDataset, pixel_transform
from crumb_avalanche.models.map_store import ENTRY_BYTES, FeatureCacheError
from crumb_avalanche.runs import cache_by_many
from crumb_avalanche.runs.cache_by_many import fill_by_many, missing_rows
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.session import Session
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.ray_cluster import Here, RayCalls


class Workers(Here):
    """An engine that keeps the arguments of its calls; ``opened`` has those of each engine."""

    opened: ClassVar[list] = []

    def __init__(self, *arguments):
        self.calls = []
        self.opened.append((arguments, self))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def call(self, function, *arguments, results=1):
        self.calls.append(arguments)
        return super().call(function, *arguments, results=results)


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setattr("crumb_avalanche.runs.session.RayCalls", Workers)
    monkeypatch.setattr(Workers, "opened", [])
    monkeypatch.setattr(cache_by_many, "IMAGES", 50)
    cache_by_many._models.clear()
    return Workers


@pytest.fixture
def plan(clips, tmp_path):
    return RunPlan.of(
        RunSettings(
            benchmark="clip_folder",
            dataset_root=str(clips),
            backbone="small_cnn",
            weights="none",
            image_size=32,
            mem_size=6,
            feature_cache=str(tmp_path / "cache"),
            progress=False,
        )
    )


def fill(session, engine):
    plan, stream, model, cache = session.plan, session.stream, session.model, session.cache
    fill_by_many(plan, stream, model, cache, missing(session), engine)


def missing(session):
    return missing_rows(session.stream, session.cache)


def images_of(session):
    table = session.stream.table
    return FrameDataset(table, range(len(table)), pixel_transform(session.plan.image_size))


def maps_of(session):
    store = session.cache.store
    rows = np.arange(len(session.stream.table))
    return torch.stack([store.read(row) for row in rows])


def test_a_run_ends_with_the_same_bits(crumb, tiny, tmp_path, workers, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = []
    for name, engine in (("alone", ()), ("many", ("--engine", "ray", "--address", "head:6379"))):
        folder, cache = tmp_path / name, f"cache of {name}"  # relative: workers get the whole path
        code, _, err = crumb(*tiny, "--strategy", "rda", "--output", folder, "--feature-cache", cache, *engine)
        assert code == 0, err
        result = json.loads((folder / "result.json").read_text())
        files = {path.name: path.read_bytes() for path in (tmp_path / cache).iterdir()}
        ledger = json.loads((folder / "ledger.json").read_text())
        results.append((result["accuracy_after"], result["plan_sha256"], files))
        assert ledger["feature_cache_images_filled"] == 120 and ledger["feature_cache_seconds"] > 0
    assert results[0] == results[1]
    first, second = (tensors_of(tmp_path / name) for name in ("alone", "many"))
    assert all(torch.equal(first[key], second[key]) for key in first)
    ((arguments, engine),) = workers.opened
    assert arguments == ("head:6379", 1) and len(engine.calls) == 3


def test_only_missing_maps_are_sent_and_a_full_cache_needs_no_cluster(plan, workers):
    torch.manual_seed(0)
    with Session.build(replace(plan, strategy="finetune"), learner=False) as session:
        wanted = missing(session)
        np.testing.assert_array_equal(wanted, np.arange(120))
        engine = Workers()
        fill(session, engine)
        assert [len(rows) for _, rows in engine.calls] == [40, 40, 40]
        assert session.cache.store.filled == 120 and not len(missing(session))
        session.cache.store._write_at(np.zeros(2, np.uint64), 70 * ENTRY_BYTES)
        np.testing.assert_array_equal(missing(session), [70, 71])
        fill(session, engine)
        np.testing.assert_array_equal(engine.calls[-1][1], [70, 71])
        count = len(workers.opened)
        torch.manual_seed(0)  # the same random weights
        Session.build(replace(plan, strategy="finetune", engine="ray"), learner=False).close()
        assert len(workers.opened) == count


def test_workers_write_the_maps_of_the_run(plan, workers, tmp_path):
    plan = replace(plan, cache_precision="fp16", strategy="finetune")
    with Session.build(plan, learner=False) as session:
        fill(session, Workers())
        session.cache.store.dataset(images_of(session), np.arange(120), [0] * 120)  # verifies them
        assert session.cache.store.damaged == 0 and session.cache.store.filled == 120
        found = maps_of(session)
        expected = torch.stack(
            [session.model.extract(image[None])[0] for image, _ in map(images_of(session).__getitem__, range(120))]
        )
        torch.testing.assert_close(found.float(), expected.to(found.dtype).float(), rtol=1e-4, atol=1e-5)
        assert float(session.model.feature_scale) != 1  # maps are stored before it


def test_a_worker_with_another_runtime_is_refused(plan, workers):
    with Session.build(replace(plan, strategy="finetune"), learner=False) as session:
        engine = Workers()
        engine.share = lambda shared: replace(shared, path=shared.path.with_name("other.maps"))
        with pytest.raises(FeatureCacheError, match=r"a worker has runtime torch .*install the same"):
            fill(session, engine)


def test_what_an_engine_needs(crumb, tiny, tmp_path, monkeypatch):
    code, _, err = crumb(*tiny, "--output", tmp_path / "out", "--engine", "ray")
    assert code != 0 and "give --feature-cache, a folder that has the same path on all nodes" in err
    cache = ("--feature-cache", tmp_path / "cache", "--engine", "ray")
    code, _, err = crumb(*tiny, "--output", tmp_path / "out", *cache, "--device", "cuda")
    assert code != 0 and "workers of engine ray compute on CPUs" in err
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = crumb(*tiny, "--output", tmp_path / "out", *cache)
    assert code != 0 and "pip install 'crumb-avalanche[ray]'" in err and not (tmp_path / "out/result.json").exists()


@pytest.mark.slow
def test_the_loss_of_a_ray_node_leaves_a_whole_cache(plan, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    from killed_sweep import two_nodes

    monkeypatch.setattr(cache_by_many, "IMAGES", 4)
    plan = replace(plan, strategy="finetune")
    with two_nodes(1) as (cluster, nodes), Session.build(plan, learner=False) as session:
        done, lost = [], []

        def lose(count):
            done.append(count)
            if len(done) > 8 and not lost:
                lost.append(cluster.remove_node(nodes[0], allow_graceful=False))

        class Losing(RayCalls):
            def fetch(self, handles, each=lambda result: None):
                return super().fetch(handles, lambda result: (each(result), lose(result)))

        with Losing(cluster.address) as engine:
            fill(session, engine)
        assert lost and not len(missing(session))
        maps = session.cache.store.dataset(images_of(session), np.arange(120), [0] * 120)
        assert len(maps) == 120 and session.cache.store.damaged == 0 and session.cache.store.filled == 120
