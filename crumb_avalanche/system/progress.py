"""Progress bars in a terminal, plain lines in a file; numbers of things and of bytes in words."""

import sys
import time
from typing import TextIO

from tqdm import tqdm

SECONDS = 5.0  # between two lines


class Lines:
    """The part of a ``tqdm`` bar that is used here, as a line every few seconds; see ``progress_bar``."""

    def __init__(self, total: int | None, title: str, unit: str, initial: int, scale: bool, file: TextIO):
        self.n, self.total, self.title, self.unit, self.initial = initial, total or None, title, unit, initial
        self.scale, self.file = scale, file
        self._start = self._latest = time.monotonic()
        self._printed: int | None = None
        self._note = ""

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def update(self, count: int = 1) -> None:
        """Count items as done."""
        self.n += count
        if time.monotonic() - self._latest >= SECONDS:
            self._print()

    def set_postfix_str(self, text: str, refresh: bool = False) -> None:
        """Set the text after the numbers; if ``refresh``, print a line for a new one."""
        new, self._note = text not in ("", self._note), text
        if refresh and new:
            self._print()

    def close(self) -> None:
        """Print the last line."""
        if self._printed != self.n:
            self._print()
        self._printed = self.n

    def _print(self) -> None:
        self._latest, self._printed = time.monotonic(), self.n
        rate = (self.n - self.initial) / max(self._latest - self._start, 1e-9)
        done, total, speed = (
            tqdm.format_sizeof(number) if self.scale else f"{number:.{digits}f}"
            for number, digits in ((self.n, 0), (self.total or 0, 0), (rate, 1))
        )
        speed = f"{1 / rate:.1f} s each" if 0 < rate < 0.1 and not self.scale else f"{speed}{self.unit}/s"
        of = f"/{total}" if self.total else ""
        note = f", {self._note}" if self._note else ""
        print(f"{self.title}: {done}{of}{self.unit}, {speed}{note}", file=self.file, flush=True)


def progress_bar(
    total: int | None, title: str, unit: str = " images", *, initial: int = 0, scale: bool = False, show: bool = True
) -> tqdm | Lines:
    """A context manager with ``update(count)``, ``set_postfix_str(text)``, ``close()`` and ``n``.

    It draws a bar on stderr if that is a terminal; otherwise it prints a line there every few seconds, and one at its
    end. ``total`` is ``None`` if it is not known, ``initial`` items were done before and do not count in the rate, and
    ``scale`` prints large numbers with k, M, G.
    """
    if not show or sys.stderr.isatty():
        return tqdm(total=total or None, desc=title, unit=unit, initial=initial, unit_scale=scale, disable=not show)
    return Lines(total, title, unit, initial, scale, sys.stderr)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, given in the singular: ``1 class``, ``2 classes``, ``1,000 images``."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("s"):
        return f"{count:,} {noun}es"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"


def bytes_text(count: float) -> str:
    """Bytes in decimal units: ``2.27 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return ""


def listed(names: list[str], most: int = 20) -> str:
    """Join names; of more than ``most`` the first."""
    more = f" and {len(names) - most} more" * (len(names) > most)
    return ", ".join(names[:most]) + more
