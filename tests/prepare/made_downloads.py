"""Small archives, what lies in a folder, and a web server that can break connections or answer with errors."""

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
        stop_after: Number of bytes after which the connection breaks once; None never
            breaks it.
        announce: Whether Content-Length is sent, or what it is instead of the length.
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
                    self.send_header(
                        "Content-Range", f"bytes {start}-{total - 1}/{total}"
                    )
                if local.announce:
                    self.send_header(
                        "Content-Length",
                        str(len(body) if local.announce is True else local.announce),
                    )
                self.end_headers()
                if local.stop_after is not None:
                    body = body[: local.stop_after]
                    local.stop_after = None
                self.wfile.write(body)
                self.close_connection = True

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
    """An archive of all files of a folder, .zip or .tar.gz by its name, in the folder `below`."""
    content = {f"{below}{name}": data for name, data in in_folder(folder).items()}
    return (
        write_zip(archive, content)
        if archive.suffix == ".zip"
        else write_tar(archive, content, "w:gz")
    )


def in_folder(folder):
    """Name and content of every file below a folder, including hidden ones, sorted by name."""
    found = (path for path in sorted(folder.rglob("*")) if not path.is_dir())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def files(folder):
    """Names of all files below a folder but the hashes of tables."""
    return sorted(name for name in in_folder(folder) if not name.endswith(".sha256"))
