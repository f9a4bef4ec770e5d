"""The frame table of a run, as its settings say."""

from dataclasses import dataclass, field

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.runs.plan import RunPlan


@dataclass(frozen=True)
class FrameSource:
    """Settings that decide the frame table of a run.

    Attributes:
        benchmark: its name.
        root: folder of the data set; ``None`` where it needs none.
        run: number of the run.
        reference: whether the stream is that of the paper's published code.
        fps: frames per second taken from a video; ``None`` for the default.
        skips_bad: whether what cannot be read is left out.
        new_class: whether nearly the same names are two classes.
    """

    benchmark: str
    root: str | None
    run: int
    reference: bool
    fps: float | None
    skips_bad: bool
    new_class: bool

    @classmethod
    def of(cls, plan: RunPlan) -> "FrameSource":
        """Take the settings of a plan."""
        return cls(
            benchmark=plan.benchmark,
            root=plan.dataset_root,
            run=plan.run,
            reference=plan.reference_stream,
            fps=plan.fps,
            skips_bad=plan.on_bad_frame == "skip",
            new_class=plan.new_class,
        )


@dataclass(frozen=True)
class OpenedFrames:
    """A frame table, and what was left out of it.

    Attributes:
        table: the frames, whose images are not read yet.
        bad_videos: a message for each video that was left out.
    """

    table: FrameTable
    bad_videos: list[str] = field(default_factory=list)


def open_frames(source: FrameSource) -> OpenedFrames:
    """Make the frame table of a run; videos that cannot be read may be left out.

    Raises:
        ValueError: the folder holds no such data set, or a video cannot be read and
            the source does not skip it.
    """
    bad_videos: list[str] = []
    table = get_benchmark(source.benchmark).table(
        source.root,
        source.run,
        reference=source.reference,
        fps=source.fps,
        # Without a list that collects them, bad videos are errors.
        bad_videos=bad_videos if source.skips_bad else None,
        new_class=source.new_class,
    )
    return OpenedFrames(table, bad_videos)
