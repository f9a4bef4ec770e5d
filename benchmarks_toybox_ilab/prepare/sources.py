"""Bring the download of each data set to its root."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from benchmarks_toybox_ilab.datasets import cifar100, core50, icub, ilab, ilab_core50, imagenet, tiny_imagenet, toybox
from benchmarks_toybox_ilab.prepare.archives import archives_in, unpack
from benchmarks_toybox_ilab.prepare.download import download, md5_of
from benchmarks_toybox_ilab.tables.disk import readable_size
from benchmarks_toybox_ilab.tables.folders import files_below
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

DOWNLOADS = ".download"  # below the root; hidden, so tables ignore it
VIDEOS = "videos"

_LARGE = 10**9  # bytes; reading the file list of a larger archive may take minutes

# progress(title, unit) returns a context manager whose value is called with (done, total).
Progress = Callable[[str, str], AbstractContextManager[Callable[..., object]]]

_HIDDEN = re.compile(r"(?:^|/)(?:\.|__MACOSX/)")
_TOYBOX_VIDEO = re.compile(r"(?:^|/)(?P<path>(?P<class_name>[a-z]+)_\d+_pivothead/[^/]+\.mp4)$", re.IGNORECASE)


@dataclass(frozen=True)
class DataSet:
    """How to find one data set.

    Attributes:
        module: Module with LAYOUT, SOURCE, COUNTS and `missing`.
        frames: Makes the table of a root.
        tops: Folder names; the folder that contains one of them is that of the data set.
        inner: Folders below a root that may contain the data set, besides the root itself.
        chosen: Returns the path of an archive's file below the root; None leaves the file out.
        bring: Brings the download to the root; returns a line for each video that cannot be read. None: its parts are
            prepared one by one.
        within: Whether the root itself may be one of `tops`.
        whole: Where the numbers of COUNTS are from, for messages.
        url, md5: Address and MD5 checksum of the archive, if it can be downloaded.
    """

    module: ModuleType
    frames: Callable[[Path], FrameTable]
    tops: tuple[str, ...]
    inner: tuple[str, ...]
    chosen: Callable[[str], str | None]
    bring: Callable[["Job"], list[str]] | None = None
    within: bool = False
    whole: str = "the paper"
    url: str = ""
    md5: str = ""

    def folder(self, root: Path) -> Path | None:
        """The folder of the data set: root or a folder below it, or None if it is not there."""
        places = [root, *(root / inner for inner in self.inner)]
        if self.within and root.absolute().name in self.tops:
            places.append(root.absolute().parent)
        return next((place for place in places if any((place / top).is_dir() for top in self.tops)), None)

    def names(self, folder: Path) -> list[str]:
        """The files of the data set in that folder, without files outside its own folders."""
        tops = [top for top in self.tops if (folder / top).is_dir()] or [""]
        return [name for top in tops for name in files_below(folder, top)]


@dataclass(frozen=True)
class Job:
    """The arguments of `core.prepare`."""

    name: str
    data: DataSet
    root: Path
    source: Path | None
    workers: int
    progress: Progress | None
    say: Callable[[str], object]

    @property
    def in_place(self) -> bool:
        """Whether the root itself is the source."""
        return self.source is None or self.source.resolve() == self.root.resolve()

    def bar(self, title: str, unit: str) -> AbstractContextManager[Callable[..., object] | None]:
        """A context manager for the `progress` argument of one step."""
        return nullcontext() if self.progress is None else self.progress(title, unit)

    def unpack(self, archive: Path, only: Callable[[str], str | None] | None = None) -> None:
        """Unpack the files that are needed below the root."""
        if archive.is_file() and archive.stat().st_size >= _LARGE:
            self.say(f"reading the file list of {archive} ({readable_size(archive.stat().st_size)})")
        with self.bar(f"unpacking {archive.name}", " files") as step:
            count = unpack(archive, self.root, step, only or self.data.chosen)
        self.say(f"{archive}: {count} file{'s' * (count != 1)} unpacked")

    def needs_nothing(self, archive: str) -> bool:
        """Whether nothing has to be downloaded: the root is complete, or a user has put the files there."""
        folder = self.data.folder(self.root) if self.source is None else None
        if folder is None:
            return False
        begun_here = (self.root / DOWNLOADS).exists() or (self.root / archive).exists()
        return not begun_here or not self.data.module.missing(self.data.names(folder))

    def nothing_there(self) -> FrameTableError:
        """The error to raise if there is nothing to start from."""
        return FrameTableError(
            f"{self.source or self.root} holds nothing of {self.name}. Download it and give the archive, or the folder "
            f"of the archives: `crumb prepare {self.name} --dataset-root {self.root} --source DOWNLOADED`. Source: "
            f"{self.data.module.SOURCE}. Final layout: {self.data.module.LAYOUT}"
        )


def bring_archives(job: Job) -> list[str]:
    """Unpack the archives of the source or of the root; a root that is unpacked needs none."""
    archives = _archives(job.source or job.root)
    if not archives and (not job.in_place or job.data.folder(job.root) is None):
        raise job.nothing_there()
    for archive in archives:
        job.unpack(archive)
    return []


def bring_zip(job: Job) -> list[str]:
    """Download the archive and unpack it, or unpack the source."""
    name = job.data.url.rpartition("/")[2]
    if job.needs_nothing(name):
        return []
    archives = _archives(job.source or job.root / name)
    if job.source is None and not archives:
        file = job.root / DOWNLOADS / name
        with job.bar(f"downloading {name}", "B") as step:
            download(job.data.url, file, job.data.md5, step)
        job.unpack(file)
        job.say(f"{file} is no longer needed")
        return []
    for archive in archives:
        if (got := md5_of(archive)) != job.data.md5:
            words = f"{archive} has the MD5 checksum {got}, while that of {name} is {job.data.md5}"
            if archive.name == name:
                raise FrameTableError(f"{words}: it is damaged or incomplete. Download it: {job.data.url}")
            job.say(f"warning: {words}; used as it is")
    return bring_archives(job)


def bring_cifar100(job: Job) -> list[str]:
    """Write the images of the distribution, or unpack or copy an existing tree of images."""
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
            job.say(f"{job.root / DOWNLOADS} is no longer needed")
        else:
            job.unpack(source)
    return []


def bring_imagenet(job: Job) -> list[str]:
    """Use a sorted ImageNet in place; its own archives can only be sorted with the development kit."""
    if job.in_place and job.data.folder(job.root) is not None:
        return []
    if job.source is None:
        raise job.nothing_there()
    raise FrameTableError(
        f"{job.source} has no folders train and val, and the archives of ImageNet are not unpacked here: "
        'torchvision.datasets.ImageNet(root, split) does it, for split "train" and for "val", if '
        "ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz lie in its root. Then give "
        f"that as --dataset-root. The layout is {imagenet.LAYOUT}"
    )


def bring_toybox(job: Job) -> list[str]:
    """Unpack archives of videos to `root/videos` and extract the frames of all videos; a line for each bad one."""
    from benchmarks_toybox_ilab.prepare.toybox_videos import extract_toybox

    source = job.source or job.root
    unpacked = job.root / VIDEOS
    unpacked_before = {
        name.lower().rpartition("/")[2] for name in _videos(source) if unpacked not in (source / name).parents
    }
    archives = _archives(source)
    for archive in archives:
        # Videos that the user has unpacked beside their archive are not unpacked again.
        job.unpack(
            archive, lambda name: None if name.lower().rpartition("/")[2] in unpacked_before else _toybox_video(name)
        )
    places = [unpacked] if archives and not job.in_place and _videos(unpacked) else []
    if _videos(source):
        places.insert(0, source)
    if not places and job.data.folder(job.root) is None:
        raise job.nothing_there()
    failures = []
    for place in places:
        with job.bar("extracting frames", " videos") as step:
            failures += extract_toybox(place, job.root, fps=1.0, workers=job.workers, progress=step)
    return [f"{video}: {message}" for video, message in failures]


def _archives(source: Path) -> list[Path]:
    """The source if it is an archive, or the archives in it; [] if it does not exist."""
    if source.is_dir():
        return archives_in(source)
    return [source] if source.exists() else []


def _videos(folder: Path) -> list[str]:
    """The videos below a folder."""
    return [name for name in files_below(folder) if name.lower().endswith(".mp4")] if folder.is_dir() else []


def _toybox_video(name: str) -> str | None:
    """Path of a video of Toybox below the root; some archives lack the folder of the supercategory."""
    match = None if _HIDDEN.search(name) else _TOYBOX_VIDEO.search(name)
    folder = match and toybox.SUPERCATEGORY.get(match["class_name"])
    return f"{VIDEOS}/{folder}/{match['path']}" if folder else None


def _ending(folders: str, rest: str, below: str = "") -> Callable[[str], str | None]:
    """Choose files by the end of their path, in any outer folders, and place them below the root.

    The data set's own folders may be in upper case, and become lower case.
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
        bring_zip,
        url="http://bias.csr.unibo.it/maltoni/download/core50/core50_128x128.zip",
        md5="745f3373fed08d69343f1058ee559e13",
    ),
    "toybox": DataSet(toybox, toybox.ToyboxFrames, ("images",), ("toybox",), _toybox_video, bring_toybox),
    "ilab": DataSet(
        ilab,
        ilab.ILabFrames,
        ("train_img",),
        (ilab.FOLDER, "ilab"),
        _ending("train_img/", r"(?:[^/]+/)?[^/]+\.jpe?g"),
        bring_archives,
        within=True,
    ),
    "icub": DataSet(
        icub,
        icub.ICubFrames,
        (*icub.PARTS, *icub.CLASSES),
        ("icub",),
        _ending(rf"(?:part\d/)?(?:{'|'.join(icub.CLASSES)})/", r"(?:[^/]+/){4}[^/]+\.jpg"),
        bring_archives,
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
        bring_cifar100,
    ),
    "imagenet": DataSet(imagenet, imagenet.ImageNetFrames, imagenet.FOLDERS, ("imagenet",), _nothing, bring_imagenet),
    "tiny_imagenet": DataSet(
        tiny_imagenet,
        tiny_imagenet.TinyImageNetFrames,
        ("train", "val", "test"),
        (tiny_imagenet.FOLDER, "tiny_imagenet"),
        _ending(
            "(?:train|val|test)/",
            r"(?:n\d{8}/(?:images/)?[^/]+\.(?:jpe?g|png)|images/val_[^/]+\.jpe?g|val_annotations\.txt)",
        ),
        bring_zip,
        whole="the data set",
        url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        md5="90528d7ca1a48142e341f4ef8d21d0de",
    ),
}
