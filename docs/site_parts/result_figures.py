"""Figures of recorded runs, drawn from their CSV files when the site is built."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from site_parts.csv_tables import (
    DATA_SETS,
    DOCS,
    RECORDED,
    RUNS,
    floats,
    grouped,
    protocol_text,
    read,
)
from support.pictures import bars, curves

from crumb_avalanche.report.pictures import COLOURS, MARKERS

# Accuracies of the runs of each row, by the name of a series.
Series = dict[str, dict[str, list[float]]]
# Accuracies of the runs at each point, by the name of a panel and of a curve.
Panels = dict[str, dict[str, dict[int, list[float]]]]
Drawn = tuple[Figure, str]  # a figure and its caption
ACCURACY = "final accuracy, %"


def accuracies(
    series: Mapping[str, Mapping[str, Sequence[float]]], shown: str, least: int = 0
) -> Drawn:
    """Draw the runs of each row, their mean and standard deviation."""
    caption = f"{shown}: mean and standard deviation of the runs, which are the dots."
    return bars({"": series}, "", ACCURACY, (least, 102)), caption


def competitors(benchmark: str) -> Drawn:
    """Draw every method on a benchmark, the best first."""
    groups = grouped(read(DOCS / f"competitors_{benchmark}.csv"), "method", "protocol")
    best: dict[str, float] = {}  # mean of the better protocol
    for (method, _), lines in groups.items():
        mean = statistics.fmean(floats(lines, "final_accuracy"))
        best[method] = max(mean, best.get(method, 0.0))
    series: Series = {}
    for method, protocol in sorted(groups, key=lambda key: (-best[key[0]], key[0])):
        runs = floats(groups[method, protocol], "final_accuracy")
        series.setdefault(protocol_text(protocol), {})[method] = runs
    return accuracies(series, f"Every method on {DATA_SETS[benchmark]}")


def recommended() -> Drawn:
    """Draw the recommended preset beside its relatives and rivals on ETH-80."""
    runs = {}
    for (row,), lines in grouped(read(DOCS / "recommended_eth80.csv"), "row").items():
        runs[row] = floats(lines, "accuracy")
    order = sorted(runs, key=lambda row: -statistics.fmean(runs[row]))
    best_first = {row: runs[row] for row in order}
    return accuracies({"": best_first}, "ETH-80, class-instance", 60)


def table1() -> Drawn:
    """Draw all methods of Table 1: ours on each benchmark."""
    series: Series = {}
    groups = grouped(read(RUNS / "table1_runs.csv"), "benchmark", "protocol", "row")
    for (benchmark, protocol, row), lines in groups.items():
        name = f"{DATA_SETS[benchmark]}, {protocol_text(protocol)}"
        series.setdefault(name, {})[row] = floats(lines, "final_accuracy")
    for line in read(RECORDED / "table1.csv"):
        if line["paper"] and line["benchmark"] == line["paper_dataset"]:
            name = f"{DATA_SETS[line['benchmark']]}, the paper"
            series.setdefault(name, {})[line["row"]] = [float(line["paper"])]
    return accuracies(series, "The methods of Table 1 at the same bytes")


def add_point(
    panels: Panels, panel: str, curve: str, point: int, accuracy: str
) -> None:
    """Add a run to a point of a curve."""
    points = panels.setdefault(panel, {}).setdefault(curve, {})
    points.setdefault(point, []).append(float(accuracy))


def stream(name: str) -> Drawn:
    """Draw accuracy along the stream, a panel for each benchmark (``fig3``, ``figS1``, ``figS2``)."""
    panels: Panels = {}
    for line in read(RECORDED / f"{name}.csv"):
        data_set = DATA_SETS[line["benchmark"]]
        panel = f"{data_set}, {protocol_text(line['protocol'])}"
        experience = int(line["experience"])
        add_point(panels, panel, line["method"], experience, line["accuracy"])
    figure = curves(
        panels,
        "",
        xlabel="after experience",
        ylabel="accuracy over all seen classes, %",
        ylim=(0, 102),
    )
    return figure, (
        "Accuracy along the stream, mean and root-mean-square error of the runs; the upper bound learns all classes at "
        "once."
    )


def codes_and_images(name: str) -> Drawn:
    """Draw the accuracy with codes and with as many images (``table3``, ``table3_cifar100``)."""
    panels: Panels = {}
    for line in read(RUNS / f"{name}_runs.csv"):
        count, _, kind = line["row"].removeprefix("n=").partition(" ")
        panel = protocol_text(line["protocol"])
        curve = "codes" if kind == "Ours" else "images"
        add_point(panels, panel, curve, int(count), line["final_accuracy"])
    figure = curves(
        panels, "", xlabel="memories", ylabel=ACCURACY, xscale="log", ylim=(0, 100)
    )
    caption = (
        "Codes and as many raw images: mean and root-mean-square error of the runs."
    )
    return figure, caption


def effects(name: str) -> Drawn:
    """Draw the effect of each ablation with its interval, beside the paper's."""
    lines = [line for line in read(RECORDED / f"{name}.csv") if line["effect"]]
    figure = Figure(figsize=(6.6, 1.2 + 0.26 * len(lines)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="#595959", lw=0.8)
    effect = np.array(floats(lines, "effect"))
    below = effect - floats(lines, "effect_low")
    above = np.array(floats(lines, "effect_high")) - effect
    axes.errorbar(
        effect,
        range(len(lines)),
        xerr=[below, above],
        color=COLOURS[0],
        marker=MARKERS[0],
        ls="",
        ms=5,
        capsize=2,
        label="here, 95 % interval",
    )
    rows = [row for row, line in enumerate(lines) if line["paper_effect"]]
    if rows:
        axes.plot(
            [float(lines[row]["paper_effect"]) for row in rows],
            rows,
            MARKERS[2],
            color=COLOURS[1],
            ls="",
            label="the paper",
        )
    axes.set_yticks(range(len(lines)), [line["row"] for line in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlabel('difference to "Ours", percentage points')
    axes.grid(axis="x", color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="lower left")
    caption = 'Difference of each row to "Ours": here with its 95 % interval, and in the paper.'
    return figure, caption


# Each with the least width in pixels in which its text can be read.
FIGURES: dict[str, tuple[Callable[[], Drawn], int]] = {
    "competitors_eth80": (partial(competitors, "eth80"), 420),
    "competitors_cifar100": (partial(competitors, "cifar100"), 420),
    "recommended_eth80": (recommended, 420),
    "table1": (table1, 420),
}
for _name in ("fig3", "figS1", "figS2"):
    FIGURES[_name] = (partial(stream, _name), 560)
for _name in ("table3", "table3_tiny_imagenet", "table3_cifar100"):
    FIGURES[_name] = (partial(codes_and_images, _name), 380)
for _name in (
    "",
    "_class_iid",
    "_tiny_imagenet",
    "_tiny_imagenet_class_iid",
    "_cifar100",
):
    FIGURES[f"table4{_name}"] = (partial(effects, f"table4{_name}"), 420)
