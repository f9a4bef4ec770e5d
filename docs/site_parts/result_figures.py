"""Figures of recorded runs, drawn from their CSV files when the site is built."""

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from site_parts.csv_tables import DOCS, RECORDED, floats, grouped, read

from crumb_avalanche.report.palette import COLOURS, LINES, MARKERS

DATA_SETS = {"eth80": "ETH-80", "cifar100": "Online-CIFAR100"}
GREY = "#595959"
Groups = Mapping[str, Sequence[float]]  # accuracies of the runs of each row


def protocol_text(name: str) -> str:
    """Format a protocol's name."""
    return {"class_instance": "class-instance", "class_iid": "class-i.i.d."}[name]


def accuracies(series: dict[str, Groups], shown: str, size: tuple[float, float]) -> tuple[Figure, str]:
    """Draw the mean of each row and the standard deviation of its runs.

    Args:
        series: rows and their runs by the name of the series, in the order of the figure.
        shown: what the figure shows, for its caption.
        size: width and height in inches.
    """
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    rows = list(dict.fromkeys(row for groups in series.values() for row in groups))
    for number, (name, groups) in enumerate(series.items()):
        shift = 0.7 * ((number + 0.5) / len(series) - 0.5)
        for row, runs in groups.items():
            style = {"color": COLOURS[number], "marker": MARKERS[number], "ms": 5, "capsize": 2, "lw": 1.4}
            spread = statistics.stdev(runs) if len(runs) > 1 else 0
            label = name if row == next(iter(groups)) else None
            axes.errorbar(statistics.fmean(runs), rows.index(row) + shift, xerr=spread, label=label, **style)
    _rows(axes, rows)
    axes.set(xlim=(0, 102), xlabel="final accuracy, %")
    if len(series) > 1:
        figure.legend(loc="outside lower center", ncols=2)
    return figure, f"{shown}: mean and standard deviation of the runs."


def competitors(benchmark: str) -> tuple[Figure, str]:
    """Draw every method on a benchmark, the best first."""
    groups = grouped(read(DOCS / f"competitors_{benchmark}.csv"), "method", "protocol")
    best: dict[str, float] = {}
    for (method, _), lines in groups.items():
        best[method] = max(best.get(method, 0), statistics.fmean(floats(lines, "final_accuracy")))
    series: dict[str, dict[str, list[float]]] = {}
    for method in sorted(best, key=lambda method: -best[method]):
        for (name, protocol), lines in groups.items():
            if name == method:
                series.setdefault(protocol_text(protocol), {})[method] = floats(lines, "final_accuracy")
    shown = f"Every method on {DATA_SETS[benchmark]}"
    return accuracies(series, shown, (6.6, 1.2 + 0.28 * len(best)))


def recommended() -> tuple[Figure, str]:
    """Draw the recommended preset beside its relatives and rivals on ETH-80."""
    rows = grouped(read(DOCS / "recommended_eth80.csv"), "row")
    found = {row: floats(lines, "accuracy") for (row,), lines in rows.items()}
    series = {"": {row: found[row] for row in sorted(found, key=lambda row: -statistics.fmean(found[row]))}}
    figure, caption = accuracies(series, "ETH-80, class-instance", (6.6, 1.0 + 0.28 * len(rows)))
    figure.axes[0].set_xlim(60, 101)
    return figure, caption


def table1() -> tuple[Figure, str]:
    """Draw all methods of Table 1: ours on each benchmark."""
    series: dict[str, dict[str, list[float]]] = {}
    for line in read(RECORDED / "table1.csv"):
        if line["ours"]:
            name = f"{DATA_SETS[line['benchmark']]}, {protocol_text(line['protocol'])}"
            mean, spread = float(line["ours"]), float(line["std"] or 0)
            two = [mean - spread / 2**0.5, mean + spread / 2**0.5]  # of this mean and this standard deviation
            series.setdefault(name, {})[line["row"]] = two
        if line["paper"] and line["benchmark"] == line["paper_dataset"]:
            series.setdefault(f"{DATA_SETS[line['benchmark']]}, the paper", {})[line["row"]] = [float(line["paper"])]
    return accuracies(series, "The methods of Table 1 at the same bytes", (6.6, 7.6))


def stream(name: str) -> tuple[Figure, str]:
    """Draw accuracy along the stream, a panel for each benchmark (``fig3``, ``figS1``)."""
    panels = grouped(read(RECORDED / f"{name}.csv"), "benchmark", "protocol")
    methods = list(dict.fromkeys(line["method"] for lines in panels.values() for line in lines))
    figure = Figure(figsize=(5.2 * len(panels) + 1.2, 4.2), layout="constrained")
    for axes, ((benchmark, protocol), lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        for (method,), of_method in grouped(lines, "method").items():
            place = methods.index(method)
            style = {"color": COLOURS[place % len(COLOURS)], "ls": LINES[place // len(COLOURS)]}
            points = {
                int(number): floats(group, "accuracy") for (number,), group in grouped(of_method, "experience").items()
            }
            means = [statistics.fmean(points[number]) for number in sorted(points)]
            if len(points) == 1:  # the bound learns all classes at once
                axes.axhline(means[0], label=method, lw=1.4, **style)
            else:
                marker = MARKERS[place % len(MARKERS)]
                axes.plot(sorted(points), means, marker=marker, ms=4, lw=1.4, label=method, **style)
        title = f"{DATA_SETS[benchmark]}, {protocol_text(protocol)}"
        axes.set(title=title, xlabel="after experience", ylabel="accuracy over all seen classes, %", ylim=(0, 102))
        axes.xaxis.get_major_locator().set_params(integer=True)
    handles = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5)
    return figure, "Accuracy along the stream, mean of the runs; the upper bound learns all classes at once."


def codes_and_images(name: str) -> tuple[Figure, str]:
    """Draw the accuracy with codes and with as many images (``table3``, ``table3_cifar100``)."""
    panels = grouped([line for line in read(RECORDED / f"{name}.csv") if line["ours"]], "protocol")
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    for axes, ((protocol,), lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        for number, (label, kind) in enumerate((("codes", lines[::2]), ("images", lines[1::2]))):
            counts = [int(line["category"].removeprefix("n=")) for line in kind]
            style = {"color": COLOURS[number], "marker": MARKERS[number], "capsize": 3, "label": label}
            axes.errorbar(counts, floats(kind, "ours"), yerr=floats(kind, "std"), **style)
        axes.set(
            title=protocol_text(protocol), xlabel="memories", ylabel="final accuracy, %", xscale="log", ylim=(0, 100)
        )
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.minorticks_off()
    figure.axes[0].legend(loc="lower right")
    return figure, "Codes and as many raw images: mean and standard deviation of the runs."


def effects(name: str) -> tuple[Figure, str]:
    """Draw the effect of each ablation with its interval, beside the paper's."""
    lines = [line for line in read(RECORDED / f"{name}.csv") if line["effect"]]
    figure = Figure(figsize=(6.6, 1.2 + 0.26 * len(lines)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color=GREY, lw=0.8)
    for place, line in enumerate(lines):
        effect, low, high = (float(line[key]) for key in ("effect", "effect_low", "effect_high"))
        label, paper = ("here, 95 % interval", "the paper") if place == 0 else (None, None)
        style = {"color": COLOURS[0], "marker": MARKERS[0], "ms": 5, "capsize": 2, "lw": 1.4, "label": label}
        axes.errorbar(effect, place, xerr=[[effect - low], [high - effect]], **style)
        if line["paper_effect"]:
            axes.plot(float(line["paper_effect"]), place, MARKERS[2], color=COLOURS[1], ls="", label=paper)
    _rows(axes, [line["row"] for line in lines])
    axes.set_xlabel('difference to "Ours", percentage points')
    axes.legend(loc="lower left")
    return figure, 'Difference of each row to "Ours": here with its 95 % interval, and in the paper.'


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x", color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)


FIGURES = {
    "competitors_eth80": (lambda: competitors("eth80"), 420),
    "competitors_cifar100": (lambda: competitors("cifar100"), 420),
    "recommended_eth80": (recommended, 420),
    "table1": (table1, 420),
    **{name: (lambda name=name: stream(name), 560) for name in ("fig3", "figS1")},
    **{
        name: (lambda name=name: codes_and_images(name), 380)
        for name in ("table3", "table3_tiny_imagenet", "table3_cifar100")
    },
    **{
        name: (lambda name=name: effects(name), 420)
        for name in (
            "table4",
            "table4_class_iid",
            "table4_tiny_imagenet",
            "table4_tiny_imagenet_class_iid",
            "table4_cifar100",
        )
    },
}
