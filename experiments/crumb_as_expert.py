"""Ask whether CRUMB helps the recommended learner as one more expert, at the same bytes.

    python experiments/crumb_as_expert.py --benchmark eth80 clip_folder toy_dots --dataset-root ETH80 DIGITS ...

Experts are `--preset recommended`, and `--preset tuned`, which answers by its readout in closed form or by its head;
`untrained CRUMB` is that readout of memories of stock layers.
Alone, each has the benchmark's bytes; together, half of them each. Together they answer by the sum of their
log-probabilities, with a weight `w` of CRUMB and `1 - w` of the recommended learner:
  usual temperatures  weights 1/2, and the temperatures that a learner starts from; nothing is fitted
From the second experience on, every training object is predicted before its first image is learned. The other rows fit
to these predictions the temperature of each expert, by the likelihood (each object counts once), and the weight:
  equal weights       1/2
  learned weight      mean of the posterior over 0, 0.1 ... 1, from a uniform prior and the likelihood of the objects
  by accuracy         the weight with the highest accuracy on the objects; the least of equal ones
  best on the test    chosen on the test images: a bound, and no learner
Difference: the row minus `recommended`, with 95 % interval by Student's t over runs, or over splits where runs share
one. Writes `crumb_as_expert.csv` and `.md` and a folder for each run to --output; the same command resumes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from scipy.special import log_softmax, softmax
from support.before_learning import OUTPUTS, read_outputs, record
from support.common_options import CommonOptions, common_options, own_presets, parser_for, run_script
from support.statistics import paired
from support.sweep import exit_code, grid, sweep
from support.tables import interval_text, write_table

from crumb_avalanche.methods.closed_form import NO_DENSITY
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.tables import mean_text

OURS, CRUMB, STOCK, HALF = "recommended", "crumb", "stock", "_half"
SETTINGS: dict[str, dict] = {
    OURS: {"preset": OURS, "method": {"head_share": 0.0}},  # a plain log-density, whose temperature is known
    CRUMB: {"preset": "tuned", "strategy": "crumb"},
    STOCK: {"preset": "tuned", "strategy": "crumb", "method": {"readout": "closed_form_stock"}},
}
EXPERTS = OURS, OURS + HALF, CRUMB + HALF, STOCK + HALF, CRUMB
CRUMBS = "CRUMB", "CRUMB's head"  # answers by the readout, and by the head
UNTRAINED = "untrained CRUMB"
WEIGHTS = np.linspace(0, 1, 11)
# Usual temperatures of closed forms, chosen on CIFAR-100 and Tiny-ImageNet; a readout is a linear discriminant.
LINEAR = StreamingLDA.temperature
USUAL = {OURS: RegularizedDiscriminant.temperature, CRUMBS[0]: LINEAR, CRUMBS[1]: 1.0, UNTRAINED: LINEAR}
TEMPERATURES = 2.0 ** np.arange(-5, 10.25, 0.25)
HEADER = ["stream", "row", "accuracy", "difference", "95 % interval", "before learning", "CRUMB's weight"]
HEADER += ["runs", "bytes"]


@dataclass(frozen=True)
class Result:
    """A row in one run: accuracies in percent, at the end and on objects not yet learned, and CRUMB's weight."""

    stream: str
    run: int
    row: str
    accuracy: float
    before_learning: float
    weight: float
    memory_bytes: int
    split: str


@dataclass(frozen=True)
class Objects:
    """Labels of images of objects, and their shares, of which an object's sum to 1."""

    labels: np.ndarray
    shares: np.ndarray

    @classmethod
    def of(cls, labels: np.ndarray, objects: np.ndarray) -> "Objects":
        _, places, sizes = np.unique(objects, return_inverse=True, return_counts=True)
        return cls(labels, 1 / sizes[places])

    def likelihood(self, log_probabilities: np.ndarray) -> float:
        """The log-likelihood of the true classes."""
        return float(self.shares @ of_truth(log_probabilities, self.labels))

    def accuracy(self, scores: np.ndarray) -> float:
        """The accuracy in percent."""
        return 100 * float(self.shares @ (scores.argmax(1) == self.labels) / self.shares.sum())


def of_truth(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the `(n,)` values of the true classes."""
    return values[np.arange(len(labels)), labels]


def temperature_of(outputs: np.ndarray, objects: Objects) -> float:
    """Return the temperature of the highest likelihood."""
    found = [objects.likelihood(log_softmax(outputs / one, axis=1)) for one in TEMPERATURES]
    return float(TEMPERATURES[int(np.argmax(found))])


def pooled(ours: np.ndarray, other: np.ndarray, weight: float) -> np.ndarray:
    """Return the log-probabilities of two experts together, `weight` being that of the other one."""
    return log_softmax((1 - weight) * ours + weight * other, axis=1)


def weights_of(ours: np.ndarray, other: np.ndarray, objects: Objects) -> dict[str, float]:
    """Return the weight of the other expert by each rule, from log-probabilities of training objects."""
    mixed = [pooled(ours, other, weight) for weight in WEIGHTS]
    likelihood = np.array([objects.likelihood(some) for some in mixed])
    right = np.array([objects.accuracy(some) for some in mixed])
    return {
        "equal weights": 0.5,
        "learned weight": float(softmax(likelihood) @ WEIGHTS),
        "by accuracy": float(WEIGHTS[int(np.argmax(right.round(9)))]),
    }


class Pair:
    """The recommended learner and another expert in one run, each with the same bytes."""

    def __init__(
        self, stream: str, run: int, ours: SimpleNamespace, other: SimpleNamespace, names: Sequence[str] = CRUMBS
    ):
        if not all(np.array_equal(getattr(ours, name), getattr(other, name)) for name in ("labels", "test_labels")):
            raise ValueError("the two experts predicted different images; give both the same stream")
        # The class of an image was known to both.
        known = np.minimum(of_truth(ours.before, ours.labels), of_truth(other.before, ours.labels)) > NO_DENSITY / 2
        self.name, self.split = (stream, run), ours.split
        self.objects = Objects.of(ours.labels[known], ours.objects[known])
        self.tested = Objects.of(ours.test_labels, np.arange(len(ours.test_labels)))
        self.names, self.kept = names, {OURS: ours.memory_bytes, **dict.fromkeys(names, other.memory_bytes)}
        answers = (ours.before, ours.test), (other.before, other.test), (other.head_before, other.head_test)
        self.outputs = {name: (before[known], test) for name, (before, test) in zip((OURS, *names), answers)}

    def of_each(self, said: str) -> list[Result]:
        """Return a row for each expert; `said` follows its name."""
        return [
            self._result(name + said, *scores, float(name != OURS), self.kept[name])
            for name, scores in self.outputs.items()
        ]

    def of_both(self) -> list[Result]:
        """Return a row for each way to combine the recommended learner with an answer of the other."""
        rows = []
        usual, fitted = {}, {}
        for name, both in self.outputs.items():
            temperature = temperature_of(both[0], self.objects)
            usual[name] = [log_softmax(scores / USUAL[name], axis=1) for scores in both]
            fitted[name] = [log_softmax(scores / temperature, axis=1) for scores in both]
        for name in self.names:
            weights = weights_of(fitted[OURS][0], fitted[name][0], self.objects)
            ways = [("usual temperatures", 0.5, usual), *((how, weight, fitted) for how, weight in weights.items())]
            for way, experts in (("best on the test, usual temperatures", usual), ("best on the test", fitted)):
                tests = [self.tested.accuracy(pooled(experts[OURS][1], experts[name][1], one)) for one in WEIGHTS]
                ways.append((way, float(WEIGHTS[int(np.argmax(tests))]), experts))
            for way, weight, experts in ways:
                mixed = (pooled(ours, other, weight) for ours, other in zip(experts[OURS], experts[name]))
                rows.append(self._result(f"both, {name}, {way}", *mixed, weight, self.kept[OURS] + self.kept[name]))
        return rows

    def _result(self, row: str, before: np.ndarray, test: np.ndarray, weight: float, kept: int) -> Result:
        right = self.tested.accuracy(test), self.objects.accuracy(before)
        return Result(*self.name, row, *right, weight, kept, self.split)


def cells_of(options: CommonOptions, stream: str, names: Sequence[str]) -> list:
    """Return the cells of the named experts on a benchmark, with all or with half of its bytes."""
    budget = int(RunPlan.of(options.settings(stream, preset=OURS)).budget)
    changes = {name: {**SETTINGS[name.removesuffix(HALF)], "protocol": "class_instance"} for name in names}
    for name, settings in changes.items():
        settings["budget_bytes"] = budget // 2 if name.endswith(HALF) else budget
    return grid(options.settings(stream), options.output / stream, options.runs, changes)


def read_results(options: CommonOptions) -> list[Result]:
    """Return the rows of all runs with the recommended learner and half of the bytes for it and for CRUMB."""
    results = []
    for stream in options.roots:
        for run in options.runs:
            paths = {name: options.output / stream / name / f"run{run}" / OUTPUTS for name in EXPERTS}
            found = {name: read_outputs(path) for name, path in paths.items() if path.exists()}
            if not found.keys() >= {OURS, OURS + HALF, CRUMB + HALF}:
                continue
            ours, half = found[OURS], found[OURS + HALF]
            whole = Pair(stream, run, ours, found.get(CRUMB, found[CRUMB + HALF])).of_each("")
            results += whole if CRUMB in found else whole[:1]
            pairs = [Pair(stream, run, half, found[CRUMB + HALF])]
            if STOCK + HALF in found:
                pairs.append(Pair(stream, run, half, found[STOCK + HALF], [UNTRAINED]))
            for place, pair in enumerate(pairs):
                results += pair.of_each(", half of the bytes")[place > 0 :]
            results += [row for pair in pairs for row in pair.of_both()]
    return results


def lines_of(results: Sequence[Result]) -> list[list[str]]:
    """Return a line of text for each stream and row."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for one in results:
        groups.setdefault((one.stream, one.row), []).append(one)
    lines = []
    for (stream, row), some in groups.items():
        ours = {one.run: one.accuracy for one in groups[stream, OURS]}
        splits = {one.run: one.split for one in some}
        found = None if row == OURS else paired(ours, {one.run: one.accuracy for one in some}, splits)
        line = [stream, row, mean_text([one.accuracy for one in some])]
        line += ["", ""] if found is None else [f"{found.mean:+.1f}", interval_text(found)]
        line.append(f"{np.mean([one.before_learning for one in some]):.1f}")
        line.append(f"{np.mean([one.weight for one in some]):.2f}")
        lines.append([*line, str(len(some)), f"{max(one.memory_bytes for one in some):,}"])
    return lines


def main() -> int:
    parser = parser_for(__doc__, "runs/crumb_as_expert", several=True)
    parser.add_argument("--experts", nargs="+", default=EXPERTS, choices=EXPERTS, help="to run; default all")
    chosen = parser.parse_args()
    own_presets(chosen, "every expert")
    options = common_options(chosen)
    cells = [cell for stream in options.roots for cell in cells_of(options, stream, chosen.experts)]
    failed = {} if options.table_only else sweep(cells, options.processes, work=record)
    results = read_results(options)
    if results:
        csv_rows = [["stream", "row", "run", "accuracy", "before_learning", "weight", "memory_bytes", "frame_table"]]
        for one in results:
            values = (f"{value:.4f}" for value in (one.accuracy, one.before_learning, one.weight))
            csv_rows.append([one.stream, one.row, one.run, *values, one.memory_bytes, one.split])
        write_table(options.output, "crumb_as_expert", HEADER, lines_of(results), csv_rows)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
