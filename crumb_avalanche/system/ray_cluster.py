"""Call functions in workers: on the nodes of a Ray cluster, or in this process."""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

RESTARTS = 3  # of a call whose worker or node died
Handle = Any


class Engine:
    """Calls functions at once, in this process; subclasses call them in workers, where results stay."""

    def call(self, function: Callable, *arguments: Any, results: int = 1) -> Any:
        """Call a function of a module; arguments may be handles. Returns a handle, or as many as it has results."""
        return function(*arguments)

    def share(self, value: Any) -> Handle:
        """Send a value to all workers that need it; return its handle."""
        return value

    def fetch(self, handles: Sequence[Handle], done: Callable[[Any], object] = lambda result: None) -> list[Any]:
        """Return the results of different handles; ``done`` is called with each as soon as it is there."""
        for result in handles:
            done(result)
        return list(handles)


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yield the module ``ray``, connected; workers import from the same places as this process.

    ``address`` is that of the head, ``HOST:PORT``; ``auto`` finds a head on this machine. ImportError: Ray is not
    installed; ConnectionError: no cluster there.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            'the engine ray needs Ray on every node: pip install -e ".[ray]"; or choose another --engine'
        ) from error
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    environment = {"env_vars": {"PYTHONPATH": paths}}
    try:
        host, colon, port = address.rpartition(":")
        if colon and "//" not in host:  # Ray itself retries for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(address, runtime_env=environment, log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConnectionError(
            f"there is no Ray cluster at {address} ({error}); start one with  ray start --head  and give its "
            "--address HOST:PORT"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


class RayCalls(Engine):
    """Calls of functions on a Ray cluster; what is lost with a worker or a node is computed again, up to three times.

    ``address`` is as for ``connected``, ``threads`` the CPUs and threads of torch of each call.
    """

    def __init__(self, address: str = "auto", threads: int = 1):
        self.address, self.threads = address, threads
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "RayCalls":
        self._ray = self._open.enter_context(connected(self.address))
        self._remote = self._ray.remote(num_cpus=self.threads, max_retries=RESTARTS)(_with_threads)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def call(self, function: Callable, *arguments: Any, results: int = 1) -> Any:
        """Call a function of a module on a node; see ``Engine``."""
        return self._remote.options(num_returns=results).remote(self.threads, function, *arguments)

    def share(self, value: Any) -> Any:
        """Store a value once for all calls; see ``Engine``."""
        return self._ray.put(value)

    def fetch(self, handles: Sequence[Any], done: Callable[[Any], object] = lambda result: None) -> list[Any]:
        """Return results; raise what a function raised, or RuntimeError for a result that was lost too often."""
        waiting, results = list(handles), {}
        try:
            while waiting:
                ready, waiting = self._ray.wait(waiting)
                for handle in ready:
                    results[handle] = self._ray.get(handle)
                    done(results[handle])
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            raise RuntimeError(f"a worker or node died again and again: {error}") from error
        return [results[handle] for handle in handles]


def _with_threads(threads: int, function: Callable, *arguments: Any) -> Any:
    import torch

    torch.set_num_threads(threads)
    return function(*arguments)
