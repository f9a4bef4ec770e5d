"""Downloads that resume, and are verified before they get their final name."""

import hashlib
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO

from benchmarks_toybox_ilab.tables.disk import add_rest, check_room, readable_size
from benchmarks_toybox_ilab.tables.progress import terminal_bar

TIMEOUT = 60  # seconds without a byte

_CHUNK = 1 << 18
_RANGE = re.compile(r"bytes (?P<first>\d+)-\d+/(?P<total>\d+|\*)")
_PARTIAL_CONTENT, _RANGE_NOT_SATISFIABLE = 206, 416
# Not OSError, which the local disk raises, too.
_NETWORK_ERRORS = (
    urllib.error.URLError,
    HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


class DownloadError(OSError):
    """A file cannot be downloaded or has a wrong checksum; the message says what to do."""


def download(
    url: str,
    file: str | Path,
    md5: str | None = None,
    progress: Callable[..., Any] = terminal_bar,
) -> Path:
    """Download `url` to `file`.

    Partial data are kept as `file.part`. The same call resumes after an interruption if
    the server supports HTTP Range, and starts again otherwise. A file that exists is
    not downloaded again.

    Args:
        url: An http, https or file address.
        file: Path of the file; its folder is created if missing.
        md5: Expected MD5 checksum; None skips the comparison.
        progress: Makes a progress bar of the bytes; see `terminal_bar`.

    Returns:
        The path of the file.

    Raises:
        FrameTableError: If the disk has too little room.
        DownloadError: If the connection fails (partial data are kept), or the checksum
            is wrong (the file is deleted).
    """
    file = Path(file)
    if file.exists():
        if md5 is not None and (got := md5_of(file)) != md5:
            raise DownloadError(
                f"{file} exists, but has the MD5 checksum {got}, while {md5} is expected. Delete it and run the same "
                "command again to download it."
            )
        return file
    part = file.with_name(f"{file.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        expected = _fetch(url, part, progress)
    except _NETWORK_ERRORS as error:
        raise DownloadError(
            _failure(url, part, str(error) or type(error).__name__)
        ) from error
    if expected and part.stat().st_size < expected:
        arrived = (
            f"the connection ended after {part.stat().st_size} of {expected} bytes"
        )
        raise DownloadError(_failure(url, part, arrived))
    if md5 is not None and (got := md5_of(part)) != md5:
        part.unlink()
        raise DownloadError(
            f"the download of {url} has the MD5 checksum {got}, but {md5} is expected, so it was deleted. Run the same "
            f"command again, or download {file.name} elsewhere and give it with --source."
        )
    os.replace(part, file)
    return file


def md5_of(file: Path) -> str:
    """The MD5 checksum of a file, in hexadecimal digits."""
    digest = hashlib.md5(
        usedforsecurity=False
    )  # so that FIPS builds of Python allow it
    with open(file, "rb") as stream:
        add_rest(digest, stream)
    return digest.hexdigest()


def _failure(url: str, part: Path, reason: str) -> str:
    kept = part.stat().st_size if part.exists() else 0
    advice = (
        f"{readable_size(kept)} are kept in {part} and the same command resumes"
        if kept
        else "Run the command again"
    )
    return f"cannot download {url}: {reason}. {advice}; or download the file elsewhere and give it with --source."


class _NoFtp(urllib.request.FTPHandler):
    """Follows no redirection to ftp; urllib itself follows none to files."""

    def ftp_open(self, request: urllib.request.Request) -> None:
        """Refuse it."""
        raise urllib.error.URLError("unknown url type: ftp")


def _fetch(url: str, part: Path, progress: Callable[..., Any]) -> int:
    """Receive the rest of `part` until the connection ends; return its expected length, or 0 if unknown."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "crumb-avalanche"} | (
        {"Range": f"bytes={start}-"} if start else {}
    )
    try:
        with urllib.request.build_opener(_NoFtp).open(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT
        ) as answer:
            match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            resumes = match is not None and int(match["first"]) == start
            if resumes or answer.status != _PARTIAL_CONTENT:
                return _append(answer, part, start, resumes, progress)
    except urllib.error.HTTPError as error:
        if error.code != _RANGE_NOT_SATISFIABLE or not start:
            raise
        if error.headers.get("Content-Range", "").rpartition("/")[2] == str(start):
            return start  # it was complete
    # the server sent another range, or its file is now shorter than the partial data
    part.unlink()
    return _fetch(url, part, progress)


def _append(
    answer: BinaryIO,
    part: Path,
    start: int,
    resumes: bool,
    progress: Callable[..., Any],
) -> int:
    """Append an answer to the `start` bytes of `part` if it resumes there, else replace them."""
    done = start if resumes else 0
    length = (
        getattr(answer, "length", None) or 0
    )  # None unless an HTTP server states a number
    expected = done + length if length else 0
    check_room(part.parent, expected - start, f"downloading {part.stem}")
    bar = progress(
        expected or None, f"downloading {part.stem}", "B", initial=done, scale=True
    )
    with bar, open(part, "ab" if resumes else "wb") as file:
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            bar.update(len(chunk))
    return expected
