"""A local web server for tests that can break connections, ignore ranges, or answer with errors."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalServer:
    """Serve one file's content under every path, in a thread.

    Attributes:
        content: The content to serve.
        ranges: Whether the Range header is supported.
        stop_after: Number of bytes after which the connection breaks once; None never breaks it.
        announce: Whether Content-Length is sent.
        redirect: Address to redirect to instead.
        status: Error code to answer with instead.
        asked: The Range of each request, or "".
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.ranges = self.announce = True
        self.stop_after: int | None = None
        self.redirect: str | None = None
        self.status: int | None = None
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()

    def __enter__(self) -> "LocalServer":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(local) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None: ...

            def do_GET(self) -> None:
                asked = self.headers.get("Range", "")
                local.asked.append(asked)
                if local.redirect or local.status:
                    self.send_response(302 if local.redirect else local.status)
                    self.send_header("Location", local.redirect or "")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                total = len(local.content)
                start = int(asked[len("bytes=") : -1]) if asked and local.ranges else 0
                body = local.content[start:]
                if start >= total > 0:
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{total}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206 if asked and local.ranges else 200)
                if asked and local.ranges:
                    self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
                if local.announce:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if local.stop_after is not None:
                    body, local.stop_after = body[: local.stop_after], None
                self.wfile.write(body)
                self.close_connection = True

        return Handler
