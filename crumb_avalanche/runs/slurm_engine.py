"""Items as jobs of SLURM, which submitit submits."""

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from crumb_avalanche.runs.engine_settings import EngineSettings, minutes_of
from crumb_avalanche.runs.work import (
    DONE,
    ERROR,
    Ended,
    Engine,
    WorkUnit,
    is_done,
    python_path,
    work_on,
)
from crumb_avalanche.runs.worker_check import Call, EngineError

FOLDER = "slurm"  # in the output folder: jobs, their logs and calls
JOBS = "jobs.json"  # ids of jobs by the folder of the unit
NAME = "crumb"  # of the jobs
POLL = 2.0  # seconds between two looks at the queue
PATIENCE = 600.0  # seconds for which the queue may not answer
ARRAY = 500  # most jobs that are submitted at once; SLURM's usual limit is 1001
USUAL_MINUTES = 24 * 60
MOST_REQUEUES = 1000  # of a job at its time limit
NOTICE = 90  # seconds before the time limit at which a job gets a notice
# States of squeue in which a job never runs again; see its manual.
OVER = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
}
# Of these, ends by SLURM's rules rather than by a fault. A job that got its notice in
# time is queued again by submitit.
DUE = {"PREEMPTED", "TIMEOUT"}
# Starts Python with the notice of the time limit ignored, which would end it before
# submitit handles it: SLURM may give it a minute early.
START = """sh -c 'trap "" USR2; exec "$0" "$@"'"""


@dataclass(frozen=True)
class Job:
    """What a job runs; it is queued again at its time limit and begins anew."""

    call: Call

    def __call__(self, unit: WorkUnit) -> str:
        """Compare the worker with the call, and work on a unit."""
        self.call.check_in()
        return work_on(unit)

    def checkpoint(self, unit: WorkUnit) -> Any:
        """Return what runs when SLURM has queued the job again; see submitit."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, unit)


class SlurmEngine(Engine):
    """Queues a job for each unit.

    The queue says which jobs are over, and the folders of the units how they ended.
    Jobs go on when this process ends; the same call finds them again.

    Args:
        settings: of the engine.
        folder: that all nodes see.

    Raises:
        EngineError: there is no SLURM, or not the partition, or others may write to the
            folder.
        ImportError: submitit is not installed.
    """

    def __init__(self, settings: EngineSettings, folder: Path):
        try:
            import submitit
        except ImportError as error:
            raise ImportError(
                "--engine slurm needs submitit: pip install 'crumb-avalanche[cluster]'"
            ) from error
        minutes = usable_minutes(settings)
        check_request(settings, minutes)
        self.folder = folder / FOLDER
        self.call = Call.begin(self.folder)
        executor = submitit.SlurmExecutor(
            self.folder.resolve(),
            max_num_timeout=MOST_REQUEUES,
            python=f"{START} {shlex.quote(sys.executable)}",
        )
        executor.update_parameters(**self._parameters(settings, minutes))
        self.executor = executor
        self._units: dict[str, WorkUnit] = {}  # by id of the job
        self._last_answer_time = time.monotonic()  # when the queue did last

    def _parameters(self, settings: EngineSettings, minutes: int) -> dict[str, Any]:
        """Return the parameters of submitit's executor, which SLURM's jobs get.

        Args:
            settings: of the engine: cpus, gpus, memory and partition of a job.
            minutes: time limit of a job.
        """
        parameters: dict[str, Any] = {
            "job_name": NAME,
            "time": minutes,
            "cpus_per_task": settings.cpus,
            "array_parallelism": settings.at_once or ARRAY,  # jobs at a time
            # Seconds before its end at which a job gets a signal; at most half of it.
            "signal_delay_s": min(NOTICE, 30 * minutes),
            "setup": [f"export PYTHONPATH={shlex.quote(python_path())}"],
            "additional_parameters": {"requeue": True, **settings.options},
        }
        if settings.partition is not None:
            parameters["partition"] = settings.partition
        if settings.gpus:
            parameters["gpus_per_node"] = settings.gpus
        if settings.memory is not None:
            parameters["mem"] = settings.memory.replace(" ", "")
        return parameters

    def room(self) -> None:
        """Return ``None``: SLURM has a queue."""
        return None

    def start(self, units: Sequence[WorkUnit]) -> None:
        """Queue a job for each piece of work that has none waiting or running.

        Args:
            units: the work that is not done, such as runs, each with a folder of its
                own.

        Raises:
            EngineError: SLURM refuses the jobs, or does not say which jobs of an
                earlier call are over.
        """
        earlier_ids = self._recorded_ids()  # the id of the job of each folder
        state_of_job = self._states()  # by the id of the job
        if state_of_job is None:
            if earlier_ids:
                raise EngineError(
                    "squeue does not answer, and jobs of an earlier call may still "
                    "run: give the same command again later"
                )
            state_of_job = {}
        new_units = []
        for unit in units:
            job_id = earlier_ids.get(str(unit.folder.resolve()), "")
            # SLURM forgets jobs some time after they are completed.
            if state_of_job.get(job_id, "COMPLETED") in OVER:
                new_units.append(unit)
            else:
                self._units[job_id] = unit
        for start in range(0, len(new_units), ARRAY):
            self._submit(new_units[start : start + ARRAY])
        id_of_folder = {}
        for job_id, unit in self._units.items():
            id_of_folder[str(unit.folder.resolve())] = job_id
        # For a later call of the same command, which queues no second job.
        write_text(self.folder / JOBS, json.dumps(earlier_ids | id_of_folder))

    def _submit(self, units: Sequence[WorkUnit]) -> None:
        """Submit a job for each unit."""
        from submitit.core.utils import FailedJobError

        for unit in units:
            (unit.folder / ERROR).unlink(missing_ok=True)  # of an earlier attempt
        try:
            jobs = self.executor.map_array(Job(self.call), units)
        except FailedJobError as error:
            lines = str(error).strip().splitlines()
            raise EngineError(f"SLURM refuses the jobs: {lines[-1]}") from error
        for job, unit in zip(jobs, units, strict=True):
            self._units[job.job_id] = unit

    def _recorded_ids(self) -> dict[str, str]:
        """Read the ids of the jobs of earlier calls, by the folder of the unit."""
        path = self.folder / JOBS
        if not path.exists():
            return {}
        try:
            ids = json.loads(path.read_text())
            return {str(folder): str(job_id) for folder, job_id in ids.items()}
        except (ValueError, AttributeError):  # damaged: the jobs are sent again
            return {}

    def wait(self) -> list[Ended]:
        """Wait a moment, and return the work (such as runs) whose jobs are over.

        Raises:
            EngineError: a worker does not work, or the queue does not answer.
        """
        time.sleep(POLL)
        self.call.raise_refusals()  # of workers that do not fit this process
        state_of_job = self._states()
        if state_of_job is None:  # SLURM gives no answer now; the next call asks again
            return []
        ended = []
        for job_id, unit in list(self._units.items()):
            state = state_of_job.get(job_id)
            if state is None:  # SLURM has forgotten the job, which is over
                state = "over"
            if state == "over" or state in OVER:  # in which a job never runs again
                del self._units[job_id]
                ended.append(self._ended(job_id, unit, state))
        return ended

    def _ended(self, job_id: str, unit: WorkUnit, state: str) -> Ended:
        """Say how a piece of work ended, of whose job SLURM says that it is over.

        Args:
            job_id: SLURM's number of the job.
            unit: the work, such as a run, with a folder of its own.
            state: SLURM's word for how it ended, such as "CANCELLED", or "over".

        Raises:
            EngineError: the job left no log, so its node does not see the folder.
        """
        text = result_of(unit)  # ``DONE`` or a traceback, if its worker left one
        if text is not None:
            return Ended(unit, text)
        # SLURM itself opens this file on the node, in the folder as the node sees it.
        log = self.folder / f"{job_id}_0_log.err"
        if not log.exists() and state != "CANCELLED":
            raise EngineError(
                f"job {job_id} ended ({state}) and left no log in {self.folder}: its "
                "node does not see this folder; choose an --output on a disk that all "
                "nodes share"
            )
        cause = f"its job {job_id} is {state}"
        if log.exists():
            cause += f": {_last_line(log.read_text(errors='replace'))} (see {log})"
        # Ended by SLURM's rules, such as its time limit, rather than by a fault.
        is_due = state in DUE
        return Ended(unit, None, cause, is_due=is_due)

    def _states(self) -> dict[str, str] | None:
        """Return the state of each job of this user by id; ``None`` without an answer.

        Raises:
            EngineError: the queue has not answered for ten minutes.
        """
        command = ["squeue", "--me", "--noheader", "--array", "--states=all"]
        process = subprocess.run(
            [*command, "--format=%i %T"], capture_output=True, text=True, check=False
        )
        if process.returncode == 0:
            self._last_answer_time = time.monotonic()
            return dict(line.split() for line in process.stdout.splitlines())
        if time.monotonic() - self._last_answer_time > PATIENCE:
            raise EngineError(
                f"squeue does not answer ({_last_line(process.stderr)}): the jobs go "
                "on; give the same command again later"
            )
        return None

    def close(self) -> None:
        """Do nothing: no job is left."""

    def stop(self) -> str:
        """Cancel the waiting jobs; those that run go on."""
        if not self._units:
            return ""
        command = ["scancel", "--state=PENDING", *self._units]
        subprocess.run(command, check=False)
        return (
            "waiting jobs are cancelled, and running ones go on (scancel "
            f"--name={NAME} ends them)"
        )


def result_of(unit: WorkUnit) -> str | None:
    """Return how a unit ended by the files in its folder; ``None`` if it did not."""
    if is_done(unit):
        return DONE
    error = unit.folder / ERROR
    return error.read_text() if error.exists() else None


def usable_minutes(settings: EngineSettings) -> int:
    """Return the time limit of the jobs in minutes, which the partition must allow.

    Args:
        settings: of the engine; ``time`` and ``partition`` are those asked for.

    Raises:
        EngineError: there is no SLURM, it does not answer, it has no such partition, or
            the partition ends jobs before the time asked for.
    """
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise EngineError(
            "there is no SLURM here: sbatch and srun are not found; log in to a node "
            "of the cluster, or leave --engine out"
        )
    # A line for each partition: its name and its longest time.
    process = subprocess.run(
        ["sinfo", "--noheader", "--format=%P %l"],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise EngineError(f"SLURM does not answer: {_last_line(process.stderr)}")
    # SLURM's text of the longest time, such as 1-00:00:00, by partition.
    limits = dict(line.split() for line in process.stdout.splitlines())
    names = [name.removesuffix("*") for name in limits]
    defaults = [name for name in limits if name.endswith("*")]  # SLURM marks it so
    partition = settings.partition
    if partition is None and defaults:
        limit = limits[defaults[0]]
    elif partition in names:
        limit = limits.get(str(partition)) or limits[f"{partition}*"]
    else:
        raise EngineError(
            f"SLURM has no partition {partition}; its partitions are "
            f"{', '.join(names)}: give one in --resources"
        )
    longest = minutes_of(limit)  # None if there is no limit
    minutes = settings.minutes
    if longest is not None and minutes is not None and minutes > longest:
        raise EngineError(
            f"time is {settings.time}, but the partition ends jobs after {limit}; give "
            "less: a run that takes longer goes on in the next job"
        )
    if minutes is not None:
        return minutes
    return USUAL_MINUTES if longest is None else min(longest, USUAL_MINUTES)


def check_request(settings: EngineSettings, minutes: int) -> None:
    """Raise EngineError if SLURM would never run a job that asks for so much.

    Args:
        settings: of the engine: cpus, gpus, memory and partition of a job.
        minutes: time limit of a job.
    """
    values = {
        "cpus-per-task": settings.cpus,
        "time": minutes,
        "partition": settings.partition,
        "gpus-per-node": settings.gpus or None,
        "mem": settings.memory,
        **settings.options,
    }
    flags = [f"--{name}={value}" for name, value in values.items() if value is not None]
    command = ["sbatch", "--test-only", *flags, "--wrap=true"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise EngineError(
            f"SLURM refuses such jobs ({_last_line(process.stderr)}): ask for what the "
            "partition has in --resources"
        )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason is given"
