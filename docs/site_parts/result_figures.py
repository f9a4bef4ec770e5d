"""Figures of recorded runs, drawn from their CSV files when the site is built."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter

import numpy as np
from matplotlib.figure import Figure
from site_parts.csv_tables import (
    DATA_SETS,
    DOCS,
    LABELS,
    RECORDED,
    RUNS,
    Line,
    floats,
    grouped,
    protocol_text,
    read,
    unit_means,
)
from support.pictures import bars, curves

from crumb_avalanche.report.pictures import COLOURS, MARKERS

# Accuracies of the splits of each row, by the name of a series.
Series = dict[str, dict[str, list[float]]]
# Accuracies of the splits at each point, by the name of a panel and of a curve.
Panels = dict[str, dict[str, dict[int, list[float]]]]
Drawn = tuple[Figure, str]  # a figure and its caption
ACCURACY = "final accuracy, %"
SPREAD = (
    "the mean over splits (over runs where there is one split), its 95 % interval, and "
    "a dot for each split; a single run has no interval"
)
COMPETITOR_SPLITS = 5  # of the recorded runs of all methods on ETH-80
SPLIT = itemgetter("frame_table_sha256")
# Of Table 1, a file for each data set and protocol; Figures 3 and S1 are of its runs.
TABLE1 = ("table1", "table1_class_iid", "table1_cifar100")


def accuracies(
    series: Mapping[str, Mapping[str, Sequence[float]]], shown: str
) -> Drawn:
    """Draw the splits of each row, their mean and its interval."""
    return bars({"": series}, "", ACCURACY, (0, 102)), f"{shown}: {SPREAD}."


def split_of_competitor(line: Line) -> str:
    """Return the split of a run of ``competitors_*.csv``: run 5 has that of run 0."""
    return str(int(line["run"]) % COMPETITOR_SPLITS)


def competitors(benchmark: str) -> Drawn:
    """Draw every method on a benchmark, the best first."""
    lines = read(DOCS / f"competitors_{benchmark}.csv")
    groups = grouped(lines, "method", "protocol")
    best: dict[str, float] = {}  # mean of the better protocol
    for (method, _), of_method in groups.items():
        mean = statistics.fmean(floats(of_method, "final_accuracy"))
        best[method] = max(mean, best.get(method, 0.0))
    series: Series = {}
    for method, protocol in sorted(groups, key=lambda key: (-best[key[0]], key[0])):
        runs = groups[method, protocol]
        if benchmark == "eth80":
            units = unit_means(runs, "final_accuracy", split_of_competitor)
        else:
            units = floats(runs, "final_accuracy")
        series.setdefault(protocol_text(protocol), {})[method] = units
    return accuracies(series, f"Every method on {DATA_SETS[benchmark]}")


def recommended() -> Drawn:
    """Draw the recommended preset beside its relatives and rivals on ETH-80."""
    rows = {}
    for (row,), lines in grouped(read(DOCS / "recommended_eth80.csv"), "row").items():
        rows[row] = unit_means(lines, "accuracy", itemgetter("frame_table"))
    order = sorted(rows, key=lambda row: -statistics.fmean(rows[row]))
    best_first = {row: rows[row] for row in order}
    title = (
        'ETH-80, class-instance ("recommended" looks at the whole image alone, "both '
        'looks" is its default)'
    )
    return accuracies({"": best_first}, title)


def table1() -> Drawn:
    """Draw all methods of Table 1, a panel for each benchmark."""
    panels: dict[str, Series] = {}
    runs = [line for name in TABLE1 for line in read(RUNS / f"{name}_runs.csv")]
    groups = grouped(runs, "benchmark", "protocol", "row")
    for (benchmark, protocol, row), lines in groups.items():
        series = panels.setdefault(DATA_SETS[benchmark], {})
        units = unit_means(lines, "final_accuracy", SPLIT)
        series.setdefault(protocol_text(protocol), {})[row] = units
    for line in [line for name in TABLE1 for line in read(RECORDED / f"{name}.csv")]:
        if line["paper"] and line["benchmark"] == line["paper_dataset"]:
            series = panels[DATA_SETS[line["benchmark"]]]
            series.setdefault("the paper", {})[line["row"]] = [float(line["paper"])]
    figure = bars(panels, "", ACCURACY, (0, 102), columns=1)
    caption = (
        f"The methods of Table 1 at the same bytes: {SPREAD}. Diamonds are the paper's."
    )
    return figure, caption


def _along_the_stream(panels: Panels) -> Figure:
    """Draw accuracies after each experience."""
    return curves(
        panels,
        "",
        columns=1,
        xlabel="after experience",
        ylabel="accuracy over all seen classes, %",
        ylim=(0, 102),
    )


def stream(name: str) -> Drawn:
    """Draw accuracy along the stream, a panel for each benchmark (``fig3``, ``figS1``, ``figS2``)."""
    columns = ("benchmark", "protocol", "run")
    splits = {}
    for runs_name in ["figS2"] if name == "figS2" else TABLE1:
        for line in read(RUNS / f"{runs_name}_runs.csv"):
            splits[tuple(line[column] for column in columns)] = SPLIT(line)

    def split(line: Line) -> str:
        return splits[tuple(line[column] for column in columns)]

    panels: Panels = {}
    keys = ("benchmark", "protocol", "method", "experience")
    for key, lines in grouped(read(RECORDED / f"{name}.csv"), *keys).items():
        benchmark, protocol, method, experience = key
        panel = f"{DATA_SETS[benchmark]}, {protocol_text(protocol)}"
        points = panels.setdefault(panel, {}).setdefault(method, {})
        points[int(experience)] = unit_means(lines, "accuracy", split)
    return _along_the_stream(panels), (
        "Accuracy along the stream, mean and 95 % interval over splits (over runs where there is one split); the row "
        '"Upper bound" learns all classes at once.'
    )


def codes_and_images(name: str) -> Drawn:
    """Draw the accuracy with codes and with as many images (``table3``, ``table3_cifar100``)."""
    panels: Panels = {}
    for (row, protocol), lines in grouped(
        read(RUNS / f"{name}_runs.csv"), "row", "protocol"
    ).items():
        count, _, kind = row.removeprefix("n=").partition(" ")
        curve = "codes" if kind == "Ours" else "images"
        points = panels.setdefault(protocol_text(protocol), {}).setdefault(curve, {})
        points[int(count)] = unit_means(lines, "final_accuracy", SPLIT)
    figure = curves(
        panels,
        "",
        columns=1,
        xlabel="memories",
        ylabel=ACCURACY,
        xscale="log",
        ylim=(0, 100),
    )
    caption = "Codes and as many raw images: mean and 95 % interval over splits (over runs where there is one split)."
    return figure, caption


def bytes_dial() -> Drawn:
    """Draw accuracy against bytes, a panel for each data set."""
    panels: Panels = {}
    for line in read(RECORDED / "bytes_dial.csv"):
        panel = panels.setdefault(DATA_SETS[line["benchmark"]], {})
        method = LABELS["bytes_dial"][line["row"]]
        points = panel.setdefault(re.sub("[`*]", "", method), {})
        accuracy = float(line["accuracy"])
        points.setdefault(int(line["memory_bytes"]), []).append(accuracy)
    figure = curves(
        panels,
        "",
        columns=1,
        xscale="log",
        xlim=(7e4, 2e7),
        xlabel="bytes kept",
        ylabel=ACCURACY,
        ylim=(0, 102),
    )
    caption = (
        "Accuracy against bytes in run 0. A method of one size is a horizontal line."
    )
    return figure, caption


def demo() -> Drawn:
    """Draw the accuracy along the stream of ``crumb demo``."""
    methods: dict[str, dict[int, list[float]]] = {}
    for line in read(RECORDED / "demo.csv"):
        points = methods.setdefault(line["group"], {})
        for number in range(1, 6):
            accuracy = line[f"accuracy_after_{number}"]
            if accuracy:  # offline is tested at the end alone
                points[number] = [float(accuracy)]
    return _along_the_stream({"": methods}), (
        "One run of the demo, ten classes of rendered shapes. CRUMB and image replay keep as many bytes; offline sees "
        "all images at once, in every epoch; chance is 10 % at the end."
    )


def effects(name: str) -> Drawn:
    """Draw the effect of each ablation with its interval, beside the paper's."""
    lines = [line for line in read(RECORDED / f"{name}.csv") if line["effect"]]
    figure = Figure(figsize=(5.6, 1.2 + 0.26 * len(lines)), layout="constrained")
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
    "competitors_eth80": (partial(competitors, "eth80"), 340),
    "competitors_cifar100": (partial(competitors, "cifar100"), 340),
    "recommended_eth80": (recommended, 340),
    "table1": (table1, 340),
    "bytes_dial": (bytes_dial, 340),
    "demo": (demo, 340),
}
for _name in ("fig3", "figS1", "figS2"):
    FIGURES[_name] = (partial(stream, _name), 340)
for _name in ("table3", "table3_tiny_imagenet", "table3_cifar100"):
    FIGURES[_name] = (partial(codes_and_images, _name), 340)
for _name in (
    "",
    "_class_iid",
    "_tiny_imagenet",
    "_tiny_imagenet_class_iid",
    "_cifar100",
):
    FIGURES[f"table4{_name}"] = (partial(effects, f"table4{_name}"), 340)
