"""A sweep ends with all results that are possible, survives faults, and reports failed
and diverged runs.
"""

import gc
import json
import multiprocessing
import os
import resource
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from faults import full_disk
from support.runs import finished_runs
from support.sweep import exit_code, grid

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from crumb_avalanche.runs.cells import unit_of
from crumb_avalanche.runs.engine_settings import EngineSettings
from crumb_avalanche.runs.engines import check_folders, do_all, engine_of
from crumb_avalanche.runs.local_engines import Processes, ThisProcess
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run import run_once
from crumb_avalanche.runs.run_folder import (
    FRAMES,
    RESULT,
    FinishedRunError,
    with_digests,
    write_json,
)
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.work import DONE, ERROR, Ended, Engine, work_on
from crumb_avalanche.system.folder_lock import LOCK, in_use, locked
from crumb_avalanche.training.plugins import DivergenceGuard, TrainingDivergedError


def sweep(cells, processes=1, *, work, **options) -> dict[Path, str]:
    """Do cells in forks of the tests' process, so that none imports; or in it."""
    engine = Processes(processes, "fork") if processes else ThisProcess()
    return do_all([unit_of(cell, work) for cell in cells], engine, **options)


here = partial(sweep, processes=0, progress=False)


@pytest.fixture(autouse=True)
def collected():
    # a forked process that collects a session of ONNX Runtime waits for threads that it
    # lacks
    gc.collect()


def finish(
    settings: RunSettings,
    config: str = "{benchmark: a, protocol: b, strategy: c, preset: d}",
) -> None:
    """Write the result of a run."""
    folder = Path(settings.output)
    write_text(folder / "config.yaml", config)
    final = 10.0 + settings.run
    result = {
        "run": settings.run,
        "final_accuracy": final,
        "process": os.getpid(),
        "provenance": {},
        "bad_frames": [],
    }
    result |= {
        "accuracy_after": [final],
        "final_accuracy_per_experience": [final],
        FRAMES: "",
    }
    write_json(folder / RESULT, with_digests(folder, result))


def raise_in_run_1(settings: RunSettings) -> None:
    print("something was said")
    if settings.run == 1:
        raise ValueError("run 1 cannot be")
    finish(settings)


def die_once(settings: RunSettings) -> None:
    """SIGKILL the first attempt of run 1 when its folder is incomplete."""
    mark = Path(settings.output) / "attempt"
    if settings.run == 1 and not mark.exists():
        mark.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    finish(settings)


def die_at_the_end(settings: RunSettings) -> None:
    """SIGKILL run 1 when its result is written."""
    finish(settings, str(RunPlan.of(settings)))
    if settings.run == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def always_die(settings: RunSettings) -> None:
    if settings.run == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    finish(settings)


def take_all_memory(settings: RunSettings) -> None:
    if settings.run == 1:
        resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
        bytearray(2**33)
    finish(settings)


def work_for_long(settings: RunSettings) -> None:
    write_text(Path(settings.output) / "at_work", str(os.getpid()))
    time.sleep(300)  # longer than the test waits for its end


def cells_of(output: Path, runs: int = 3, **changes) -> list[RunSettings]:
    return grid(RunSettings(**changes), output, range(runs), {"row": {}})


def accuracies(cells: list[RunSettings]) -> list[float | None]:
    paths = [Path(cell.output) / RESULT for cell in cells]
    return [
        json.loads(path.read_text())["final_accuracy"] if path.exists() else None
        for path in paths
    ]


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_a_cell_that_raises_stops_no_other_and_is_reported(processes, tmp_path, capsys):
    cells = cells_of(tmp_path)
    folder = Path(cells[1].output)
    failed = sweep(cells, processes, work=raise_in_run_1)
    assert accuracies(cells) == [10, None, 12] and failed == {
        folder: "ValueError: run 1 cannot be"
    }
    text = (folder / ERROR).read_text()
    assert text.startswith("Traceback") and "raise ValueError" in text
    assert (folder / "log.txt").read_text().startswith("something was said")
    out, err = capsys.readouterr()
    assert "something was said" not in out
    assert f"failed: {folder}: ValueError" in err and "3/3" in err and "run2" in err
    assert exit_code(failed) == 1 and exit_code({}) == 0
    assert not any((Path(cell.output) / LOCK).exists() for cell in cells)
    results = [(Path(cells[run].output) / RESULT).stat().st_mtime_ns for run in (0, 2)]
    assert not sweep(cells[1:2], processes, work=finish)
    assert accuracies(cells) == [10, 11, 12] and not (folder / ERROR).exists()
    assert results == [
        (Path(cells[run].output) / RESULT).stat().st_mtime_ns for run in (0, 2)
    ], "not done again"
    done_by = {
        json.loads((Path(cell.output) / RESULT).read_text())["process"]
        for cell in cells
    }
    assert len(done_by) == (3 if processes else 1) and (os.getpid() in done_by) == (
        not processes
    )


@pytest.mark.parametrize("work", [die_once, die_at_the_end])
def test_a_killed_worker_is_restarted(tmp_path, capsys, work):
    cells = cells_of(tmp_path)
    assert not sweep(cells, work=work)
    assert (
        accuracies(cells) == [10, 11, 12]
        and not (Path(cells[1].output) / ERROR).exists()
    )
    assert (
        f"died: {Path(cells[1].output)}: its process was killed by signal 9"
        in capsys.readouterr().err
    )


def test_a_cell_killed_each_time_or_out_of_memory_fails_alone(tmp_path):
    cells = cells_of(tmp_path)
    said = "its process was killed by signal 9, perhaps for want of memory, 2 times"
    assert sweep(cells, work=always_die, retries=1) == {Path(cells[1].output): said}
    assert (
        accuracies(cells) == [10, None, 12]
        and (Path(cells[1].output) / ERROR).read_text() == said + "\n"
    )
    said, cells = (
        "out of memory (MemoryError): do fewer runs at a time",
        cells_of(tmp_path / "again"),
    )
    assert sweep(cells, work=take_all_memory) == {Path(cells[1].output): said}
    assert accuracies(cells) == [10, None, 12]


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    cells = cells_of(tmp_path)
    folder = Path(cells[1].output)
    folder.mkdir(parents=True)
    with full_disk(folder):
        failed = here(cells, work=finish)
    reason = failed.pop(folder)
    assert "run1 is full ([Errno 28] No space left on device: '" in reason
    assert "): make room and give the same" in reason
    assert (
        not failed
        and accuracies(cells) == [10, None, 12]
        and not [*folder.glob("*.part")]
    )
    assert not here(cells[1:2], work=finish) and accuracies(cells) == [10, 11, 12]


def test_a_folder_in_use_fails_alone(tmp_path):
    cells = cells_of(tmp_path)
    with locked(Path(cells[1].output)):
        failed = here(cells, work=finish)
    assert accuracies(cells) == [10, None, 12]
    assert "run1 is in use by another process" in failed[Path(cells[1].output)]
    assert not here(cells[1:2], work=finish)


def interrupt_in_run_1(settings: RunSettings) -> None:
    if settings.run == 1:
        raise KeyboardInterrupt
    finish(settings)


def test_an_interrupt_says_how_to_go_on(tmp_path, capsys):
    cells = cells_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        here(cells, work=interrupt_in_run_1)
    assert accuracies(cells) == [10, None, None]
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "2 are left, and the same command goes on"
    assert not here(cells[1:], work=finish)
    assert accuracies(cells) == [10, 11, 12]


def test_workers_die_with_their_driver(tmp_path):
    driver = multiprocessing.get_context("fork").Process(
        target=sweep, args=(cells_of(tmp_path, 1),), kwargs={"work": work_for_long}
    )
    driver.start()
    cell, deadline = cells_of(tmp_path, 1)[0], time.monotonic() + 120
    place = Path(cell.output) / "at_work"
    while not place.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert in_use(Path(cell.output))
    driver.kill()
    driver.join()
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(int(place.read_text()), 0)
            time.sleep(0.02)
    assert not in_use(Path(cell.output)) and not here([cell], work=finish)


def test_cells_of_one_folder_are_refused(tmp_path):
    unit = unit_of(cells_of(tmp_path, 1)[0])
    words = r"1 folders belong to several runs, such as .*run0; give each its"
    with pytest.raises(ValueError, match=words):
        check_folders([unit, unit])


def test_a_run_of_other_settings_is_refused(tmp_path):
    cell = cells_of(tmp_path, 1)[0]
    finish(cell)
    with pytest.raises(FinishedRunError, match="holds a finished run with"):
        here([cell], work=finish)


def test_no_items(tmp_path):
    assert here([], work=finish) == {}


@pytest.mark.parametrize(("processes", "kind"), [(0, ThisProcess), (2, Processes)])
def test_engines_of_this_computer(tmp_path, processes, kind):
    settings = EngineSettings(processes=processes)
    assert type(engine_of(settings, tmp_path)) is kind


@pytest.fixture
def diverging(clips, tmp_path, monkeypatch):
    """A function that gives a run of four experiences of a class each, which diverges
    in an iteration of one.
    """
    check_loss = DivergenceGuard.check_loss
    chosen = dict(
        benchmark="clip_folder",
        dataset_root=str(clips),
        preset="paper",
        weights="none",
        mem_size=8,
    )
    chosen |= dict(
        backbone="small_cnn",
        image_size=32,
        batch_size=8,
        first_epochs=1,
        threads=1,
        progress=False,
    )

    def settings(*place):
        def checked(guard, strategy, loss):
            now = strategy.clock.train_exp_counter, strategy.clock.train_exp_iterations
            check_loss(guard, strategy, loss * float("nan") if now == place else loss)

        monkeypatch.setattr(DivergenceGuard, "check_loss", checked)
        return RunSettings(
            **chosen, classes_per_experience=1, output=str(tmp_path / "run0")
        )

    return settings


def test_a_diverged_run_counts(diverging, tmp_path):
    settings = diverging(1, 1)
    assert work_on(unit_of(settings)) == DONE
    (run,) = finished_runs(tmp_path, [0])
    assert run.result["diverged_in_experience"] == 1
    after = run.result["accuracy_after"]
    assert (
        after[1:] == [None, None, run.final]
        and len(run.result["final_accuracy_per_experience"]) == 4
    )
    answers = run.predictions
    assert len(answers["row"]) == 40 and set(answers["label"]) == {0, 1, 2, 3}, (
        "all classes are asked"
    )
    assert run.final == pytest.approx(
        100 * np.mean(answers["label"] == answers["answer"])
    )
    seen = run.result["classes_order"][:2]
    assert set(answers["answer"]) <= {
        sorted(run.result["classes_order"]).index(name) for name in seen
    }
    assert "the run ends here and counts" in (run.folder / "log.txt").read_text()
    assert (
        len(json.loads((run.folder / "ledger.json").read_text())["after_experience"])
        == 4
    )
    assert work_on(unit_of(settings)) == DONE, "it is finished"


@pytest.mark.parametrize(("place", "counts"), [((1, 1), False), ((0, 0), True)])
def test_otherwise_or_in_the_first_experience_it_is_an_error(
    diverging, tmp_path, place, counts
):
    with pytest.raises(
        TrainingDivergedError, match="in experience {}, iteration {}".format(*place)
    ):
        run_once(RunPlan.of(diverging(*place)), count_divergence=counts)
    assert not (tmp_path / "run0" / "result.json").exists()


class PlayedCluster(Engine):
    """A cluster whose first workers end as told, and later ones do their work."""

    def __init__(self, **first):
        self.first = first
        self.ends = 2
        self.waiting = []

    def room(self):
        return None

    def start(self, units):
        self.waiting += units

    def wait(self):
        units = self.waiting
        self.waiting = []
        if not self.ends:
            return [Ended(unit, work_on(unit)) for unit in units]
        self.ends -= 1
        return [Ended(unit, None, **self.first) for unit in units]

    def stop(self):
        return "running jobs go on"

    def close(self):
        pass


def test_a_time_limit_is_no_loss(tmp_path, capsys):
    (cell,) = cells_of(tmp_path, 1)
    engine = PlayedCluster(cause="TIMEOUT", is_due=True)
    assert not do_all([unit_of(cell, finish)], engine, retries=0)
    assert f"goes on: {cell.output}: TIMEOUT" in capsys.readouterr().err


def test_a_lost_node_is_a_loss(tmp_path):
    (cell,) = cells_of(tmp_path, 1)
    engine = PlayedCluster(cause="NODE_FAIL")
    failed = do_all([unit_of(cell, finish)], engine, retries=1)
    assert failed == {Path(cell.output): "NODE_FAIL, 2 times"}


def test_an_interrupt_says_what_runs_on(tmp_path, capsys):
    (cell,) = cells_of(tmp_path, 1)
    engine = PlayedCluster(cause="NODE_FAIL")
    engine.wait = partial(interrupt_in_run_1, RunSettings(run=1))
    with pytest.raises(KeyboardInterrupt):
        do_all([unit_of(cell, finish)], engine, progress=False)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "running jobs go on; 1 are left, and the same command goes on"
