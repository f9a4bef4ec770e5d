"""A sweep ends with all results that are possible.

It survives faults, and reports failed and diverged runs.
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
    units = [unit_of(cell, work) for cell in cells]
    return do_all(units, engine, **options)


here = partial(sweep, processes=0, progress=False)


@pytest.fixture(autouse=True)
def collected():
    # A forked process that collects a session of ONNX Runtime waits for threads that it
    # lacks.
    gc.collect()


CONFIG = "{benchmark: a, protocol: b, strategy: c, preset: d}"


def finish(settings: RunSettings, config: str = CONFIG) -> None:
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
        "accuracy_after": [final],
        "final_accuracy_per_experience": [final],
        FRAMES: "",
    }
    write_json(folder / RESULT, with_digests(folder, result))


def finish_with_plan(settings: RunSettings) -> None:
    """Write the result of a run, with the settings that tell it is finished."""
    finish(settings, str(RunPlan.of(settings)))


def raise_in_run_1(settings: RunSettings) -> None:
    print("something was said")
    if settings.run == 1:
        raise ValueError("run 1 cannot be")
    finish_with_plan(settings)


def die_once(settings: RunSettings) -> None:
    """SIGKILL the first attempt of run 1 when its folder is incomplete."""
    mark = Path(settings.output) / "attempt"
    if settings.run == 1 and not mark.exists():
        mark.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    finish(settings)


def die_at_the_end(settings: RunSettings) -> None:
    """SIGKILL run 1 when its result is written."""
    finish_with_plan(settings)
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


def results_of(cells: list[RunSettings]) -> list[dict | None]:
    """What the cells' result files hold; None of a cell without one."""
    results = []
    for cell in cells:
        path = Path(cell.output) / RESULT
        results.append(json.loads(path.read_text()) if path.exists() else None)
    return results


def accuracies(cells: list[RunSettings]) -> list[float | None]:
    return [result and result["final_accuracy"] for result in results_of(cells)]


def times(cells: list[RunSettings]) -> list[int]:
    """When the cells' result files were written."""
    return [(Path(cell.output) / RESULT).stat().st_mtime_ns for cell in cells]


PROCESSES = pytest.mark.parametrize("processes", [0, 1, 2])


@PROCESSES
def test_a_cell_that_raises_stops_no_other(processes, tmp_path):
    # Given three cells
    cells = cells_of(tmp_path)
    folder = Path(cells[1].output)
    # When the second raises
    failed = sweep(cells, processes, work=raise_in_run_1)
    # Then the others have results, and the error is returned and written down
    assert accuracies(cells) == [10, None, 12]
    assert failed == {folder: "ValueError: run 1 cannot be"}
    text = (folder / ERROR).read_text()
    assert text.startswith("Traceback")
    assert "raise ValueError" in text
    assert not any((Path(cell.output) / LOCK).exists() for cell in cells)


@PROCESSES
def test_a_cell_that_raises_is_reported(processes, tmp_path, capsys):
    # Given three cells
    cells = cells_of(tmp_path)
    folder = Path(cells[1].output)
    # When the second prints something, and raises
    failed = sweep(cells, processes, work=raise_in_run_1)
    # Then its words are in its log, and its error is printed
    out, err = capsys.readouterr()
    assert (folder / "log.txt").read_text().startswith("something was said")
    assert "something was said" not in out
    assert f"failed: {folder}: ValueError" in err
    assert "3/3" in err
    assert "run2" in err
    # And the exit code tells it
    assert exit_code(failed) == 1


def test_the_exit_code_of_a_sweep_without_failures():
    assert exit_code({}) == 0


@PROCESSES
def test_a_failed_cell_alone_is_done_again(processes, tmp_path):
    # Given a sweep whose second cell failed
    cells = cells_of(tmp_path)
    sweep(cells, processes, work=raise_in_run_1)
    others = [cells[0], cells[2]]
    before = times(others)
    # When all are to be done again
    assert not sweep(cells, processes, work=finish_with_plan)
    # Then that cell has a result and no error, and the others are not done again
    assert accuracies(cells) == [10, 11, 12]
    assert not (Path(cells[1].output) / ERROR).exists()
    assert times(others) == before


@pytest.mark.parametrize(("processes", "workers"), [(0, 1), (1, 3), (2, 3)])
def test_each_cell_has_a_process_of_its_own(processes, workers, tmp_path):
    """Without processes, this process does all."""
    cells = cells_of(tmp_path)
    assert not sweep(cells, processes, work=finish)
    done_by = {result["process"] for result in results_of(cells)}
    assert len(done_by) == workers
    assert (os.getpid() in done_by) == (processes == 0)


@pytest.mark.parametrize("work", [die_once, die_at_the_end])
def test_a_killed_worker_is_restarted(tmp_path, capsys, work):
    # Given three cells
    cells = cells_of(tmp_path)
    folder = Path(cells[1].output)
    # When the worker of the second is killed once
    assert not sweep(cells, work=work)
    # Then it is restarted, which is printed
    assert accuracies(cells) == [10, 11, 12]
    assert not (folder / ERROR).exists()
    words = f"died: {folder}: its process was killed by signal 9"
    assert words in capsys.readouterr().err


def test_a_cell_killed_each_time_fails_alone(tmp_path):
    cells = cells_of(tmp_path)
    folder = Path(cells[1].output)
    words = "its process was killed by signal 9, perhaps for want of memory, 2 times"
    assert sweep(cells, work=always_die, retries=1) == {folder: words}
    assert accuracies(cells) == [10, None, 12]
    assert (folder / ERROR).read_text() == words + "\n"


def test_a_cell_out_of_memory_fails_alone(tmp_path):
    cells = cells_of(tmp_path)
    words = "out of memory (MemoryError): do fewer runs at a time"
    assert sweep(cells, work=take_all_memory) == {Path(cells[1].output): words}
    assert accuracies(cells) == [10, None, 12]


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    # Given three cells, of which the second's disk is full
    cells = cells_of(tmp_path)
    folder = Path(cells[1].output)
    folder.mkdir(parents=True)
    # When they are done
    with full_disk(folder):
        failed = here(cells, work=finish)
    # Then the second fails alone, with words that say what to do
    assert accuracies(cells) == [10, None, 12]
    assert failed.keys() == {folder}
    assert "run1 is full ([Errno 28] No space left on device: '" in failed[folder]
    assert "): make room and give the same" in failed[folder]
    assert not [*folder.glob("*.part")]
    # And it has a result once there is room
    assert not here(cells[1:2], work=finish)
    assert accuracies(cells) == [10, 11, 12]


def test_a_folder_in_use_fails_alone(tmp_path):
    cells = cells_of(tmp_path)
    folder = Path(cells[1].output)
    with locked(folder):
        failed = here(cells, work=finish)
    assert accuracies(cells) == [10, None, 12]
    assert "run1 is in use by another process" in failed[folder]
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
    # Given a driver whose worker is at work
    (cell,) = cells_of(tmp_path, 1)
    folder = Path(cell.output)
    context = multiprocessing.get_context("fork")
    long_sweep = partial(sweep, [cell], work=work_for_long)
    driver = context.Process(target=long_sweep)
    driver.start()
    deadline = time.monotonic() + 120
    path = folder / "at_work"
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert in_use(folder)
    # When the driver is killed
    driver.kill()
    driver.join()
    # Then its worker ends, too
    worker = int(path.read_text())
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(worker, 0)
            time.sleep(0.02)
    # And the folder can be used again
    assert not in_use(folder)
    assert not here([cell], work=finish)


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


def four_experiences(clips: Path, output: Path) -> RunSettings:
    """The settings of a run that learns one class after the other."""
    return RunSettings(
        benchmark="clip_folder",
        dataset_root=str(clips),
        preset="paper",
        weights="none",
        mem_size=8,
        backbone="small_cnn",
        image_size=32,
        batch_size=8,
        first_epochs=1,
        threads=1,
        progress=False,
        classes_per_experience=1,
        output=str(output / "run0"),
    )


def diverge_at(experience: int, iteration: int, patch: pytest.MonkeyPatch) -> None:
    """Let the loss be NaN in an iteration of an experience."""
    check_loss = DivergenceGuard.check_loss

    def checked(guard, strategy, loss):
        clock = strategy.clock
        now = (clock.train_exp_counter, clock.train_exp_iterations)
        if now == (experience, iteration):
            loss = loss * float("nan")
        check_loss(guard, strategy, loss)

    patch.setattr(DivergenceGuard, "check_loss", checked)


@pytest.fixture(scope="module")
def diverged(clips, tmp_path_factory):
    """The settings of a run that diverged in its second experience, and the run."""
    folder = tmp_path_factory.mktemp("diverged")
    settings = four_experiences(clips, folder)
    with pytest.MonkeyPatch.context() as patch:
        diverge_at(1, 1, patch)
        assert work_on(unit_of(settings)) == DONE
    (run,) = finished_runs(folder, [0])
    return settings, run


def test_a_diverged_run_counts(diverged):
    """Its last accuracy is the final one."""
    _, run = diverged
    assert run.result["diverged_in_experience"] == 1
    assert run.result["accuracy_after"][1:] == [None, None, run.final]
    assert len(run.result["final_accuracy_per_experience"]) == 4
    ledger = json.loads((run.folder / "ledger.json").read_text())
    assert len(ledger["after_experience"]) == 4
    assert "the run ends here and counts" in (run.folder / "log.txt").read_text()


def test_a_diverged_run_is_finished(diverged):
    settings, _ = diverged
    before = times([settings])
    assert work_on(unit_of(settings)) == DONE
    assert times([settings]) == before


def test_predictions_of_a_diverged_run(diverged):
    _, run = diverged
    predictions = run.predictions
    # Images of all classes are asked
    assert len(predictions["row"]) == 40
    assert set(predictions["label"]) == {0, 1, 2, 3}
    # The answers are classes of the first two experiences
    names = run.result["classes_order"]
    seen = {sorted(names).index(name) for name in names[:2]}
    assert set(predictions["answer"]) <= seen
    # The final accuracy is that of the answers
    is_right = predictions["label"] == predictions["answer"]
    assert run.final == pytest.approx(100 * np.mean(is_right))


@pytest.mark.parametrize(
    ("experience", "iteration", "counts"),
    [
        pytest.param(1, 1, False, id="not counted"),
        pytest.param(0, 0, True, id="first experience"),
    ],
)
def test_a_divergence_that_does_not_count_is_an_error(
    clips, tmp_path, monkeypatch, experience, iteration, counts
):
    diverge_at(experience, iteration, monkeypatch)
    plan = RunPlan.of(four_experiences(clips, tmp_path))
    words = f"in experience {experience}, iteration {iteration}"
    with pytest.raises(TrainingDivergedError, match=words):
        run_once(plan, count_divergence=counts)
    assert not (tmp_path / "run0" / "result.json").exists()


class PlayedCluster(Engine):
    """A cluster whose first two workers end early, and later ones do their work."""

    def __init__(self, **ending):
        self.ending = ending
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
        return [Ended(unit, None, **self.ending) for unit in units]

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
