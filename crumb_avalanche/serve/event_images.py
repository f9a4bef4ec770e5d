"""The images that events name: files of a folder, or what a web server sends."""

import time
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

MOST_BYTES = 20_000_000  # of an image
SECONDS = 10.0  # to fetch an image
ID = "{id}"  # in an address, stands for the id of an event
_CHUNK = 1 << 16


class EventImages:
    """Reads the images that events name.

    Args:
        source: folder or address of the images, which events name by ``path``; or an
            address with ``{id}`` for the id of an event. Empty if there are none.
    """

    def __init__(self, source: str):
        self.source = source
        self._is_address = source.startswith(("http://", "https://"))

    def read(self, event: dict[str, Any]) -> bytes:
        """Return the bytes of the image that an event names.

        It is fetched from the web server, or read from the folder, that ``source``
        names.

        Args:
            event: JSON of a message, with ``path``, or ``id`` for an address.

        Raises:
            ValueError: the event names no image, or one that is elsewhere, or too
                large.
            OSError: it cannot be read or fetched.
        """
        path = str(event.get("path") or "")
        if self._is_address:
            content = self._fetch(self._address(event, path))
        elif self.source and path:
            content = self._read_in_folder(path)
        else:
            raise ValueError(
                "the event holds no image; say with --images where those of events are"
            )
        if len(content) > MOST_BYTES:
            raise ValueError(f"the image has more than {MOST_BYTES:,} bytes")
        return content

    def _read_in_folder(self, path: str) -> bytes:
        """Return the bytes of an image below the folder of the source.

        Of a larger file than ``MOST_BYTES`` one byte more is read.
        """
        folder = Path(self.source).resolve()
        file = (folder / path).resolve()
        if not file.is_relative_to(folder) or not file.is_file():
            raise ValueError(f"there is no file {path} in {self.source}")
        with file.open("rb") as image_file:
            return image_file.read(MOST_BYTES + 1)

    def _address(self, event: dict[str, Any], path: str) -> str:
        """Return the address of an event's image, which is on the host of the source.

        ``path`` is what the event names, if the source has no place for its id.
        """
        if ID in self.source:
            event_id = quote(str(event.get("id")), safe="")
            address = self.source.replace(ID, event_id)
        else:
            folder = self.source if self.source.endswith("/") else f"{self.source}/"
            address = urljoin(folder, quote(path))
        _check_host(address, self.source)
        return address

    def _fetch(self, address: str) -> bytes:
        """Return the bytes of an image that a web server sends.

        Of a larger one than ``MOST_BYTES``, a part is returned that has more bytes: the
        caller refuses it.

        Raises:
            OSError: the server does not send all of it in time.
        """
        opener = build_opener(_SameHostRedirects(self.source))
        deadline = time.monotonic() + SECONDS
        content = b""
        try:
            with opener.open(address, timeout=SECONDS) as response:
                while len(content) <= MOST_BYTES:
                    chunk = response.read1(_CHUNK)
                    if not chunk:
                        break
                    content += chunk
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"it takes more than {SECONDS:g} s")
                # Bytes that the server announced and did not send.
                n_missing = response.length
                if n_missing and len(content) <= MOST_BYTES:
                    raise OSError(f"{n_missing:,} bytes of it are missing")
        except (HTTPException, OSError) as error:
            reason = str(error) or type(error).__name__
            raise OSError(f"the image cannot be fetched: {reason}") from error
        return content


class _SameHostRedirects(HTTPRedirectHandler):
    """Follows redirections on the host of a source of images only."""

    def __init__(self, source: str):
        self._source = source

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Return the request at a new address; refuse that of another host."""
        _check_host(newurl, self._source)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_host(address: str, source: str) -> None:
    """Raise ValueError for an image's address on another host than the source's."""
    host = urlsplit(source).netloc
    parts = urlsplit(address)
    is_of_web = parts.scheme in ("http", "https")
    if parts.netloc != host or not is_of_web:
        raise ValueError(f"the image is not at {host}, where --images says it is")
