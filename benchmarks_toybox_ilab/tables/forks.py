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
_called_in_child: set[WeakMethod] = set()
# Whether forked processes collect no garbage of before the fork.
_spares_garbage = False
# Objects with threads of this process or of its parents.
_resources_with_threads: WeakSet[Any] = WeakSet()
# Those of the parents, which are never freed here.
_resources_of_parents: list[Any] = []


def call_in_child(method: Callable[[], None]) -> None:
    """Call a method of an object in every process forked from now on.

    It may replace a lock. The object may be collected meanwhile. Where processes are
    not forked, as on Windows, nothing is called.
    """
    _called_in_child.add(WeakMethod(method, _called_in_child.discard))


def collect_nothing_of_the_parent() -> None:
    """Let forked processes collect no garbage of before the fork, from now on.

    Call this before an object with threads is made.
    """
    global _spares_garbage
    _spares_garbage = True


def never_freed_in_forks(resource: Any) -> None:
    """Let forked processes never free an object that has threads in this one.

    Args:
        resource: The object, such as a video decoder; it must take weak references.
    """
    collect_nothing_of_the_parent()
    _resources_with_threads.add(resource)


@contextmanager
def closed_by_its_process(resource: Any) -> Iterator[Any]:
    """Yield an open resource with threads, such as a video, and close it at the end.

    A process that was forked meanwhile does not close it.
    """
    opened_by = os.getpid()
    try:
        yield resource
    finally:
        if os.getpid() == opened_by:
            resource.close()


def _after_fork_in_child() -> None:
    """In a forked process, keep what its parent left and call the waiting methods."""
    if _spares_garbage:
        gc.freeze()
        _resources_of_parents.extend(_resources_with_threads)
    for reference in list(_called_in_child):
        method = reference()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
