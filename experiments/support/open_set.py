"""Streams of lessons for calibration and unknown classes, and what one run of them measures."""

import argparse
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from support.common_options import QUICK
from torch import Tensor

from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.calibration import Confidence, expected_calibration_error
from crumb_avalanche.learner.evidence import Evidence, distances, evidence, typicality_without
from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.ranpac import RandomProjection
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.split_model import SplitModel

BUDGET, MOST_CLASSES = 2_941_700, 50  # the bytes of SqueezeNet, a learner's default; of which the means take a part
LESSON = 20  # photos of a lesson, for classes that are one clip
POOLED = FeatureMoments()
CELLS = FeatureMoments(**RegularizedDiscriminant.moments)
METHODS: dict[str, tuple[FeatureMoments, Callable[[int], ClosedForm]]] = {
    "rda": (CELLS, lambda length, kept: discriminant(length, kept)),
    "slda": (POOLED, lambda length, kept: StreamingLDA(0, length)),
    "ncm": (POOLED, lambda length, kept: ClassMeans(0, length)),
    "ranpac": (POOLED, lambda length, kept: RandomProjection(0, length)),
}


def discriminant(length: int, kept: int) -> RegularizedDiscriminant:
    """The statistics of `rda` with as many directions as the budget buys beside the means of 50 classes."""
    statistics = RegularizedDiscriminant.for_budget(length, BUDGET, kept)
    statistics.make_room(MOST_CLASSES, BUDGET, length)
    return statistics


class Stream(NamedTuple):
    """A data set, the table of each run, and the number of classes left out where unknown classes are measured."""

    name: str
    tables: Callable[[int], FrameTable]
    left_out: int


@dataclass(frozen=True)
class Measured:
    """What one run measures, all shares from 0 to 1."""

    accuracy: float  # on held-out images of the classes taught
    ece: float  # expected calibration error of their probabilities
    ece_usual: float  # the same with the usual temperature of the closed form
    known_rejected: float  # share of them that is called unknown
    unknown_rejected: float | None  # share of the images of other classes that is called unknown
    auroc: dict[str, float]  # for unknown classes, by candidate; empty without such classes


def features_of(
    model: SplitModel, moments: FeatureMoments, table: FrameTable, folder: Path | None, key: str
) -> np.ndarray:
    """Features `(N, D)` of all rows of a table, or those that an earlier call kept for this text of the network."""
    from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform

    settings = (key, repr(vars(moments)), model.image_size, str(table.root), *table.path)
    file = None if folder is None else folder / f"{hashlib.sha256(repr(settings).encode()).hexdigest()[:16]}.npy"
    if file is not None and file.exists():
        return np.load(file)
    transform, parts = PixelTransform(model.image_size), []
    for start in range(0, len(table), 16):
        images = [transform(table.read(row)) for row in range(start, min(start + 16, len(table)))]
        parts.append(moments(model, torch.stack(images)).numpy())
    features = np.concatenate(parts)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, features)
    return features


def lessons_of(table: FrameTable, taught: Sequence[int], seed: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield label and rows of each lesson: two classes at a time, their objects in random order.

    A lesson is all clips of an object; of a class with one clip it is 20 photos, drawn at random.
    """
    draws = np.random.default_rng(seed)
    order = draws.permutation(np.asarray(taught))
    for start in range(0, len(order), 2):
        lessons = []
        for label in order[start : start + 2].tolist():
            objects: dict[str, list[int]] = {}
            clips = table.clips(table.rows("train", table.classes[label]))
            for clip in clips:
                objects.setdefault(table.object_name[clip[0]], []).extend(clip.tolist())
            parts = [np.array(rows) for rows in objects.values()]
            if len(clips) == 1:
                parts = np.array_split(draws.permutation(parts[0]), max(1, len(parts[0]) // LESSON))
            lessons += [(label, part) for part in parts]
        yield from (lessons[place] for place in draws.permutation(len(lessons)))


def run_stream(
    method: str,
    table: FrameTable,
    features: np.ndarray,
    kept: int,
    unknown: Sequence[int],
    seed: int,
    candidates: bool = False,
) -> Measured:
    """Teach all classes but `unknown`, lesson by lesson, and measure on held-out images.

    Of the features `(N, D)` of the rows of the table, the last `kept` are the input of the head.
    """
    statistics, confidence = METHODS[method][1](features.shape[1], kept), Confidence()
    statistics.grow(len(table.classes))
    values = torch.from_numpy(features).float()
    taught = [label for label in range(len(table.classes)) if label not in set(unknown)]
    observed = []
    for label, rows in lessons_of(table, taught, seed):
        if statistics.image_counts[label]:
            observed.append(evidence(statistics, values[rows]))
            confidence.observe(observed[-1], label, typicality_without(statistics, values[rows], label))
        statistics.update(values[rows], torch.full((len(rows),), label))
    test = table.rows("test")
    held_out = test[np.isin(table.labels[test], taught)]
    known = evidence(statistics, values[held_out])
    right = known.labels[known.scores.argmax(1)].numpy() == table.labels[held_out]
    probabilities = confidence.probabilities(known).amax(1)
    usual = known.scores.softmax(1).amax(1)
    correct = torch.from_numpy(right)
    familiar = confidence.familiarity(known)
    area: dict[str, float] = {}
    rejected = None
    others = np.setdiff1d(test, held_out)
    if len(others):
        strange = evidence(statistics, values[others])
        rejected = float((~confidence.known(strange)).double().mean())
        area["chosen"] = auroc(familiar, confidence.familiarity(strange))
        if candidates:
            both = [(known, values[held_out]), (strange, values[others])]
            scores = [candidate_scores(statistics, confidence, observed, *one) for one in both]
            area |= {name: auroc(scores[0][name], scores[1][name]) for name in scores[0]}
    return Measured(
        float(right.mean()),
        expected_calibration_error(probabilities, correct),
        expected_calibration_error(usual, correct),
        float((familiar < 0).double().mean()),
        rejected,
        area,
    )


def candidate_scores(
    statistics: ClosedForm, confidence: Confidence, observed: Sequence[Evidence], found: Evidence, features: Tensor
) -> dict[str, Tensor]:
    """Return the scores that the chosen one is compared with, `(B,)` each, larger for known images.

    Sums are standardised by the evidence of the lessons, `observed`, which `confidence` was fitted to.
    """
    residual, nearest, background, cosine = distances(statistics, features)
    temperature = confidence.temperature(found)

    def columns(some: Evidence) -> Tensor:
        softmax = (some.scores / temperature).log_softmax(1).amax(1, keepdim=True)
        return torch.cat([some.typicality, softmax], 1)

    before = torch.cat([columns(lesson) for lesson in observed])
    standard = (columns(found) - before.mean(0)) / before.std(0).clamp_min(1e-9)
    return {
        "distance in the discriminant space": -nearest,
        "Mahalanobis distance": -(nearest + residual),
        "residual": -residual,
        "relative Mahalanobis distance": background - nearest,
        "maximum softmax": standard[:, 3],
        "energy": (found.scores / temperature).logsumexp(1),
        "cosine": cosine,
        "sum of residual and relative distance": standard[:, :2].sum(1),
        "sum of relative distance and softmax": standard[:, [1, 3]].sum(1),
        "sum of relative distance and cosine": standard[:, 1:3].sum(1),
        "sum of residual, relative distance and cosine": standard[:, :3].sum(1),
        "sum of residual, relative distance and softmax": standard[:, [0, 1, 3]].sum(1),
    }


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Return the probability that a known image has a larger score than an unknown one; ties count half."""
    ranks = stats.rankdata(torch.cat([known, unknown]).numpy())
    count = len(known)
    return float((ranks[:count].sum() - count * (count + 1) / 2) / (count * len(unknown)))


def add_network_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `network_of` reads, and those of the output."""
    parser.add_argument("--backbone", default="squeezenet1_0", help="network, with the budget of SqueezeNet")
    parser.add_argument("--weights", default="torchvision", help="its weights, as for crumb run")
    parser.add_argument("--features", type=Path, metavar="DIR", help="folder that keeps features for later calls")
    parser.add_argument("--json", action="store_true", help="print only the figures, as one JSON object")
    parser.add_argument("--quick", action="store_true", help="rendered shapes, a tiny network, one or two runs")


def network_of(chosen: argparse.Namespace) -> tuple[SplitModel, str]:
    """The network of the options, whose head is not used, and a text that stands for it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name, weights, size = (
        (QUICK["backbone"], None, QUICK["image_size"]) if chosen.quick else (chosen.backbone, chosen.weights, 224)
    )
    return split_backbone(name, weights, n_classes=2, codebook=None, image_size=size), f"{name} {weights}"
