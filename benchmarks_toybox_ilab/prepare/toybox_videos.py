"""Unpack the videos of Toybox, and extract their frames."""

import re
from pathlib import Path

from benchmarks_toybox_ilab.datasets import toybox
from benchmarks_toybox_ilab.prepare.archives import archives_in
from benchmarks_toybox_ilab.prepare.job import Job
from benchmarks_toybox_ilab.tables.folders import files_below
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.video import extract

FRAME_SIZE = (224, 224)  # as the paper's authors made the frames, and one per second

_TREE = (
    "<source>/<supercategory>/<object>/<object>_<transform>.mp4, "
    "e.g. households/cup_01_pivothead/cup_01_pivothead_rzplus.mp4"
)
_VIDEO = re.compile(rf"(?:.*/)?(?:{toybox.IN_FOLDER}){toybox.CLIP}\.(?i:mp4)", re.ASCII)


def bring_toybox(job: Job) -> list[str]:
    """Unpack archives of Toybox to `root/videos`; extract the frames of all videos.

    Frames are named `root/images/<supercategory>/<object>/<object>_<transform>_<k>.png`
    with k from 1. Finished clips are skipped.

    Args:
        job: Source, root and number of threads; reports what is done.

    Returns:
        A line for each video that cannot be read.
    """
    source = job.source or job.root
    unpacked = job.root / toybox.VIDEOS  # where videos of archives go
    archives = archives_in(source)
    _unpack_videos(job, source, unpacked, archives)
    folders = []  # with videos
    if videos_below(source):
        folders.append(source)
    if archives and not job.in_place and videos_below(unpacked):
        folders.append(unpacked)
    if not folders and job.data.files.find(job.root) is None:
        raise job.nothing_found_error()
    failures: dict[Path, str] = {}
    for folder in folders:
        clips = _clips_to_extract(folder, job.root)
        failures |= extract.extract_many(clips, job.workers, job.progress)
    return [f"{video}: {message}" for video, message in failures.items()]


def _unpack_videos(
    job: Job, source: Path, unpacked: Path, archives: list[Path]
) -> None:
    """Unpack the videos of Toybox, but not those that the user has unpacked already.

    Args:
        job: The data set to prepare.
        source: The download.
        unpacked: Where videos of archives go; those there are not the user's.
        archives: The archives of the download.
    """
    names_of_user = set()
    for video in videos_below(source):
        if unpacked not in video.parents:
            names_of_user.add(video.name.lower())

    def unpacked_path(name: str) -> str | None:
        """Return where a file of an archive goes below the root; None leaves it out."""
        file_name = name.lower().rpartition("/")[2]
        if file_name in names_of_user:
            return None
        return job.data.files.unpacked_path(name)

    for archive in archives:
        job.unpack(archive, unpacked_path)


def videos_below(source: Path) -> list[Path]:
    """Return the videos below a downloaded folder, in the order of their paths.

    Raises:
        FrameTableError: If a video of Toybox has another layout.
    """
    if not source.is_dir():
        return []
    names = [name for name in files_below(source) if name.lower().endswith(".mp4")]
    for name in names:
        is_of_toybox = "_pivothead/" in name
        if is_of_toybox and _VIDEO.fullmatch(name) is None:
            raise FrameTableError(
                f"video {source / name} does not fit the layout of Toybox's videos: "
                f"{_TREE}; {toybox.LAYOUT.rule}. Rename it or move it away."
            )
    return [source / name for name in names]


def _clips_to_extract(source: Path, root: Path) -> list[extract.Job]:
    """Return the clips of Toybox to extract from the videos below a folder.

    Args:
        source: Folder with the videos.
        root: Folder of the data set, for the frames.

    Raises:
        FrameTableError: If there are none, or two videos show the same clip.
    """
    videos: dict[str, Path] = {}  # by name without ending
    for video in videos_below(source):
        if not _VIDEO.fullmatch(video.relative_to(source).as_posix()):
            continue
        # An earlier video of this name; the video itself where there is none.
        first_video = videos.setdefault(video.stem, video)
        if first_video is not video:
            raise FrameTableError(
                f"{first_video} and {video} are the same clip of Toybox; keep one of "
                "them."
            )
    clips = []
    for name, video in videos.items():
        if name.endswith(toybox.UNUSED_SESSIONS):
            continue
        supercategory, object_name = video.parts[-3:-1]
        clips.append(
            extract.Job(
                video=video,
                folder=root / "images" / supercategory / object_name,
                prefix=f"{name}_",
                digits=1,
                fps=1.0,
                size=FRAME_SIZE,
            )
        )
    if not clips:
        raise FrameTableError(f"{source} holds no videos of Toybox: expected {_TREE}")
    return clips
