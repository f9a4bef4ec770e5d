r"""Figures 4 and S3 of the paper: shape bias of CRUMB relative to a control network.

    python experiments/fig4_shape_bias.py --benchmark eth80 --dataset-root ETH80 \
        --pretrained FILE --style-root STYLE
    python experiments/fig4_shape_bias.py --pretrained FILE \
        --control-pretrained FILE --test-root CIFAR100/test --style-root STYLE \
        --pretraining-only

Maps at the cut are perturbed in space (locations shuffled) or in features (half of them
set to zero). `--style-root` holds images in another style, such as cue-conflict images,
in a folder for each class by shape. A bar is the control's relative drop minus CRUMB's;
shape bias gives values below 0 for space and above 0 for features and style. Streaming:
CRUMB (256x8, from --pretrained if given) against replay of as many images from stock
weights, class-instance for Figure 4 and class-i.i.d. for Figure S3 and image sets.
Pretraining: two files of `crumb pretrain` (the control's with --codebook-weight 0) on a
folder of test images. Writes `fig4.csv` (or `figS3`), `.md`, `.png`, `.svg`,
`fig4_runs.csv` with every streamed run, and a folder for each run to --output.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from support import pictures
from support.common_options import (
    PROTOCOLS,
    CommonOptions,
    common_options,
    parser_for,
    run_script,
)
from support.findings import Cell, Finding, Run
from support.rebuilt_run import rebuild
from support.recorded_runs import write_recorded
from support.shape_bias import (
    PAPER_SIGN,
    Advantage,
    RunDrops,
    StyleImages,
    advantage_of,
    drops_of_network,
)
from support.statistics import holm
from support.sweep import exit_code
from support.tables import interval_text, p_text, recorded_runs_of, write_table
from table4_ablations import MEM_SIZES, PAPER_DATASET

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.tables import number
from crumb_avalanche.system.named_values import field_names, selected

# Strategy of each row.
ROWS = {"crumb": "crumb", "control": "image_replay"}
HEADER = [
    "condition",
    "perturbation",
    "the paper",
    "advantage",
    "standard error",
    "95 % interval",
    "p Holm",
    "verdict",
    "drop, CRUMB",
    "drop, control",
    "runs",
    "filtered: advantage",
    "runs kept",
    "pairs in S4",
    "as in S4",
    "as in S4, Holm",
    "as in S4, filtered",
    "as in S4, filtered, Holm",
]
CELLS_OVER_RUNS = 8  # columns of the header from "advantage" to "runs"


@dataclass(frozen=True)
class Bar:
    """One bar: the advantage of a condition under a perturbation.

    Attributes:
        condition: what was trained.
        perturbation: key of `PAPER_SIGN`.
        all_runs: advantage over all runs; None without any.
        filtered: advantage over those that pass the first-task filter.
    """

    condition: str
    perturbation: str
    all_runs: Advantage | None
    filtered: Advantage | None


def bars_of(condition: str, runs: Sequence[RunDrops]) -> list[Bar]:
    """The bars of a condition, one for each perturbation."""
    filtered = [run for run in runs if run.passed]
    bars = []
    for perturbation in PAPER_SIGN:
        bar = Bar(
            condition,
            perturbation,
            all_runs=advantage_of(runs, perturbation),
            filtered=advantage_of(filtered, perturbation),
        )
        bars.append(bar)
    return bars


def drops_on_stream(
    options: CommonOptions, findings: Mapping[str, Finding], style_root: Path | None
) -> list[RunDrops]:
    """The relative drops of each pair of finished runs on a benchmark.

    Args:
        options: of the command line.
        findings: runs of the rows `crumb` and `control`.
        style_root: folder of the style images; None without any.
    """
    crumb = findings["crumb"]
    control = findings["control"]
    in_control = numbers_of(control.runs)
    passed = numbers_of(crumb.filter[0]) & numbers_of(control.filter[0])
    pairs = []
    for run in crumb.runs:
        if run.number not in in_control:
            continue
        pairs.append(
            RunDrops(
                number=run.number,
                crumb=_drops_of_run(options, crumb, run.number, style_root),
                control=_drops_of_run(options, control, run.number, style_root),
                passed=run.number in passed,
                split=run.split,
            )
        )
    return pairs


def numbers_of(runs: Iterable[Run]) -> set[int]:
    """The numbers of runs."""
    return {run.number for run in runs}


def _drops_of_run(
    options: CommonOptions, finding: Finding, number: int, style_root: Path | None
) -> dict[str, np.ndarray]:
    """The drops of a finished run by perturbation."""
    cell = finding.cell
    settings = options.settings(cell.benchmark, **cell.settings, run=number)
    network = rebuild(replace(settings, output=str(cell.folder / f"run{number}")))
    style = None
    if style_root is not None:
        style = StyleImages(style_root, network.table.classes)
    labels = network.table.labels[network.rows]
    return drops_of_network(network.after, network.batches(), labels, style)


def pretrained_network(file: str) -> SplitModel:
    """The network that `crumb pretrain` wrote, as it was built, with its own classes."""
    from crumb_avalanche.models.split_backbone import split_backbone
    from crumb_avalanche.models.weights import check_and_load
    from crumb_avalanche.runs.model import codebook_of, network_of
    from crumb_avalanche.runs.pretrain_settings import PretrainSettings
    from crumb_avalanche.training.pretraining import read_pretrained

    state, made_with = read_pretrained(file)
    names = made_with.keys() & set(field_names(PretrainSettings))
    settings = PretrainSettings(**selected(made_with, names))
    model = split_backbone(
        weights=None,
        n_classes=made_with["classes"],
        codebook=codebook_of(settings),
        **network_of(settings),
    )
    check_and_load(model, state, file)
    return model


def drops_after_pretraining(
    crumb: str, control: str, test_root: str, style_root: Path | None
) -> RunDrops:
    """The relative drops of two pretrained networks on test images.

    Args:
        crumb: file of CRUMB's network.
        control: file of its control's.
        test_root: folder of test images, one folder a class.
        style_root: folder of the style images; None without any.
    """
    return RunDrops(
        number=0,
        crumb=_drops_of_pretrained(crumb, test_root, style_root),
        control=_drops_of_pretrained(control, test_root, style_root),
    )


def _drops_of_pretrained(
    file: str, test_root: str, style_root: Path | None
) -> dict[str, np.ndarray]:
    """The drops of a pretrained network by perturbation.

    Raises:
        ValueError: the test images are of another number of classes.
    """
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    from benchmarks_toybox_ilab.streams.torch_dataset import pixel_transform

    model = pretrained_network(file)
    images = ImageFolder(test_root, pixel_transform(model.image_size))
    if len(images.classes) != model.n_classes:
        raise ValueError(
            f"{test_root} has {len(images.classes)} classes, but {file} was made with "
            f"{model.n_classes}"
        )
    style = None if style_root is None else StyleImages(style_root, images.classes)
    batches = (pixels for pixels, _ in DataLoader(images, 32))
    return drops_of_network(model, batches, np.asarray(images.targets), style)


@dataclass(frozen=True)
class CorrectedBar:
    """A bar with its p-values, corrected by Holm over all bars.

    Attributes:
        bar: the bar.
        p: of the test over runs.
        s4: of the paper's test.
        s4_filtered: of the paper's test on the filtered runs.
    """

    bar: Bar
    p: float | None
    s4: float | None
    s4_filtered: float | None

    @property
    def line(self) -> list[str]:
        """Values of `HEADER`."""
        bar = self.bar
        return [
            bar.condition,
            bar.perturbation,
            PAPER_SIGN[bar.perturbation],
            *self._cells_over_runs(),
            *self._cells_of_filtered(),
        ]

    def _cells_over_runs(self) -> list[str]:
        """Cells of the test over runs."""
        advantage = self.bar.all_runs
        if advantage is None:
            return [""] * CELLS_OVER_RUNS
        return [
            f"{advantage.mean:+.4f}",
            number(advantage.error, ".4f"),
            interval_text(advantage.over_runs, "+.4f"),
            p_text(self.p),
            advantage.over_runs.verdict(self.p),
            f"{advantage.crumb:.4f}",
            f"{advantage.control:.4f}",
            str(advantage.runs),
        ]

    def _cells_of_filtered(self) -> list[str]:
        """Cells of the filtered runs and of the paper's test."""
        advantage = self.bar.all_runs
        filtered = self.bar.filtered
        test_cells = ["", "", ""]
        if advantage is not None:
            test_cells = [
                str(advantage.s4.pairs),
                p_text(advantage.s4.p),
                p_text(self.s4),
            ]
        if filtered is None:
            return ["", "", *test_cells, "", ""]
        return [
            f"{filtered.mean:+.4f}",
            str(filtered.runs),
            *test_cells,
            p_text(filtered.s4.p),
            p_text(self.s4_filtered),
        ]


def corrected(bars: Sequence[Bar]) -> list[CorrectedBar]:
    """Correct the p-values of bars by Holm over all of them."""
    over_runs = []
    s4 = []
    s4_filtered = []
    for bar in bars:
        over_runs.append(bar.all_runs and bar.all_runs.over_runs.p)
        s4.append(bar.all_runs and bar.all_runs.s4.p)
        s4_filtered.append(bar.filtered and bar.filtered.s4.p)
    return list(map(CorrectedBar, bars, holm(over_runs), holm(s4), holm(s4_filtered)))


def lines_of(bars: Sequence[Bar]) -> list[list[str]]:
    """The bars as text."""
    return [bar.line for bar in corrected(bars)]


def picture(shown: Sequence[Bar], title: str) -> Figure:
    """Plot the advantage of each split or run, and their mean, by condition."""
    series: dict[str, dict[str, list[float]]] = {}
    for bar in shown:
        values: list[float] = []
        if bar.all_runs is not None:
            values = list(bar.all_runs.over_runs.units)
        rows = series.setdefault(bar.condition, {})
        rows[f"{bar.perturbation} perturbation"] = values
    return pictures.bars({"relative accuracy advantage": series}, title)


def cells_of(
    options: CommonOptions, benchmark: str, protocol: str, chosen: argparse.Namespace
) -> list[Cell]:
    """The cells of CRUMB and its control on a benchmark."""
    usual_size = MEM_SIZES.get(benchmark, MEM_SIZES[PAPER_DATASET])
    cells = []
    for row, strategy in ROWS.items():
        settings = {
            "strategy": strategy,
            "protocol": protocol,
            "mem_size": chosen.mem_size or usual_size,
            "codebook_dim": 8,
            "keep_learner": True,
            "pretrained": chosen.pretrained if row == "crumb" else None,
        }
        folder = options.output / benchmark / protocol / row
        cells.append(Cell(row, benchmark, protocol, folder, settings))
    return cells


def main() -> int:
    parser = parser_for(__doc__, "runs/fig4", several=True, recorded=False)
    add = parser.add_argument
    add("--figure", choices=["4", "S3"], default="4", help="figure of the paper")
    add("--pretrained", help="file of crumb pretrain (256x8) that CRUMB starts from")
    add(
        "--control-pretrained",
        help="the same with --codebook-weight 0, for the pretraining condition",
    )
    add("--test-root", help="test images of the pretraining classes, a folder a class")
    add("--style-root", help="images in another style, one folder a class")
    add(
        "--pretraining-only",
        action="store_true",
        help="only the pretraining condition, no streams",
    )
    add(
        "--mem-size",
        type=int,
        help="memories; default the paper's ablations' for the benchmark",
    )
    chosen = parser.parse_args()
    options = common_options(chosen)
    style_root = Path(chosen.style_root) if chosen.style_root else None
    has_pretraining = bool(
        chosen.control_pretrained and chosen.pretrained and chosen.test_root
    )
    if chosen.pretraining_only and not has_pretraining:
        raise ValueError(
            "--pretraining-only needs --pretrained, --control-pretrained and "
            "--test-root"
        )
    bars: list[Bar] = []
    if has_pretraining:
        pair = drops_after_pretraining(
            chosen.pretrained, chosen.control_pretrained, chosen.test_root, style_root
        )
        bars += bars_of("pretraining", [pair])
    failed: dict[Path, str] = {}
    listed: list[Finding] = []
    protocols = PROTOCOLS if chosen.figure == "4" else PROTOCOLS[1:]
    benchmarks = [] if chosen.pretraining_only else list(options.roots)
    for benchmark in benchmarks:
        protocol = options.protocols(benchmark, protocols)[0]
        cells = cells_of(options, benchmark, protocol, chosen)
        findings, failures = options.run_cells(cells)
        failed |= failures
        listed += findings
        by_row = {finding.cell.row: finding for finding in findings}
        runs = drops_on_stream(options, by_row, style_root)
        bars += bars_of(f"{benchmark}, {protocol.replace('_', '-')}", runs)
    name = f"fig{chosen.figure}"
    print(f"\nFigure {chosen.figure}, relative accuracy advantage of CRUMB", end="")
    if listed:
        write_recorded(options.output / f"{name}_runs.csv", recorded_runs_of(listed))
    title = f"Figure {chosen.figure}: below 0, CRUMB is harmed more than its control"
    figure = picture(bars, title)
    write_table(options.output, name, HEADER, lines_of(bars), figure=figure)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
