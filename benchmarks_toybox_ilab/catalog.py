"""Streams by name, with the settings they run with.

Imports neither torch nor Avalanche.
"""

from benchmarks_toybox_ilab.datasets.host_streams import PREFIX, host_benchmark
from benchmarks_toybox_ilab.datasets.registry import BENCHMARKS, Benchmark

__all__ = ["BENCHMARKS", "Benchmark", "get_benchmark"]


def get_benchmark(name: str) -> Benchmark:
    """Return the benchmark of a `name`, such as "core50".

    "avalanche:NAME" stands for a generator of Avalanche.

    Raises:
        ValueError: If there is none; lists the known names.
    """
    if name.startswith(PREFIX):
        return host_benchmark(name)
    if name not in BENCHMARKS:
        raise ValueError(
            f"unknown benchmark {name!r}; known are {', '.join(BENCHMARKS)}."
        )
    return BENCHMARKS[name]
