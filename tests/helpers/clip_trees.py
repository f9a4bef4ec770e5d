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
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, (value,) * 3).convert(
        mode, palette=Image.Palette.ADAPTIVE
    )
    image.save(path, **options)
    return path


def write_tree(root, paths=TREE):
    for number, path in enumerate(paths):
        save(root / path, number)
    return root


def read(source, root=None, **options):
    """(path, label, paths of the frames) of each clip, relative to a folder, with forward slashes."""

    def short(path):
        return os.path.relpath(path, root).replace(os.sep, "/") if root else path

    clips = clips_of(source, **options)
    return [
        (short(clip.path), clip.label, [short(path) for path, _ in clip.frames])
        for clip in clips
    ]


def pixels(source, **options):
    """The images of all clips as arrays."""
    return [
        np.asarray(image)
        for clip in clips_of(source, **options)
        for _, image in clip.frames
    ]
