"""Progress bars in a terminal, plain lines in a file; numbers of things and of bytes in words."""

import sys

from tqdm import tqdm

SECONDS = 5.0  # between two lines


class Lines(tqdm):
    """A bar as a line every few seconds, and one at its end; see ``progress_bar``."""

    monitor_interval = (
        0  # seconds between the looks of a thread at the bars; none is started
    )

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Print a line; tqdm gives a text only to clear its bar."""
        if msg is None:
            self.last_print_n, self.last_print_t = self.n, self._time()
            print(" ".join(str(self).split()), file=self.fp, flush=True)

    def close(self) -> None:
        """Print the last line."""
        if self.last_print_n != self.n:
            self.refresh()
        super().close()


def progress_bar(
    total: int | None,
    title: str,
    unit: str = " images",
    *,
    initial: int = 0,
    scale: bool = False,
    show: bool = True,
) -> tqdm:
    """A context manager with ``update(count)``, ``set_postfix_str(text)``, ``close()`` and ``n``.

    It draws a bar on stderr if that is a terminal; otherwise it prints a line there
    every few seconds, and one at its end. ``total`` is ``None`` if it is not known,
    ``initial`` items were done before and do not count in the rate, and ``scale``
    prints large numbers with k, M, G.
    """
    usual = {
        "total": total or None,
        "desc": title,
        "unit": unit,
        "initial": initial,
        "unit_scale": scale,
    }
    if not show or sys.stderr.isatty():
        return tqdm(**usual, disable=not show)
    form = (
        "{desc}: {n_fmt}" + "/{total_fmt}" * bool(total) + "{unit}, {rate_fmt}{postfix}"
    )
    return Lines(
        **usual,
        bar_format=form,
        mininterval=SECONDS,
        delay=SECONDS,
        miniters=1,
        smoothing=0,
        leave=False,
    )


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
        if count < 999.5:  # else three digits would be written as 1e+03
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def listed(names: list[str], most: int = 20) -> str:
    """Join names; of more than ``most`` the first."""
    more = f" and {len(names) - most} more" * (len(names) > most)
    return ", ".join(names[:most]) + more
