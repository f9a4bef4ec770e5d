"""Extract the frames of Toybox from its videos."""

import re
from pathlib import Path

from benchmarks_toybox_ilab.datasets import toybox
from benchmarks_toybox_ilab.prepare.archives import archives_in
from benchmarks_toybox_ilab.prepare.job import Job
from benchmarks_toybox_ilab.tables.folders import files_below
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.video import extract

_VIDEOS_TREE = (
    "<source>/<supercategory>/<object>/<object>_<transform>.mp4, "
    "e.g. households/cup_01_pivothead/cup_01_pivothead_rzplus.mp4"
)
_VIDEO = re.compile(rf"(?:.*/)?(?:{toybox.IN_FOLDER}){toybox.CLIP}\.(?i:mp4)", re.ASCII)


def bring_toybox(job: Job) -> list[str]:
    """Unpack archives of videos to `root/videos` and extract the frames of all videos; a line for each bad one.

    Frames, one per second, have 224 x 224 pixels, as the paper's authors made them, and are named
    `root/images/<supercategory>/<object>/<object>_<transform>_<k>.png`, with k from 1. Finished clips are skipped.
    """
    source, unpacked = job.source or job.root, job.root / toybox.VIDEOS
    archives = archives_in(source)
    # Videos that the user has unpacked beside their archive are not unpacked again.
    before = {video.name.lower() for video in toybox_videos(source) if unpacked not in video.parents}

    def chosen(name: str) -> str | None:
        return None if name.lower().rpartition("/")[2] in before else job.data.files.place(name)

    for archive in archives:
        job.unpack(archive, chosen)
    places = [source] if toybox_videos(source) else []
    if archives and not job.in_place and toybox_videos(unpacked):
        places.append(unpacked)
    if not places and job.data.files.find(job.root) is None:
        raise job.nothing_there()
    failures = []
    for place in places:
        clips = _jobs(place, job.root)
        with job.bar("extracting frames", " videos") as step:
            failures += extract.extract_many(clips, job.workers, step)
    return [f"{video}: {message}" for video, message in failures]


def toybox_videos(source: Path) -> list[Path]:
    """The videos below a folder, in the order of their paths; FrameTableError if one of Toybox has another layout."""
    names = [name for name in files_below(source) if name.lower().endswith(".mp4")] if source.is_dir() else []
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
            raise FrameTableError(f"{clips[video.stem]} and {video} are the same clip of Toybox; keep one of them.")
    used = [video for stem, video in clips.items() if not stem.endswith(toybox.UNUSED_SESSIONS)]
    if not used:
        raise FrameTableError(f"{source} holds no videos of Toybox: expected {_VIDEOS_TREE}")
    return [
        extract.Job(video, root / "images" / Path(*video.parts[-3:-1]), f"{video.stem}_", 1, 1.0, (224, 224))
        for video in used
    ]
