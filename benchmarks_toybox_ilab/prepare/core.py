"""Convert downloads to the layout that the generators read, for the data sets of the paper and Tiny-ImageNet."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks_toybox_ilab.datasets.ilab_core50 import CORE50, ILAB
from benchmarks_toybox_ilab.prepare.archives import archives_in, holds
from benchmarks_toybox_ilab.prepare.download import DownloadError
from benchmarks_toybox_ilab.prepare.sources import DATA_SETS, DataSet, Job, Progress
from benchmarks_toybox_ilab.tables.frame import BadFrameError, FrameTableError, whole_number
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

NAMES = tuple(DATA_SETS)

_WORDS = {
    "train": "training images",
    "test": "test images",
    "train_clips": "training clips",
    "test_clips": "test clips",
}


@dataclass(frozen=True)
class Report:
    """Result of `check`.

    Attributes:
        lines: What exists and what is missing.
        complete: Whether everything that the paper uses exists.
    """

    lines: list[str]
    complete: bool


def prepare(
    name: str,
    root: str | Path,
    source: str | Path | None = None,
    workers: int = 2,
    progress: Progress | None = None,
    say: Callable[[str], object] = print,
) -> list[str]:
    """Convert a data set to the layout that its generator reads, and write its table as `root/<name>.csv`.

    Finished work is not repeated, so the same call resumes after an interruption. A folder of images that already has
    the layout is not copied (except for CIFAR-100, which is small). Only one process may use a root at a time; the
    command `crumb prepare` locks it.

    Args:
        name: One of NAMES.
        root: Folder for the data set.
        source: The download: an archive, a folder of archives, or a folder of images or videos. None downloads core50,
            cifar100 and tiny_imagenet, and uses the files in root for the others.
        workers: Number of processes for videos and of threads that write images.
        progress: Called with a title and a unit for each longer step; returns a context manager whose value is called
            with (done, total).
        say: Called with lines that report what was done.

    Returns:
        A line for each video that cannot be read; everything else is finished.

    Raises:
        FrameTableError: If there is nothing to start from (says where to get it), the source is damaged or has another
            layout, or the disk is full.
        DownloadError: If a download fails; the same call resumes it.
        ImportError: If PyAV is needed for videos, or torchvision for CIFAR-100, and not installed.
    """
    data = _data_set(name)
    whole_number("workers", workers, 1)
    job = Job(name, data, Path(root), None if source is None else Path(source), workers, progress, say)
    if job.source is not None and not job.source.exists():
        raise FrameTableError(f"there is no file or folder {source}; give your download of {name} as --source.")
    if job.source is not None and not (job.source.is_dir() or job.source.is_file()):
        raise FrameTableError(f"{source} is a pipe or a device; give your download of {name} as a file or a folder.")
    try:
        if _is_ready(job):
            return []
        failures = _prepare_both(job) if data.bring is None else data.bring(job)
        try:
            table = data.frames(job.root)
        except FrameTableError as error:
            if not failures:
                raise
            return [*failures, str(error)]
        file = job.root / f"{name}.csv"
        for unfinished in job.root.glob(f".*{file.name}*.part"):  # of a killed process: this one alone uses the root
            unfinished.unlink()
        _relative_to(job.root, table).to_csv(file)
    except (DownloadError, BadFrameError):
        raise
    except OSError as error:
        raise FrameTableError(f"{error}. Fix this and run the same command again, which resumes.") from error
    say(f"{name} in {table.root}: {_counted(table)}; listed in {file}")
    if _differences(table, data):
        say(_not_whole(name, root))
    return failures


def check(name: str, root: str | Path) -> Report:
    """Report what exists of a data set below root, and what is missing of the one that the paper uses.

    Raises:
        FrameTableError: If there is no data set of that name.
    """
    data, root = _data_set(name), Path(root)
    try:
        table = data.frames(root)
    except FrameTableError as error:
        folder, lines, problems = data.layout.find(root), [], [str(error)]
    else:
        folder, lines, problems = table.root, [f"{name} in {table.root}: {_counted(table)}"], _differences(table, data)
    if folder is not None:
        try:
            missing = data.missing(folder)
        except FrameTableError as error:
            missing = [str(error)]
        problems += [line for line in missing if line not in problems]
    complete = f"complete: everything that {data.layout.owner} {'uses' if data.layout.owner == 'the paper' else 'has'}"
    return Report([*lines, *(problems or [complete])], not problems)


def _data_set(name: str) -> DataSet:
    if name not in DATA_SETS:
        raise FrameTableError(f"there is no data set {name!r} to prepare; there are {', '.join(NAMES)}.")
    return DATA_SETS[name]


def _is_ready(job: Job) -> bool:
    """Whether generators can read the source where it is, which is reported; large data sets are not copied."""
    if job.in_place or job.name == "cifar100" or not job.source.is_dir() or job.data.layout.find(job.source) is None:
        return False
    table = job.data.frames(job.source)
    differences = _differences(table, job.data)
    if differences and any(holds(archive, job.data.chosen) for archive in archives_in(job.source)):
        return False  # it may be unpacked in part
    job.say(
        f"{table.root} has the layout of {job.name} ({_counted(table)}), so nothing was copied. Use "
        f"--dataset-root {job.source} from now on; with it, `crumb prepare {job.name}` writes the list of frames."
    )
    if differences:
        job.say(_not_whole(job.name, job.source))
    return True


def _prepare_both(job: Job) -> list[str]:
    """Prepare iLab and CORe50, each in its folder below the root."""
    root = job.data.layout.find(job.root) or job.root
    parts = {"ilab": root / ILAB, "core50": root / CORE50}
    if not job.in_place:
        commands = " and ".join(f"`crumb prepare {part} --dataset-root {parts[part]} --source ...`" for part in parts)
        raise FrameTableError(f"ilab_core50 takes no --source; prepare its two parts with {commands} first.")
    return [
        failure
        for part, folder in parts.items()
        for failure in prepare(part, folder, None, job.workers, job.progress, job.say)
    ]


def _relative_to(root: Path, table: FrameTable) -> FrameTable:
    """The table with paths relative to `root`, above its own root."""
    if table.root == root:
        return table
    below = table.root.relative_to(root).as_posix()
    rows = (replace(row, path=f"{below}/{row.path}") for row in table)
    return FrameTable(rows, root, name=table.name, padded=table.padded)


def _not_whole(name: str, root: str | Path) -> str:
    whole = DATA_SETS[name].layout.owner
    return f"These are not {whole}'s numbers; `crumb prepare {name} --dataset-root {root} --check` lists the gaps."


def _counted(table: FrameTable) -> str:
    train, test = table.split.count("train"), table.split.count("test")
    return f"{len(table.classes)} class{'es' * (len(table.classes) != 1)}, {train} training and {test} test images"


def _differences(table: FrameTable, data: DataSet) -> list[str]:
    """The totals of a table that differ from COUNTS."""
    counts = data.layout.counts
    found = {"classes": len(table.classes), "train": table.split.count("train"), "test": table.split.count("test")}
    for split in ("train", "test"):
        if f"{split}_clips" in counts:
            found[f"{split}_clips"] = len(table.clips(table.rows(split)))
    return [
        f"{found[key]} {_WORDS.get(key, key)}; {data.layout.owner} has {count}"
        for key, count in counts.items()
        if count is not None and found[key] != count
    ]
