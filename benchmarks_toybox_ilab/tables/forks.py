"""What a forked process must leave to its parent."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def collect_nothing_of_the_parent() -> None:
    """Let forked processes collect no garbage of before the fork, from now on.

    A video decoder or a session of ONNX Runtime waits for its threads when it is freed.
    A forked process has a copy of it but none of these threads, so it would wait for
    ever. Call this before such an object is made.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=gc.freeze)


@contextmanager
def closed_by_its_process(resource: Any) -> Iterator[Any]:
    """Close a resource with threads at the end of a block.

    But not in a process that was forked meanwhile.
    """
    opened_by = os.getpid()
    try:
        yield resource
    finally:
        if os.getpid() == opened_by:
            resource.close()
