"""What a user downloads of each data set, brought below its root."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from benchmarks_toybox_ilab.datasets import cifar100, core50, icub, ilab, ilab_core50, imagenet, toybox
from benchmarks_toybox_ilab.prepare.archives import archives_in, unpack
from benchmarks_toybox_ilab.prepare.download import download, md5_of
from benchmarks_toybox_ilab.tables.disk import readable_size
from benchmarks_toybox_ilab.tables.folders import files_below
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

CORE50_URL = "http://bias.csr.unibo.it/maltoni/download/core50/core50_128x128.zip"
CORE50_MD5 = "745f3373fed08d69343f1058ee559e13"
CORE50_ZIP = "core50_128x128.zip"
DOWNLOADS = ".download"  # below the root; hidden, so no table looks into it
VIDEOS = "videos"

_LARGE = 10**9  # bytes of an archive whose list of files may take minutes to read

# Gives, of a title and a unit, what to call with (done, in all), as a context manager.
Progress = Callable[[str, str], AbstractContextManager[Callable[..., object]]]

_HIDDEN = re.compile(r"(?:^|/)(?:\.|__MACOSX/)")
_TOYBOX_VIDEO = re.compile(r"(?:^|/)(?P<path>(?P<class_name>[a-z]+)_\d+_pivothead/[^/]+\.mp4)$", re.IGNORECASE)


@dataclass(frozen=True)
class DataSet:
    """How one data set is found.

    Attributes:
        module: Has LAYOUT, SOURCE, COUNTS and `missing`.
        frames: Makes the table of a root.
        tops: Names of folders; where one of them lies, there the data set is.
        inner: Where that may be below a root, besides the root itself.
        chosen: What to call a file of an archive below the root; None leaves it out.
        within: Whether one of tops may be the root itself.
    """

    module: ModuleType
    frames: Callable[[Path], FrameTable]
    tops: tuple[str, ...]
    inner: tuple[str, ...]
    chosen: Callable[[str], str | None]
    within: bool = False

    def folder(self, root: Path) -> Path | None:
        """The root or the folder below it that the data set lies in, or None if it is nowhere."""
        places = [root, *(root / inner for inner in self.inner)]
        if self.within and root.absolute().name in self.tops:
            places.append(root.absolute().parent)
        return next((place for place in places if any((place / top).is_dir() for top in self.tops)), None)

    def names(self, folder: Path) -> list[str]:
        """The files of the data set in that folder, without what lies beside its own folders."""
        tops = [top for top in self.tops if (folder / top).is_dir()] or [""]
        return [name for top in tops for name in files_below(folder, top)]


@dataclass(frozen=True)
class Job:
    """What is to be brought where; as the arguments of `prepare.prepare`."""

    name: str
    data: DataSet
    root: Path
    source: Path | None
    workers: int
    progress: Progress | None
    say: Callable[[str], object]

    @property
    def in_place(self) -> bool:
        """Whether the root itself is what there is to begin with."""
        return self.source is None or self.source.resolve() == self.root.resolve()

    def bar(self, title: str, unit: str) -> AbstractContextManager[Callable[..., object] | None]:
        """What to pass on as `progress` of a part of the work."""
        return nullcontext() if self.progress is None else self.progress(title, unit)

    def unpack(self, archive: Path, only: Callable[[str], str | None] | None = None) -> None:
        """Unpack below the root what is needed."""
        if archive.is_file() and archive.stat().st_size >= _LARGE:
            self.say(f"looking through {archive} ({readable_size(archive.stat().st_size)})")
        with self.bar(f"unpacking {archive.name}", " files") as step:
            count = unpack(archive, self.root, step, only or self.data.chosen)
        self.say(f"{archive}: {count} files unpacked")

    def needs_nothing(self, archive: str) -> bool:
        """Whether there is nothing to fetch: the root holds it all, or what a user put there by other means."""
        folder = self.data.folder(self.root) if self.source is None else None
        if folder is None:
            return False
        begun_here = (self.root / DOWNLOADS).exists() or (self.root / archive).exists()
        return not begun_here or not self.data.module.missing(self.data.names(folder))

    def nothing_there(self) -> FrameTableError:
        """What to raise where there is nothing to begin with."""
        return FrameTableError(
            f"{self.source or self.root} holds nothing of {self.name}. Download it and give the archive, or the folder "
            f"of the archives: `crumb prepare {self.name} --dataset-root {self.root} --source DOWNLOADED`. It is at "
            f"{self.data.module.SOURCE}. In the end it is laid out as {self.data.module.LAYOUT}"
        )


def bring_archives(job: Job) -> list[str]:
    """Unpack what was downloaded; without a source, the archives in the root, or what is unpacked there already."""
    archives = _archives(job.source or job.root)
    if not archives and (not job.in_place or job.data.folder(job.root) is None):
        raise job.nothing_there()
    for archive in archives:
        job.unpack(archive)
    return []


def bring_core50(job: Job) -> list[str]:
    """Download CORe50, or unpack what was downloaded."""
    if job.needs_nothing(CORE50_ZIP):
        return []
    archives = _archives(job.source or job.root / CORE50_ZIP)
    if job.source is None and not archives:
        file = job.root / DOWNLOADS / CORE50_ZIP
        with job.bar(f"downloading {CORE50_ZIP}", "B") as step:
            download(CORE50_URL, file, CORE50_MD5, step)
        job.unpack(file)
        job.say(f"{file} is needed no longer")
        return []
    for archive in archives:
        if (got := md5_of(archive)) != CORE50_MD5:
            words = f"{archive} has the MD5 checksum {got}, while that of {CORE50_ZIP} is {CORE50_MD5}"
            if archive.name == CORE50_ZIP:
                raise FrameTableError(f"{words}: it is damaged, or not all of it is there. Fetch it: {CORE50_URL}")
            job.say(f"warning: {words}; taken as it is")
    return bring_archives(job)


def bring_cifar100(job: Job) -> list[str]:
    """Write the images of the distribution, or unpack (or copy) a tree of images that somebody else wrote."""
    from benchmarks_toybox_ilab.prepare.cifar100_files import ARCHIVE, is_distribution, write_cifar100

    if job.needs_nothing(ARCHIVE):
        return []
    lies_in = None if job.in_place else job.data.folder(job.source)
    sources = [lies_in] if lies_in else _archives(job.source or job.root / ARCHIVE)
    if not sources and job.source is not None:
        if job.in_place and job.data.folder(job.root) is not None:
            return []
        raise job.nothing_there()
    for source in sources or [None]:
        if source is None or (source.is_file() and is_distribution(source)):
            with job.bar("writing images", " images") as step:
                write_cifar100(job.root, source, job.workers, step)
            job.say(f"{job.root / DOWNLOADS} is needed no longer")
        else:
            job.unpack(source)
    return []


def bring_imagenet(job: Job) -> list[str]:
    """ImageNet is taken as it lies: its own archives need the development kit to be sorted."""
    if job.in_place and job.data.folder(job.root) is not None:
        return []
    if job.source is None:
        raise job.nothing_there()
    raise FrameTableError(
        f"{job.source} has no folders train and val, and the archives of ImageNet are not unpacked here: "
        'torchvision.datasets.ImageNet(root, split) does it, for split "train" and for "val", where '
        "ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz lie in its root. Then give "
        f"that as --dataset-root. The layout is {imagenet.LAYOUT}"
    )


def bring_toybox(job: Job) -> list[str]:
    """Unpack archives of videos to `root/videos`, then take the frames out of all videos; a line for each bad one."""
    from benchmarks_toybox_ilab.prepare.toybox_videos import extract_toybox

    source = job.source or job.root
    unpacked = job.root / VIDEOS
    lying_open = {
        name.lower().rpartition("/")[2] for name in _videos(source) if unpacked not in (source / name).parents
    }
    archives = _archives(source)
    for archive in archives:
        # Who unpacked an archive where it lies shall not have its videos twice.
        job.unpack(archive, lambda name: None if name.lower().rpartition("/")[2] in lying_open else _toybox_video(name))
    places = [unpacked] if archives and not job.in_place and _videos(unpacked) else []
    if _videos(source):
        places.insert(0, source)
    if not places and job.data.folder(job.root) is None:
        raise job.nothing_there()
    failures = []
    for place in places:
        with job.bar("taking frames", " videos") as step:
            failures += extract_toybox(place, job.root, fps=1.0, workers=job.workers, progress=step)
    return [f"{video}: {message}" for video, message in failures]


def _archives(source: Path) -> list[Path]:
    """The archive that a source is, or those in it, or none if it is not there."""
    if source.is_dir():
        return archives_in(source)
    return [source] if source.exists() else []


def _videos(folder: Path) -> list[str]:
    """The videos below a folder."""
    return [name for name in files_below(folder) if name.lower().endswith(".mp4")] if folder.is_dir() else []


def _file_name(path: str) -> str:
    return path.rpartition("/")[2].lower()


def _toybox_video(name: str) -> str | None:
    """Where a video of Toybox goes below the root: some archives have the supercategory's folder, some do not."""
    match = None if _HIDDEN.search(name) else _TOYBOX_VIDEO.search(name)
    folder = match and toybox.SUPERCATEGORY.get(match["class_name"])
    return f"{VIDEOS}/{folder}/{match['path']}" if folder else None


def _ending(folders: str, rest: str, below: str = "") -> Callable[[str], str | None]:
    """Takes the files whose names end so, whatever folders the archive wraps around them, to below the root.

    The data set's own folders may be written in capitals, and are in small letters there.
    """
    ending = re.compile(rf"(?:^|/)({folders})({rest})$", re.IGNORECASE)

    def chosen(name: str) -> str | None:
        match = None if _HIDDEN.search(name) else ending.search(name)
        return match and below + match[1].lower() + match[2]

    return chosen


def _nothing(name: str) -> None: ...


DATA_SETS = {
    "core50": DataSet(
        core50,
        core50.CORe50Frames,
        tuple(f"s{session}" for session in range(1, core50.SESSIONS + 1)),
        ("core50_128x128", "core50", "core50/core50_128x128"),
        _ending(r"s\d+/o\d+/", r"[^/]+\.png", "core50_128x128/"),
    ),
    "toybox": DataSet(toybox, toybox.ToyboxFrames, ("images",), ("toybox",), _toybox_video),
    "ilab": DataSet(
        ilab,
        ilab.ILabFrames,
        ("train_img",),
        (ilab.FOLDER, "ilab"),
        _ending("train_img/", r"(?:[^/]+/)?[^/]+\.jpe?g"),
        within=True,
    ),
    "icub": DataSet(
        icub,
        icub.ICubFrames,
        (*icub.PARTS, *icub.CLASSES),
        ("icub",),
        _ending(rf"(?:part\d/)?(?:{'|'.join(icub.CLASSES)})/", r"(?:[^/]+/){4}[^/]+\.jpg"),
    ),
    "ilab_core50": DataSet(
        ilab_core50,
        ilab_core50.ILabCORe50Frames,
        (ilab_core50.ILAB, ilab_core50.CORE50),
        ("ilab_core50",),
        _nothing,
    ),
    "cifar100": DataSet(
        cifar100,
        cifar100.CIFAR100Frames,
        ("train", "test"),
        ("cifar100",),
        _ending(r"(?:train|test)/", r"[^/]+/[^/]+\.(?:png|jpe?g)"),
    ),
    "imagenet": DataSet(imagenet, imagenet.ImageNetFrames, imagenet.FOLDERS, ("imagenet",), _nothing),
}

BRING: dict[str, Callable[[Job], list[str]]] = {
    "core50": bring_core50,
    "toybox": bring_toybox,
    "ilab": bring_archives,
    "icub": bring_archives,
    "cifar100": bring_cifar100,
    "imagenet": bring_imagenet,
}
