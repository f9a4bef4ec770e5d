"""Figures of recorded runs, drawn from their CSV files when the site is built."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

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

Series = dict[
    str, dict[str, list[float]]
]  # accuracies of the runs of each row, by the name of a series
ACCURACY = "final accuracy, %"


def accuracies(
    series: Mapping[str, Mapping[str, Sequence[float]]], shown: str, least: int = 0
) -> tuple[Figure, str]:
    """Draw the runs of each row, their mean and standard deviation."""
    caption = f"{shown}: mean and standard deviation of the runs, which are the dots."
    return bars({"": series}, "", ACCURACY, (least, 102)), caption


def competitors(benchmark: str) -> tuple[Figure, str]:
    """Draw every method on a benchmark, the best first."""
    groups = grouped(read(DOCS / f"competitors_{benchmark}.csv"), "method", "protocol")
    means = {
        key: statistics.fmean(floats(lines, "final_accuracy"))
        for key, lines in groups.items()
    }
    methods = {method for method, _ in groups}
    best = {
        method: max(mean for (name, _), mean in means.items() if name == method)
        for method in methods
    }
    series: Series = {}
    for method, protocol in sorted(groups, key=lambda key: (-best[key[0]], key[0])):
        found = floats(groups[method, protocol], "final_accuracy")
        series.setdefault(protocol_text(protocol), {})[method] = found
    return accuracies(series, f"Every method on {DATA_SETS[benchmark]}")


def recommended() -> tuple[Figure, str]:
    """Draw the recommended preset beside its relatives and rivals on ETH-80."""
    rows = grouped(read(DOCS / "recommended_eth80.csv"), "row")
    found = {row: floats(lines, "accuracy") for (row,), lines in rows.items()}
    order = sorted(found, key=lambda row: -statistics.fmean(found[row]))
    return accuracies(
        {"": {row: found[row] for row in order}}, "ETH-80, class-instance", 60
    )


def table1() -> tuple[Figure, str]:
    """Draw all methods of Table 1: ours on each benchmark."""
    series: Series = {}
    groups = grouped(read(RUNS / "table1_runs.csv"), "benchmark", "protocol", "row")
    for (benchmark, protocol, row), lines in groups.items():
        name = f"{DATA_SETS[benchmark]}, {protocol_text(protocol)}"
        series.setdefault(name, {})[row] = floats(lines, "final_accuracy")
    for line in read(RECORDED / "table1.csv"):
        if line["paper"] and line["benchmark"] == line["paper_dataset"]:
            series.setdefault(f"{DATA_SETS[line['benchmark']]}, the paper", {})[
                line["row"]
            ] = [float(line["paper"])]
    return accuracies(series, "The methods of Table 1 at the same bytes")


def stream(name: str) -> tuple[Figure, str]:
    """Draw accuracy along the stream, a panel for each benchmark (``fig3``, ``figS1``, ``figS2``)."""
    panels: dict[str, dict[str, dict[int, list[float]]]] = {}
    for line in read(RECORDED / f"{name}.csv"):
        panel = panels.setdefault(
            f"{DATA_SETS[line['benchmark']]}, {protocol_text(line['protocol'])}", {}
        )
        points = panel.setdefault(line["method"], {}).setdefault(
            int(line["experience"]), []
        )
        points.append(float(line["accuracy"]))
    axes = dict(
        xlabel="after experience",
        ylabel="accuracy over all seen classes, %",
        ylim=(0, 102),
    )
    caption = "Accuracy along the stream, mean and root-mean-square error of the runs; the upper bound learns all"
    return curves(panels, "", **axes), f"{caption} classes at once."


def codes_and_images(name: str) -> tuple[Figure, str]:
    """Draw the accuracy with codes and with as many images (``table3``, ``table3_cifar100``)."""
    panels: dict[str, dict[str, dict[int, list[float]]]] = {}
    for line in read(RUNS / f"{name}_runs.csv"):
        count, _, kind = line["row"].removeprefix("n=").partition(" ")
        panel = panels.setdefault(protocol_text(line["protocol"]), {})
        points = panel.setdefault(
            "codes" if kind == "Ours" else "images", {}
        ).setdefault(int(count), [])
        points.append(float(line["final_accuracy"]))
    axes = dict(xlabel="memories", ylabel=ACCURACY, xscale="log", ylim=(0, 100))
    return curves(
        panels, "", **axes
    ), "Codes and as many raw images: mean and root-mean-square error of the runs."


def effects(name: str) -> tuple[Figure, str]:
    """Draw the effect of each ablation with its interval, beside the paper's."""
    lines = [line for line in read(RECORDED / f"{name}.csv") if line["effect"]]
    figure = Figure(figsize=(6.6, 1.2 + 0.26 * len(lines)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="#595959", lw=0.8)
    effect, low, high = (
        floats(lines, key) for key in ("effect", "effect_low", "effect_high")
    )
    widths = [
        [one - other for one, other in zip(*some)]
        for some in ((effect, low), (high, effect))
    ]
    style = {"ls": "", "ms": 5, "capsize": 2, "label": "here, 95 % interval"}
    axes.errorbar(
        effect,
        range(len(lines)),
        xerr=widths,
        color=COLOURS[0],
        marker=MARKERS[0],
        **style,
    )
    paper = [
        (float(line["paper_effect"]), place)
        for place, line in enumerate(lines)
        if line["paper_effect"]
    ]
    if paper:
        axes.plot(*zip(*paper), MARKERS[2], color=COLOURS[1], ls="", label="the paper")
    axes.set_yticks(range(len(lines)), [line["row"] for line in lines])
    axes.set(
        ylim=(len(lines) - 0.4, -0.6), xlabel='difference to "Ours", percentage points'
    )
    axes.grid(axis="x", color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="lower left")
    return (
        figure,
        'Difference of each row to "Ours": here with its 95 % interval, and in the paper.',
    )


# Each with the least width in pixels in which its text can be read.
FIGURES: dict[str, tuple[Callable[[], tuple[Figure, str]], int]] = {
    "competitors_eth80": (partial(competitors, "eth80"), 420),
    "competitors_cifar100": (partial(competitors, "cifar100"), 420),
    "recommended_eth80": (recommended, 420),
    "table1": (table1, 420),
}
for _name in ("fig3", "figS1", "figS2"):
    FIGURES[_name] = partial(stream, _name), 560
for _name in ("table3", "table3_tiny_imagenet", "table3_cifar100"):
    FIGURES[_name] = partial(codes_and_images, _name), 380
for _name in (
    "",
    "_class_iid",
    "_tiny_imagenet",
    "_tiny_imagenet_class_iid",
    "_cifar100",
):
    FIGURES[f"table4{_name}"] = partial(effects, f"table4{_name}"), 420
