"""Open a port and serve an application at it, within limits of connections and time."""

import asyncio
import socket
from typing import Any

from crumb_avalanche.serve.access import needed

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# each may hold an upload; uvicorn would run out of file descriptors and log without end
MOST_CONNECTIONS = 32
# until the headers of a request are there, since the connection or the answer before
SECONDS_TO_ASK = 10.0


class Listener(socket.socket):
    """A listening socket with a bounded number of open connections: further ones are closed at once."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, as ``socket.accept``."""
        while True:
            connection, address = super().accept()
            self._open = [
                one for one in getattr(self, "_open", []) if one.fileno() >= 0
            ]
            if len(self._open) < MOST_CONNECTIONS:
                self._open.append(connection)
                return connection, address
            connection.close()


def load_server() -> Any:
    """Import uvicorn, FastAPI and python-multipart, which are optional; return uvicorn.

    Raises:
        ImportError: one is not installed; says how to install it.
    """
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise needed(error) from error
    return uvicorn


def listen(host: str, port: int, secure: bool) -> tuple[socket.socket, list[str]]:
    """Open a port, and return the addresses at which browsers reach it.

    Args:
        host: name or address of this computer.
        port: 0 takes a free one.
        secure: whether it serves https. Browsers give a camera to https pages alone,
            and a token must not travel in the clear.

    Raises:
        ValueError: the host is not one that browsers can name, or the port is not free.
    """
    if host in ("", "0.0.0.0", "::"):
        raise ValueError(
            f"host is {host!r}; give the name or address that browsers use, such as 192.168.1.20"
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        made = socket.create_server(address[:2], family=family)
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise ValueError(
            f"cannot listen at {host}, port {port} ({reason}); give another --port or --host"
        ) from error
    opened = Listener(family, fileno=made.detach())
    # Connections inherit it. asyncio sets it only for sockets that it opens itself;
    # without it, the body of an answer waits 40 ms for the client to acknowledge the
    # header.
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    number, scheme = opened.getsockname()[1], "https" if secure else "http"
    usual = number == (443 if secure else 80)
    names = [host.lower(), *(["localhost"] if host in LOOPBACK else [])]
    names = [f"[{name}]" if ":" in name else name for name in dict.fromkeys(names)]
    return opened, [
        f"{scheme}://{name}" + ("" if usual else f":{number}") for name in names
    ]


def run(
    app: Any,
    opened: socket.socket,
    certificate: str | None = None,
    key: str | None = None,
) -> None:
    """Serve until the process is interrupted."""
    uvicorn = load_server()
    config = uvicorn.Config(
        app,
        http=_protocol(),
        loop="asyncio",  # the others accept connections without the listener
        log_config=None,
        log_level="error",  # anybody can make it warn
        access_log=False,  # addresses hold the token
        ws="none",
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=5,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    uvicorn.Server(config).run(sockets=[opened])


def _protocol() -> type:
    """Return uvicorn's HTTP protocol with a time for the headers of a request."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        asking: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.asking = self.loop.call_later(SECONDS_TO_ASK, transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.asking and self.cycle and not self.cycle.response_complete:
                self.asking.cancel()  # a request is there
                self.asking = None

        def on_response_complete(self) -> None:
            # which begins the next request if it has come already
            super().on_response_complete()
            if self.asking is None and self.cycle.response_complete:
                self.asking = self.loop.call_later(SECONDS_TO_ASK, self.transport.abort)

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            if self.asking:
                self.asking.cancel()

    return Protocol
