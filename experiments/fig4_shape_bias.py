r"""Figures 4 and S3 of the paper: shape bias of CRUMB relative to a control network.

    python experiments/fig4_shape_bias.py --benchmark eth80 --dataset-root ETH80
    --pretrained FILE --style-root STYLE python experiments/fig4_shape_bias.py
    --pretrained FILE --control-pretrained FILE --test-root CIFAR100/test \
        --style-root STYLE --pretraining-only

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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from support.common_options import (
    PROTOCOLS,
    CommonOptions,
    common_options,
    parser_for,
    run_script,
)
from support.findings import Cell, Finding
from support.pictures import bars
from support.rebuilt_run import rebuilt
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

ROWS = {"crumb": "crumb", "control": "image_replay"}


@dataclass(frozen=True)
class Bar:
    """One bar: the advantage of a condition under a perturbation, over all runs and over the filtered ones."""

    condition: str
    perturbation: str
    all_runs: Advantage | None
    filtered: Advantage | None


def bars_of(condition: str, runs: Sequence[RunDrops]) -> list[Bar]:
    """The bars of a condition, one for each perturbation."""
    kept = [run for run in runs if run.kept]
    return [
        Bar(condition, name, advantage_of(runs, name), advantage_of(kept, name))
        for name in PAPER_SIGN
    ]


def streamed(
    options: CommonOptions, findings: dict[str, Finding], style_root: Path | None
) -> list[RunDrops]:
    """The drops of each pair of finished runs on a benchmark, by the rows `crumb` and `control`."""
    by_number = {
        name: {run.number: run for run in found.runs}
        for name, found in findings.items()
    }
    kept = [{run.number for run in found.filter[0]} for found in findings.values()]
    out = []
    for number, run in by_number["crumb"].items():
        if number not in by_number["control"]:
            continue
        drops = {}
        for name, found in findings.items():
            settings = options.settings(
                found.cell.benchmark, **found.cell.settings, run=number
            )
            network = rebuilt(
                replace(settings, output=str(by_number[name][number].folder))
            )
            style = (
                None
                if style_root is None
                else StyleImages(style_root, network.table.classes)
            )
            labels = network.table.labels[network.rows]
            drops[name] = drops_of_network(
                network.after, network.batches(), labels, style
            )
        passed = all(number in numbers for numbers in kept)
        out.append(
            RunDrops(number, drops["crumb"], drops["control"], passed, run.split)
        )
    return out


def pretrained_network(file: str):
    """The network that `crumb pretrain` wrote, with its own classes and image size."""
    from crumb_avalanche.models.backbones import split_backbone
    from crumb_avalanche.models.codebook import Codebook
    from crumb_avalanche.models.weights import check_and_load
    from crumb_avalanche.training.pretraining import read_pretrained

    state, made = read_pretrained(file)
    names = ("relu_logits", "head_kernel", "image_size")
    model = split_backbone(
        made["backbone"],
        None,
        n_classes=made["classes"],
        codebook=Codebook(made["codebook_size"], made["codebook_dim"]),
        **{name: made[name] for name in names if name in made},
    )
    check_and_load(model, state, file)
    return model


def pretrained(
    crumb: str, control: str, test_root: str, style_root: Path | None
) -> RunDrops:
    """The drops of two pretrained networks on test images."""
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    from benchmarks_toybox_ilab.streams.torch_dataset import pixel_transform

    drops = {}
    for name, file in (("crumb", crumb), ("control", control)):
        model = pretrained_network(file)
        images = ImageFolder(test_root, pixel_transform(model.image_size))
        if len(images.classes) != model.n_classes:
            raise ValueError(
                f"{test_root} has {len(images.classes)} classes, but {file} was made with {model.n_classes}"
            )
        style = None if style_root is None else StyleImages(style_root, images.classes)
        batches = (pixels for pixels, _ in DataLoader(images, 32))
        drops[name] = drops_of_network(
            model, batches, np.asarray(images.targets), style
        )
    return RunDrops(0, drops["crumb"], drops["control"])


HEADER = [
    "condition",
    "perturbation",
    "the paper",
    "advantage",
    "standard error",
    "95 % interval",
    "p Holm",
    "verdict",
]
HEADER += ["drop, CRUMB", "drop, control", "runs", "filtered: advantage", "runs kept"]
HEADER += [
    "pairs in S4",
    "as in S4",
    "as in S4, Holm",
    "as in S4, filtered",
    "as in S4, filtered, Holm",
]


def lines_of(shown: Sequence[Bar]) -> list[list[str]]:
    """The bars as text; Holm's correction is over all of them."""
    every, filtered = [bar.all_runs for bar in shown], [bar.filtered for bar in shown]
    p_values = holm([one and one.over_runs.p for one in every])
    s4, s4_filtered = (
        holm([one and one.s4.p for one in some]) for some in (every, filtered)
    )
    lines = []
    for bar, one, kept, p_holm, p, p_filtered in zip(
        shown, every, filtered, p_values, s4, s4_filtered
    ):
        line, tested = (
            [bar.condition, bar.perturbation, PAPER_SIGN[bar.perturbation]],
            [""] * 3,
        )
        if one is None:
            line += [""] * 8
        else:
            error = "" if one.error is None else f"{one.error:.4f}"
            line += [
                f"{one.mean:+.4f}",
                error,
                interval_text(one.over_runs, "+.4f"),
                p_text(p_holm),
            ]
            line += [
                one.over_runs.verdict(p_holm),
                f"{one.crumb:.4f}",
                f"{one.control:.4f}",
                str(one.runs),
            ]
            tested = [str(one.s4.pairs), p_text(one.s4.p), p_text(p)]
        line += (
            ["", "", *tested, "", ""]
            if kept is None
            else [f"{kept.mean:+.4f}", str(kept.runs), *tested]
        )
        line += [] if kept is None else [p_text(kept.s4.p), p_text(p_filtered)]
        lines.append(line)
    return lines


def picture(shown: Sequence[Bar], title: str) -> Figure:
    """Plot the advantage of each run, its mean and deviation, by condition and perturbation."""
    series: dict[str, dict[str, list[float]]] = {}
    for bar in shown:
        values = (
            []
            if bar.all_runs is None
            else list(bar.all_runs.over_runs.differences.values())
        )
        series.setdefault(bar.condition, {})[f"{bar.perturbation} perturbation"] = (
            values
        )
    return bars({"relative accuracy advantage": series}, title)


def main() -> int:
    parser = parser_for(__doc__, "runs/fig4", several=True)
    parser.add_argument(
        "--figure", choices=["4", "S3"], default="4", help="figure of the paper"
    )
    parser.add_argument(
        "--pretrained", help="file of crumb pretrain (256x8) that CRUMB starts from"
    )
    parser.add_argument(
        "--control-pretrained",
        help="the same with --codebook-weight 0, for the pretraining condition",
    )
    parser.add_argument(
        "--test-root", help="test images of the pretraining classes, one folder a class"
    )
    parser.add_argument(
        "--style-root", help="images in another style, one folder a class"
    )
    parser.add_argument(
        "--pretraining-only",
        action="store_true",
        help="only the pretraining condition, no streams",
    )
    parser.add_argument(
        "--mem-size",
        type=int,
        help="memories; default the paper's ablations' for the benchmark",
    )
    chosen = parser.parse_args()
    options = common_options(chosen)
    style_root = Path(chosen.style_root) if chosen.style_root else None
    if chosen.pretraining_only and not (
        chosen.pretrained and chosen.control_pretrained and chosen.test_root
    ):
        raise ValueError(
            "--pretraining-only needs --pretrained, --control-pretrained and --test-root"
        )
    shown: list[Bar] = []
    if chosen.control_pretrained and chosen.pretrained and chosen.test_root:
        runs = [
            pretrained(
                chosen.pretrained,
                chosen.control_pretrained,
                chosen.test_root,
                style_root,
            )
        ]
        shown += bars_of("pretraining", runs)
    failed: dict[Path, str] = {}
    listed: list[Finding] = []
    for benchmark in () if chosen.pretraining_only else options.roots:
        protocol = options.protocols(
            benchmark, PROTOCOLS if chosen.figure == "4" else PROTOCOLS[1:]
        )[0]
        size = chosen.mem_size or MEM_SIZES.get(benchmark, MEM_SIZES[PAPER_DATASET])
        common = dict(
            protocol=protocol, mem_size=size, codebook_dim=8, keep_learner=True
        )
        cells = []
        for name, strategy in ROWS.items():
            settings = {
                "strategy": strategy,
                **common,
                "pretrained": chosen.pretrained if name == "crumb" else None,
            }
            cells.append(
                Cell(
                    name,
                    benchmark,
                    protocol,
                    options.output / benchmark / protocol / name,
                    settings,
                )
            )
        findings, failures = options.found(cells)
        failed |= failures
        listed += findings
        runs = streamed(options, {item.cell.row: item for item in findings}, style_root)
        shown += bars_of(f"{benchmark}, {protocol.replace('_', '-')}", runs)
    name = f"fig{chosen.figure}"
    print(f"\nFigure {chosen.figure}, relative accuracy advantage of CRUMB", end="")
    if listed:
        write_recorded(options.output / f"{name}_runs.csv", recorded_runs_of(listed))
    title = f"Figure {chosen.figure}: below 0, CRUMB is harmed more than its control"
    write_table(
        options.output, name, HEADER, lines_of(shown), figure=picture(shown, title)
    )
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
