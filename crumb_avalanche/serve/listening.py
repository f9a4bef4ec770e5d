"""Open a port and serve an application at it, within limits of connections and time.

Nobody who has no token can shut others out: a connection in which nothing happens ends
after some seconds, and gives way at once when a new one comes and all places are taken.
"""

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from crumb_avalanche.serve.access import missing_extra

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# each may hold an upload; uvicorn would run out of file descriptors and log without end
MOST_CONNECTIONS = 32
# until the headers of a request are there, since the connection or the answer before,
# and for a TLS handshake
SECONDS_TO_ASK = 10.0
# until a client has read enough of an answer for the next part of it
SECONDS_TO_READ = 10.0
# that a connection has in any case, before another one of its address takes its place
SECONDS_OF_GRACE = 0.25
WRITE_BUFFER = 1 << 16  # bytes of an answer that wait for a client


@dataclass(eq=False)
class Connection:
    """An open connection.

    Attributes:
        client: address and port of the client.
        accepted: its socket, which asyncio closes; ``None`` if it gave way.
        waits_since: when the server began to wait for the client (``time.monotonic``).
        requests: number of requests that are being answered.
        blocked: whether the client reads nothing of its answer.
        transport: what asyncio made of it; ``None`` during a TLS handshake.
    """

    client: tuple[str, int]
    accepted: socket.socket | None = None
    waits_since: float = field(default_factory=time.monotonic)
    requests: int = 0
    blocked: bool = False
    transport: asyncio.Transport | None = None

    @property
    def address(self) -> str:
        """The address of the client."""
        return self.client[0]

    @property
    def is_open(self) -> bool:
        """Whether asyncio has not closed it."""
        return self.accepted is not None and self.accepted.fileno() >= 0

    @property
    def waits_for_client(self) -> bool:
        """Whether the server waits for a request, or for an answer to be read."""
        return self.blocked or self.requests == 0

    def end(self) -> None:
        """End the connection; asyncio closes the socket."""
        if self.transport is not None:
            self.transport.abort()
        elif self.accepted is not None:
            with suppress(OSError):  # it ended already
                self.accepted.shutdown(socket.SHUT_RDWR)


class Listener(socket.socket):
    """A listening socket with a bounded number of open connections.

    When all are taken, a new connection takes the place of one in which the server
    waits for the client: of the address that has most connections, the one that waits
    longest. One that just began gives way only to an address that has fewer. If there
    is none to take the place of, the new one is closed.

    Attributes:
        connections: by address and port of the client.
    """

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.connections: dict[tuple[str, int], Connection] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection within the bounds, as ``socket.accept`` does."""
        while True:
            accepted, address = super().accept()
            self._drop_closed()
            has_room = len(self.connections) < MOST_CONNECTIONS
            if has_room or self._make_room(address[0]):
                client = address[:2]  # without flow and scope of IPv6
                self.connections[client] = Connection(client, accepted)
                return accepted, address
            accepted.close()

    def _drop_closed(self) -> None:
        """Forget the connections that ended."""
        self.connections = {
            client: connection
            for client, connection in self.connections.items()
            if connection.is_open
        }

    def _make_room(self, address: str) -> bool:
        """End a connection, so that an address gets a new one.

        Of the connections that wait for a request, one of the address with the most
        connections is ended, of these the one that has waited longest.

        Returns:
            Whether a connection was ended; none is if all are at work or just began.
        """
        # Number of connections of each address.
        counts = Counter(connection.address for connection in self.connections.values())
        now = time.monotonic()

        def gives_way(connection: Connection) -> bool:
            """Whether a connection may be ended for the new one."""
            has_more = counts[connection.address] > counts[address]
            just_began = now - connection.waits_since < SECONDS_OF_GRACE
            return connection.waits_for_client and (has_more or not just_began)

        def precedence(connection: Connection) -> tuple[int, float]:
            """Sort key by which the first one is ended."""
            return -counts[connection.address], connection.waits_since

        candidates = filter(gives_way, self.connections.values())
        connection = min(candidates, key=precedence, default=None)
        if connection is None:
            return False
        connection.end()
        del self.connections[connection.client]
        return True

    def connection(self, client: Any) -> Connection:
        """Return the connection of a client, by its address and port.

        It is a new one, which nothing counts, if the connection gave way.
        """
        client = tuple(client[:2])
        return self.connections.get(client) or Connection(client)


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
        raise missing_extra(error) from error
    return uvicorn


def listen(host: str, port: int, secure: bool) -> tuple[Listener, list[str]]:
    """Open a port; return its socket and the addresses at which browsers reach it.

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
            f"host is {host!r}; give the name or address that browsers use, such as "
            "192.168.1.20"
        )
    try:
        # Of each address: family, type, protocol, canonical name, host and port.
        first_address, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, address = first_address
        server_socket = socket.create_server(address[:2], family=family)
    except (OSError, OverflowError) as error:
        text = str(getattr(error, "strerror", None) or error)
        reason, _, _ = text.partition(" (while")  # create_server adds what it did
        raise ValueError(
            f"cannot listen at {host}, port {port} ({reason}); give another --port or "
            "--host"
        ) from error
    listener = Listener(family, fileno=server_socket.detach())
    # Connections inherit it. asyncio sets it only for sockets that it opens itself;
    # without it, the body of an answer waits 40 ms for the client to acknowledge the
    # header.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener, _origins(host, listener.getsockname()[1], secure)


def _origins(host: str, port: int, secure: bool) -> list[str]:
    """Return the addresses of the server's port as browsers name them."""
    scheme = "https" if secure else "http"
    usual_port = 443 if secure else 80
    suffix = "" if port == usual_port else f":{port}"
    names = [host.lower()]
    if host in LOOPBACK and host != "localhost":
        names.append("localhost")
    return [f"{scheme}://{_bracketed(name)}{suffix}" for name in names]


def _bracketed(name: str) -> str:
    """Return a host as addresses have it: one of IPv6 in brackets."""
    return f"[{name}]" if ":" in name else name


def run(
    app: Any,
    listener: Listener,
    certificate: str | None = None,
    key: str | None = None,
) -> None:
    """Serve an application until the process is interrupted.

    Args:
        app: ASGI application.
        listener: of ``listen``.
        certificate: PEM file, for https.
        key: PEM file of its key, if it is another one.
    """
    uvicorn = load_server()
    # The listener has a ``Connection`` for each client. The application counts in it
    # the requests that are being answered, and the protocol notes when an answer is not
    # read. So connections that wait for their client can be ended: by the listener,
    # when it needs room for a new one, and by the protocol, after some seconds.
    config = uvicorn.Config(
        app=_with_counted_requests(app, listener),
        http=_protocol_with_time_limits(listener),
        log_config=None,
        log_level="error",  # anybody can make it warn
        access_log=False,  # addresses hold the token
        ws="none",
        lifespan="off",
        server_header=False,
        proxy_headers=False,  # a client is who is connected, whatever it says
        timeout_graceful_shutdown=5,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    # A selector loop, because other loops do not call ``listener.accept``.
    loop = _LoopWithHandshakeLimit()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(uvicorn.Server(config).serve(sockets=[listener]))
    finally:
        loop.run_until_complete(_cancel_tasks())
        asyncio.set_event_loop(None)
        loop.close()


async def _cancel_tasks() -> None:
    """Cancel what still runs in the loop, such as requests, and wait for their ends."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _LoopWithHandshakeLimit(asyncio.SelectorEventLoop):
    """A loop that accepts connections by ``Listener``, and limits TLS handshakes.

    uvicorn has no setting for their time, and calls ``create_server`` of the running
    loop.
    """

    async def create_server(self, *arguments: Any, **keywords: Any) -> Any:
        """Serve at a socket, with a limit of the time of TLS handshakes."""
        if isinstance(keywords.get("ssl"), ssl.SSLContext):
            keywords["ssl_handshake_timeout"] = SECONDS_TO_ASK
        return await super().create_server(*arguments, **keywords)


def _with_counted_requests(app: Any, listener: Listener) -> Any:
    """Return an ASGI application that counts the requests of each connection."""

    async def count_and_answer(scope: Any, receive: Callable, send: Callable) -> None:
        connection = listener.connection(scope["client"])
        connection.requests += 1
        try:
            await app(scope, receive, send)
        finally:
            connection.requests -= 1
            connection.waits_since = time.monotonic()

    return count_and_answer


def _protocol_with_time_limits(listener: Listener) -> type:
    """Return uvicorn's HTTP protocol with a time to ask and a time to read.

    Only methods of ``asyncio.Protocol`` are overridden.

    Args:
        listener: notes of each connection since when, and for what, it waits.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            """Begin to watch a connection."""
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=WRITE_BUFFER)
            client = transport.get_extra_info("peername")
            self._connection = listener.connection(client)
            self._connection.transport = transport
            self._loop = asyncio.get_running_loop()
            self._idle_timer = self._loop.call_later(SECONDS_TO_ASK, self._end_if_idle)
            self._read_timer: asyncio.TimerHandle | None = None

        def _end_if_idle(self) -> None:
            """End a connection that asks nothing, or look again when it may be due."""
            waited = time.monotonic() - self._connection.waits_since
            if self._connection.requests:
                waited = 0.0
            if waited >= SECONDS_TO_ASK:
                self._connection.end()
            else:
                time_left = SECONDS_TO_ASK - waited
                self._idle_timer = self._loop.call_later(time_left, self._end_if_idle)

        def pause_writing(self) -> None:
            """Limit the time in which the client has to read more of its answer."""
            super().pause_writing()
            self._connection.blocked = True
            self._connection.waits_since = time.monotonic()
            self._read_timer = self._loop.call_later(
                SECONDS_TO_READ, self._connection.end
            )

        def resume_writing(self) -> None:
            """Note that the client reads again."""
            super().resume_writing()
            self._connection.blocked = False
            if self._read_timer is not None:
                self._read_timer.cancel()

        def connection_lost(self, error: Exception | None) -> None:
            """Watch the connection no more."""
            super().connection_lost(error)
            self._idle_timer.cancel()
            if self._read_timer is not None:
                self._read_timer.cancel()

    return Protocol
