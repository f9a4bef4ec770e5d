"""From what a user downloads to what the generators read, for the seven data sets of the paper."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks_toybox_ilab.datasets.ilab_core50 import CORE50, ILAB
from benchmarks_toybox_ilab.prepare.archives import archives_in, holds
from benchmarks_toybox_ilab.prepare.download import DownloadError
from benchmarks_toybox_ilab.prepare.sources import BRING, DATA_SETS, DataSet, Job, Progress
from benchmarks_toybox_ilab.tables.frame import BadFrameError, Frame, FrameTableError, whole_number
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
    """What `check` found.

    Attributes:
        lines: What is there, and what is missing.
        complete: Whether all that the paper uses is there.
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
    """Bring a data set into the layout that its generator reads, and write its table as `root/<name>.csv`.

    What is there already is not done again, so the same call goes on after an interruption. A folder of images that has
    the layout already is not copied (but CIFAR-100's is, which is small). One root is for one process at a time; the
    command `crumb prepare` sees to that.

    Args:
        name: One of NAMES.
        root: Where the data set shall lie.
        source: What was downloaded: an archive, a folder of archives, or a folder of images or videos. None downloads
            core50 and cifar100, and takes what lies in root for the others.
        workers: Number of processes for videos, and of threads for images that are written.
        progress: Called with a title and a unit for each longer part of the work; gives a context manager of what to
            call with (done, in all).
        say: Called with lines that tell what was done.

    Returns:
        What failed while all the rest was finished, a line each: videos that cannot be read.

    Raises:
        FrameTableError: If there is nothing to begin with (says where to get it), the source is damaged or laid out
            otherwise, or the disk is full.
        DownloadError: If a download fails; the same call goes on with it.
        ImportError: If PyAV is needed for videos, or torchvision for CIFAR-100, and not installed.
    """
    data = _data_set(name)
    whole_number("workers", workers, 1)
    job = Job(name, data, Path(root), None if source is None else Path(source), workers, progress, say)
    if job.source is not None and not job.source.exists():
        raise FrameTableError(f"there is no file or folder {source}; give what you downloaded of {name} as --source.")
    try:
        if _lies_ready(job):
            return []
        failures = _prepare_both(job) if name == "ilab_core50" else BRING[name](job)
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
            f"{error}. Cure that and give the same command again; it goes on where it stopped."
        ) from error
    say(f"{name} in {table.root}: {_counted(table)}; listed in {file}")
    if _differences(table, data):
        say(_not_the_papers(name, root))
    return failures


def check(name: str, root: str | Path) -> Report:
    """What of a data set is there below root, and what of all that the paper uses is missing.

    Raises:
        FrameTableError: If there is no data set of that name.
    """
    data, root = _data_set(name), Path(root)
    try:
        table = data.frames(root)
    except FrameTableError as error:
        folder, lines, problems = data.folder(root), [], [str(error)]
    else:
        folder, lines, problems = table.root, [f"{name} in {table.root}: {_counted(table)}"], _differences(table, data)
    if folder is not None:
        try:
            missing = data.module.missing(data.names(folder))
        except FrameTableError as error:
            missing = [str(error)]
        problems += [line for line in missing if line not in problems]
    return Report([*lines, *problems] if problems else [*lines, "complete: all that the paper uses"], not problems)


def _data_set(name: str) -> DataSet:
    if name not in DATA_SETS:
        raise FrameTableError(f"there is no data set {name!r} to prepare; there are {', '.join(NAMES)}.")
    return DATA_SETS[name]


def _lies_ready(job: Job) -> bool:
    """Whether the source is a folder that generators can read where it is; says so. Large data sets are not copied."""
    if job.in_place or job.name == "cifar100" or not job.source.is_dir() or job.data.folder(job.source) is None:
        return False
    table = job.data.frames(job.source)
    differences = _differences(table, job.data)
    if differences and any(holds(archive, job.data.chosen) for archive in archives_in(job.source)):
        return False  # unpacked in part, perhaps
    job.say(
        f"{table.root} is laid out as {job.name} should be ({_counted(table)}), so nothing was copied. Give "
        f"--dataset-root {job.source} from now on; with that, `crumb prepare {job.name}` writes the list of frames."
    )
    if differences:
        job.say(_not_the_papers(job.name, job.source))
    return True


def _prepare_both(job: Job) -> list[str]:
    """Prepare iLab and CORe50, each in its folder below the root."""
    root = job.data.folder(job.root) or job.root
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
    """The table with paths below `root`, where its own root lies deeper."""
    if table.root == root:
        return table
    below = table.root.relative_to(root).as_posix()
    rows = (
        Frame(f"{below}/{row.path}", row.class_name, row.object_name, row.session, row.frame, row.split)
        for row in table
    )
    return FrameTable(rows, root, name=table.name, padded=table.padded)


def _not_the_papers(name: str, root: str | Path) -> str:
    return f"Those are not the paper's numbers; `crumb prepare {name} --dataset-root {root} --check` tells more."


def _counted(table: FrameTable) -> str:
    train, test = table.split.count("train"), table.split.count("test")
    return f"{len(table.classes)} classes, {train} training and {test} test images"


def _differences(table: FrameTable, data: DataSet) -> list[str]:
    """In which totals a table is not the paper's."""
    counts = data.module.COUNTS
    found = {"classes": len(table.classes), "train": table.split.count("train"), "test": table.split.count("test")}
    for split in ("train", "test"):
        if f"{split}_clips" in counts:
            found[f"{split}_clips"] = len(table.clips(table.rows(split)))
    return [
        f"{found[key]} {_WORDS.get(key, key)}; the paper has {count}"
        for key, count in counts.items()
        if count is not None and found[key] != count
    ]
