"""``crumb prepare``: convert a downloaded data set to the layout that its benchmark reads."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from benchmarks_toybox_ilab.prepare.core import check, prepare
from benchmarks_toybox_ilab.tables.progress import progress_bar
from benchmarks_toybox_ilab.tables.text import ListedError, printable
from crumb_avalanche.cli.settings import PrepareSettings
from crumb_avalanche.system.folder_lock import locked


def main(settings: PrepareSettings) -> None:
    """Prepare or check a data set; raise ListedError for files that are missing or failed."""
    if settings.check:
        lines, complete = check(settings.name, settings.dataset_root)
        if not complete:
            raise ListedError(
                f"{settings.name} is not complete below {settings.dataset_root}", lines
            )
        print(*map(printable, lines), sep="\n")
        return
    with sole_writer(Path(settings.dataset_root)):
        failures = prepare(
            settings.name,
            settings.dataset_root,
            settings.source,
            settings.workers or os.cpu_count() or 1,
            partial(progress_bar, show=settings.progress),
        )
    if failures:
        raise ListedError(
            f"all is finished except for {len(failures)} that failed", failures
        )


@contextmanager
def sole_writer(root: Path) -> Iterator[None]:
    """Lock a root: two processes that write the same unfinished file could damage it without changing its size."""
    new = not root.exists()
    try:
        with ExitStack() as held:
            with suppress(
                OSError
            ):  # go on without a lock where none can be created, as on a read-only disk
                held.enter_context(locked(root, "--dataset-root"))
            yield
    finally:
        if new:
            with suppress(OSError):  # it is not empty
                root.rmdir()
