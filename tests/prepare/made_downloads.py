"""Small archives, what lies in a folder, and a web server that can break connections or
answer with errors.
"""

import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalServer:
    """Serve one file's content under every path, in a thread.

    Attributes:
        content: The content to serve.
        ranges: Whether the Range header is supported.
        early: Number of bytes before the asked one from which a range is sent.
        stop_after: Number of bytes after which the connection breaks once; None never
            breaks it.
        announce: Whether Content-Length is sent, or what it is instead of the length.
        redirect: Address to redirect to instead.
        status: Error code to answer with instead.
        asked: The Range of each request, or "".
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.ranges = True
        self.early = 0
        self.announce: bool | str = True
        self.stop_after: int | None = None
        self.redirect: str | None = None
        self.status: int | None = None
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()

    def __enter__(self) -> "LocalServer":
        threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.01},
            daemon=True,
        ).start()
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
                if local.redirect:
                    self.answer(302, {"Location": local.redirect})
                elif local.status:
                    self.answer(local.status)
                elif asked and local.ranges:
                    self.send_rest(int(asked.removeprefix("bytes=").removesuffix("-")))
                else:
                    self.send(200, local.content)

            def send_rest(self, start: int) -> None:
                """Send the content from a byte on."""
                total = len(local.content)
                start -= local.early
                if start >= total > 0:
                    self.answer(416, {"Content-Range": f"bytes */{total}"})
                    return
                content_range = f"bytes {start}-{total - 1}/{total}"
                headers = {"Content-Range": content_range}
                self.send(206, local.content[start:], headers)

            def send(
                self, status: int, body: bytes, headers: dict[str, str] | None = None
            ) -> None:
                """Send a body, perhaps cut off."""
                headers = dict(headers or {})
                if local.announce is True:
                    headers["Content-Length"] = str(len(body))
                elif local.announce:
                    headers["Content-Length"] = local.announce
                self.send_head(status, headers)
                if local.stop_after is not None:
                    body = body[: local.stop_after]
                    local.stop_after = None
                self.wfile.write(body)
                self.close_connection = True

            def answer(
                self, status: int, headers: dict[str, str] | None = None
            ) -> None:
                """Send headers alone."""
                self.send_head(status, {**(headers or {}), "Content-Length": "0"})

            def send_head(self, status: int, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

        return Handler


FILES = {"a/1.png": b"one" * 5000, "a/b/2.png": b"two", "README": b""}


def write_zip(path, files=FILES, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(path, files=FILES, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def pack(archive, folder, below=""):
    """Write an archive of all files of a folder, which lie in the folder `below`.

    .zip or .tar.gz by its name.
    """
    content = {f"{below}{name}": data for name, data in in_folder(folder).items()}
    if archive.suffix == ".zip":
        return write_zip(archive, content)
    return write_tar(archive, content, "w:gz")


def in_folder(folder):
    """Return name and content of every file below a folder, sorted by name.

    Including hidden ones.
    """
    contents = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_dir():
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents


def files(folder):
    """Names of all files below a folder but the hashes of tables."""
    return sorted(name for name in in_folder(folder) if not name.endswith(".sha256"))
