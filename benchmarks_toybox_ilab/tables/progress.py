"""Progress bars in a terminal, plain lines in a file."""

import sys

from tqdm import tqdm

SECONDS = 5.0  # between two lines


class Lines(tqdm):
    """A bar as a line every few seconds, and one at its end; see `progress_bar`."""

    monitor_interval = 0  # seconds between looks of a thread at the bars: no thread

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Print a line with the present count, unless tqdm asks to clear its bar.

        Args:
            msg: What tqdm would print instead of the bar; it does so only to clear it.
            pos: Ignored.
        """
        if msg is None:
            self.last_print_n = self.n
            self.last_print_t = self._time()
            print(" ".join(str(self).split()), file=self.fp, flush=True)

    def close(self) -> None:
        """Print the last line of the progress, if its count was not printed yet."""
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
    """Make a progress bar on stderr, of lines if that is no terminal.

    It is a context manager with `update(count=1)`, `set_postfix_str(text, refresh)`,
    `close()` and `n`. Off a terminal a line is printed every few seconds, and one at
    the end.

    Args:
        total: Number of items; None if it is not known.
        title: What is done.
        unit: What is counted, with a space before it.
        initial: Items that were done before, which do not count in the rate.
        scale: Whether large numbers are shown with k, M, G.
        show: Whether anything is printed.
    """
    options = {
        "total": total or None,
        "desc": title,
        "unit": unit,
        "initial": initial,
        "unit_scale": scale,
    }
    if not show or sys.stderr.isatty():
        return tqdm(**options, disable=not show)
    # Fields of tqdm's format for a bar.
    count = "{n_fmt}/{total_fmt}" if total else "{n_fmt}"
    return Lines(
        **options,
        bar_format="{desc}: " + count + "{unit}, {rate_fmt}{postfix}",
        mininterval=SECONDS,
        delay=SECONDS,
        miniters=1,
        smoothing=0,
        leave=False,
    )


def terminal_bar(
    total: int | None, title: str, unit: str, *, initial: int = 0, scale: bool = False
) -> tqdm:
    """Make a progress bar, silent unless stderr is a terminal; see `progress_bar`.

    Other functions for an argument `progress` take the same.
    """
    show = sys.stderr.isatty()
    return progress_bar(total, title, unit, initial=initial, scale=scale, show=show)
