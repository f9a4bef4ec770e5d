"""What a forked process does anew, because the threads of its parent are gone."""

import os
from collections.abc import Callable
from weakref import WeakMethod

_methods: set[WeakMethod] = set()


def call_in_child(method: Callable[[], None]) -> None:
    """Call a method of an object in every process forked from now on.

    A lock that a thread of the parent held at that moment would never be released in
    the child; the method replaces it. The object may be collected meanwhile. Where
    processes are not forked, as on Windows, nothing is called.
    """
    _methods.add(WeakMethod(method, _methods.discard))


def _call_all() -> None:
    for reference in list(_methods):
        method = reference()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_call_all)
