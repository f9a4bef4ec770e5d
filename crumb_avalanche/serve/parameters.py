"""Refuse requests whose address has a parameter that its path does not take, or twice.

A parameter that is ignored changes what a request means: ``/undo?lessons=2`` would take
the last lesson back.
"""

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any

from starlette.datastructures import QueryParams

from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.serve.error_answers import MOST_SHOWN, error_answer

# Paths that the description of the API leaves out; they take no parameters.
UNDESCRIBED = {"get": {"/openapi.json"}}


class KnownParameters:
    """Answers 400 to a request with a parameter that its path is not described with.

    Args:
        app: ASGI application.
        describe: returns the description of the API, as OpenAPI has it: all that a path
            takes stands there alone.
    """

    def __init__(self, app: Any, describe: Callable[[], Mapping[str, Any]]):
        self.app = app
        self.describe = describe

    async def __call__(self, scope: Any, receive: Callable, send: Callable) -> None:
        """Refuse a request, or pass it on to the application, as ASGI has it.

        Args:
            scope: the request: its type, method, path and query.
            receive, send: coroutines for body and answer.
        """
        refusal = None
        if scope["type"] == "http" and scope["query_string"]:
            refusal = self._refusal(scope)
        if refusal is not None:
            return await error_answer(400, refusal)(scope, receive, send)
        return await self.app(scope, receive, send)

    def _refusal(self, scope: Any) -> str | None:
        """Return what is wrong with the address of a request; ``None`` if nothing is.

        An unknown path or method is for the application to refuse.
        """
        path = scope["path"]
        taken = self._parameters_of(path, scope["method"].lower())
        if taken is None:
            return None
        parameters = QueryParams(scope["query_string"])
        for name in parameters:
            if name not in taken:
                return unknown_parameter(path, name, taken)
            count = len(parameters.getlist(name))
            if count > 1 and not _is_list(taken[name]):
                return f"parameter {name} came {count} times; {path} takes it once"
        return None

    def _parameters_of(self, path: str, method: str) -> dict[str, Any] | None:
        """Return the parameters that a path takes; ``None`` if there is no such path.

        Args:
            path: of the address.
            method: in lower case.

        Returns:
            The JSON schema of each parameter, by name.
        """
        if path in UNDESCRIBED.get(method, ()):
            return {}
        operations = self.describe()["paths"].get(path, {})
        if method not in operations:
            return None
        schemas = {}
        for parameter in operations[method].get("parameters", []):
            if parameter["in"] == "query":
                schemas[parameter["name"]] = parameter["schema"]
        return schemas


def _is_list(schema: Mapping[str, Any]) -> bool:
    """Whether a parameter takes several values, or several or none."""
    alternatives = schema.get("anyOf", [schema])
    return any(each.get("type") == "array" for each in alternatives)


def unknown_parameter(path: str, name: str, taken: Collection[str]) -> str:
    """Say that a path does not take a parameter, what it takes, and which one is near.

    Args:
        path: of the address.
        name: of the parameter.
        taken: names of those that the path takes.
    """
    takes = ", ".join(taken) or "none"
    suggestion = ""
    for near in get_close_matches(name.lower(), list(taken), n=1):
        suggestion = f" (did you mean {near}?)"
    shown = printable(name)[:MOST_SHOWN]
    return f"unknown parameter {shown}; {path} takes {takes}{suggestion}"
