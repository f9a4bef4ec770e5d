"""Accuracy on perturbed maps and images of another style.

And the advantage of a network over a control.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from support.statistics import (
    Comparison,
    batch_accuracies,
    relative_drops,
    wilcoxon_test,
)
from torch import Generator, Tensor

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.report.paired import Paired, paired

PLAIN = "unperturbed"
STYLE = "style"
# Sign of the advantage in the paper after pretraining.
PAPER_SIGN = {"spatial": "-", "feature": "+", STYLE: "+"}
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
# Other names of the classes of the cue-conflict images.
OTHER_NAMES = {"truck": ("pickup_truck",), "boat": ("ship",), "car": ("automobile",)}


def spatial_perturbation(maps: Tensor, generator: Generator) -> Tensor:
    """Shuffle the locations of each map ``(B, C, H, W)``, otherwise for each image."""
    batch, channels, height, width = maps.shape
    orders = [torch.randperm(height * width, generator=generator) for _ in range(batch)]
    index = torch.stack(orders).to(maps.device).unsqueeze(1).expand(-1, channels, -1)
    moved = maps.flatten(2).gather(2, index)
    return moved.view(maps.shape).contiguous(memory_format=torch.channels_last)


def feature_perturbation(maps: Tensor, generator: Generator) -> Tensor:
    """Set half of the channels of each map ``(B, C, H, W)`` to zero, drawn by image."""
    batch, channels = maps.shape[:2]
    mask = torch.ones(batch, channels, device=maps.device)
    for row in mask:
        drawn = torch.randperm(channels, generator=generator)[: channels // 2]
        row[drawn.to(maps.device)] = 0
    return maps * mask.view(batch, channels, 1, 1)


MAP_PERTURBATIONS = {"spatial": spatial_perturbation, "feature": feature_perturbation}


@torch.no_grad()
def logits_of(
    model: SplitModel, batches: Iterable[Tensor], seed: int = 0
) -> dict[str, np.ndarray]:
    """Compute the logits of the direct path on plain and perturbed maps.

    Args:
        model: the network.
        batches: of uint8 images or of maps.
        seed: of the perturbations, which are alike for one seed.

    Returns:
        Logits ``(N, classes)`` by perturbation.
    """
    model.eval()
    generators = {}
    for name in MAP_PERTURBATIONS:
        generators[name] = torch.Generator().manual_seed(seed)
    logits: dict[str, list[Tensor]] = defaultdict(list)
    for images in batches:
        maps = model.features(images.to(model.pixel_mean.device))
        logits[PLAIN].append(model.classify(maps).cpu())
        for name, perturb in MAP_PERTURBATIONS.items():
            perturbed = perturb(maps, generators[name])
            logits[name].append(model.classify(perturbed).cpu())
    return {name: torch.cat(batches).numpy() for name, batches in logits.items()}


def columns(
    logits: np.ndarray, labels: np.ndarray, among: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """Predictions of logits ``(N, classes)`` as the statistics take them.

    Args:
        logits: of the images.
        labels: of the images.
        among: classes that an answer may have; None for all.
    """
    if among is not None:
        allowed = np.full(logits.shape[1], -np.inf)  # added, it rules an answer out
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
    """Relative drop of accuracy on each batch ``(batches,)``.

    Batch i of one set is paired with batch i of the other; a longer set is cut.
    """
    before = batch_accuracies(plain)
    after = batch_accuracies(perturbed)
    count = min(len(before), len(after))
    return relative_drops(before[:count], after[:count])


@dataclass(frozen=True)
class RunDrops:
    """Relative drops of accuracy of a pair of runs.

    Attributes:
        number: number of both runs.
        crumb: drops of CRUMB ``(batches,)`` by perturbation.
        control: drops of its control, likewise.
        passed: whether both runs pass the first-task filter.
        split: hash of the table of frames.
    """

    number: int
    crumb: dict[str, np.ndarray]
    control: dict[str, np.ndarray]
    passed: bool = True
    split: str = ""


@dataclass(frozen=True)
class Advantage:
    """Relative accuracy advantage: the control's drop minus CRUMB's.

    It is above 0 where CRUMB's accuracy drops less.

    Attributes:
        crumb: mean relative drop of CRUMB.
        control: mean relative drop of its control.
        mean: mean advantage over runs.
        error: standard error over runs; None for one run.
        over_runs: advantages by run.
        s4: the paper's test, Wilcoxon's signed-rank test over all batches of all runs.
    """

    crumb: float
    control: float
    mean: float
    error: float | None
    over_runs: Paired
    s4: Comparison

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.over_runs.differences)


def advantage_of(runs: Sequence[RunDrops], perturbation: str) -> Advantage | None:
    """Compute CRUMB's advantage over its control on perturbed images, over runs.

    Batches without a relative drop are left out: unperturbed, a network answers all of
    their images wrongly.

    Args:
        runs: relative drops of both networks.
        perturbation: key of the drops.

    Returns:
        The advantage; None without any batch.
    """
    crumb_drops = []
    control_drops = []
    advantages: dict[int, float] = {}
    for run in runs:
        if perturbation not in run.crumb or perturbation not in run.control:
            continue
        crumb = run.crumb[perturbation]
        control = run.control[perturbation]
        has_drop = np.isfinite(crumb) & np.isfinite(control)
        if not has_drop.any():
            continue
        crumb = crumb[has_drop]
        control = control[has_drop]
        crumb_drops.append(crumb)
        control_drops.append(control)
        advantages[run.number] = float((control - crumb).mean())
    if not advantages:
        return None
    means = list(advantages.values())
    splits = {run.number: run.split for run in runs}
    # `paired` compares two values of each run: the advantages, and 0 for none.
    no_advantage = dict.fromkeys(advantages, 0.0)
    over_runs = paired(no_advantage, advantages, splits)
    assert over_runs is not None
    all_crumb_drops = np.concatenate(crumb_drops)
    all_control_drops = np.concatenate(control_drops)
    return Advantage(
        crumb=float(all_crumb_drops.mean()),
        control=float(all_control_drops.mean()),
        mean=statistics.fmean(means),
        error=standard_error(means),
        over_runs=over_runs,
        s4=wilcoxon_test(all_crumb_drops, all_control_drops),
    )


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None for one value."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) / len(values) ** 0.5


class StyleImages:
    """Images of another style, in folders of their class by shape.

    Args:
        root: folder of the class folders.
        classes: the classes that a network knows.

    Attributes:
        paths: images of the known classes.
        labels: their classes ``(N,)``.

    Raises:
        ValueError: there is no folder, or none of a known class.
    """

    def __init__(self, root: Path, classes: Sequence[str]):
        if not root.is_dir():
            raise ValueError(
                f"there is no folder {root}; --style-root holds a folder of images for "
                "each class"
            )
        label_of_folder = {
            name.lower().replace(" ", "_"): label for label, name in enumerate(classes)
        }
        self.paths: list[Path] = []
        labels: list[int] = []
        for folder in sorted(path for path in root.iterdir() if path.is_dir()):
            label = _label_of(folder.name.lower(), label_of_folder)
            if label is not None:
                image_paths = _images_in(folder)
                self.paths += image_paths
                labels += [label] * len(image_paths)
        if not self.paths:
            raise ValueError(
                f"{root} has no folder of images that is named like one of "
                f"{', '.join(label_of_folder)}"
            )
        self.labels = np.array(labels)

    def batches(self, image_size: int, size: int = 32) -> Iterable[Tensor]:
        """Yield batches of uint8 images in the order of `labels`."""
        from benchmarks_toybox_ilab.streams.torch_dataset import pixel_transform
        from benchmarks_toybox_ilab.tables.image import read_image

        transform = pixel_transform(image_size)
        for start in range(0, len(self.paths), size):
            paths = self.paths[start : start + size]
            yield torch.stack([transform(read_image(path)) for path in paths])


def _label_of(name: str, known: dict[str, int]) -> int | None:
    """Label of a folder by its name, or another name of its class; None if unknown."""
    for candidate in (name, *OTHER_NAMES.get(name, ())):
        if candidate in known:
            return known[candidate]
    return None


def _images_in(folder: Path) -> list[Path]:
    """Images of a folder, by their name."""
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES
    )


def drops_of_network(
    model: SplitModel,
    batches: Iterable[Tensor],
    labels: np.ndarray,
    style: StyleImages | None,
) -> dict[str, np.ndarray]:
    """Compute the relative drops of a network's accuracy, by perturbation.

    Style images are other images than the test images, and of fewer classes. Their drop
    is therefore relative to the test images of those classes, with answers among these
    classes only.

    Args:
        model: the network.
        batches: its test images, or their maps.
        labels: of the test images.
        style: images in another style; None without any.

    Returns:
        Drops ``(batches,)`` of each map perturbation, and of `STYLE`.
    """
    logits = logits_of(model, batches)
    unperturbed = columns(logits[PLAIN], labels)
    drops = {}
    for name in MAP_PERTURBATIONS:
        drops[name] = drops_of(unperturbed, columns(logits[name], labels))
    if style is not None:
        classes = np.unique(style.labels)
        has_style = np.isin(labels, classes)
        style_logits = logits_of(model, style.batches(model.image_size))[PLAIN]
        drops[STYLE] = drops_of(
            columns(logits[PLAIN][has_style], labels[has_style], classes),
            columns(style_logits, style.labels, classes),
        )
    return drops
