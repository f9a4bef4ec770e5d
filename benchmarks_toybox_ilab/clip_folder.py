"""Bring your own: any folder of `class/object/clip/frame.jpg` is a data set."""

from collections.abc import Callable
from pathlib import Path

from benchmarks_toybox_ilab.folders import visible_entries
from benchmarks_toybox_ilab.frame_table import Frame, FrameTable, FrameTableError, whole_number

LAYOUT = "<root>/<class>/<object>/<clip>/<frame>.jpg, e.g. cup/red_cup/kitchen/0001.jpg"
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def ClipFolderFrames(root: str | Path, run: int = 0, held_out: int = 1) -> FrameTable:
    """The table of a folder of clips.

    All names are sorted naturally (frame2 before frame10); the number of a frame is its position in its clip. What is
    not an image, and hidden files, are passed over.

    Where every class has more than `held_out` objects, `held_out` objects of each class are the test split, else
    `held_out` clips of each object. Which ones goes round with the run: positions run * held_out and on, modulo their
    number.

    Args:
        root: Folder of the class folders.
        run: Chooses what is held out.
        held_out: Number of objects of each class, or of clips of each object, in the test split.

    Raises:
        FrameTableError: If the folder is missing or empty, an image lies at another depth, a folder holds nothing, or
            there are too few objects and clips to hold any out.
        ValueError: If run or held_out is out of range.
    """
    run = whole_number("run", run, 0)
    held_out = whole_number("held_out", held_out, 1)
    root = Path(root)
    if not root.is_dir():
        raise FrameTableError(f"there is no folder {root}; give the folder of your classes, laid out as {LAYOUT}")
    tree = {
        class_folder: {
            object_folder: {clip: _images(clip) for clip in _folders(object_folder, "clip")}
            for object_folder in _folders(class_folder, "object")
        }
        for class_folder in _folders(root, "class")
    }
    by_object = all(len(objects) > held_out for objects in tree.values())
    if not by_object:
        _check_enough_clips(tree, held_out)

    frames = []
    for class_folder, objects in tree.items():
        test_objects = _held_out(objects, run, held_out) if by_object else set()
        for object_folder, clips in objects.items():
            test_clips = set() if by_object else _held_out(clips, run, held_out)
            for clip, images in clips.items():
                split = "test" if object_folder in test_objects or clip in test_clips else "train"
                names = class_folder.name, object_folder.name, clip.name
                frames += [
                    Frame("/".join((*names, image)), *names, position, split) for position, image in enumerate(images)
                ]
    return FrameTable(frames, root, name=root.name)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS


def _folders(folder: Path, level: str) -> list[Path]:
    """The folders of one level of the tree, where no image may lie."""
    folders = []
    for entry in visible_entries(folder):
        if entry.is_dir():
            folders.append(entry)
        elif _is_image(entry):
            raise FrameTableError(f"image {entry} lies where {level} folders are expected; the layout is {LAYOUT}")
    if not folders:
        raise FrameTableError(f"{folder} holds no {level} folders; fill it or remove it. The layout is {LAYOUT}")
    return folders


def _images(clip: Path) -> list[str]:
    """Names of the images of a clip, in natural order."""
    images = []
    for entry in visible_entries(clip):
        if entry.is_dir():
            deeper = next(filter(_is_image, entry.rglob("*")), None)
            if deeper is not None:
                raise FrameTableError(f"image {deeper} lies too deep; the layout is {LAYOUT}")
        elif _is_image(entry):
            images.append(entry.name)
    if not images:
        raise FrameTableError(f"clip {clip} holds no images ({', '.join(EXTENSIONS)}); fill it or remove it.")
    return images


def _check_enough_clips(tree: dict[Path, dict[Path, dict[Path, list[str]]]], held_out: int) -> None:
    few_objects = next(folder for folder, objects in tree.items() if len(objects) <= held_out)
    for objects in tree.values():
        for object_folder, clips in objects.items():
            if len(clips) <= held_out:
                raise FrameTableError(
                    f"too little to hold out for testing: class {few_objects} has {len(tree[few_objects])} object(s) "
                    f"and object {object_folder} has {len(clips)} clip(s). With held_out={held_out}, either every "
                    f"class needs at least {held_out + 1} objects, or every object at least {held_out + 1} clips."
                )


def _held_out(folders: dict[Path, object], run: int, held_out: int) -> set[Path]:
    ordered = list(folders)
    return {ordered[(run * held_out + step) % len(ordered)] for step in range(held_out)}


def ClipFolder(
    dataset_root: str | Path,
    protocol: str = "class_instance",
    run: int = 0,
    train_transform: Callable | None = None,
    eval_transform: Callable | None = None,
    classes_per_experience: int = 2,
    held_out: int = 1,
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

    Returns:
        A `protocols.FrameBenchmark` with `train_stream` and `test_stream`.
    """
    from benchmarks_toybox_ilab.protocols import make_benchmark  # imports Avalanche, which takes seconds

    frames = ClipFolderFrames(dataset_root, run, held_out)
    return make_benchmark(frames, protocol, run, classes_per_experience, train_transform, eval_transform)
