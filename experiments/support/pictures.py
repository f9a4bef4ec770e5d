"""Pictures of the scripts: bars by row, and curves, in one or several panels."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev, stdev

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from crumb_avalanche.report.pictures import COLOURS, LINES, MARKERS, STYLE

Series = Mapping[str, Mapping[str, Sequence[float]]]  # values by series and row


def bars(
    panels: Mapping[str, Series],
    title: str,
    label: str = "",
    xlim: tuple = (None, None),
) -> Figure:
    """Plot panels of rows: a bar at the mean of the values of each series, with their deviation and a dot for each.

    A series of the paper has diamonds, no bars. Without a label of all x axes, the
    titles of the panels are theirs.
    """
    rows = list(
        dict.fromkeys(
            row
            for series in panels.values()
            for values in series.values()
            for row in values
        )
    )
    count = max(
        sum("paper" not in name for name in series) for series in panels.values()
    )
    with matplotlib.rc_context(STYLE):
        size = (3 + 4.2 * len(panels), 1.8 + max(0.28, 0.18 * count) * len(rows))
        figure = Figure(figsize=size, layout="constrained")
        set_title(figure, title)
        for axes, (name, series) in zip(
            figure.subplots(1, len(panels), sharey=True, squeeze=False)[0],
            panels.items(),
        ):
            place = 0
            for colour, (text, values) in zip(COLOURS, series.items()):
                known = {row: list(some) for row, some in values.items() if len(some)}
                means = [fmean(some) for some in known.values()]
                if "paper" in text and count:
                    axes.plot(
                        means,
                        [rows.index(row) for row in known],
                        "D",
                        ms=4,
                        color=COLOURS[1],
                        label=text,
                    )
                    continue
                ys = [
                    rows.index(row) + 0.7 * ((place + 0.5) / count - 0.5)
                    for row in known
                ]
                error = [
                    stdev(some) if len(some) > 1 else math.nan
                    for some in known.values()
                ]
                style = dict(
                    height=0.7 / count,
                    color=colour,
                    alpha=0.6,
                    ecolor="0.3",
                    capsize=2,
                    label=text,
                )
                axes.barh(ys, means, xerr=error, **style)
                for y, some in zip(ys, known.values()):
                    axes.plot(
                        some,
                        np.full(len(some), y),
                        "o",
                        ms=2.5,
                        mfc="white",
                        mec="0.2",
                        mew=0.6,
                    )
                place += 1
            axes.set(
                yticks=range(len(rows)),
                yticklabels=rows,
                xlabel=label or name,
                xlim=xlim,
            )
            axes.set_title(name if label and len(panels) > 1 else "")
            axes.grid(axis="x", color="0.9", lw=0.6)
            axes.set_axisbelow(True)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        legend = {
            text: handle
            for one in figure.axes
            for handle, text in zip(*one.get_legend_handles_labels())
            if text
        }
        if len(legend) > 1:
            figure.legend(
                legend.values(), legend.keys(), loc="outside lower center", ncols=2
            )
    return figure


def curves(
    panels: Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]],
    title: str,
    **settings,
) -> Figure:
    """Plot panels of lines through the mean of the values at each place, with their root-mean-square error.

    A line of one place is horizontal. The settings are those of all axes; the label of
    the y axis stands once.
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(1.5 + 4.3 * columns, 0.8 + 3.6 * rows), layout="constrained"
        )
        set_title(figure, title)
        grid, handles = figure.subplots(rows, columns, squeeze=False), {}
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, (text, lines) in zip(grid.flat, panels.items()):
            for name, points in lines.items():
                place = names.index(name)
                style = dict(
                    color=COLOURS[place % len(COLOURS)],
                    ls=LINES[place // len(COLOURS) % len(LINES)],
                )
                points = dict(sorted(points.items()))
                means, errors = (
                    [of(values) for values in points.values()] for of in (fmean, pstdev)
                )
                if len(points) == 1:
                    handles[name] = axes.axhline(means[0], **style)
                elif points:
                    style |= dict(marker=MARKERS[place % len(MARKERS)], ms=4, capsize=2)
                    handles[name] = axes.errorbar(
                        list(points), means, yerr=errors, **style
                    )
            axes.locator_params(
                "x", integer=True
            )  # places are counts; a scale that is set brings ticks of its own
            axes.set(title=text, **settings)
            axes.grid(axis="y", color="0.9", lw=0.6)
            axes.label_outer()
        if handles:
            figure.legend(
                handles.values(), handles.keys(), loc="outside lower center", ncols=5
            )
    return figure


def set_title(figure: Figure, title: str) -> None:
    """Set the title of a figure, wrapped to its width."""
    figure.suptitle(textwrap.fill(title, int(10 * figure.get_figwidth())))
