"""What a forked process does anew or leaves to its parent, as it lacks its threads.

A lock that a thread of the parent held is never released in the child. A video decoder
or a session of ONNX Runtime waits for its threads when it is freed; a forked process
has a copy of it, but none of these threads, and would wait for ever.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakMethod, WeakSet

# Methods that every forked process calls.
_methods: set[WeakMethod] = set()
# Whether forked processes collect no garbage of before the fork.
_collect_nothing = False
# Objects with threads of this process or of its parents.
_with_threads: WeakSet[Any] = WeakSet()
# Those of the parents, which are never freed here.
_of_parents: list[Any] = []


def call_in_child(method: Callable[[], None]) -> None:
    """Call a method of an object in every process forked from now on.

    It may replace a lock. The object may be collected meanwhile. Where processes are
    not forked, as on Windows, nothing is called.
    """
    _methods.add(WeakMethod(method, _methods.discard))


def collect_nothing_of_the_parent() -> None:
    """Let forked processes collect no garbage of before the fork, from now on.

    Call this before an object with threads is made.
    """
    global _collect_nothing
    _collect_nothing = True


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


def _in_child() -> None:
    if _collect_nothing:
        gc.freeze()
        _of_parents.extend(_with_threads)
    for reference in list(_methods):
        method = reference()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)
