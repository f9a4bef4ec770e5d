"""Choose, class by class, what a folder of clips holds out for testing."""

import math
from pathlib import Path

from benchmarks_toybox_ilab.tables.frame import FrameTableError

Objects = dict[Path, dict[str, Path]]  # folder or video of each clip, by object folder and clip name
Tree = dict[Path, Objects]  # by class folder


def clip_paths(tree: Tree) -> list[Path]:
    """The folders and videos of all clips, in the order of the tree."""
    return [clip for objects in tree.values() for clips in objects.values() for clip in clips.values()]


def fifth(number: int) -> int:
    """A fifth of a number, rounded, at least one."""
    return max(1, round(number / 5))


def clips_to_test(name: str, objects: Objects, run: int, held_out: int | None) -> set[Path]:
    """The clips of a class that are wholly in the test split; none if the class has a single clip.

    Raises:
        FrameTableError: If `held_out` leaves nothing for training.
    """
    groups, kind = [list(clips.values()) for clips in objects.values()], "object"
    if len(groups) == 1:
        groups, kind = [[clip] for clip in groups[0]], "clip"
    number = len(groups)
    if number == 1:
        return set()
    count = fifth(number) if held_out is None else held_out
    if count >= number:
        raise FrameTableError(
            f"class {name!r} has {number} {kind}s, so held_out={held_out} leaves none for training; give held_out=None "
            f"to hold out a fifth, or at most {number - 1}, or add {kind}s."
        )
    return {clip for position in _positions(number, run, count) for clip in groups[position]}


def only_clips(tree: Tree) -> dict[Path, str]:
    """The clips that are the only ones of their class, with the name of the class."""
    found = {folder.name: clip_paths({folder: objects}) for folder, objects in tree.items()}
    return {clips[0]: name for name, clips in found.items() if len(clips) == 1}


def check_two_images(only_clips: dict[Path, str], images: dict[Path, list[Path]]) -> None:
    """Raise if an only clip has a single image.

    Raises:
        FrameTableError: Names the class and the clip.
    """
    for clip, name in only_clips.items():
        if len(images.get(clip, ())) == 1:
            more = "add images" if clip.is_dir() else "take more frames (a higher fps)"
            raise FrameTableError(
                f"class {name!r} has a single image, that of {clip}, but a class needs one for training and another "
                f"for testing; {more}, add another clip, or remove the class."
            )


def _positions(number: int, run: int, count: int) -> set[int]:
    """`count` neighbours on a circle of `number`: those after the last run's, shifted by one after each full turn."""
    common = math.gcd(number, count)
    first = run * count + run // (number // common) % common
    return {(first + step) % number for step in range(count)}
