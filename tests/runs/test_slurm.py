"""Runs on a real SLURM, which ``sinfo`` has to answer for.

Jobs that are killed, queued again and refused.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from refused_workers import check_refused_workers
from support.runs import differences
from support.sweep import grid

from crumb_avalanche.cli import main
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.runs import slurm_engine
from crumb_avalanche.runs.cells import sweep, unit_of
from crumb_avalanche.runs.engine_settings import EngineSettings
from crumb_avalanche.runs.engines import do_all
from crumb_avalanche.runs.local_engines import Processes
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.worker_check import EngineError

pytest.importorskip("submitit")
answers = shutil.which("sinfo") and not subprocess.call(
    ["sinfo"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not answers, reason="needs a SLURM that answers"),
]
SLURM = EngineSettings("slurm")


def running_jobs():
    """Ids of the jobs that run."""
    command = ["squeue", "--me", "--noheader", "--array", "--states=RUNNING"]
    text = subprocess.check_output([*command, "--format=%i"], text=True)
    return text.split()


def wait_for_jobs(count):
    """Wait until so many jobs run."""
    deadline = time.monotonic() + 120
    while len(running_jobs()) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    return running_jobs()


def kill_a_job(folder):
    """Kill a job's processes as soon as two run."""
    job, *_ = wait_for_jobs(2)
    subprocess.run(["scancel", "--signal=KILL", "--full", job], check=True)


def preempt(folder, sent):
    """Give the only job the notice of preemption after its first checkpoint."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(folder.rglob("resume/*")):
        time.sleep(0.05)
    (job,) = running_jobs()
    sent.append(subprocess.call(["scancel", "--signal=USR2", job]))


def restart_a_node(folder):
    """Stop the daemon of the node n2 while jobs run, and start it again."""
    wait_for_jobs(2)
    text = subprocess.check_output(["scontrol", "show", "config"], text=True)
    pid_file = next(line for line in text.splitlines() if "SlurmdPidFile" in line)
    path = pid_file.partition("=")[2].strip().replace("%n", "n2")
    os.kill(int(Path(path).read_text()), signal.SIGTERM)
    time.sleep(3)
    subprocess.run(["slurmd", "-N", "n2"], check=True)


@pytest.mark.parametrize("disturb", [kill_a_job, restart_a_node])
def test_disturbed_runs_are_those_of_processes(base, tmp_path, disturb):
    jobs = grid(base, tmp_path / "slurm", range(12), {"row": {}})
    disturber = threading.Thread(target=disturb, args=[tmp_path / "slurm"])
    disturber.start()
    assert not sweep(jobs, SLURM, tmp_path / "slurm")
    disturber.join()
    here = grid(base, tmp_path / "here", range(12), {"row": {}})
    assert not do_all(list(map(unit_of, here)), Processes(2, "fork"))
    for job, cell in zip(jobs, here, strict=True):
        assert not differences(Path(job.output), Path(cell.output))


def slowly(settings: RunSettings) -> None:
    """Do a run of which each step takes two seconds."""
    from crumb_avalanche.runs.cells import learn
    from crumb_avalanche.training.plugins import DivergenceGuard

    check_loss = DivergenceGuard.check_loss

    def checked(guard, strategy, loss):
        time.sleep(2)
        check_loss(guard, strategy, loss)

    DivergenceGuard.check_loss = checked
    learn(settings)


def assert_undisturbed(base, cell, tmp_path):
    """Compare a run that went on from a checkpoint with one that never stopped."""
    assert "resuming: " in (Path(cell.output) / "log.txt").read_text()
    (undisturbed,) = grid(base, tmp_path / "here", [0], {"row": {}})
    assert not do_all([unit_of(undisturbed)], Processes(1, "fork"))
    assert not differences(Path(cell.output), Path(undisturbed.output))


def test_a_run_goes_on_after_its_time_limit(base, tmp_path):
    base = replace(base, checkpoint_every=1, first_epochs=4, batch_size=4)
    limited = EngineSettings("slurm", time=1)
    (cell,) = grid(base, tmp_path / "slurm", [0], {"row": {}})
    assert not sweep([cell], limited, tmp_path / "slurm", work=slowly)
    assert_undisturbed(base, cell, tmp_path)


def test_a_preempted_run_goes_on(base, tmp_path):
    base = replace(base, checkpoint_every=1)
    (cell,) = grid(base, tmp_path / "slurm", [0], {"row": {}})
    sent = []
    preempter = threading.Thread(target=preempt, args=[tmp_path / "slurm", sent])
    preempter.start()
    assert not sweep([cell], SLURM, tmp_path / "slurm", work=slowly)
    preempter.join()
    assert sent == [0]
    log = next((tmp_path / "slurm" / "slurm").glob("*_log.err"))
    assert "this job is preempted" in log.read_text()
    assert_undisturbed(base, cell, tmp_path)


def test_the_same_call_finds_its_jobs_again(base, tmp_path):
    cells = grid(base, tmp_path, range(2), {"row": {}})
    units = list(map(unit_of, cells))
    first = slurm_engine.SlurmEngine(SLURM, tmp_path)
    first.start(units)
    jobs = set(first._units)
    second = slurm_engine.SlurmEngine(SLURM, tmp_path)
    second.start(units)
    assert set(second._units) == jobs
    subprocess.run(["scancel", *jobs], check=True)


def test_teaching_on_slurm(clips, tmp_path):
    new = ["--backbone", "small_cnn", "--weights", "none", "--image-size", "32"]
    shards = ["--engine", "slurm", "--shards", "4"]
    for name, more in (("one", []), ("four", shards)):
        model = tmp_path / f"{name}.safetensors"
        assert main(["teach", str(model), str(clips), *new, *more]) == 0
    one, four = (
        Learner.load(tmp_path / f"{name}.safetensors") for name in ("one", "four")
    )
    assert list(map(str, four.predict_all(clips))) == list(
        map(str, one.predict_all(clips))
    )


def test_a_refused_job(base, tmp_path):
    settings = EngineSettings("slurm", cpus=1000)
    cells = grid(base, tmp_path, [0], {"row": {}})
    with pytest.raises(EngineError, match=r"refuses such jobs \(.*not available"):
        sweep(cells, settings, tmp_path)
    assert not (tmp_path / "row").exists()


@pytest.mark.usefixtures("another_version")
def test_workers_of_another_version(base, tmp_path):
    check_refused_workers(base, SLURM, tmp_path)


UNSEEN = """
mount -t tmpfs none {folder}
exec {python} -c "
from pathlib import Path
from crumb_avalanche.runs.cells import sweep
from crumb_avalanche.runs.engine_settings import EngineSettings
from crumb_avalanche.runs.settings import RunSettings
folder = Path('{folder}') / 'runs'
sweep([RunSettings(output=str(folder / 'run0'))], EngineSettings('slurm'), folder)
"
"""


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a disk that workers do not see")
def test_a_folder_that_workers_do_not_see(tmp_path):
    script = UNSEEN.format(folder=tmp_path, python=sys.executable)
    command = ["unshare", "--mount", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    last = done.stderr.splitlines()[-1]
    assert "its node does not see this folder; choose an --output on a disk" in last
