"""``crumb prepare``: convert a downloaded data set to the layout of its benchmark."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from benchmarks_toybox_ilab.prepare.core import prepare, take_inventory
from benchmarks_toybox_ilab.tables.progress import progress_bar
from benchmarks_toybox_ilab.tables.text import ListedError, printable
from crumb_avalanche.cli.settings import PrepareSettings
from crumb_avalanche.system.folder_lock import locked


def main(settings: PrepareSettings) -> None:
    """Convert a downloaded data set, or check the folder of one.

    Raises:
        ListedError: files are missing, or failed.
    """
    if settings.check:
        print_check(settings)
        return
    with sole_writer(Path(settings.dataset_root)):
        failures = prepare(
            settings.name,
            settings.dataset_root,
            source=settings.source,
            workers=settings.workers or os.cpu_count() or 1,
            progress=partial(progress_bar, show=settings.progress),
        )
    if failures:
        raise ListedError(
            f"all is finished except for {len(failures)} that failed", failures
        )


def print_check(settings: PrepareSettings) -> None:
    """Print what the folder of ``--dataset-root`` holds of a data set.

    Raises:
        ListedError: files are missing.
    """
    inventory = take_inventory(settings.name, settings.dataset_root)
    if inventory.missing:
        raise ListedError(
            f"{settings.name} is not complete below {settings.dataset_root}",
            [*inventory.present, *inventory.missing],
        )
    for line in inventory.present:
        print(printable(line))


@contextmanager
def sole_writer(root: Path) -> Iterator[None]:
    """Lock the folder of a data set in the ``with`` block.

    Two processes that write the same unfinished file could damage it without changing
    its size. A folder that is new, and empty at the end, is removed.
    """
    is_new = not root.exists()
    try:
        with ExitStack() as stack:
            # Go on without a lock where none can be created, as on a read-only disk.
            with suppress(OSError):
                stack.enter_context(locked(root, "--dataset-root"))
            yield
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                root.rmdir()
