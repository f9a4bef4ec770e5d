"""Trees of small photos, and what of them is read as clips."""

import os

import numpy as np
from PIL import Image

from crumb_avalanche.images.sources import clips_of

TREE = (
    "cup/blue/desk/1.png",
    "cup/blue/desk/2.png",
    "cup/red/sofa/1.png",
    "mug/a.png",
    "mug/b.png",
)


def save(path, value=0, size=(6, 4), mode="RGB", **options):
    """Write an image of one grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, (value,) * 3)
    image.convert(mode, palette=Image.Palette.ADAPTIVE).save(path, **options)
    return path


def write_tree(root, paths=TREE):
    for number, path in enumerate(paths):
        save(root / path, number)
    return root


def read(source, root=None, **options):
    """Return path, label and paths of the frames of each clip.

    Relative to a folder, with forward slashes.
    """

    def short(path):
        if root is None:
            return path
        return os.path.relpath(path, root).replace(os.sep, "/")

    clips = []
    for clip in clips_of(source, **options):
        frames = [short(path) for path, _ in clip.frames]
        clips.append((short(clip.path), clip.label, frames))
    return clips


def pixels(source, **options):
    """Return the images of all clips as arrays."""
    images = []
    for clip in clips_of(source, **options):
        images += [np.asarray(image) for _, image in clip.frames]
    return images
