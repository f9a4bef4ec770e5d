"""Convert downloads to the layout that the generators read.

This holds for every data set that declares its files.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.datasets.registry import BENCHMARKS, Benchmark
from benchmarks_toybox_ilab.prepare.archives import archives_in
from benchmarks_toybox_ilab.prepare.cifar100 import write_cifar100
from benchmarks_toybox_ilab.prepare.download import DownloadError
from benchmarks_toybox_ilab.prepare.job import Inventory, Job, counts_in_words
from benchmarks_toybox_ilab.prepare.toybox_videos import bring_toybox
from benchmarks_toybox_ilab.tables.frame import (
    BadFrameError,
    FrameTableError,
)
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.numbers import check_whole_number
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

    Its table is written as `root/<name>.csv`: of ETH-80, whose runs have different
    splits, that of run 0, and of ORBIT that of all users that are there. Finished work
    is not repeated, so the same call resumes after an interruption. A folder of images
    that already has the layout is not copied. Only one process may use a root at a
    time; the command `crumb prepare` locks it.

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
    data = _data_set_of_name(name)
    check_whole_number("workers", workers, 1)
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
    is_missing = source is not None and not (source.is_dir() or source.is_file())
    if is_missing:
        raise FrameTableError(
            f"there is no file or folder {source}; give your download of {name} as "
            "--source."
        )
    try:
        if _is_readable_in_place(job):
            return []
        with _marked_unfinished(job):
            failures = _bring_files(job)  # a line for each video that cannot be read
            try:
                table = data.prepared_table(job.root)
            except FrameTableError as error:
                if not failures:
                    raise
                # The videos that failed may be why.
                return [*failures, str(error)]
            list_file = job.root / f"{name}.csv"
            # The folder of the data set may lie below the root, which paths begin at.
            _with_paths_below(job.root, table).to_csv(list_file)
    except (DownloadError, BadFrameError):
        raise
    except OSError as error:
        raise FrameTableError(
            f"{error}. Fix this and run the same command again, which resumes."
        ) from error
    say(f"{name} in {table.root}: {counts_in_words(table)}; listed in {list_file}")
    if data.files.missing(table):
        say(_incomplete_in_words(data, root))
    return failures


def take_inventory(name: str, root: str | Path) -> Inventory:
    """Compare a folder with the whole data set: what it holds, and what it lacks.

    Raises:
        FrameTableError: If there is no data set of that name.
    """
    return Inventory.of(_data_set_of_name(name), Path(root))


def _data_set_of_name(name: str) -> Benchmark:
    """Return the data set of a name that can be prepared: it has folders of files."""
    data_sets = {}
    for known_name, data in BENCHMARKS.items():
        if data.files.folders:
            data_sets[known_name] = data
    if name not in data_sets:
        raise FrameTableError(
            f"there is no data set {name!r} to prepare; there are "
            f"{', '.join(data_sets)}."
        )
    return data_sets[name]


def _bring_files(job: Job) -> list[str]:
    """Unpack or convert a download below the root; return a line for each bad video."""
    if job.data.name == "toybox":
        return bring_toybox(job)
    if job.data.name == "cifar100":
        job.bring(partial(write_cifar100, job))
    else:
        job.bring()
    return []


@contextmanager
def _marked_unfinished(job: Job) -> Iterator[None]:
    """Mark a root as unfinished in the `with` block, so that streams of it warn.

    The mark stays if the block is left by an error, also if the process is killed,
    unless nothing of the data set is there.
    """
    mark = job.data.files.unfinished_mark(job.root)
    is_new = not job.root.exists()
    with suppress(OSError):  # a folder that cannot be written to has no mark
        job.root.mkdir(parents=True, exist_ok=True)
        mark.touch()
    is_done = False
    try:
        yield
        is_done = True
    finally:
        if is_done or job.data.files.find(job.root) is None:
            with suppress(OSError):
                mark.unlink(missing_ok=True)
                if is_new:
                    job.root.rmdir()  # fails if it is not empty


def _is_readable_in_place(job: Job) -> bool:
    """Whether the download is a folder that generators can read where it is.

    Such a data set is not copied; `job.say` gets a message that names the root to use.
    """
    if job.in_place or job.source is None or not job.source.is_dir():
        return False
    layout = job.data.files
    if layout.find(job.source) is None:
        return False
    table = job.data.prepared_table(job.source)
    is_incomplete = bool(layout.missing(table))
    if is_incomplete and archives_in(job.source):
        return False  # it may be unpacked in part
    name = job.data.name
    job.say(
        f"{table.root} has the layout of {name} ({counts_in_words(table)}), so nothing "
        f"was copied. Use --dataset-root {job.source} from now on; with it, `crumb "
        f"prepare {name}` writes the list of frames."
    )
    if is_incomplete:
        job.say(_incomplete_in_words(job.data, job.source))
    return True


def _with_paths_below(root: Path, table: FrameTable) -> FrameTable:
    """Return the table of a prepared data set with paths relative to another root.

    Args:
        root: The root that was given, which is that of the table or above it.
        table: The frames.
    """
    if table.root == root:
        return table
    frames = table.frames_below(root)
    return FrameTable(frames, root, name=table.name, padded=table.padded)


def _incomplete_in_words(data: Benchmark, root: str | Path) -> str:
    """Say that a data set is not complete, and which command lists what it lacks."""
    command = f"crumb prepare {data.name} --dataset-root {root} --check"
    return f"These are not {data.files.owner}'s numbers; `{command}` lists the gaps."
