"""What a forked process must leave to its parent: objects of libraries with threads.

A video decoder or a session of ONNX Runtime waits for its threads when it is freed. A
forked process has a copy of it, but none of these threads, and would wait for ever.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakSet

_with_threads: WeakSet[Any] = WeakSet()  # of this process, or of its parents
_of_parents: list[Any] = []  # those of the parents, which are never freed here


def _in_child() -> None:
    gc.freeze()
    _of_parents.extend(_with_threads)


@cache
def collect_nothing_of_the_parent() -> None:
    """Let forked processes collect no garbage of before the fork, from now on.

    Call this before an object with threads is made.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=_in_child)


def never_freed_in_forks(resource: Any) -> None:
    """Let forked processes keep an object with threads that takes weak references."""
    collect_nothing_of_the_parent()
    _with_threads.add(resource)


@contextmanager
def closed_by_its_process(resource: Any) -> Iterator[Any]:
    """Close a resource with threads at the end, but not in a process forked since."""
    opened_by = os.getpid()
    try:
        yield resource
    finally:
        if os.getpid() == opened_by:
            resource.close()
