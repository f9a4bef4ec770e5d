"""``crumb prepare``: from a data set's download to what its benchmark reads."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks_toybox_ilab.prepare.core import check, prepare
from crumb_avalanche.runs.command_settings import PrepareSettings
from crumb_avalanche.system.folder_lock import locked
from crumb_avalanche.system.progress import progress_bar as new_bar


class IncompleteError(ValueError):
    """Something is missing of a data set, or could not be read; the message is a list."""


def main(settings: PrepareSettings) -> None:
    """Prepare or check a data set; raise the list of what is missing or failed, if anything is."""
    if settings.check:
        report = check(settings.name, settings.dataset_root)
        if not report.complete:
            raise IncompleteError(
                listed(f"{settings.name} is not complete below {settings.dataset_root}", report.lines)
            )
        print("\n".join(report.lines))
        return
    with sole_writer(Path(settings.dataset_root)):
        failures = prepare(
            settings.name,
            settings.dataset_root,
            settings.source,
            settings.workers or os.cpu_count() or 1,
            progress_bar if settings.progress else None,
        )
    if failures:
        raise IncompleteError(listed(f"all is finished but {len(failures)} that failed", failures))


@contextmanager
def sole_writer(root: Path) -> Iterator[None]:
    """Keep others from a root: two that write one unfinished file may leave one of the right size that is damaged.

    Raises:
        FolderInUseError: another process prepares something in it.
    """
    new = not root.exists()
    try:
        with ExitStack() as held:
            with suppress(OSError):  # what cannot be locked, as on a read-only disk, is not
                held.enter_context(locked(root, "--dataset-root"))
            yield
    finally:
        if new:
            with suppress(OSError):  # something lies in it
                root.rmdir()


def listed(title: str, lines: list[str]) -> str:
    """A title and indented lines."""
    return "\n".join([f"{title}:", *(f"  {line}" for line in lines)])


@contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Callable[..., None]]:
    """A bar with units/s: what it gives is called with (done, in all or 0, images so far).

    It is drawn at the first call, and what was done before that is no part of the rate.
    """
    bar = None

    def step(done: int, total: int, images: int | None = None) -> None:
        nonlocal bar
        if bar is None:
            bar = new_bar(total, title, unit, initial=done, scale=unit == "B")
        bar.update(done - bar.n)
        if images is not None:
            bar.set_postfix_str(f"{images} images", refresh=False)

    try:
        yield step
    finally:
        if bar is not None:
            bar.close()
