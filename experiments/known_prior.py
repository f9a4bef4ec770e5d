r"""Measure what a learner knows of its answers before it has records: `learner.prior`.

    python experiments/known_prior.py --grocery GROCERY --cifar100 CIFAR100 \
        --backbone NAME --weights WEIGHTS --features FOLDER

Learners are taught one, two and four objects of some classes of streams for
development: the even classes of --grocery, --cifar100 (50 classes), whose photos count
as an object by fours, and rendered shapes. Asked are held-out objects of these classes
and objects of others; see `named_unknown.py`.

How close the images of both are is fitted to them, by the number of objects and of
classes, each trial counting once; apart from these for trials of a single class, which
is compared with no other one. What shortage changes is fitted afterwards to trials of
which lessons have one to three images. Prints what stands of a network in
`crumb_avalanche/learner/prior.py`, and writes it as `known_prior.csv` to --output.
"""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from named_unknown import Objects, Trial, rows_of_objects
from open_set import photo_table
from scipy.optimize import minimize
from support.common_options import run_script
from support.open_set import add_network_options, features_of, learner_of, output_of

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.prior import Line, Prior, Taught, closeness_of
from crumb_avalanche.learner.record_fit import CLIPS_OF_PRIOR
from crumb_avalanche.runs.run_folder import write_csv

OBJECTS = (1, 2, 4)  # of a class that are taught
CLASSES = (2, 3, 4, 6, 10)  # that are taught, by seed in turn
# Images of the lessons of a trial of few images, in turn.
FEW_IMAGES = ((1,), (2,), (3,), (1, 2), (1, 4))
OBJECTS_OF_FEW = (1, 2)
OF_CLASS = 32  # photos of a class of CIFAR-100
TEMPERATURES = np.linspace(-2, 4, 121)  # logarithms of factors
# Of `slope_of`: where its search starts, and when it ends.
START = (1.0, 0.0, 0.0, 10.0, 0.0)
SEARCH = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-4, "fatol": 1e-6}


@dataclass(frozen=True)
class Asked:
    """A trial: how close images were, and what was recorded before.

    Attributes:
        taught: how much.
        known: closeness of held-out images of the classes taught.
        strange: closeness of images of other classes.
        recorded: of each clip with records of known classes, their mean closeness,
            and how much had been taught then.
        temperature: logarithm of the factor by which the known images are most likely.
    """

    taught: Taught
    known: np.ndarray
    strange: np.ndarray
    recorded: list[tuple[float, Taught]]
    temperature: float

    @property
    def circumstances(self) -> list[float]:
        """What a `Line` multiplies, but for shortage."""
        return [1.0, self.taught.mean_log_clips, 1 / self.taught.classes]


def streams_of(learner: Learner, chosen: argparse.Namespace) -> Iterator[Objects]:
    """Yield the streams for development that there are."""
    frames = get_benchmark("toy_shapes_short").table(None, 0)
    every_second_view = {}
    for class_name, objects in rows_of_objects(frames).items():
        every_second_view[class_name] = [rows[::2] for rows in objects]
    features = features_of(learner, frames, chosen.features)
    yield Objects("toy shapes", features, every_second_view)
    of_photos = partial(Objects.of_photos, learner=learner, features=chosen.features)
    if chosen.grocery:
        tables = [ClipFolderFrames(chosen.grocery / use) for use in ("teach", "ask")]
        groceries = of_photos("grocery", tables=tables)
        yield groceries.every_second(0, "grocery, development")
    if chosen.cifar100:
        table = photo_table(chosen.cifar100 / "train")
        rows_of = [table.rows("train", name)[:OF_CLASS] for name in table.classes]
        unused_rows = np.setdiff1d(np.arange(len(table)), np.concatenate(rows_of))
        yield of_photos("cifar100", tables=[table.without(unused_rows.tolist())])


def asked(trial: Trial, stream: Objects, empty: Classifier) -> Asked:
    """Teach the lessons of a trial, and ask about its images.

    Args:
        trial: of the stream.
        stream: features of all images.
        empty: a classifier without classes.
    """
    classifier = trial.taught_to(empty, stream)
    held_out = classifier.evidence(stream.features[[row for _, row in trial.held_out]])
    strange = classifier.evidence(stream.features[trial.never_taught])
    numbers = {name: number for number, name in enumerate(classifier.classes.names)}
    labels = torch.tensor([numbers[name] for name, _ in trial.held_out])
    taught = held_out.taught
    return Asked(
        taught=taught,
        known=closeness_of(held_out.typicality, taught.shortage).numpy(),
        strange=closeness_of(strange.typicality, taught.shortage).numpy(),
        recorded=recorded_closeness(classifier),
        temperature=best_temperature(held_out.scores, labels),
    )


def best_temperature(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Choose the one of `TEMPERATURES` by which the true classes are most likely.

    Args:
        scores: of images, `(N, C)`.
        labels: their columns, `(N,)`.
    """
    losses = []
    for logarithm in TEMPERATURES:
        log_probabilities = (scores / np.exp(logarithm)).log_softmax(1)
        losses.append(float(-log_probabilities.gather(1, labels[:, None]).mean()))
    return float(TEMPERATURES[int(np.argmin(losses))])


def recorded_closeness(classifier: Classifier) -> list[tuple[float, Taught]]:
    """Read how close images of known classes were that clips recorded.

    Returns:
        Mean closeness of each clip, and how much had been taught then.
    """
    records = classifier.confidence._records
    records = records.where(~records.is_of_first_images)
    closeness = closeness_of(records.typicality, records.taught.shortage).numpy()
    of_clips = []
    for number in records.clip_numbers.unique().tolist():
        is_of_clip = (records.clip_numbers == number).numpy()
        first = int(is_of_clip.argmax())
        mean_closeness = float(closeness[is_of_clip].mean())
        taught = Taught(*(float(values[first]) for values in records.taught))
        of_clips.append((mean_closeness, taught))
    return of_clips


def line_of(trials: list[Asked], values: list[float], columns: int = 3) -> Line:
    """Fit a line to a value of each trial by least squares.

    Args:
        trials: whose circumstances the line multiplies.
        values: one of each trial.
        columns: number of coefficients; those after them are 0.
    """
    circumstances = np.array([trial.circumstances[:columns] for trial in trials])
    coefficients, *_ = np.linalg.lstsq(circumstances, np.array(values), rcond=None)
    return Line(*(round(float(value), 4) for value in coefficients))


def shift_of(trial: Asked, known: Line) -> float:
    """By how much closer than a line says the records of a trial are, on average.

    `CLIPS_OF_PRIOR` clips count besides, which are as close as the line says.
    """
    surplus = []
    for closeness, taught in trial.recorded:
        surplus.append(closeness - float(known.at(taught)))
    return sum(surplus) / (len(surplus) + CLIPS_OF_PRIOR)


def prior_of_trials(trials: list[Asked], columns: int = 3) -> Prior:
    """Fit the lines of a prior to trials.

    The closeness of a trial's images is its line's, shifted as its records are.

    Args:
        trials: with the same number of classes, or with several.
        columns: number of coefficients of means; 2 if the number of classes is the
            same, as the inverse of it is a constant then.
    """
    known_means = [float(trial.known.mean()) for trial in trials]
    known = line_of(trials, known_means, columns)
    shifts = [shift_of(trial, known) for trial in trials]
    unshifted = unshifted_means(trials, shifts)
    strange = line_of(trials, unshifted, columns)

    def deviation_of(line: Line, use: str) -> Line:
        return line_of(trials, deviations_from(line, trials, shifts, use), columns=2)

    return Prior(
        known=known,
        strange=strange,
        slope=slope_of(trials, shifts),
        known_deviation=deviation_of(known, "known"),
        strange_deviation=deviation_of(strange, "strange"),
        temperature=line_of(trials, [trial.temperature for trial in trials], columns=2),
    )


def unshifted_means(trials: list[Asked], shifts: list[float]) -> list[float]:
    """Mean closeness of images of other classes in each trial, without its shift."""
    means = []
    for trial, shift in zip(trials, shifts, strict=True):
        means.append(float(trial.strange.mean() - shift))
    return means


def deviations_from(
    line: Line, trials: list[Asked], shifts: list[float], use: str
) -> list[float]:
    """Root mean square difference of closeness from a line, of each trial.

    Args:
        line: of the mean, to which the shift of a trial is added.
        trials: with closeness of images.
        shifts: of each trial; see `shift_of`.
        use: `known` or `strange`, the images.
    """
    deviations = []
    for trial, shift in zip(trials, shifts, strict=True):
        mean = float(line.at(trial.taught)) + shift
        squares = (getattr(trial, use) - mean) ** 2
        deviations.append(float(np.sqrt(squares.mean())))
    return deviations


def slope_of(trials: list[Asked], shifts: list[float]) -> Line:
    """Fit the slope of the logarithm of the odds that an image is of a known class.

    With closeness ``c`` and shift ``z`` these are ``log p / (1 - p) = s (c - t - z)``.
    The slope ``s`` and the threshold ``t``, at which both are as likely, are lines in
    the number of clips and classes, and have together the maximum likelihood.

    Args:
        trials: with images of known and of other classes.
        shifts: of each trial; see `shift_of`.
    """

    def mean_loss(coefficients: np.ndarray) -> float:
        threshold_line = Line(*coefficients[:3])
        slope_line = Line(*coefficients[3:])
        total = 0.0
        for trial, shift in zip(trials, shifts, strict=True):
            threshold = float(threshold_line.at(trial.taught)) + shift
            slope = float(slope_line.at(trial.taught))
            total += loss_of(trial, threshold, slope)
        return total / len(trials)

    start = np.array(START)
    solution = minimize(mean_loss, start, method="Nelder-Mead", options=SEARCH)
    return Line(*(round(float(value), 4) for value in solution.x[3:]))


def loss_of(trial: Asked, threshold: float, slope: float) -> float:
    """Mean loss of known images and of others by `log p / (1 - p) = s (c - t)`.

    Args:
        trial: with closeness `c` of both.
        threshold: `t`.
        slope: `s`.
    """
    of_known = np.logaddexp(0, -slope * (trial.known - threshold)).mean()
    of_strange = np.logaddexp(0, slope * (trial.strange - threshold)).mean()
    return float(of_known + of_strange)


def with_shortage(prior: Prior, trials: list[Asked]) -> Prior:
    """Fit what shortage changes in the lines of a prior; the rest of them stays.

    Args:
        prior: of trials without a shortage of images.
        trials: with one.
    """
    known_means = [float(trial.known.mean()) for trial in trials]
    known = shortage_line(prior.known, trials, known_means)
    shifts = [shift_of(trial, known) for trial in trials]
    unshifted = unshifted_means(trials, shifts)
    strange = shortage_line(prior.strange, trials, unshifted)

    def deviation_line(old: Line, mean_line: Line, use: str) -> Line:
        deviations = deviations_from(mean_line, trials, shifts, use)
        return shortage_line(old, trials, deviations)

    temperatures = [trial.temperature for trial in trials]
    return prior._replace(
        known=known,
        strange=strange,
        slope=shortage_slope(prior.slope, trials, shifts),
        known_deviation=deviation_line(prior.known_deviation, known, "known"),
        strange_deviation=deviation_line(prior.strange_deviation, strange, "strange"),
        temperature=shortage_line(prior.temperature, trials, temperatures),
    )


def shortage_line(line: Line, trials: list[Asked], values: list[float]) -> Line:
    """Fit what shortage changes in a line to a value of each trial, by least squares."""
    shortages = np.array([trial.taught.shortage for trial in trials])
    expected = np.array([float(line.at(trial.taught)) for trial in trials])
    by_shortage = shortages @ (np.array(values) - expected) / (shortages @ shortages)
    return line._replace(by_shortage=round(float(by_shortage), 4))


def shortage_slope(line: Line, trials: list[Asked], shifts: list[float]) -> Line:
    """Fit what shortage changes in the slope; see `slope_of`.

    Args:
        line: the slope without a shortage.
        trials: with one.
        shifts: of each trial; see `shift_of`.
    """

    def mean_loss(coefficients: np.ndarray) -> float:
        threshold_line = Line(*coefficients[:3])
        slope_line = line._replace(by_shortage=coefficients[3])
        total = 0.0
        for trial, shift in zip(trials, shifts, strict=True):
            threshold = float(threshold_line.at(trial.taught)) + shift
            total += loss_of(trial, threshold, float(slope_line.at(trial.taught)))
        return total / len(trials)

    start = np.array([1.0, 0.0, 0.0, 0.0])
    solution = minimize(mean_loss, start, method="Nelder-Mead", options=SEARCH)
    return line._replace(by_shortage=round(float(solution.x[3]), 4))


def few_images(stream: Objects, learner: Learner, seed: int) -> Iterator[Asked]:
    """Teach and ask trials of few images: of several classes, then of one.

    Args:
        stream: features of all images.
        learner: without classes.
        seed: of what is drawn.
    """
    count = CLASSES[seed % len(CLASSES)]
    for images, objects in itertools.product(FEW_IMAGES, OBJECTS_OF_FEW):
        for classes in (count, 1):
            trial = Trial.draw(stream, objects, True, seed, classes)
            few = trial.with_images(images)
            yield asked(few, stream, learner._classifier)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add("--grocery", type=Path, metavar="DIR", help="folder with teach/ and ask/")
    add("--cifar100", type=Path, metavar="DIR", help="folder with train/class/")
    add("--seeds", type=int, default=10, help="trials of each stream and number")
    add("--output", default="runs/known_prior", help="folder of the table")
    add_network_options(parser)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.seeds = 5
    learner = learner_of(chosen, "rda")
    trials = []
    trials_of_one = []  # of a single class
    trials_of_few = []  # images, of several classes or one
    for stream in streams_of(learner, chosen):
        for objects, seed in itertools.product(OBJECTS, range(chosen.seeds)):
            count = CLASSES[seed % len(CLASSES)]
            trial = Trial.draw(stream, objects, True, seed, count)
            trials.append(asked(trial, stream, learner._classifier))
            trial = Trial.draw(stream, objects, True, seed, count=1)
            trials_of_one.append(asked(trial, stream, learner._classifier))
        for seed in range(chosen.seeds):
            trials_of_few += few_images(stream, learner, seed)
    lacking = [trial for trial in trials_of_few if trial.taught.shortage > 0]
    of_several = [trial for trial in lacking if trial.taught.classes > 1]
    several = with_shortage(prior_of_trials(trials), of_several)
    of_single = [trial for trial in lacking if trial.taught.classes == 1]
    of_one = with_shortage(prior_of_trials(trials_of_one, columns=2), of_single)
    # There is no other class, so that every temperature gives the same answers.
    of_one = of_one._replace(temperature=Line(0.0))
    lines: list[list[object]] = [["classes", "value", *Line._fields]]
    for classes, prior in (("several", several), ("one", of_one)):
        print(f"{chosen.backbone}, {classes}, {len(trials)} trials")
        for name, value in prior._asdict().items():
            if isinstance(value, Line):
                lines.append([classes, name, *value])
                print(f"        {name}={value},")
    write_csv(output_of(chosen) / "known_prior.csv", lines)


if __name__ == "__main__":
    run_script(main)
