"""The guard of the server: who may ask, and the headers of every answer."""

import hmac
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from fastapi.responses import Response

from crumb_avalanche.serve.error_answers import error_answer

TOKEN_HEADER = "x-crumb-token"
HEADERS = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses requests of other pages and programs before anything else sees them.

    It sets the headers of answers, too. Every request needs a Host header (against DNS
    rebinding) and, if it has one, an Origin header (against requests of other pages) of
    one of ``origins``. All but ``/health`` need the token, in the header
    ``X-Crumb-Token`` or, for the page itself, in its address. A request that states its
    length in two ways is refused, and its connection ends: what follows in it may be a
    request for one program and a body for another.

    Args:
        app: ASGI application.
        token: that requests must have.
        origins: such as ``http://127.0.0.1:8000``.
        policy: Content-Security-Policy.
    """

    def __init__(self, app: Any, token: str, origins: list[str], policy: str):
        self.app = app
        self.token = token
        self.origins = origins
        self.hosts = [origin.partition("://")[2] for origin in origins]
        headers = {**HEADERS, "Content-Security-Policy": policy}
        self.headers = [
            (name.lower().encode(), value.encode()) for name, value in headers.items()
        ]

    async def __call__(self, scope: Any, receive: Callable, send: Callable) -> None:
        """Refuse a request, or pass it on to the application, as ASGI has it.

        Args:
            scope: the request: its type, method, path and headers.
            receive, send: coroutines for body and answer.
        """
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = message | {"headers": [*message["headers"], *self.headers]}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            return await refusal(scope, receive, send_with_headers)
        if scope["method"] == "HEAD":  # the server leaves out the body of the answer
            scope = {**scope, "method": "GET"}
        return await self.app(scope, receive, send_with_headers)

    def _refusal(self, scope: Any) -> Response | None:
        """Return the answer to a request that is refused; ``None`` for others."""
        headers: dict[str, list[str]] = defaultdict(list)
        for name, value in scope["headers"]:
            headers[name.decode("latin-1")].append(value.decode("latin-1"))
        if headers["transfer-encoding"] and headers["content-length"]:
            return error_answer(
                400,
                "a request has either Transfer-Encoding or Content-Length, not both",
                {"Connection": "close"},
            )
        reason = self._wrong_origin(headers) or self._wrong_token(scope, headers)
        return None if reason is None else error_answer(403, reason)

    def _wrong_origin(self, headers: Mapping[str, list[str]]) -> str | None:
        """Return why a request is not one of the page or of a program of the user.

        ``None`` if it is; ``headers`` has the values of each header.
        """
        hosts = headers["host"]
        origins = headers["origin"]  # that programs do not send
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return f"this server answers at {self.origins[0]} only"
        if origins and (len(origins) != 1 or origins[0].lower() not in self.origins):
            return "requests of other pages are refused"
        return None

    def _wrong_token(self, scope: Any, headers: Mapping[str, list[str]]) -> str | None:
        """Return why the token of a request is wrong; ``None`` if it is right.

        Args:
            scope: of the request, as ASGI has it: ``path`` and ``query_string``.
            headers: values of each header, by name.
        """
        if scope["path"] == "/health":
            return None
        tokens = headers[TOKEN_HEADER]
        if scope["path"] == "/" and not tokens:  # the page, opened by its address
            query = parse_qs(scope["query_string"].decode("latin-1"))
            tokens = query.get("token", [])
        # The time of the comparison does not tell how much of a token is right.
        is_right = len(tokens) == 1 and hmac.compare_digest(
            tokens[0].encode(), self.token.encode()
        )
        if is_right:
            return None
        return (
            "the token is missing or wrong. Open the whole address that crumb serve "
            "printed, with ?token=...; programs send the token in the header "
            "X-Crumb-Token"
        )
