"""Engines call functions in workers, or in this process."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Handle = Any


class Engine(Protocol):
    """Calls functions in workers; results stay there, and are named by handles."""

    def call(self, function: Callable, *arguments: Any, results: int = 1) -> Any:
        """Call a function of a module; arguments may be handles. Returns a handle, or as many as it has results."""

    def share(self, value: Any) -> Handle:
        """Send a value to all workers that need it."""

    def fetch(self, handles: Sequence[Handle], done: Callable[[Any], object] = lambda result: None) -> list[Any]:
        """Return the results of handles; ``done`` is called with each as soon as it is there."""


class Here:
    """Engine without workers: each call is made at once, in this process."""

    def call(self, function, *arguments, results=1):
        """Call a function; return its result."""
        return function(*arguments)

    def share(self, value):
        """Return a value."""
        return value

    def fetch(self, handles, done=lambda result: None):
        """Return a list of results."""
        for result in handles:
            done(result)
        return list(handles)
