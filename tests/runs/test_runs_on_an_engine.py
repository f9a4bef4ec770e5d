"""``crumb run --runs`` on an engine, and the feature cache that is filled before."""

import contextlib
import io
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from flags import flags
from support.runs import differences

from crumb_avalanche.cli import main
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.runs.cache_units import cache_units
from crumb_avalanche.runs.cells import sweep
from crumb_avalanche.runs.engine_settings import EngineSettings
from crumb_avalanche.runs.engines import do_all
from crumb_avalanche.runs.local_engines import ThisProcess
from crumb_avalanche.runs.run_folder import SUMMARY
from crumb_avalanche.runs.settings import RunSettings


@pytest.fixture(scope="module")
def run(tiny):
    """Do short runs; return what is printed."""

    def call(folder, *more):
        out = io.StringIO()
        arguments = (*tiny, "--output", folder, *flags(strategy="ncm"), *more)
        with contextlib.redirect_stdout(out):
            assert main(list(map(str, arguments))) == 0
        return out.getvalue()

    return call


def test_runs_in_processes_are_those_of_one(run, tmp_path):
    run(tmp_path / "one", "--runs", "0,2")
    text = run(tmp_path / "two", "--runs", "0,2", "--processes", "2")
    for name in ("run0", "run2"):
        assert not differences(tmp_path / "one" / name, tmp_path / "two" / name)
    assert (tmp_path / "one" / SUMMARY).read_text() == (
        tmp_path / "two" / SUMMARY
    ).read_text()
    assert text.splitlines()[-1].startswith("ncm, 2 runs: final accuracy ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--processes", "2"], "are for several runs: give --runs, such as 0-9"),
        (["--engine", "slurm"], "--engine slurm and --processes are for several"),
        (
            ["--processes", "2", "--runs", "0-1", "--overwrite", "true"],
            "--overwrite starts over in this process alone",
        ),
        (["--engine", "pbs"], "engine is 'pbs'; give one of processes, slurm, ray"),
        (["--resources", "x.yaml"], "is for --engine slurm or ray; leave it out"),
    ],
)
def test_engines_that_do_not_go(tiny, tmp_path, capsys, words, said):
    assert main([*map(str, tiny), "--output", str(tmp_path / "run"), *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_failed_run_is_named(tiny, clips, tmp_path, capsys):
    shutil.copytree(clips, tmp_path / "clips")
    files = [path for path in (tmp_path / "clips").rglob("*") if path.is_file()]
    min(files).write_bytes(b"damaged")
    words = flags(runs="0-1", processes=2, dataset_root=tmp_path / "clips")
    arguments = (*tiny, "--output", tmp_path / "runs", *words)
    assert main(list(map(str, arguments))) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "2 of 2 runs failed, such as" in last
    assert last.endswith("the same command does them again")


@pytest.fixture
def cells(clips, tmp_path):
    """Settings of two methods with one feature cache."""
    return [
        RunSettings(
            benchmark="clip_folder",
            dataset_root=str(clips),
            preset="paper",
            backbone="small_cnn",
            weights="none",
            image_size=32,
            strategy=strategy,
            feature_cache=str(tmp_path / "maps"),
            output=str(tmp_path / strategy),
            progress=False,
        )
        for strategy in ("ncm", "slda")
    ]


def filled(cells, folder, shards):
    """The files of maps after a number of shards was filled."""
    units = cache_units(cells, folder / "units", shards)
    assert not do_all(units, ThisProcess(), progress=False)
    return {path.name: path.read_bytes() for path in (folder / "maps").iterdir()}


def test_runs_of_one_network_share_a_cache(cells, tmp_path):
    assert len(cache_units(cells, tmp_path, 4)) == 4


@pytest.mark.parametrize(
    ("change", "caches"),
    [
        ({"run": 1, "learning_rate": 0.1}, 1),
        ({"image_size": 64}, 2),
        ({"precision": "bf16"}, 2),
        ({"cache_precision": "fp16"}, 2),
        ({"runtime": "onnxruntime"}, 2),
        ({"cut_layer": 2}, 2),
        ({"fps": 2.0}, 2),
        ({"new_class": True}, 2),
        ({"on_bad_frame": "skip"}, 2),
        ({"feature_cache": "elsewhere"}, 2),
    ],
    ids=str,
)
def test_runs_of_other_maps_have_a_cache_of_their_own(cells, tmp_path, change, caches):
    ncm, _ = cells
    units = cache_units([ncm, replace(ncm, **change)], tmp_path, 4)
    assert len(units) == 4 * caches


@pytest.mark.parametrize(("threads", "expected"), [(0, 6), (2, 2)])
def test_a_run_takes_its_share_of_the_cores(tmp_path, monkeypatch, threads, expected):
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    seen = []
    cell = RunSettings(threads=threads, output=str(tmp_path))
    failed = sweep(
        [cell],
        EngineSettings(processes=0),
        tmp_path,
        progress=False,
        work=lambda settings: seen.append(settings.threads),
        is_done=lambda settings: bool(seen),
    )
    assert not failed
    assert seen == [expected]


def test_runs_without_a_cache_fill_none(tmp_path):
    assert cache_units([RunSettings()], tmp_path) == []


def test_shards_fill_the_same_maps(cells, tmp_path):
    whole = filled(cells, tmp_path, 1)
    shutil.rmtree(tmp_path / "maps")
    assert filled(cells, tmp_path, 3) == whole


def test_a_run_computes_no_map_again(cells, tmp_path, monkeypatch):
    filled(cells, tmp_path, 1)
    monkeypatch.setattr(MapStore, "_fill", None)
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.run import run_once

    result = run_once(RunPlan.of(cells[0]), verbose=False)
    assert np.isfinite(result["final_accuracy"])
