"""Downloads that go on where they stopped, and are checked before they get their name."""

import hashlib
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO

from benchmarks_toybox_ilab.tables.disk import check_room, readable_size
from benchmarks_toybox_ilab.tables.frame import FrameTableError

TIMEOUT = 60  # seconds without a byte

_CHUNK = 1 << 18
_SCHEMES = ("http", "https", "file")
_RANGE = re.compile(r"bytes (?P<first>\d+)-\d+/(?P<total>\d+|\*)")
_PARTIAL_CONTENT, _RANGE_NOT_SATISFIABLE = 206, 416
# Not every OSError: our own disk raises those, too.
_NETWORK_ERRORS = (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError, ssl.SSLError)


class DownloadError(OSError):
    """A file that could not be fetched, or is not what it should be; says what to do."""


def download(
    url: str, file: str | Path, md5: str | None = None, progress: Callable[[int, int], object] | None = None
) -> Path:
    """Fetch `url` as `file`.

    What has arrived is kept as `file.part`, so the same call goes on after an interruption where the server can do so
    (HTTP Range), and starts anew where it cannot. A file that is there already is not fetched again.

    Args:
        url: An http, https or file address.
        file: What to call it; the folder is made where it is missing.
        md5: The checksum to compare before the file gets its name; None compares nothing.
        progress: Called with (bytes that are there, bytes in all or 0 if the server does not tell) as they arrive.

    Returns:
        The path of the file.

    Raises:
        FrameTableError: If the address is of another kind, or the disk has too little room for the rest.
        DownloadError: If the connection fails (what has arrived is kept), or the checksum is wrong (it is deleted).
    """
    file = Path(file)
    scheme = urllib.parse.urlsplit(url).scheme.lower()
    if scheme not in _SCHEMES:
        raise FrameTableError(f"cannot download {url}: give an address that begins with {', '.join(_SCHEMES)}.")
    if file.exists():
        _check_present(file, md5)
        return file
    part = file.with_name(f"{file.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        expected = _fetch(url, part, progress)
    except _NETWORK_ERRORS as error:
        raise DownloadError(_failure(url, part, str(error) or type(error).__name__)) from error
    if expected and part.stat().st_size < expected:
        arrived = f"the connection ended after {part.stat().st_size} of {expected} bytes"
        raise DownloadError(_failure(url, part, arrived))
    if md5 is not None and (got := md5_of(part)) != md5:
        part.unlink()
        raise DownloadError(
            f"what came from {url} has the MD5 checksum {got}, but {md5} is expected, so it was deleted. Give the same "
            f"command again, or fetch {file.name} elsewhere and give it with --source."
        )
    os.replace(part, file)
    return file


def md5_of(file: Path) -> str:
    """The MD5 checksum of a file, in hexadecimal digits."""
    digest = hashlib.md5(usedforsecurity=False)  # so that Python builds for high security allow it
    with open(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check_present(file: Path, md5: str | None) -> None:
    if md5 is not None and (got := md5_of(file)) != md5:
        raise DownloadError(
            f"{file} is there already, but has the MD5 checksum {got}, while {md5} is expected. Delete it and give the "
            "same command again to fetch it anew."
        )


def _failure(url: str, part: Path, reason: str) -> str:
    kept = part.stat().st_size if part.exists() else 0
    there = f"{readable_size(kept)} are kept in {part} and the same command goes on from there" if kept else ""
    return (
        f"cannot download {url}: {reason}. {there or 'The same command tries again'}; or fetch the file elsewhere and "
        "give it with --source."
    )


def _opener() -> urllib.request.OpenerDirector:
    """What opens http, https and file addresses and follows redirections, but to no other kind of address."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.FileHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _fetch(url: str, part: Path, progress: Callable[[int, int], object] | None) -> int:
    """Bring `part` to its full length as far as the connection holds; the length that it should have, or 0."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "crumb-avalanche"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        with _opener().open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
            match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            goes_on = match is not None and int(match["first"]) == start
            if goes_on or answer.status != _PARTIAL_CONTENT:
                return _append(answer, part, start, goes_on, progress)
    except urllib.error.HTTPError as error:
        if error.code != _RANGE_NOT_SATISFIABLE or not start:
            raise
        if error.headers.get("Content-Range", "").rpartition("/")[2] == str(start):
            return start  # all of it had arrived
    part.unlink()  # another range than that asked for, or the file is now shorter than what had arrived
    return _fetch(url, part, progress)


def _append(
    answer: BinaryIO, part: Path, start: int, goes_on: bool, progress: Callable[[int, int], object] | None
) -> int:
    """Write an answer behind the first `start` bytes of `part` if it goes on from there, else in their place."""
    done = start if goes_on else 0
    length = int(answer.headers.get("Content-Length") or 0)
    expected = done + length if length else 0
    check_room(part.parent, expected - start, f"downloading {part.stem}")
    with open(part, "ab" if goes_on else "wb") as file:
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, expected)
    return expected
