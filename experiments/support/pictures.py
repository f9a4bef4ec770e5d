"""Pictures of the scripts: bars by row, in one or several panels."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from crumb_avalanche.report.palette import COLOURS
from crumb_avalanche.report.pictures import STYLE

Series = Mapping[str, Mapping[str, Sequence[float]]]  # values by series and row


def bars(panels: Mapping[str, Series], title: str, label: str = "", xlim: tuple = (None, None)) -> Figure:
    """Plot panels of rows: a bar at the mean of the values of each series, with their deviation and a dot for each.

    Args:
        panels: values by title of the panel, name of the series, and row; a series of the paper has diamonds, no bars.
        title: title of the figure.
        label: label of all x axes; without it the titles of the panels are their labels.
        xlim: limits of the x axes.
    """
    rows = list(dict.fromkeys(row for series in panels.values() for values in series.values() for row in values))
    count = max(sum("paper" not in name for name in series) for series in panels.values())
    with matplotlib.rc_context(STYLE):
        size = (3 + 4.2 * len(panels), 1.8 + max(0.28, 0.18 * count) * len(rows))
        figure = Figure(figsize=size, layout="constrained")
        set_title(figure, title)
        for axes, (name, series) in zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items()):
            place = 0
            for colour, (text, values) in zip(COLOURS, series.items()):
                known = {row: list(some) for row, some in values.items() if len(some)}
                means = [fmean(some) for some in known.values()]
                if "paper" in text and count:
                    axes.plot(means, [rows.index(row) for row in known], "D", ms=4, color=COLOURS[1], label=text)
                    continue
                ys = [rows.index(row) + 0.7 * ((place + 0.5) / count - 0.5) for row in known]
                error = [stdev(some) if len(some) > 1 else math.nan for some in known.values()]
                style = dict(height=0.7 / count, color=colour, alpha=0.6, ecolor="0.3", capsize=2, label=text)
                axes.barh(ys, means, xerr=error, **style)
                for y, some in zip(ys, known.values()):
                    axes.plot(some, np.full(len(some), y), "o", ms=2.5, mfc="white", mec="0.2", mew=0.6)
                place += 1
            axes.set(yticks=range(len(rows)), yticklabels=rows, xlabel=label or name, xlim=xlim)
            axes.set_title(name if label and len(panels) > 1 else "")
            axes.grid(axis="x", color="0.9", lw=0.6)
            axes.set_axisbelow(True)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        legend = {text: handle for one in figure.axes for handle, text in zip(*one.get_legend_handles_labels()) if text}
        if len(legend) > 1:
            figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=2)
    return figure


def set_title(figure: Figure, title: str) -> None:
    """Set the title of a figure, wrapped to its width."""
    figure.suptitle(textwrap.fill(title, int(10 * figure.get_figwidth())))
