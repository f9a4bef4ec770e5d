"""Use of memory blocks by the test images of a run, and locations where they fire (paper, Fig. 5)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.settings import RunSettings

CHUNK = 32  # images encoded at once


@dataclass(frozen=True)
class Usage:
    """Codes of the test images under one codebook.

    Attributes:
        counts: `(n,)` int64, number of slices that chose each block, without all-zero slices.
        zeros: number of all-zero slices, for which all blocks tie.
        codes: `(N, g, H, W)` codes of the first `g` groups of channels, -1 where a slice is all zero.
    """

    counts: np.ndarray
    zeros: int
    codes: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """Shares of the blocks in the slices that are not zero, `(n,)`."""
        return self.counts / max(1, self.counts.sum())

    @property
    def zero_share(self) -> float:
        """Share of all-zero slices in all slices."""
        return self.zeros / max(1, self.zeros + self.counts.sum())

    @property
    def effective_blocks(self) -> float:
        """The exponential of the entropy of the shares: the number of equally used blocks with that entropy."""
        shares = self.shares[self.shares > 0]
        return float(np.exp(-(shares * np.log(shares)).sum()))


@torch.no_grad()
def usage_of(model: SplitModel, batches: Iterator[Tensor], groups: int) -> Usage:
    """Encode images or cached maps, batch by batch.

    Args:
        model: model with a codebook.
        batches: `(B, 3, h, w)` uint8 images, or `(B, C, H, W)` maps as a cache keeps them.
        groups: number of leading groups of channels to keep in `codes`; 0 keeps all.
    """
    codebook = model.codebook
    counts, zeros, kept = torch.zeros(codebook.codebook_size, dtype=torch.int64), 0, []
    for images in batches:
        maps = model.features(images.to(model.pixel_mean.device))
        codes = codebook.encode(maps).to(torch.int64)
        nothing = ~maps.unflatten(1, (-1, codebook.codebook_dim)).any(dim=2)  # (B, G, H, W)
        counts += codebook.usage(codes[~nothing]).cpu()
        zeros += int(nothing.sum())
        codes[nothing] = -1
        kept.append(codes[:, : groups or None].to(torch.int16).cpu())
    return Usage(counts.numpy(), zeros, torch.cat(kept).numpy())


def firing(codes: np.ndarray, block: int) -> np.ndarray:
    """Fraction of the slices at each location that chose a block, `(N, H, W)`."""
    return (codes == block).mean(axis=1)


def most_used(codes: np.ndarray, blocks: int, count: int) -> list[int]:
    """The up to ``count`` blocks that occur most often in the codes, without all-zero slices."""
    counts = np.bincount(codes[codes >= 0].ravel(), minlength=blocks)
    order = np.argsort(-counts, kind="stable")[:count]
    return [int(block) for block in order if counts[block]]


def strongest(heat: np.ndarray, objects: Sequence[str], count: int) -> list[int]:
    """Indices of the images on which a block fires most, one image per object before any second one."""
    order = np.argsort(-heat.mean(axis=(1, 2)), kind="stable")
    first = list({objects[place]: place for place in reversed(order)}.values())
    best = sorted(first, key=lambda place: -heat[place].mean())
    rest = [place for place in order if place not in set(first)]
    return [int(place) for place in (best + rest)[:count]]


@dataclass(frozen=True)
class RebuiltRun:
    """The test images of a run, and its model before and after the stream.

    Attributes:
        table: frame table.
        rows: rows of the test images in the order of the batches.
        before: model with its codebook before the stream.
        after: model with its codebook after the stream.
        batches: function that yields batches of images, or of their cached maps.
    """

    table: object
    rows: np.ndarray
    before: SplitModel
    after: SplitModel
    batches: object


def rebuilt(settings: RunSettings, folder: Path) -> RebuiltRun:
    """Build a finished run's models again: as it began, from its settings, and as it ended, from its learner file.

    A run of an older version has ``checkpoint/model.safetensors`` instead.

    Raises:
        ValueError: the run kept no model.
    """
    import copy

    from crumb_avalanche.learner.run_file import LEARNER, load_learner
    from crumb_avalanche.models.weights import load_weights
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.session import Session
    from crumb_avalanche.runs.stream import open_stream
    from crumb_avalanche.system.process import set_up_process

    learned, older = folder / LEARNER, folder / "checkpoint" / "model.safetensors"
    if not learned.is_file() and not older.is_file():
        raise ValueError(f"{folder} has no {LEARNER}; run it again with --keep-learner answers")
    plan = RunPlan.of(replace(settings, progress=False, runtime="torch"))
    set_up_process(plan.threads, plan.run)
    session = Session.build(plan, open_stream(plan, joint=False), learner=False)
    before, cache = session.model, session.cache
    if learned.is_file():
        after = load_learner(learned, plan.device).strategy.model
    else:
        after = copy.deepcopy(before)
        load_weights(after, older)
    datasets = [experience.dataset for experience in session.stream.benchmark.test_stream]
    rows = [np.asarray(list(dataset.frame_row)) for dataset in datasets]
    if cache is not None:
        labels = [list(map(int, dataset.targets)) for dataset in datasets]
        datasets = [cache.store.dataset(*parts) for parts in zip(datasets, rows, labels)]

    def batches() -> Iterator[Tensor]:
        for dataset in datasets:
            for start in range(0, len(dataset), CHUNK):
                yield torch.stack([dataset[place][0] for place in range(start, min(start + CHUNK, len(dataset)))])

    return RebuiltRun(session.stream.table, np.concatenate(rows), before.eval(), after.eval(), batches)
