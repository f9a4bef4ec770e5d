"""Bring your own: any folder of `class/object/clip/frame.jpg` or `class/object/clip.mp4` is a data set."""

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from benchmarks_toybox_ilab.tables.folders import visible_entries
from benchmarks_toybox_ilab.tables.frame_table import Frame, FrameTable, FrameTableError, natural_key, whole_number
from benchmarks_toybox_ilab.tables.image import read_image
from benchmarks_toybox_ilab.video.extract import Job, extract_many, frame_rate, is_video

LAYOUT = (
    "<root>/<class>/<object>/<clip>/<frame>.jpg, e.g. cup/red_cup/kitchen/0001.jpg, "
    "or a video <root>/<class>/<object>/<clip>.mp4"
)
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
UNREAD_EXTENSIONS = (".heic", ".heif", ".avif", ".dng", ".gif")  # need other decoders, or may be animations
FRAMES_FOLDER = ".crumb_frames"  # below the root: the frames of its videos
SHORT_SIDE = 512  # pixels; frames of larger videos are reduced

_Tree = dict[Path, dict[Path, dict[str, Path]]]  # folder or video of each clip, by class folder, object folder and name


def ClipFolderFrames(root: str | Path, run: int = 0, held_out: int = 1, fps: float = 1.0) -> FrameTable:
    """The table of a folder of clips: folders of images, video files, or some of each.

    All names are sorted naturally (frame2 before frame10); the number of a frame is its position in its clip. What is
    neither image nor video, and hidden files, are passed over; photos of a format that is not read (`.heic` ...), with
    a warning. Images are turned upright as their EXIF orientation says.

    A video file is a clip called by its name without extension. Its frames are taken out once, to
    `.crumb_frames/<fps>fps` below root, with at most 512 pixels on the short side; that needs PyAV and room on the
    disk. Later calls only look whether a video has changed.

    Where every class has more than `held_out` objects, `held_out` objects of each class are the test split, else
    `held_out` clips of each object. Which ones goes round with the run: positions run * held_out and on, modulo their
    number.

    Args:
        root: Folder of the class folders.
        run: Chooses what is held out.
        held_out: Number of objects of each class, or of clips of each object, in the test split.
        fps: Frames to be taken of each second of a video.

    Raises:
        FrameTableError: If the folder is missing or empty, an image or video lies at another depth, a folder holds
            nothing, two clips of an object have the same name, there are too few objects and clips to hold any out, a
            video cannot be read to its end (all others are finished then), or frames cannot be written below root.
        ImportError: If there are videos to be read and PyAV is not installed.
        ValueError: If run, held_out or fps is out of range.
    """
    run = whole_number("run", run, 0)
    held_out = whole_number("held_out", held_out, 1)
    fps = frame_rate(fps)
    root = Path(root)
    if not root.is_dir():
        raise FrameTableError(f"there is no folder {root}; give the folder of your classes, laid out as {LAYOUT}")
    tree = {
        class_folder: {object_folder: _clips(object_folder) for object_folder in _folders(class_folder, "object")}
        for class_folder in _folders(root, "class")
    }
    by_object = all(len(objects) > held_out for objects in tree.values())
    if not by_object:
        _check_enough_clips(tree, held_out)
    _warn_of_unread(root, tree)
    images = {clip: _images(clip) for clip in _clip_paths(tree) if clip.is_dir()}
    images |= _video_images(root, [clip for clip in _clip_paths(tree) if clip not in images], fps)

    frames = []
    for class_folder, objects in tree.items():
        test_objects = _held_out(objects, run, held_out) if by_object else set()
        for object_folder, clips in objects.items():
            test_clips = set() if by_object else _held_out(clips, run, held_out)
            for clip, source in clips.items():
                split = "test" if object_folder in test_objects or clip in test_clips else "train"
                names = class_folder.name, object_folder.name, clip
                frames += [
                    Frame(image.relative_to(root).as_posix(), *names, position, split)
                    for position, image in enumerate(images[source])
                ]
    return FrameTable(frames, root, UprightImages(root), root.name)


@dataclass(frozen=True)
class UprightImages:
    """Reads images below a root, turned as a viewer shows them: phones write the orientation beside the pixels."""

    root: Path

    def __call__(self, path: str) -> Image.Image:
        return read_image(self.root / path, upright=True)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS


def _is_unread(path: Path) -> bool:
    return path.suffix.lower() in UNREAD_EXTENSIONS and path.name[0] != "." and not path.is_dir()


def _kind(path: Path) -> str | None:
    """What the layout has a place for; None for any other file."""
    return "image" if _is_image(path) else "video" if is_video(path) else None


def _folders(folder: Path, level: str) -> list[Path]:
    """The folders of one level of the tree, where no image or video may lie."""
    folders = []
    for entry in visible_entries(folder):
        if entry.is_dir():
            folders.append(entry)
        elif _kind(entry):
            raise FrameTableError(
                f"{_kind(entry)} {entry} lies where {level} folders are expected; the layout is {LAYOUT}"
            )
    if not folders:
        raise FrameTableError(f"{folder} holds no {level} folders; fill it or remove it. The layout is {LAYOUT}")
    return folders


def _clips(object_folder: Path) -> dict[str, Path]:
    """The folders and videos of an object, by clip name, in natural order."""
    clips: dict[str, Path] = {}
    for entry in visible_entries(object_folder):
        if not entry.is_dir() and _is_image(entry):
            raise FrameTableError(f"image {entry} lies where clip folders are expected; the layout is {LAYOUT}")
        if entry.is_dir() or is_video(entry):
            earlier = clips.setdefault(entry.name if entry.is_dir() else entry.stem, entry)
            if earlier is not entry:
                raise FrameTableError(f"{earlier} and {entry} are both clip {entry.stem!r}; rename or remove one.")
    if not clips:
        raise FrameTableError(
            f"{object_folder} holds no clip folders and no videos; fill it or remove it. The layout is {LAYOUT}"
        )
    return dict(sorted(clips.items(), key=lambda clip: natural_key(clip[0])))


def _clip_paths(tree: _Tree) -> list[Path]:
    return [clip for objects in tree.values() for clips in objects.values() for clip in clips.values()]


def _warn_of_unread(root: Path, tree: _Tree) -> None:
    """Name the photos that are left out for their format, where frames or clips are looked for."""
    folders = [object_folder for objects in tree.values() for object_folder in objects]
    folders += [clip for clip in _clip_paths(tree) if clip.is_dir()]
    unread = [path for folder in folders for path in folder.iterdir() if _is_unread(path)]
    if unread:
        first = min(unread, key=lambda path: natural_key(str(path)))
        warnings.warn(
            f"{len(unread)} photo(s) below {root} are left out, the first of them {first}: "
            f"{', '.join(UNREAD_EXTENSIONS)} are not read; convert them to JPEG or PNG.",
            stacklevel=3,
        )


def _images(clip: Path) -> list[Path]:
    """The images of a folder, in natural order."""
    images, videos = [], []
    for entry in visible_entries(clip):
        if entry.is_dir():
            deeper = next(filter(_is_image, entry.rglob("*")), None)
            if deeper is not None:
                raise FrameTableError(f"image {deeper} lies too deep; the layout is {LAYOUT}")
        elif _is_image(entry):
            images.append(entry)
        elif is_video(entry):  # what the images were made from
            videos.append(entry)
    if not images and videos:
        raise FrameTableError(f"video {videos[0]} lies too deep, in a clip folder; the layout is {LAYOUT}")
    if not images:
        raise FrameTableError(f"clip {clip} holds no images ({', '.join(EXTENSIONS)}); fill it or remove it.")
    return images


def _video_images(root: Path, videos: list[Path], fps: float) -> dict[Path, list[Path]]:
    """The frames of each video, taken out where that has not been done yet."""
    if not videos:
        return {}
    from tqdm import tqdm

    folder = root / FRAMES_FOLDER / f"{str(fps).removesuffix('.0')}fps"
    jobs = [Job(video, folder / video.relative_to(root), "%06d.png", fps, SHORT_SIDE) for video in videos]
    if any(job.finished() is None for job in jobs):
        _check_writable(root, folder)
        # disable=None: silent unless somebody looks on.
        with tqdm(total=len(jobs), unit=" videos", desc="taking frames out", disable=None) as bar:
            failures = extract_many(jobs, progress=lambda done, total, frames: bar.update(done - bar.n))
        if failures:
            listed = "".join(f"\n  {message}" for _, message in failures)
            raise FrameTableError(
                f"{len(failures)} of {len(jobs)} videos below {root} cannot be read to their end; remove or replace "
                "them (--on-bad-frame skip leaves out images only). What is finished of the others is kept."
                f"{listed}"
            )
    images = {}
    for job in jobs:
        names = job.finished()
        if names is None:
            raise FrameTableError(f"video {job.video} was changed while its frames were taken; do the same again.")
        images[job.video] = [job.folder / name for name in names]
    return images


def _check_writable(root: Path, folder: Path) -> None:
    """Raise before the work begins, not after the first video."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FrameTableError(
            f"the frames of the videos below {root} are kept in {folder}, but that cannot be written: "
            f"{error.strerror or error}. Make {root} writable, or copy the clips to a folder that is, and give that."
        ) from error


def _check_enough_clips(tree: _Tree, held_out: int) -> None:
    few_objects = next(folder for folder, objects in tree.items() if len(objects) <= held_out)
    for objects in tree.values():
        for object_folder, clips in objects.items():
            if len(clips) <= held_out:
                raise FrameTableError(
                    f"too little to hold out for testing: class {few_objects} has {len(tree[few_objects])} object(s) "
                    f"and object {object_folder} has {len(clips)} clip(s). Either every class "
                    f"needs at least {held_out + 1} objects, or every object at least {held_out + 1} clips."
                )


def _held_out(candidates: dict, run: int, held_out: int) -> set:
    ordered = list(candidates)
    return {ordered[(run * held_out + step) % len(ordered)] for step in range(held_out)}


def ClipFolder(
    dataset_root: str | Path,
    protocol: str = "class_instance",
    run: int = 0,
    train_transform: Callable | None = None,
    eval_transform: Callable | None = None,
    classes_per_experience: int = 2,
    held_out: int = 1,
    fps: float = 1.0,
):
    """A folder of clips as an Avalanche benchmark, in the style of Avalanche's classic ones.

    Args:
        dataset_root: As `root` of `ClipFolderFrames`.
        protocol: "class_instance", "class_iid" or "offline"; see `protocols.make_benchmark`.
        run: Chooses what is held out, and is the seed of the order of classes, clips and frames.
        train_transform: PIL image to tensor; None is `imagenet_transform(224)`.
        eval_transform: Likewise for the test stream.
        classes_per_experience: Classes of one experience.
        held_out: As in `ClipFolderFrames`.
        fps: As in `ClipFolderFrames`.

    Returns:
        A `protocols.FrameBenchmark` with `train_stream` and `test_stream`.
    """
    from benchmarks_toybox_ilab.streams.protocols import make_benchmark  # imports Avalanche, which takes seconds

    frames = ClipFolderFrames(dataset_root, run, held_out, fps)
    return make_benchmark(frames, protocol, run, classes_per_experience, train_transform, eval_transform)
