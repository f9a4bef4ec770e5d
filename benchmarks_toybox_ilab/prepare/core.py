"""Convert downloads to the layout that the generators read, for every data set that declares one."""

import pickle
import re
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks_toybox_ilab.datasets import toybox
from benchmarks_toybox_ilab.datasets.registry import BENCHMARKS, Benchmark
from benchmarks_toybox_ilab.prepare.archives import archives_in, unpack
from benchmarks_toybox_ilab.prepare.download import DownloadError, download, md5_of
from benchmarks_toybox_ilab.tables.atomic_file import atomic_write, remove_abandoned
from benchmarks_toybox_ilab.tables.disk import check_room, readable_size
from benchmarks_toybox_ilab.tables.folders import files_below
from benchmarks_toybox_ilab.tables.frame import (
    BadFrameError,
    FrameTableError,
    whole_number,
)
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.progress import terminal_bar
from benchmarks_toybox_ilab.video import extract

DOWNLOADS = ".download"  # below the root; hidden, so tables ignore it
_CIFAR100_BYTES = 300_000_000  # 60,000 small files of at least one disk block each
_LARGE = 10**9  # bytes; reading the file list of a larger archive may take minutes

_VIDEOS_TREE = (
    "<source>/<supercategory>/<object>/<object>_<transform>.mp4, "
    "e.g. households/cup_01_pivothead/cup_01_pivothead_rzplus.mp4"
)
_VIDEO = re.compile(rf"(?:.*/)?(?:{toybox.IN_FOLDER}){toybox.CLIP}\.(?i:mp4)", re.ASCII)


def counted(table: FrameTable) -> str:
    """The numbers of classes and images of a table, in words."""
    train, test = table.split.count("train"), table.split.count("test")
    return f"{len(table.classes)} class{'es' * (len(table.classes) != 1)}, {train} training and {test} test images"


def gaps(data: Benchmark, root: Path) -> tuple[list[str], list[str]]:
    """What exists of a data set below root, and what is missing, in words."""
    try:
        table = data.frames(root)
    except FrameTableError as error:
        return [], [str(error)]
    return [f"{data.name} in {table.root}: {counted(table)}"], data.files.missing(table)


@dataclass(frozen=True)
class Job:
    """The arguments of `core.prepare`."""

    data: Benchmark
    root: Path
    source: Path | None
    workers: int
    progress: Callable[..., Any]
    say: Callable[[str], object]

    @property
    def in_place(self) -> bool:
        """Whether the root itself is the source."""
        return self.source is None or self.source.resolve() == self.root.resolve()

    def unpack(
        self, archive: Path, only: Callable[[str], str | None] | None = None
    ) -> None:
        """Unpack the files that are needed below the root."""
        if archive.is_file() and archive.stat().st_size >= _LARGE:
            self.say(
                f"reading the file list of {archive} ({readable_size(archive.stat().st_size)})"
            )
        count = unpack(archive, self.root, self.progress, only or self.data.files.place)
        self.say(f"{archive}: {count} file{'s' * (count != 1)} unpacked")

    def bring(self, write: Callable[[Path], object] | None = None) -> None:
        """Unpack the archives of the source or of the root, or download one; a root that is unpacked needs none.

        `write` is called with the data set's own archive, of verified content; None
        unpacks it.
        """
        layout = self.data.files
        name = layout.url.rpartition("/")[2]
        begun = (self.root / DOWNLOADS).exists() or (self.root / name).exists()
        there = (
            bool(name) and self.source is None and layout.find(self.root) is not None
        )
        if there and (not begun or not gaps(self.data, self.root)[1]):
            return  # a user has put the files there, or all are unpacked
        archives = archives_in(self.source or self.root / name)
        if name and self.source is None and not archives:
            archives = [self.root / DOWNLOADS / name]
            download(layout.url, archives[0], layout.md5, self.progress)
        for archive in archives:
            known = layout.md5 if archive.name == name or write else ""
            verified = known and (got := md5_of(archive)) == known
            if archive.name == name and not verified:
                raise FrameTableError(
                    f"{archive} has the MD5 checksum {got}, while that of {name} is {known}: it is damaged or "
                    f"incomplete. Download it: {layout.url}"
                )
            if write and verified:
                write(archive)
            else:
                self.unpack(archive)
            if archive.parent.name == DOWNLOADS:
                self.say(f"{archive} is no longer needed")
        if layout.find(self.root) is None or not (archives or self.in_place):
            raise self.nothing_there()

    def nothing_there(self) -> FrameTableError:
        """The error to raise if there is nothing to start from."""
        layout = self.data.files
        return FrameTableError(
            f"{self.source or self.root} holds nothing of {self.data.name}. Download it and give the archive, or the "
            f"folder of the archives: `crumb prepare {self.data.name} --dataset-root {self.root} --source DOWNLOADED`. "
            f"Source: {layout.source}. Final layout: {layout.tree}"
        )


def write_cifar100(job: Job, archive: Path) -> None:
    """Write CIFAR-100 as `root/{train,test}/<class>/<original name>.png`, losslessly; existing images are kept.

    The checksum of the archive is verified before, because unpickling runs code.
    """
    check_room(job.root, _CIFAR100_BYTES, "CIFAR-100")
    with tarfile.open(archive) as file:
        meta, *splits = (
            pickle.load(file.extractfile(f"cifar-100-python/{name}"), encoding="latin1")
            for name in ("meta", "train", "test")
        )
    for split in ("train", "test"):
        remove_abandoned(job.root / split)
    images: dict[Path, np.ndarray] = {}
    for split, content in zip(("train", "test"), splits):
        pixels = content["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        for number, (label, name) in enumerate(
            zip(content["fine_labels"], content["filenames"], strict=True)
        ):
            path = job.root / split / meta["fine_label_names"][label] / name
            unique = (
                path
                if path not in images
                else path.with_stem(f"{path.stem}_{number:05d}")
            )
            images[unique] = pixels[number]
    with (
        job.progress(len(images), "writing images", " images") as bar,
        ThreadPoolExecutor(job.workers) as pool,
    ):
        for _ in pool.map(_write, images, images.values()):
            bar.update()


def _write(path: Path, pixels: np.ndarray) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, bulk=True) as file:
            Image.fromarray(pixels).save(file, "PNG")


def prepare(
    name: str,
    root: str | Path,
    source: str | Path | None = None,
    workers: int = 2,
    progress: Callable[..., Any] = terminal_bar,
    say: Callable[[str], object] = print,
) -> list[str]:
    """Convert a data set to the layout that its generator reads, and write its table as `root/<name>.csv`.

    Finished work is not repeated, so the same call resumes after an interruption. A
    folder of images that already has the layout is not copied. Only one process may use
    a root at a time; the command `crumb prepare` locks it.

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
    job = Job(
        data,
        Path(root),
        None if source is None else Path(source),
        workers,
        progress,
        say,
    )
    if job.source is not None and not (job.source.is_dir() or job.source.is_file()):
        raise FrameTableError(
            f"there is no file or folder {source}; give your download of {name} as --source."
        )
    try:
        if _is_ready(job):
            return []
        failures = bring_toybox(job) if name == "toybox" else []
        if name != "toybox":
            job.bring(partial(write_cifar100, job) if name == "cifar100" else None)
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


def check(name: str, root: str | Path) -> tuple[list[str], bool]:
    """Return lines that say what exists of a data set below root and what is missing, and whether nothing is.

    Raises:
        FrameTableError: If there is no data set of that name.
    """
    data = _data_set(name)
    lines, problems = gaps(data, Path(root))
    whole = f"complete: everything that {data.files.owner} {'uses' if data.files.owner == 'the paper' else 'has'}"
    return [*lines, *(problems or [whole])], not problems


def _data_set(name: str) -> Benchmark:
    known = [one for one, data in BENCHMARKS.items() if data.files.folders]
    if name not in known:
        raise FrameTableError(
            f"there is no data set {name!r} to prepare; there are {', '.join(known)}."
        )
    return BENCHMARKS[name]


def _is_ready(job: Job) -> bool:
    """Whether generators can read the source where it is, which is reported; data sets are not copied."""
    if (
        job.in_place
        or not job.source.is_dir()
        or job.data.files.find(job.source) is None
    ):
        return False
    table = job.data.frames(job.source)
    incomplete = job.data.files.missing(table)
    if incomplete and archives_in(job.source):
        return False  # it may be unpacked in part
    name = job.data.name
    job.say(
        f"{table.root} has the layout of {name} ({counted(table)}), so nothing was copied. Use --dataset-root "
        f"{job.source} from now on; with it, `crumb prepare {name}` writes the list of frames."
    )
    if incomplete:
        job.say(_not_whole(job.data, job.source))
    return True


def _relative_to(root: Path, table: FrameTable) -> FrameTable:
    """The table with paths relative to `root`, above its own root."""
    if table.root == root:
        return table
    below = table.root.relative_to(root).as_posix()
    rows = (replace(row, path=f"{below}/{row.path}") for row in table)
    return FrameTable(rows, root, name=table.name, padded=table.padded)


def _not_whole(data: Benchmark, root: str | Path) -> str:
    command = f"crumb prepare {data.name} --dataset-root {root} --check"
    return f"These are not {data.files.owner}'s numbers; `{command}` lists the gaps."


def bring_toybox(job: Job) -> list[str]:
    """Unpack archives of videos to `root/videos` and extract the frames of all videos; a line for each bad one.

    Frames, one per second, have 224 x 224 pixels, as the paper's authors made them, and
    are named `root/images/<supercategory>/<object>/<object>_<transform>_<k>.png`, with
    k from 1. Finished clips are skipped.
    """
    source, unpacked = job.source or job.root, job.root / toybox.VIDEOS
    archives = archives_in(source)
    # Videos that the user has unpacked beside their archive are not unpacked again.
    before = {
        video.name.lower()
        for video in toybox_videos(source)
        if unpacked not in video.parents
    }

    def chosen(name: str) -> str | None:
        return (
            None
            if name.lower().rpartition("/")[2] in before
            else job.data.files.place(name)
        )

    for archive in archives:
        job.unpack(archive, chosen)
    places = [source] if toybox_videos(source) else []
    if archives and not job.in_place and toybox_videos(unpacked):
        places.append(unpacked)
    if not places and job.data.files.find(job.root) is None:
        raise job.nothing_there()
    failures = []
    for place in places:
        failures += extract.extract_many(
            _jobs(place, job.root), job.workers, job.progress
        )
    return [f"{video}: {message}" for video, message in failures]


def toybox_videos(source: Path) -> list[Path]:
    """The videos below a folder, in the order of their paths; FrameTableError if one of Toybox has another layout."""
    names = (
        [name for name in files_below(source) if name.lower().endswith(".mp4")]
        if source.is_dir()
        else []
    )
    for name in names:
        if "_pivothead/" in name and _VIDEO.fullmatch(name) is None:
            raise FrameTableError(
                f"video {source / name} does not fit the layout of Toybox's videos: {_VIDEOS_TREE}; "
                f"{toybox.LAYOUT.rule}. Rename it or move it away."
            )
    return [source / name for name in names]


def _jobs(source: Path, root: Path) -> list[extract.Job]:
    """The clips of the videos below a source; FrameTableError if there are none, or two videos show the same clip."""
    clips: dict[str, Path] = {}
    for video in toybox_videos(source):
        match = _VIDEO.fullmatch(video.relative_to(source).as_posix())
        if match and clips.setdefault(video.stem, video) is not video:
            raise FrameTableError(
                f"{clips[video.stem]} and {video} are the same clip of Toybox; keep one of them."
            )
    used = [
        video
        for stem, video in clips.items()
        if not stem.endswith(toybox.UNUSED_SESSIONS)
    ]
    if not used:
        raise FrameTableError(
            f"{source} holds no videos of Toybox: expected {_VIDEOS_TREE}"
        )
    return [
        extract.Job(
            video,
            root / "images" / Path(*video.parts[-3:-1]),
            f"{video.stem}_",
            1,
            1.0,
            (224, 224),
        )
        for video in used
    ]
