"""Convert downloads to the layout that the generators read.

This holds for every data set that declares its files.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.datasets.registry import BENCHMARKS, Benchmark
from benchmarks_toybox_ilab.prepare.archives import archives_in
from benchmarks_toybox_ilab.prepare.cifar100 import write_cifar100
from benchmarks_toybox_ilab.prepare.download import DownloadError
from benchmarks_toybox_ilab.prepare.job import Inventory, Job, counted
from benchmarks_toybox_ilab.prepare.toybox_videos import bring_toybox
from benchmarks_toybox_ilab.tables.frame import (
    BadFrameError,
    FrameTableError,
)
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.numbers import whole_number
from benchmarks_toybox_ilab.tables.progress import terminal_bar


def prepare(
    name: str,
    root: str | Path,
    source: str | Path | None = None,
    workers: int = 2,
    progress: Callable[..., Any] = terminal_bar,
    say: Callable[[str], object] = print,
) -> list[str]:
    """Convert a data set to the layout that its generator reads.

    Its table is written as `root/<name>.csv`. Finished work is not repeated, so the
    same call resumes after an interruption. A folder of images that already has the
    layout is not copied. Only one process may use a root at a time; the command `crumb
    prepare` locks it.

    Args:
        name: Name of a benchmark with a layout.
        root: Folder for the data set.
        source: The download: an archive, a folder of archives, or a folder of images or
            videos. None downloads core50, cifar100, tiny_imagenet and stream51, and
            uses the files in root for the others.
        workers: Number of threads.
        progress: Makes the progress bar of each longer step; see `terminal_bar`.
        say: Called with lines that report what was done.

    Returns:
        A line for each video that cannot be read; everything else is finished.

    Raises:
        FrameTableError: If there is nothing to start from, the source is damaged or has
            another layout, or the disk is full.
        DownloadError: If a download fails; the same call resumes it.
        ImportError: If PyAV is needed for videos and not installed.
    """
    data = _data_set(name)
    whole_number("workers", workers, 1)
    if source is not None:
        source = Path(source)
    job = Job(
        data=data,
        root=Path(root),
        source=source,
        workers=workers,
        progress=progress,
        say=say,
    )
    if job.source is not None and not (job.source.is_dir() or job.source.is_file()):
        raise FrameTableError(
            f"there is no file or folder {source}; give your download of {name} as "
            "--source."
        )
    try:
        if _is_ready(job):
            return []
        failures = _bring(job)
        try:
            table = data.frames(job.root)
        except FrameTableError as error:
            if not failures:
                raise
            return [*failures, str(error)]
        file = job.root / f"{name}.csv"
        _relative_to(job.root, table).to_csv(file)
    except (DownloadError, BadFrameError):
        raise
    except OSError as error:
        raise FrameTableError(
            f"{error}. Fix this and run the same command again, which resumes."
        ) from error
    say(f"{name} in {table.root}: {counted(table)}; listed in {file}")
    if data.files.missing(table):
        say(_not_whole(data, root))
    return failures


def take_inventory(name: str, root: str | Path) -> Inventory:
    """Say what a folder holds of a data set, and what it lacks.

    Raises:
        FrameTableError: If there is no data set of that name.
    """
    return Inventory.of(_data_set(name), Path(root))


def _data_set(name: str) -> Benchmark:
    known = []
    for known_name, data in BENCHMARKS.items():
        if data.files.folders:
            known.append(known_name)
    if name not in known:
        raise FrameTableError(
            f"there is no data set {name!r} to prepare; there are {', '.join(known)}."
        )
    return BENCHMARKS[name]


def _bring(job: Job) -> list[str]:
    """Bring the files of a data set below the root; return a line for each failure."""
    if job.data.name == "toybox":
        return bring_toybox(job)
    if job.data.name == "cifar100":
        job.bring(partial(write_cifar100, job))
    else:
        job.bring()
    return []


def _is_ready(job: Job) -> bool:
    """Whether generators can read the source where it is, which is reported.

    Such data sets are not copied.
    """
    if job.in_place or job.source is None or not job.source.is_dir():
        return False
    layout = job.data.files
    if layout.find(job.source) is None:
        return False
    table = job.data.frames(job.source)
    incomplete = layout.missing(table)
    if incomplete and archives_in(job.source):
        return False  # it may be unpacked in part
    name = job.data.name
    job.say(
        f"{table.root} has the layout of {name} ({counted(table)}), so nothing was "
        f"copied. Use --dataset-root {job.source} from now on; with it, `crumb prepare "
        f"{name}` writes the list of frames."
    )
    if incomplete:
        job.say(_not_whole(job.data, job.source))
    return True


def _relative_to(root: Path, table: FrameTable) -> FrameTable:
    """Return the table with paths relative to `root`, above its own root."""
    if table.root == root:
        return table
    frames = table.frames_below(root)
    return FrameTable(frames, root, name=table.name, padded=table.padded)


def _not_whole(data: Benchmark, root: str | Path) -> str:
    command = f"crumb prepare {data.name} --dataset-root {root} --check"
    return f"These are not {data.files.owner}'s numbers; `{command}` lists the gaps."
