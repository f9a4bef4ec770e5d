"""Bring the download of each data set to its root."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from benchmarks_toybox_ilab.datasets import cifar100, core50, icub, ilab, ilab_core50, imagenet, tiny_imagenet, toybox
from benchmarks_toybox_ilab.datasets._layout import Layout
from benchmarks_toybox_ilab.prepare.archives import archives_in, unpack
from benchmarks_toybox_ilab.prepare.download import download, md5_of
from benchmarks_toybox_ilab.tables.disk import readable_size
from benchmarks_toybox_ilab.tables.folders import files_below
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.video import extract

DOWNLOADS = ".download"  # below the root; hidden, so tables ignore it
VIDEOS = "videos"

_LARGE = 10**9  # bytes; reading the file list of a larger archive may take minutes

# progress(title, unit) returns a context manager whose value is called with (done, total).
Progress = Callable[[str, str], AbstractContextManager[Callable[..., object]]]

_HIDDEN = re.compile(r"(?:^|/)(?:\.|__MACOSX/)")
_VIDEOS_TREE = (
    "<source>/<supercategory>/<object>/<object>_<transform>.mp4, "
    "e.g. households/cup_01_pivothead/cup_01_pivothead_rzplus.mp4"
)
_VIDEO = re.compile(rf"(?:.*/)?(?:{toybox.IN_FOLDER}){toybox.CLIP}\.(?i:mp4)", re.ASCII)


@dataclass(frozen=True)
class DataSet:
    """How to make one data set of its download.

    Attributes:
        module: Module with LAYOUT and `missing`.
        frames: Makes the table of a root.
        chosen: Returns the path of an archive's file below the root; None leaves the file out.
        bring: Brings the download to the root; returns a line for each video that cannot be read. None: its parts are
            prepared one by one.
        url, md5: Address and MD5 checksum of the archive, if it can be downloaded.
    """

    module: ModuleType
    frames: Callable[[Path], FrameTable]
    chosen: Callable[[str], str | None]
    bring: Callable[["Job"], list[str]] | None = None
    url: str = ""
    md5: str = ""

    @property
    def layout(self) -> Layout:
        """The files of the data set."""
        return self.module.LAYOUT

    def missing(self, folder: Path) -> list[str]:
        """What the files in the folder of the data set lack, in words."""
        return self.module.missing(self.layout.files(folder))


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
        folder = self.data.layout.find(self.root) if self.source is None else None
        begun_here = (self.root / DOWNLOADS).exists() or (self.root / archive).exists()
        return folder is not None and (not begun_here or not self.data.missing(folder))

    def nothing_there(self) -> FrameTableError:
        """The error to raise if there is nothing to start from."""
        return FrameTableError(
            f"{self.source or self.root} holds nothing of {self.name}. Download it and give the archive, or the folder "
            f"of the archives: `crumb prepare {self.name} --dataset-root {self.root} --source DOWNLOADED`. Source: "
            f"{self.data.layout.source}. Final layout: {self.data.layout.tree}"
        )


def bring_archives(job: Job) -> list[str]:
    """Unpack the archives of the source or of the root, or download one; a root that is unpacked needs none."""
    name = job.data.url.rpartition("/")[2]
    if name and job.needs_nothing(name):
        return []
    archives = archives_in(job.source or job.root / name)
    if name and job.source is None and not archives:
        file = job.root / DOWNLOADS / name
        with job.bar(f"downloading {name}", "B") as step:
            download(job.data.url, file, job.data.md5, step)
        job.unpack(file)
        job.say(f"{file} is no longer needed")
        return []
    if not archives and (not job.in_place or job.data.layout.find(job.root) is None):
        raise job.nothing_there()
    for archive in archives if name else ():
        if (got := md5_of(archive)) != job.data.md5:
            words = f"{archive} has the MD5 checksum {got}, while that of {name} is {job.data.md5}"
            if archive.name == name:
                raise FrameTableError(f"{words}: it is damaged or incomplete. Download it: {job.data.url}")
            job.say(f"warning: {words}; used as it is")
    for archive in archives:
        job.unpack(archive)
    return []


def bring_cifar100(job: Job) -> list[str]:
    """Write the images of the distribution, or unpack or copy an existing tree of images."""
    from benchmarks_toybox_ilab.prepare.cifar100_files import ARCHIVE, is_distribution, write_cifar100

    if job.needs_nothing(ARCHIVE):
        return []
    lies_in = None if job.in_place else job.data.layout.find(job.source)
    sources = [lies_in] if lies_in else archives_in(job.source or job.root / ARCHIVE)
    if not sources and job.source is not None:
        if job.in_place and job.data.layout.find(job.root) is not None:
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
    if job.in_place and job.data.layout.find(job.root) is not None:
        return []
    if job.source is None:
        raise job.nothing_there()
    raise FrameTableError(
        f"{job.source} has no folders train and val, and the archives of ImageNet are not unpacked here: "
        'torchvision.datasets.ImageNet(root, split) does it, for split "train" and for "val", if '
        "ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz lie in its root. Then give "
        f"that as --dataset-root. The layout is {imagenet.LAYOUT.tree}"
    )


def bring_toybox(job: Job) -> list[str]:
    """Unpack archives of videos to `root/videos` and extract the frames of all videos; a line for each bad one."""
    source, unpacked = job.source or job.root, job.root / VIDEOS
    archives = archives_in(source)
    # Videos that the user has unpacked beside their archive are not unpacked again.
    before = {video.name.lower() for video in toybox_videos(source) if unpacked not in video.parents}

    def chosen(name: str) -> str | None:
        return None if name.lower().rpartition("/")[2] in before else _toybox_video(name)

    for archive in archives:
        job.unpack(archive, chosen)
    places = [source] if toybox_videos(source) else []
    if archives and not job.in_place and toybox_videos(unpacked):
        places.append(unpacked)
    if not places and job.data.layout.find(job.root) is None:
        raise job.nothing_there()
    failures = []
    for place in places:
        with job.bar("extracting frames", " videos") as step:
            failures += extract_toybox(place, job.root, workers=job.workers, progress=step)
    return [f"{video}: {message}" for video, message in failures]


def toybox_videos(source: Path) -> list[Path]:
    """The videos below a folder, in the order of their paths; those of Toybox have its names.

    Raises:
        FrameTableError: If a video lies in the folder of an object of Toybox, but does not fit the layout.
    """
    names = [name for name in files_below(source) if name.lower().endswith(".mp4")] if source.is_dir() else []
    for name in names:
        if "_pivothead/" in name and _VIDEO.fullmatch(name) is None:
            raise FrameTableError(
                f"video {source / name} does not fit the layout of Toybox's videos: {_VIDEOS_TREE}; "
                f"{toybox.LAYOUT.rule}. Rename it or move it away."
            )
    return [source / name for name in names]


def extract_toybox(
    source: str | Path,
    root: str | Path,
    fps: float = 1.0,
    workers: int = 1,
    progress: Callable[[int, int, int], object] | None = None,
) -> list[tuple[Path, str]]:
    """Extract the frames of the videos of Toybox to `<root>/images/<supercategory>/<object>`.

    Frames have 224 x 224 pixels, as the paper's authors made them, and are named `<object>_<transform>_<k>.png`, with k
    from 1. The clips "present" and "absent" are ignored. Finished clips are skipped, so the same call resumes after an
    interruption.

    Args:
        source: A folder above `households`, `animals` and `vehicles`; some may be missing.
        root: Root of the data set.
        fps: Frames per second of a video; 1 in the paper.
        workers: Number of processes; see `extract.extract_many`.
        progress: Called with (videos done, total number of videos, frames so far).

    Returns:
        (video, message) for each video that gave no frames.

    Raises:
        FrameTableError: If the source does not have the layout of Toybox, two videos show the same clip, or the frames
            do not fit on the disk or cannot be written.
        ImportError: If PyAV is not installed.
    """
    clips: dict[str, Path] = {}
    for video in toybox_videos(Path(source)):
        match = _VIDEO.fullmatch(video.relative_to(source).as_posix())
        if match and clips.setdefault(video.stem, video) is not video:
            raise FrameTableError(f"{clips[video.stem]} and {video} are the same clip of Toybox; keep one of them.")
    used = [video for stem, video in clips.items() if not stem.endswith(toybox.UNUSED_SESSIONS)]
    if not used:
        raise FrameTableError(f"{source} holds no videos of Toybox: expected {_VIDEOS_TREE}")
    images = Path(root) / "images"
    jobs = [
        extract.Job(video, images / Path(*video.parts[-3:-1]), f"{video.stem}_", 1, fps, (224, 224)) for video in used
    ]
    return extract.extract_many(jobs, workers, progress)


def _toybox_video(name: str) -> str | None:
    """Path of a video of Toybox below the root; some archives lack the folder of the supercategory."""
    match = None if _HIDDEN.search(name) else re.search(rf"(?:^|/)({toybox.CLIP}\.mp4)$", name, re.IGNORECASE)
    folders = [folder for folder, names in toybox.SUPERCATEGORIES.items() if match and match["class_name"] in names]
    return f"{VIDEOS}/{folders[0]}/{match[1]}" if folders else None


def _ending(folders: str, rest: str, below: str = "") -> Callable[[str], str | None]:
    """Choose files by the end of their path, in any outer folders, and place them below the root.

    The data set's own folders may be in upper case, and become lower case.
    """
    ending = re.compile(rf"(?:^|/)({folders})({rest})$", re.IGNORECASE)

    def chosen(name: str) -> str | None:
        match = None if _HIDDEN.search(name) else ending.search(name)
        return match and below + match[1].lower() + match[2]

    return chosen


DATA_SETS = {
    "core50": DataSet(
        core50,
        core50.CORe50Frames,
        _ending(r"s\d+/o\d+/", r"[^/]+\.png", "core50_128x128/"),
        bring_archives,
        url="http://bias.csr.unibo.it/maltoni/download/core50/core50_128x128.zip",
        md5="745f3373fed08d69343f1058ee559e13",
    ),
    "toybox": DataSet(toybox, toybox.ToyboxFrames, _toybox_video, bring_toybox),
    "ilab": DataSet(ilab, ilab.ILabFrames, _ending("train_img/", r"(?:[^/]+/)?[^/]+\.jpe?g"), bring_archives),
    "icub": DataSet(
        icub,
        icub.ICubFrames,
        _ending(rf"(?:part\d/)?(?:{'|'.join(icub.CLASSES)})/", r"(?:[^/]+/){4}[^/]+\.jpg"),
        bring_archives,
    ),
    "ilab_core50": DataSet(ilab_core50, ilab_core50.ILabCORe50Frames, lambda name: None),
    "cifar100": DataSet(
        cifar100,
        cifar100.CIFAR100Frames,
        _ending(r"(?:train|test)/", r"[^/]+/[^/]+\.(?:png|jpe?g)"),
        bring_cifar100,
    ),
    "imagenet": DataSet(imagenet, imagenet.ImageNetFrames, lambda name: None, bring_imagenet),
    "tiny_imagenet": DataSet(
        tiny_imagenet,
        tiny_imagenet.TinyImageNetFrames,
        _ending(
            "(?:train|val|test)/",
            r"(?:n\d{8}/(?:images/)?[^/]+\.(?:jpe?g|png)|images/val_[^/]+\.jpe?g|val_annotations\.txt)",
        ),
        bring_archives,
        url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        md5="90528d7ca1a48142e341f4ef8d21d0de",
    ),
}
