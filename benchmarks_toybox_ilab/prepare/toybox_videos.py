"""Extract the frames that `toybox.ToyboxFrames` reads from the published videos of Toybox."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks_toybox_ilab.datasets.toybox import SESSIONS, SUPERCATEGORY, UNUSED_SESSIONS
from benchmarks_toybox_ilab.tables.folders import visible_entries
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.video.extract import Job, extract_many

LAYOUT = (
    "<source>/<supercategory>/<object>/<object>_<transform>.mp4, "
    "e.g. households/cup_01_pivothead/cup_01_pivothead_rzplus.mp4"
)
SIZE = (224, 224)  # pixels, as the paper's authors made them, without keeping the aspect ratio

_SUPERCATEGORIES = tuple(dict.fromkeys(SUPERCATEGORY.values()))
_OBJECT = re.compile(rf"(?P<class_name>{'|'.join(SUPERCATEGORY)})_\d+_pivothead")
_TRANSFORM = re.compile("|".join(SESSIONS + UNUSED_SESSIONS))


def extract_toybox(
    source: str | Path,
    root: str | Path,
    fps: float = 1.0,
    workers: int | None = None,
    progress: Callable[[int, int, int], object] | None = None,
) -> list[tuple[Path, str]]:
    """Extract the frames of the videos of Toybox to `<root>/images/<supercategory>/<object>`.

    Frames have 224 x 224 pixels and are named `<object>_<transform>_<k>.png`, with k from 1. The clips "present" and
    "absent" are ignored. Finished clips are skipped, so the same call resumes after an interruption.

    Args:
        source: Folder of `households`, `animals` and `vehicles`, or of folders that contain them; some may be missing.
        root: Root of the data set.
        fps: Frames per second of a video; 1 in the paper.
        workers: Number of processes; None is the number of processors. See `extract.extract_many`.
        progress: Called with (videos done, total number of videos, frames so far).

    Returns:
        (video, message) for each video that gave no frames.

    Raises:
        FrameTableError: If the source does not have the layout of Toybox, two videos show the same clip, or the frames
            do not fit on the disk or cannot be written.
        ImportError: If PyAV is not installed.
    """
    source, images = Path(source), Path(root) / "images"
    jobs = [
        Job(video, images / supercategory / video.parent.name, f"{video.stem}_", 1, fps, SIZE)
        for supercategory, video in _clips(source)
    ]
    return extract_many(jobs, (os.cpu_count() or 1) if workers is None else workers, progress)


def _clips(source: Path) -> list[tuple[str, Path]]:
    """Yield supercategory and file of the clips that are used."""
    if not source.is_dir():
        raise FrameTableError(f"there is no folder {source}. Give the folder of Toybox's videos, laid out as {LAYOUT}")
    seen: dict[str, Path] = {}
    clips = []
    for supercategory, video in _videos(source):
        earlier = seen.setdefault(video.stem, video)
        if earlier is not video:
            raise FrameTableError(f"{earlier} and {video} are the same clip of Toybox; keep one of them.")
        if video.stem.rpartition("_")[2] not in UNUSED_SESSIONS:
            clips.append((supercategory, video))
    if not clips:
        found = [entry.name for entry in visible_entries(source)]
        listed = ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
        raise FrameTableError(
            f"{source} holds no videos of Toybox: expected {LAYOUT}, found {listed or 'nothing'}. Give the folder into "
            f"which the archives were unpacked, with {', '.join(_SUPERCATEGORIES)} in it or one folder deeper."
        )
    return clips


def _videos(source: Path) -> Iterator[tuple[str, Path]]:
    """Supercategory and file of every video in the folder of an object."""
    for top in (source, *filter(Path.is_dir, visible_entries(source))):
        for supercategory in _SUPERCATEGORIES:
            folder = top / supercategory
            for thing in visible_entries(folder) if folder.is_dir() else ():
                match = _OBJECT.fullmatch(thing.name)
                if match is None or not thing.is_dir():
                    continue
                if SUPERCATEGORY[match["class_name"]] != supercategory:
                    right = SUPERCATEGORY[match["class_name"]]
                    raise FrameTableError(f"{thing} lies in the wrong folder; it belongs in {right}. Move it there.")
                for video in visible_entries(thing):
                    if video.suffix.lower() == ".mp4":
                        _check_name(video)
                        yield supercategory, video


def _check_name(video: Path) -> None:
    thing, _, transform = video.stem.rpartition("_")
    if thing != video.parent.name or _TRANSFORM.fullmatch(transform) is None:
        raise FrameTableError(
            f"{video} is not named like a video of {video.parent.name}: {video.parent.name}_<transform>.mp4, with one "
            f"of the transforms {', '.join(SESSIONS + UNUSED_SESSIONS)}. Rename it or move it away."
        )
