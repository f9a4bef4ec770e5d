"""Tiny trees in the layout of the real data sets, and tables without any file."""

from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks_toybox_ilab.frame_table import Frame, FrameTable

# The cars of ETH-80 are numbered with gaps, all other classes from 1 to 10.
ETH80_NUMBERS = {"car": (1, 2, 3, 5, 6, 7, 9, 11, 12, 14), "apple": range(1, 11)}
ETH80_VIEWS = ("000-000", "045-090", "045-000", "045-270", "090-022")


def write_image(path: Path, colour: tuple[int, int, int] = (10, 120, 230), size: tuple[int, int] = (12, 8)) -> None:
    """An image of one colour, with the folders it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def write_eth80(root: Path, numbers: dict = ETH80_NUMBERS, views: tuple[str, ...] = ETH80_VIEWS) -> Path:
    """ETH-80 with fewer classes and views: `root/car14/car14-045-090.jpg`."""
    for class_name, objects in numbers.items():
        for number in objects:
            for view in views:
                write_image(root / f"{class_name}{number}" / f"{class_name}{number}-{view}.jpg")
    return root


def write_clip_folder(root: Path, classes: int = 2, objects: int = 3, clips: int = 2, frames: int = 3) -> Path:
    """`root/class0/object0/clip0/frame0.png`, numbered without leading zeros."""
    for c in range(classes):
        for o in range(objects):
            for k in range(clips):
                for f in range(frames):
                    write_image(root / f"class{c}" / f"object{o}" / f"clip{k}" / f"frame{f}.png")
    return root


def number_reader(path: str) -> Image.Image:
    """A noisy image of the brightness that the path names: `.../7` has a mean of about 7."""
    number = int(path.rpartition("/")[2])
    noise = np.random.default_rng(number).integers(0, 2, (8, 8, 3))
    return Image.fromarray((number + noise).astype(np.uint8))


def make_table(classes: int = 5, objects: int = 2, sessions: int = 3, frames: int = 4) -> FrameTable:
    """A table that is drawn when read; the last session of each object is the test split, paths end in the row."""
    rows = []
    for c in range(classes):
        for o in range(objects):
            for s in range(sessions):
                for f in range(frames):
                    split = "test" if s == sessions - 1 else "train"
                    rows.append(Frame(f"class{c}/{o}/{s}/{len(rows)}", f"class{c}", f"o{o}", f"s{s}", f, split))
    return FrameTable(rows, reader=number_reader, name="made up")
