"""Damage of images, videos and index files, whose digests a run or a marker holds."""

import shutil
from pathlib import Path
from random import Random

import numpy as np
from support.faults.case import Kind, command
from support.faults.damage import Tree, damage_file, damage_some, forget_digests
from support.faults.material import CLASSES, pixels, run_arguments, write_clips, write_photo
from support.faults.run_folders import plan_of

from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.runs.run_folder import finished_result

ENDINGS = (".png", ".jpg", ".bmp", ".webp", ".tif")


class Images(Kind):
    """Images of several formats, after a run whose result holds their digest."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.clips, self.run = folder / "clips", folder / "run"
        self.make_clips()
        self.plan = plan_of(self.run, self.clips)
        done = command(*run_arguments(self.clips, self.run))
        assert done.code == 0, done
        self.tree = Tree(self.clips)
        self.learn_base()

    def make_clips(self) -> None:
        write_clips(self.clips)
        for number, ending in enumerate(ENDINGS):
            write_photo(self.clips / CLASSES[0] / "object0" / "clip" / f"other{ending}", number, 24)

    def damage(self, random: Random) -> str:
        return damage_some(self.tree.kept, random)

    def act(self):
        table = ClipFolderFrames(self.clips)
        frames = [np.asarray(table.read(row)).tobytes() for row in range(len(table))]
        if (found := (tuple(table), frames)) != self.expected and self.expected is not None:
            finished_result(self.run, self.plan)  # says that images were changed
        return found

    def restore(self) -> None:
        self.tree.restore()


def write_video(path: Path, seed: int) -> None:
    """Write a video of three frames."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264" if path.suffix == ".mp4" else "mpeg4", rate=1)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for frame in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels(seed + frame), "rgb24")))
        container.mux(stream.encode(None))


class Videos(Images):
    """Videos, their frames, and the markers of these, after a run whose result holds the digest of the frames."""

    def make_clips(self) -> None:
        write_clips(self.clips)
        for number, ending in enumerate((".mp4", ".avi")):
            shutil.rmtree(self.clips / CLASSES[number] / "object0")
            write_video(self.clips / CLASSES[number] / "object0" / f"film{ending}", 10 * number)
        ClipFolderFrames(self.clips)

    def damage(self, random: Random) -> str:
        films = [path for path in self.tree.kept if path.suffix in (".mp4", ".avi")]
        frames = [path for path in self.tree.kept if ".crumb_frames" in path.parts]
        what = damage_file(random.choice(films if random.random() < 0.7 else frames), random)
        forget_digests()
        return what


class IndexFiles(Kind):
    """The table of frames that crumb prepare writes."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.path = folder / "index.csv"
        ClipFolderFrames(write_clips(folder / "clips", frames=4)).to_csv(self.path)
        shutil.rmtree(folder / "clips")
        self.tree = Tree(folder)
        self.learn_base()

    def damage(self, random: Random) -> str:
        return damage_file(self.path, random)

    def act(self):
        return tuple(FrameTable.from_csv(self.path, None))

    def restore(self) -> None:
        self.tree.restore()
