"""Items as tasks of a Ray cluster."""

import logging
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crumb_avalanche.runs.engine_settings import EngineSettings
from crumb_avalanche.runs.work import Ended, Engine, WorkUnit, python_path, work_on
from crumb_avalanche.runs.worker_check import Call, EngineError

FOLDER = "ray"  # in the output folder: calls
POLL = 2.0  # most seconds between two looks at the tasks
CONNECT = 10.0  # seconds for the head to answer
START = 120.0  # seconds for each node's first worker to answer
# Where `ray start` notes the address of this computer's cluster.
CURRENT = Path("/tmp/ray/ray_current_cluster")


def check_in(call: Call) -> None:
    """Compare a worker with a call; an answer that is an error is in its file."""
    call.check_in()


def checked_work(call: Call, unit: WorkUnit) -> str:
    """Compare a worker with a call, and work on a unit."""
    call.check_in()
    return work_on(unit)


class RayEngine(Engine):
    """Sends a task for each unit to a running Ray cluster.

    Tasks end with this process; the same call begins them again.

    Args:
        settings: of the engine.
        folder: that all nodes see.

    Raises:
        EngineError: there is no cluster, another user started it, or a node does not
            see the folder or has other versions.
        ImportError: Ray is not installed.
    """

    def __init__(self, settings: EngineSettings, folder: Path):
        try:
            import ray
        except ImportError as error:
            raise ImportError(
                "--engine ray needs Ray: pip install 'crumb-avalanche[ray]'"
            ) from error
        self.ray = ray
        self.call = Call.begin(folder / FOLDER)
        address = address_of(settings)
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": {"PYTHONPATH": python_path()}},
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EngineError(_no_cluster(address, str(error))) from error
        # A lost unit is done again by `do_all`, whatever the engine.
        self.options: dict[str, Any] = {
            "num_cpus": settings.cpus,
            "num_gpus": settings.gpus,
            "max_retries": 0,
        }
        if settings.memory_bytes is not None:
            self.options["memory"] = settings.memory_bytes
        self._units: dict[Any, WorkUnit] = {}  # by what Ray calls the result of a task
        try:
            self._check_nodes()
        except BaseException:
            ray.shutdown()
            raise

    def _check_nodes(self) -> None:
        """Let a worker of each node of the cluster compare itself with this process.

        Raises:
            EngineError: a node starts no worker in time, or its worker does not see the
                folders, or has other versions.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task = self.ray.remote(check_in)
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        answers = {}  # the node by the answer that Ray promises
        for node in nodes:
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": where}
            answers[task.options(**options).remote(self.call)] = node
        done, late = self.ray.wait(
            list(answers), num_returns=len(answers), timeout=START
        )
        # Those that are late raise below, as they have no answer yet.
        for answer in [*done, *late]:
            name = answers[answer]["NodeManagerHostname"]
            try:
                self.ray.get(answer, timeout=0)  # raises the error of the worker
            except Exception as error:
                reason = " ".join(str(getattr(error, "cause", error)).split())
                if not isinstance(getattr(error, "cause", None), EngineError):
                    reason = f"the node {name} cannot start a worker: {reason[-300:]}"
                raise EngineError(reason) from error

    def room(self) -> None:
        """Return ``None``: Ray has a queue."""
        return None

    def start(self, units: Sequence[WorkUnit]) -> None:
        """Send a task for each unit."""
        task = self.ray.remote(checked_work).options(**self.options)
        for unit in units:
            self._units[task.remote(self.call, unit)] = unit

    def wait(self) -> list[Ended]:
        """Return the units whose tasks ended, after a moment at the latest.

        Raises:
            EngineError: a worker does not work.
        """
        done, _ = self.ray.wait(list(self._units), num_returns=1, timeout=POLL)
        self.call.raise_refusals()
        return [self._ended(answer) for answer in done]

    def _ended(self, answer: Any) -> Ended:
        """Say how a task ended."""
        unit = self._units.pop(answer)
        try:
            return Ended(unit, self.ray.get(answer))
        except self.ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            time.sleep(POLL / 10)  # a dead node is not asked again at once
            return Ended(unit, None, f"its worker was lost ({lines[0][:200]})")

    def stop(self) -> str:
        """Cancel all tasks: those that run end with this process."""
        for answer in self._units:
            self.ray.cancel(answer, force=True)
        return ""

    def close(self) -> None:
        """Leave the cluster."""
        self.ray.shutdown()


def address_of(settings: EngineSettings) -> str:
    """Return the address of the Ray cluster, HOST:PORT, after a check that it answers.

    Args:
        settings: ``address`` is HOST:PORT, or "auto" for the cluster of this computer.

    Raises:
        EngineError: there is none, or another user started that of this computer.
    """
    address = settings.address or os.environ.get("RAY_ADDRESS") or "auto"
    if address == "auto":
        if not CURRENT.exists():
            raise EngineError(_no_cluster("this computer", f"{CURRENT} is not there"))
        if CURRENT.stat().st_uid != os.getuid():
            raise EngineError(
                f"another user started the Ray cluster of this computer ({CURRENT}), "
                "whose answers could run code here: give the address of yours in "
                "--resources"
            )
        address = CURRENT.read_text().strip()
    host, _, port = address.rpartition(":")
    try:
        # Ray itself tries for minutes.
        with socket.create_connection((host, int(port)), timeout=CONNECT):
            return address
    except (OSError, ValueError) as error:
        raise EngineError(_no_cluster(address, str(error))) from error


def _no_cluster(address: str, reason: str) -> str:
    return (
        f"there is no Ray cluster at {address} ({' '.join(reason.split())[:200]}); "
        "start one with ray start --head, or give its HOST:PORT as address in "
        "--resources"
    )
