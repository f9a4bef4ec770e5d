"""Accuracy of a network on perturbed maps and images of another style, and its advantage over a control."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from support.statistics import (
    Comparison,
    Paired,
    batch_accuracies,
    paired,
    relative_drops,
    wilcoxon_test,
)
from torch import Generator, Tensor

from crumb_avalanche.models.split_model import SplitModel

PLAIN, STYLE = "unperturbed", "style"
# Sign of the advantage in the paper after pretraining.
PAPER_SIGN = {"spatial": "-", "feature": "+", STYLE: "+"}
# Other names of the classes of the cue-conflict images.
OTHER_NAMES = {"truck": ("pickup_truck",), "boat": ("ship",), "car": ("automobile",)}


def spatial_perturbation(maps: Tensor, generator: Generator) -> Tensor:
    """Shuffle the locations of each map ``(B, C, H, W)``, with a permutation for each image."""
    batch, channels, height, width = maps.shape
    order = torch.stack(
        [torch.randperm(height * width, generator=generator) for _ in range(batch)]
    ).to(maps.device)
    moved = maps.flatten(2).gather(2, order.unsqueeze(1).expand(-1, channels, -1))
    return moved.view(maps.shape).contiguous(memory_format=torch.channels_last)


def feature_perturbation(maps: Tensor, generator: Generator) -> Tensor:
    """Set a random half of the channels of each map ``(B, C, H, W)`` to zero, drawn for each image."""
    batch, channels = maps.shape[:2]
    kept = torch.ones(batch, channels, device=maps.device)
    for row in kept:
        row[
            torch.randperm(channels, generator=generator)[: channels // 2].to(
                maps.device
            )
        ] = 0
    return maps * kept.view(batch, channels, 1, 1)


MAP_PERTURBATIONS = {"spatial": spatial_perturbation, "feature": feature_perturbation}


@torch.no_grad()
def logits_of(
    model: SplitModel, batches: Iterable[Tensor], seed: int = 0
) -> dict[str, np.ndarray]:
    """Logits `(N, classes)` of the direct path on plain and perturbed maps, which are perturbed alike for one seed."""
    model.eval()
    generators = {
        name: torch.Generator().manual_seed(seed) for name in MAP_PERTURBATIONS
    }
    logits: dict[str, list[Tensor]] = {name: [] for name in (PLAIN, *MAP_PERTURBATIONS)}
    for images in batches:
        maps = model.features(images.to(model.pixel_mean.device))
        logits[PLAIN].append(model.classify(maps).cpu())
        for name, perturb in MAP_PERTURBATIONS.items():
            logits[name].append(model.classify(perturb(maps, generators[name])).cpu())
    return {name: torch.cat(parts).numpy() for name, parts in logits.items()}


def columns(
    logits: np.ndarray, labels: np.ndarray, among: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """Predictions of logits `(N, classes)` as the statistics take them, among all classes or some."""
    if among is not None:
        allowed = np.full(logits.shape[1], -np.inf)
        allowed[list(among)] = 0
        logits = logits + allowed
    return {
        "row": np.arange(len(labels)),
        "label": np.asarray(labels),
        "answer": logits.argmax(axis=1),
    }


def drops_of(
    plain: dict[str, np.ndarray], perturbed: dict[str, np.ndarray]
) -> np.ndarray:
    """Relative drop of accuracy on each batch; batch i of one set is paired with batch i of the other."""
    whole = [batch_accuracies(part) for part in (plain, perturbed)]
    count = min(map(len, whole))
    return relative_drops(whole[0][:count], whole[1][:count])


@dataclass(frozen=True)
class RunDrops:
    """Relative drops `(batches,)` by perturbation of a pair of runs; `kept`: both pass the first-task filter."""

    number: int
    crumb: dict[str, np.ndarray]
    control: dict[str, np.ndarray]
    kept: bool = True
    split: str = ""


@dataclass(frozen=True)
class Advantage:
    """Relative accuracy advantage: the control's drop minus CRUMB's, above 0 where CRUMB's accuracy drops less."""

    crumb: float  # mean relative drop
    control: float
    mean: float
    error: float | None  # standard error over runs; None for one run
    over_runs: Paired
    # the paper's test: Wilcoxon's signed-rank test over all batches of all runs
    s4: Comparison

    @property
    def runs(self) -> int:
        return len(self.over_runs.differences)


def advantage_of(runs: Sequence[RunDrops], perturbation: str) -> Advantage | None:
    """The advantage over runs, without batches on which a network is always wrong; None without any batch."""
    pairs, numbers = [], []
    for run in runs:
        if perturbation in run.crumb and perturbation in run.control:
            crumb, control = run.crumb[perturbation], run.control[perturbation]
            known = np.isfinite(crumb) & np.isfinite(control)
            if known.any():
                pairs.append((crumb[known], control[known]))
                numbers.append(run.number)
    if not pairs:
        return None
    crumb, control = (np.concatenate(side) for side in zip(*pairs))
    means = [float((theirs - ours).mean()) for ours, theirs in pairs]
    error = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else None
    splits = {run.number: run.split for run in runs}
    over_runs = paired(dict.fromkeys(numbers, 0.0), dict(zip(numbers, means)), splits)
    assert over_runs is not None
    s4 = wilcoxon_test(crumb, control)
    return Advantage(
        float(crumb.mean()),
        float(control.mean()),
        statistics.fmean(means),
        error,
        over_runs,
        s4,
    )


class StyleImages:
    """Images of another style in folders of their class by shape; `paths` and `labels`: those that a network knows."""

    def __init__(self, root: Path, classes: Sequence[str]):
        if not root.is_dir():
            raise ValueError(
                f"there is no folder {root}; --style-root holds a folder of images for each class"
            )
        known = {
            name.lower().replace(" ", "_"): place for place, name in enumerate(classes)
        }
        self.paths, labels = [], []
        for folder in sorted(path for path in root.iterdir() if path.is_dir()):
            names = (folder.name.lower(), *OTHER_NAMES.get(folder.name.lower(), ()))
            place = next((known[name] for name in names if name in known), None)
            if place is not None:
                found = sorted(
                    path
                    for path in folder.iterdir()
                    if path.suffix.lower() in (".jpg", ".jpeg", ".png")
                )
                self.paths += found
                labels += [place] * len(found)
        if not self.paths:
            raise ValueError(
                f"{root} has no folder of images that is named like one of {', '.join(known)}"
            )
        self.labels = np.array(labels)

    def batches(self, image_size: int, size: int = 32) -> Iterable[Tensor]:
        """Yield batches of uint8 images in the order of `labels`."""
        from benchmarks_toybox_ilab.streams.torch_dataset import pixel_transform
        from benchmarks_toybox_ilab.tables.image import read_image

        transform = pixel_transform(image_size)
        for start in range(0, len(self.paths), size):
            yield torch.stack(
                [
                    transform(read_image(path))
                    for path in self.paths[start : start + size]
                ]
            )


def drops_of_network(
    model: SplitModel,
    batches: Iterable[Tensor],
    labels: np.ndarray,
    style: StyleImages | None,
) -> dict[str, np.ndarray]:
    """Relative drops of a network by perturbation.

    Style images are other images than the test images, and of fewer classes. Their drop
    is therefore relative to the test images of those classes, with answers among these
    classes only.
    """
    logits = logits_of(model, batches)
    plain = columns(logits[PLAIN], labels)
    drops = {
        name: drops_of(plain, columns(logits[name], labels))
        for name in MAP_PERTURBATIONS
    }
    if style is not None:
        classes = np.unique(style.labels)
        some = np.isin(labels, classes)
        other = logits_of(model, style.batches(model.image_size))[PLAIN]
        its = columns(logits[PLAIN][some], labels[some], classes)
        drops[STYLE] = drops_of(its, columns(other, style.labels, classes))
    return drops
