"""A port that anybody may connect to: connections and waiting are bounded."""

import socket
import threading
from contextlib import suppress

import pytest

from crumb_avalanche.serve import listening
from crumb_avalanche.serve.listening import listen, run

uvicorn = pytest.importorskip("uvicorn")


@pytest.fixture
def port(monkeypatch):
    """The number of a port at which an answer of two bytes is served."""
    servers = []

    class Server(uvicorn.Server):
        def __init__(self, config):
            super().__init__(config)
            servers.append(self)

    async def app(scope, receive, send):
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"2")],
            }
        )
        await send({"type": "http.response.body", "body": b"xx"})

    monkeypatch.setattr(uvicorn, "Server", Server)
    opened, _ = listen("127.0.0.1", 0, secure=False)
    thread = threading.Thread(target=run, args=(app, opened))
    thread.start()
    yield opened.getsockname()[1]
    for server in servers:
        server.should_exit = server.force_exit = True
    thread.join(120)


def connected(port, said=b""):
    client = socket.create_connection(("127.0.0.1", port), timeout=120)
    client.sendall(said)
    return client


def answer(client):
    """All that the server sends until it closes the connection."""
    parts = []
    with suppress(ConnectionResetError):
        parts.extend(iter(lambda: client.recv(1 << 20), b""))
    return b"".join(parts)


def test_who_asks_nothing_is_disconnected(port, monkeypatch):
    monkeypatch.setattr(
        listening, "SECONDS_TO_ASK", 2
    )  # all wait together; a busy machine needs a part of it to ask
    nothing = (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX: ")
    whole = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    asked = (
        whole,
        whole + b"GET /",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nhalf",
        3 * whole,
    )
    clients = [connected(port, said) for said in (*nothing, *asked)]
    assert [answer(client).count(b"\r\n\r\nxx") for client in clients] == [
        0,
        0,
        0,
        1,
        1,
        1,
        3,
    ]


def test_connections_are_bounded_and_the_port_recovers(port, monkeypatch):
    monkeypatch.setattr(listening, "MOST_CONNECTIONS", 8)
    clients = [connected(port) for _ in range(30)]
    assert answer(clients[-1]) == b""  # closed at once
    for client in clients:
        client.close()
    request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert any(
        answer(connected(port, request)).endswith(b"xx") or threading.Event().wait(0.02)
        for _ in range(1000)
    )


def test_garbage_is_not_logged(port, capfd):
    for _ in range(10):
        assert b"400" in answer(connected(port, b"\x00\x01\x02\r\n\r\n"))
    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    assert answer(connected(port, upgrade)).endswith(b"xx")
    assert capfd.readouterr().err == ""


def test_listen_takes_a_free_port_and_names_it(monkeypatch):
    opened, origins = listen("127.0.0.1", 0, secure=False)
    with opened:
        port = opened.getsockname()[1]
        assert port and origins == [
            f"http://127.0.0.1:{port}",
            f"http://localhost:{port}",
        ]
        with pytest.raises(ValueError, match=f"port {port}.*--port"):
            listen("127.0.0.1", port, secure=False)
        with (
            socket.create_connection(("127.0.0.1", port)),
            opened.accept()[0] as connection,
        ):
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), (
                "answers wait for no confirmation"
            )
    for port, secure, named in (
        (80, False, ""),
        (443, True, ""),
        (443, False, ":443"),
    ):  # as browsers name them
        monkeypatch.setattr(
            listening.Listener, "getsockname", lambda _, port=port: ("127.0.0.1", port)
        )
        opened, origins = listen("127.0.0.1", 0, secure)
        opened.close()
        assert origins[0] == f"http{'s' * secure}://127.0.0.1{named}"


@pytest.mark.parametrize("host", ["203.0.113.1", "0.0.0.0", ""])
def test_listen_refuses_hosts(host):
    with pytest.raises(
        ValueError, match="cannot listen at 203" if "203" in host else "name or address"
    ):
        listen(host, 0, secure=False)
