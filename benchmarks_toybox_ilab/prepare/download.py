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
from typing import Any, BinaryIO, NoReturn

from benchmarks_toybox_ilab.tables.disk import add_rest, check_room, readable_size
from benchmarks_toybox_ilab.tables.progress import terminal_bar

TIMEOUT = 60  # seconds without a byte

_CHUNK = 1 << 18
_RANGE = re.compile(r"bytes (?P<first>\d+)-\d+/(?P<total>\d+|\*)")
_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416
# Not OSError, which the local disk raises, too.
_NETWORK_ERRORS = (
    urllib.error.URLError,
    HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


class DownloadError(OSError):
    """A file cannot be downloaded or has a wrong checksum.

    The message says what to do.
    """


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
        if md5 is not None:
            _check_existing_file(file, md5)
        return file
    partial_file = file.with_name(f"{file.name}.part")
    partial_file.parent.mkdir(parents=True, exist_ok=True)
    try:
        expected = _receive_rest(url, partial_file, progress)
    except _NETWORK_ERRORS as error:
        reason = str(error) or type(error).__name__
        raise DownloadError(_failure_message(url, partial_file, reason)) from error
    size = partial_file.stat().st_size
    if expected and size < expected:
        reason = f"the connection ended after {size} of {expected} bytes"
        raise DownloadError(_failure_message(url, partial_file, reason))
    if md5 is not None:
        _check_downloaded(url, file, partial_file, md5)
    os.replace(partial_file, file)
    return file


def _check_existing_file(file: Path, md5: str) -> None:
    """Raise DownloadError if a file that exists has another checksum."""
    checksum = md5_of(file)
    if checksum != md5:
        raise DownloadError(
            f"{file} exists, but has the MD5 checksum {checksum}, while {md5} is "
            "expected. Delete it and run the same command again to download it."
        )


def _check_downloaded(url: str, file: Path, partial_file: Path, md5: str) -> None:
    """Delete a finished download and raise DownloadError if its checksum is wrong.

    Args:
        url: Where it came from, for the message.
        file: The final path, for the message.
        partial_file: The download.
        md5: Expected checksum.
    """
    checksum = md5_of(partial_file)
    if checksum != md5:
        partial_file.unlink()
        raise DownloadError(
            f"the download of {url} has the MD5 checksum {checksum}, but {md5} is "
            "expected, so it was deleted. Run the same command again, or download "
            f"{file.name} elsewhere and give it with --source."
        )


def md5_of(file: Path) -> str:
    """Return the MD5 checksum of a downloaded file, in hexadecimal digits."""
    # So that FIPS builds of Python allow it.
    digest = hashlib.md5(usedforsecurity=False)
    with open(file, "rb") as stream:
        add_rest(digest, stream)
    return digest.hexdigest()


def _failure_message(url: str, partial_file: Path, reason: str) -> str:
    """Return the message of a download that failed."""
    arrived = _bytes_arrived(partial_file)
    advice = "Run the command again"
    if arrived:
        size = readable_size(arrived)
        advice = f"{size} are kept in {partial_file} and the same command resumes"
    return (
        f"cannot download {url}: {reason}. {advice}; or download the file elsewhere "
        "and give it with --source."
    )


def _bytes_arrived(partial_file: Path) -> int:
    """Return how many bytes of a download have arrived."""
    if not partial_file.exists():
        return 0
    return partial_file.stat().st_size


class _NoFtp(urllib.request.FTPHandler):
    """Follows no redirection to ftp; urllib itself follows none to files."""

    def ftp_open(self, req: urllib.request.Request) -> NoReturn:
        """Refuse to download from an ftp server."""
        raise urllib.error.URLError("unknown url type: ftp")


def _receive_rest(url: str, partial_file: Path, progress: Callable[..., Any]) -> int:
    """Download the rest of `partial_file` until the connection ends.

    Args:
        url: Address of the file.
        partial_file: Holds what has arrived before; the rest is appended.
        progress: Makes a progress bar of the bytes.

    Returns:
        The expected length of the complete file in bytes, or 0 if unknown.
    """
    start = _bytes_arrived(partial_file)  # where the rest begins
    headers = {"User-Agent": "crumb-avalanche"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)
    opener = urllib.request.build_opener(_NoFtp)  # refuses ftp addresses
    try:
        with opener.open(request, timeout=TIMEOUT) as answer:
            match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            resumes = match is not None and int(match["first"]) == start
            is_whole_file = answer.status != _PARTIAL_CONTENT
            if resumes or is_whole_file:
                return _write_answer(answer, partial_file, start, resumes, progress)
    except urllib.error.HTTPError as error:
        if error.code != _RANGE_NOT_SATISFIABLE or not start:
            raise
        # The server says "bytes */LENGTH".
        length_on_server = error.headers.get("Content-Range", "").rpartition("/")[2]
        if length_on_server == str(start):
            return start  # it was complete
    # The server sent another range, or its file is now shorter than the partial data.
    # All of it is received again.
    partial_file.unlink()
    return _receive_rest(url, partial_file, progress)


def _write_answer(
    answer: BinaryIO,
    partial_file: Path,
    start: int,
    resumes: bool,
    progress: Callable[..., Any],
) -> int:
    """Write the answer of a download to `partial_file`.

    Args:
        answer: Open response of the server, or file.
        partial_file: Where its bytes go.
        start: Number of bytes that `partial_file` has.
        resumes: Whether the answer goes on after them; otherwise they are replaced.
        progress: Makes a progress bar; see `terminal_bar`.

    Returns:
        The expected length of the complete file in bytes, or 0 if unknown.
    """
    offset = start if resumes else 0
    # None unless an HTTP server states a number
    length = getattr(answer, "length", None) or 0
    expected = offset + length if length else 0
    title = f"downloading {partial_file.stem}"
    check_room(partial_file.parent, expected - start, title)
    bar = progress(expected or None, title, "B", initial=offset, scale=True)
    with bar, open(partial_file, "ab" if resumes else "wb") as file:
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            bar.update(len(chunk))
    return expected
