"""Typed settings of an engine, and of what it needs of a cluster.

Imports neither torch nor Avalanche.
"""

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from crumb_avalanche.runs.settings import load_yaml
from crumb_avalanche.system import setting_ranges as ranges
from crumb_avalanche.system.named_values import field_names

EngineName = Literal["processes", "slurm", "ray"]
# As SLURM writes them: days, hours, minutes and seconds.
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d{1,2}):)?(\d{1,2}):(\d{2})")
_MEMORY = re.compile(r"(\d+) ?([MGT])B?")


def minutes_of(text: str) -> int | None:
    """Return the minutes of a text such as ``1-12:00:00``; ``None`` for another one."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, _ = (int(part or 0) for part in match.groups())
    return (24 * days + hours) * 60 + minutes


@dataclass(frozen=True)
class EngineSettings(ranges.InRange):
    """Where many runs are done, and what each needs.

    All but the first two come from a YAML file; see ``read_resources``.

    Attributes:
        engine: processes of this computer, slurm, or ray.
        processes: of the engine processes: runs at a time; 0 does them in this process.
        cpus: CPU cores of each run.
        gpus: GPUs of each run.
        memory: of each run, such as 8GB; default what the cluster gives.
        time: most minutes of a job, or a text D-HH:MM:SS or HH:MM:SS; a run that takes
            longer is queued again and goes on from its checkpoint. SLURM alone.
        partition: SLURM's; default that of the cluster.
        at_once: most jobs of SLURM at a time of each array; every call, every 500 jobs
            and every second attempt make an array of their own; default all.
        options: further options of sbatch, such as account and qos.
        address: of Ray's head, HOST:PORT; default the cluster of this computer.
    """

    engine: EngineName = "processes"
    processes: ranges.Workers = 1
    cpus: Annotated[int, ranges.Range(1, 1024)] = 1
    gpus: Annotated[int, ranges.Range(0, 64)] = 0
    memory: str | None = None
    time: int | str | None = None
    partition: str | None = None
    at_once: ranges.Count | None = None
    options: dict[str, str | int] = field(default_factory=dict)
    address: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_time()
        self._check_memory()
        if not isinstance(self.options, dict):
            raise ValueError(
                f"options is {self.options!r}; give lines such as account: NAME"
            )

    def _check_time(self) -> None:
        """Raise ValueError for a time that is not of a minute or more."""
        if self.time is None:
            return
        if self.minutes is None or self.minutes < 1:
            raise ValueError(
                f"time is {self.time!r}; give minutes, at least 1, or a text in quotes "
                "such as '12:00:00' or '1-00:00:00'"
            )

    def _check_memory(self) -> None:
        """Raise ValueError for a memory that is no number with a unit."""
        if self.memory is not None and _MEMORY.fullmatch(self.memory) is None:
            raise ValueError(f"memory is {self.memory!r}; give a text such as 8GB")

    @property
    def threads(self) -> int:
        """CPU threads of a run that sets none: its share of the cores.

        On a cluster these are ``cpus``: a job sees all cores of its node, but may use
        no more.
        """
        if self.engine != "processes":
            return self.cpus
        cores = os.cpu_count() or 1
        return max(1, cores // max(1, self.processes))

    @property
    def minutes(self) -> int | None:
        """Most minutes of a job; ``None`` without a limit."""
        if isinstance(self.time, str):
            return minutes_of(self.time)
        return self.time

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of memory of each run; ``None`` for what the cluster gives."""
        if self.memory is None:
            return None
        match = _MEMORY.fullmatch(self.memory)
        assert match is not None, "checked when the settings were made"
        number, unit = match.groups()
        return int(number) * 1024 ** ("KMGT".index(unit) + 1)


# What a file of resources may set: all but engine and processes.
RESOURCES = field_names(EngineSettings)[2:]


def engine_settings(
    engine: EngineName, processes: int = 1, resources: str | Path | None = None
) -> EngineSettings:
    """Return the settings of an engine, with those of a YAML file.

    Args:
        engine: "processes" (of this computer), "slurm" or "ray".
        processes: number of processes; 0 works in this one.
        resources: path of the file, which says what jobs on a cluster need.

    Raises:
        ValueError: the file cannot be read, or holds anything else than ``RESOURCES``.
    """
    settings = EngineSettings(engine, processes=processes)
    if resources is None:
        return settings
    if engine == "processes":
        raise ValueError(
            f"--resources {resources} is for --engine slurm or ray; leave it out"
        )
    return replace(settings, **read_resources(Path(resources)))


def read_resources(path: Path) -> dict[str, Any]:
    """Read a YAML file of what jobs on a cluster need, such as ``cpus`` and ``time``.

    Raises:
        ValueError: it cannot be read, or sets anything else than ``RESOURCES``.
    """
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it holds no lines of the form name: value")
        unknown = [str(name)[:60] for name in values if name not in RESOURCES]
        if unknown:
            raise ValueError(
                f"it sets {', '.join(unknown)}; known are {', '.join(RESOURCES)}"
            )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{path} is no file of resources ({reason}); see the page On a cluster"
        ) from error
    return values
