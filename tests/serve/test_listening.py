"""A port that anybody may connect to: connections and waiting are bounded."""

import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from crumb_avalanche.serve import listening
from crumb_avalanche.serve.access import own_certificate
from crumb_avalanche.serve.listening import Connection, Listener, listen, run

uvicorn = pytest.importorskip("uvicorn")
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST_REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LARGE = 1_000_000  # bytes of an answer that no buffer takes
LONG = 3600.0  # seconds that no test waits


async def app(scope, receive, send):
    """Answer two bytes, or for /large a megabyte, in parts."""
    body = b"x" * (LARGE if scope["path"] == "/large" else 2)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for start in range(0, len(body), 50_000):
        chunk = body[start : start + 50_000]
        is_last = start + len(chunk) == len(body)
        await send(
            {"type": "http.response.body", "body": chunk, "more_body": not is_last}
        )


@contextmanager
def serving():
    """Yield a function that serves ``app`` in a thread, and returns the port."""
    servers = []
    threads = []

    class Server(uvicorn.Server):
        def __init__(self, config):
            super().__init__(config)
            servers.append(self)

    def served(certificate=None, app=app):
        listener, _ = listen("127.0.0.1", 0, secure=certificate is not None)
        thread = threading.Thread(target=run, args=(app, listener, certificate))
        threads.append(thread)
        thread.start()
        return listener.getsockname()[1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uvicorn, "Server", Server)
        yield served
        for server in servers:
            server.should_exit = server.force_exit = True
        for thread in threads:
            thread.join(120)


@pytest.fixture
def serve():
    """A function that serves ``app`` in a thread, and returns the port."""
    with serving() as served:
        yield served


@pytest.fixture
def port(serve):
    return serve()


@pytest.fixture
def patient(monkeypatch):
    """A server that ends no connection because of time."""
    monkeypatch.setattr(listening, "SECONDS_TO_ASK", LONG)
    monkeypatch.setattr(listening, "SECONDS_TO_READ", LONG)


def connected(port, said=b""):
    client = socket.create_connection(("127.0.0.1", port), timeout=120)
    client.sendall(said)
    return client


def answer(client, pause=0.0):
    """All that the server sends until it closes the connection."""
    data = b""
    with suppress(ConnectionResetError):
        while chunk := client.recv(1 << 17):
            data += chunk
            threading.Event().wait(pause)
    return data


def is_answered(connect):
    """Whether a request is answered, at once or when it is sent again."""
    for _ in range(1000):
        with suppress(OSError), connect() as client:
            client.sendall(LAST_REQUEST)
            if answer(client).endswith(b"xx"):
                return True
        threading.Event().wait(0.02)
    return False


# What a client sends before it waits, and the number of answers.
REQUESTS = {
    b"": 0,
    b"GET / HT": 0,
    b"GET / HTTP/1.1\r\nHost: x\r\nX: ": 0,
    REQUEST: 1,
    REQUEST + b"GET /": 1,
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nhalf": 1,
    3 * REQUEST: 3,
}


@pytest.fixture(scope="module")
def answers_before_the_end():
    """What clients that wait together get until they are disconnected, by request."""
    with pytest.MonkeyPatch.context() as patched, serving() as served:
        patched.setattr(listening, "SECONDS_TO_ASK", 2.0)
        port = served()
        clients = {request: connected(port, request) for request in REQUESTS}
        return {request: answer(client) for request, client in clients.items()}


@pytest.mark.parametrize(("request_data", "answers"), REQUESTS.items())
def test_who_asks_nothing_is_disconnected(
    answers_before_the_end, request_data, answers
):
    data = answers_before_the_end[request_data]
    assert data.count(b"\r\n\r\nxx") == answers


def test_who_reads_nothing_is_disconnected(serve, monkeypatch):
    monkeypatch.setattr(listening, "SECONDS_TO_ASK", LONG)
    monkeypatch.setattr(listening, "SECONDS_TO_READ", 1.0)
    client = connected(serve(), 100 * b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    threading.Event().wait(3.0)
    assert len(answer(client)) < 100 * LARGE


def test_who_reads_slowly_is_answered(serve, monkeypatch):
    monkeypatch.setattr(listening, "SECONDS_TO_READ", 5.0)
    request = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert len(answer(connected(serve(), request), pause=0.05)) > LARGE


def test_connections_are_bounded(serve, monkeypatch):
    monkeypatch.setattr(listening, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(listening, "SECONDS_OF_GRACE", LONG)
    port = serve()
    clients = [connected(port) for _ in range(30)]
    assert answer(clients[-1]) == b""  # closed at once
    close(clients)
    assert is_answered(lambda: connected(port))


def close(clients):
    for client in clients:
        client.close()


def test_silent_connections_give_way(serve, patient):
    port = serve()
    clients = [connected(port) for _ in range(40)]
    assert is_answered(lambda: connected(port))
    assert len(clients) == 40


def test_handshakes_that_do_not_begin_give_way(serve, patient, tmp_path):
    port = serve(own_certificate(tmp_path / "mine", "127.0.0.1"))
    clients = [connected(port) for _ in range(40)]
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    assert is_answered(lambda: context.wrap_socket(connected(port)))
    assert len(clients) == 40


def test_a_handshake_that_does_not_begin_ends(serve, monkeypatch, tmp_path):
    monkeypatch.setattr(listening, "SECONDS_TO_ASK", 2.0)
    port = serve(own_certificate(tmp_path / "mine", "127.0.0.1"))
    assert answer(connected(port)) == b""


def sent_only(port, requests):
    """A client that sends what the server takes, and reads nothing."""
    client = connected(port)
    client.setblocking(False)
    with suppress(BlockingIOError):
        client.send(requests)
    return client


def test_clients_that_read_nothing_give_way(serve, patient):
    port = serve()
    requests = 3000 * b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
    clients = [sent_only(port, requests) for _ in range(listening.MOST_CONNECTIONS)]
    assert is_answered(lambda: connected(port))
    assert len(clients) == listening.MOST_CONNECTIONS


@pytest.fixture
def full(monkeypatch):
    """A listener with two connections of one address and one of another."""
    monkeypatch.setattr(listening, "MOST_CONNECTIONS", 3)
    with Listener() as listener:
        for number, address in enumerate(("a", "b", "b")):
            client = (address, number)
            connection = Connection(client, waits_since=float(-number))
            listener.connections[client] = connection
        yield listener


@pytest.mark.parametrize(
    ("address", "grace", "left"),
    [
        ("c", LONG, [("a", 0), ("b", 1)]),
        ("a", LONG, [("a", 0), ("b", 1)]),
        ("b", LONG, [("a", 0), ("b", 1), ("b", 2)]),
        ("b", 0.0, [("a", 0), ("b", 1)]),
    ],
)
def test_who_gives_way(full, monkeypatch, address, grace, left):
    monkeypatch.setattr(listening, "SECONDS_OF_GRACE", grace)
    monkeypatch.setattr(listening.time, "monotonic", lambda: 1.0)
    assert full._make_room(address) == (len(left) == 2)
    assert list(full.connections) == left


def test_requests_do_not_give_way(full):
    busy = {
        client: replace(connection, requests=1)
        for client, connection in full.connections.items()
    }
    full.connections = busy
    assert not full._make_room("c")


def test_garbage_is_not_logged(port, capfd):
    garbage = b"\x00\x01\x02\r\n\r\n"
    answers = [answer(connected(port, garbage)) for _ in range(10)]
    assert all(b"400" in text for text in answers)
    upgrade = (
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\n"
        b"Upgrade: websocket\r\n\r\n"
    )
    assert answer(connected(port, upgrade)).endswith(b"xx")
    assert capfd.readouterr().err == ""


def test_a_length_in_two_ways_ends_the_connection(serve):
    server = pytest.importorskip("crumb_avalanche.serve.server")
    port = serve(app=server.Guard(app, "token", ["http://x"], ""))
    request = b"POST /health HTTP/1.1\r\nHost: x\r\n"
    lengths = b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
    client = connected(port, request + lengths + request + b"\r\n")
    assert answer(client).count(b"HTTP/1.1 ") == 1


def test_a_forwarded_address_is_ignored(port):
    request = LAST_REQUEST[:-2] + b"X-Forwarded-For: 10.0.0.1\r\n\r\n"
    assert answer(connected(port, request)).endswith(b"xx")


def test_a_free_port_is_taken():
    listener, origins = listen("127.0.0.1", 0, secure=False)
    with listener:
        port = listener.getsockname()[1]
        assert port
        assert origins == [f"http://127.0.0.1:{port}", f"http://localhost:{port}"]
        with pytest.raises(ValueError, match=f"port {port}.*--port"):
            listen("127.0.0.1", port, secure=False)


def test_answers_wait_for_no_confirmation():
    listener, _ = listen("127.0.0.1", 0, secure=False)
    address = listener.getsockname()
    with listener, socket.create_connection(address), listener.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("port", "secure", "origin"),
    [
        (80, False, "http://127.0.0.1"),
        (443, True, "https://127.0.0.1"),
        (443, False, "http://127.0.0.1:443"),
    ],
)
def test_origins_are_as_browsers_have_them(monkeypatch, port, secure, origin):
    monkeypatch.setattr(Listener, "getsockname", lambda self: ("127.0.0.1", port))
    listener, origins = listen("127.0.0.1", 0, secure)
    listener.close()
    assert origins[0] == origin


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("203.0.113.1", "cannot listen at 203"),
        ("0.0.0.0", "name or address"),
        ("", "name or address"),
    ],
)
def test_hosts_that_are_refused(host, words):
    with pytest.raises(ValueError, match=words):
        listen(host, 0, secure=False)
