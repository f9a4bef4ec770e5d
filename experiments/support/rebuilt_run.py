"""Models of a finished run, built again as they were at its beginning and end."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.methods.run_header import LEARNER
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.settings import RunSettings

CHUNK = 32  # images of a batch


@dataclass(frozen=True)
class RebuiltRun:
    """The test images of a run, and its model at both ends.

    Attributes:
        table: frames of the stream.
        rows: rows of the table that are tested, in the order of the batches.
        before: the model as the run began.
        after: the model as it ended.
        datasets: test images of each experience, or their cached maps.
    """

    table: FrameTable
    rows: np.ndarray
    before: SplitModel
    after: SplitModel
    datasets: list

    def batches(self) -> Iterator[torch.Tensor]:
        """Yield batches of images, or of their cached maps."""
        for dataset in self.datasets:
            for start in range(0, len(dataset), CHUNK):
                indices = range(start, min(start + CHUNK, len(dataset)))
                yield torch.stack([dataset[index][0] for index in indices])


def rebuild(settings: RunSettings) -> RebuiltRun:
    """Build a finished run's models again.

    The first is made from the settings, the last is read from the learner file.

    Raises:
        ValueError: the run kept no learner file.
    """
    from crumb_avalanche.methods.run_file import load_learner
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.session import PreparedRun
    from crumb_avalanche.runs.stream import open_stream
    from crumb_avalanche.system.process import set_up_process

    learned = Path(settings.output) / LEARNER
    if not learned.is_file():
        raise ValueError(
            f"{settings.output} has no {LEARNER}; run it again with --keep-learner true"
        )
    plan = RunPlan.of(replace(settings, progress=False, runtime="torch"))
    set_up_process(plan.threads, plan.run)
    prepared = PreparedRun.of(plan, open_stream(plan, joint=False))
    cache = prepared.open_cache()
    after = load_learner(learned, plan.device)[0].model
    datasets = []
    rows = []
    for experience in prepared.stream.benchmark.test_stream:
        dataset = experience.dataset
        frame_rows = np.asarray(list(dataset.frame_row))
        if cache is not None:
            labels = [int(label) for label in dataset.targets]
            dataset = cache.store.dataset(dataset, frame_rows, labels)
        datasets.append(dataset)
        rows.append(frame_rows)
    return RebuiltRun(
        table=prepared.stream.table,
        rows=np.concatenate(rows),
        before=prepared.model.eval(),
        after=after.eval(),
        datasets=datasets,
    )
