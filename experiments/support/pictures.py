"""Pictures of the scripts: bars by row, and curves, in one or several panels."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crumb_avalanche.report.paired import interval
from crumb_avalanche.report.pictures import COLOURS, LINES, MARKERS, STRONG, STYLE

Series = Mapping[str, Mapping[str, Sequence[float]]]  # values by series and row
# Values at each place of the x axis, by the name of the line.
Lines = Mapping[str, Mapping[float, Sequence[float]]]
BAR_HEIGHT = 0.7  # of all bars of a row
MOST_COLUMNS = 3  # of panels


def bars(
    panels: Mapping[str, Series],
    title: str,
    label: str = "",
    xlim: tuple[float | None, float | None] = (None, None),
    columns: int = MOST_COLUMNS,
) -> Figure:
    """Plot panels of rows.

    A series has a bar at the mean of its values, with its 95 % interval and a dot for
    each. A series of the paper has diamonds, no bars. Values are those of independent
    units: of splits, or of runs where there is one split.

    Args:
        panels: series by the title of the panel.
        title: of the figure.
        label: of all x axes; without one, the titles of the panels are theirs.
        xlim: limits of all x axes.
        columns: most panels beside one another; 1 for the width of a phone.
    """
    rows = rows_of(panels)
    names = _names_of_bars(panels)
    count = max(1, len(names))
    with matplotlib.rc_context(STYLE):
        lines, columns = grid_of(len(panels), columns)
        height = 1.2 + max(0.28, 0.18 * count) * len(rows)
        size = (2 + 3.4 * columns, 0.6 + height * lines)
        figure = Figure(figsize=size, layout="constrained")
        set_title(figure, title)
        grid = figure.subplots(lines, columns, sharey=True, squeeze=False).flat
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for axes, (name, series) in zip(grid, panels.items()):
            _plot_series(axes, series, rows, names)
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
        _add_legend_of_axes(figure)
    return figure


def rows_of(panels: Mapping[str, Series]) -> list[str]:
    """Rows of all panels, in the order of their first series."""
    rows: dict[str, None] = {}
    for series in panels.values():
        for values in series.values():
            rows |= dict.fromkeys(values)
    return list(rows)


def _is_of_paper(name: str) -> bool:
    """Whether a series is of the paper."""
    return "paper" in name


def _names_of_bars(panels: Mapping[str, Series]) -> list[str]:
    """Return the series of all panels that have bars, each with a colour of its own."""
    names: dict[str, None] = {}
    for series in panels.values():
        names |= dict.fromkeys(name for name in series if not _is_of_paper(name))
    return list(names)


def _plot_series(
    axes: Axes, series: Series, rows: Sequence[str], names: Sequence[str]
) -> None:
    """Plot the series of a panel.

    Args:
        axes: what to plot on.
        series: of the panel.
        rows: of all panels, from top to bottom.
        names: series of all panels that have bars, in their order within a row.
    """
    for name, by_row in series.items():
        values = []
        indices = []
        for row, values_of_row in by_row.items():
            if len(values_of_row):
                values.append(list(values_of_row))
                indices.append(rows.index(row))
        means = list(map(fmean, values))
        if _is_of_paper(name):
            axes.plot(means, indices, "D", ms=4, color="black", label=name)
            continue
        number = names.index(name)
        offset = BAR_HEIGHT * ((number + 0.5) / len(names) - 0.5)
        heights = [index + offset for index in indices]
        axes.barh(
            heights,
            means,
            xerr=[interval(values_of_row)[1] for values_of_row in values],
            height=BAR_HEIGHT / len(names),
            color=COLOURS[number % len(COLOURS)],
            alpha=0.6,
            ecolor=STRONG,
            capsize=2,
            label=name,
        )
        for height, values_of_row in zip(heights, values):
            _plot_dots(axes, values_of_row, height)


def _plot_dots(axes: Axes, values: Sequence[float], height: float) -> None:
    """Plot a dot for each value of a bar."""
    heights = np.full(len(values), height)
    style = dict(ms=2.5, mfc="white", mec=STRONG, mew=0.6)
    axes.plot(values, heights, "o", **style)


def _add_legend_of_axes(figure: Figure) -> None:
    """Add one legend for the series of all panels, if there are several."""
    legend: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels()):
            if name:
                legend[name] = handle
    if len(legend) > 1:
        figure.legend(
            legend.values(), legend.keys(), loc="outside lower center", ncols=2
        )


def grid_of(count: int, columns: int) -> tuple[int, int]:
    """Return the lines and columns of a grid of panels, as full as possible.

    Args:
        count: of the panels.
        columns: most beside one another.
    """
    lines = max(1, math.ceil(count / columns))
    return lines, max(1, math.ceil(count / lines))


def curves(
    panels: Mapping[str, Lines], title: str, columns: int = MOST_COLUMNS, **settings
) -> Figure:
    """Plot panels of lines through means, with their 95 % intervals.

    A line of one place is horizontal. Values are those of independent units, as for
    ``bars``.

    Args:
        panels: lines by the title of the panel.
        title: of the figure.
        columns: most panels beside one another; 1 for the width of a phone.
        settings: of all axes; the label of the y axis stands once.
    """
    names: dict[str, None] = {}
    for lines in panels.values():
        names |= dict.fromkeys(lines)
    styles = {name: _line_style(index) for index, name in enumerate(names)}
    rows, columns = grid_of(len(panels), columns)
    handles: dict[str, Any] = {}
    with matplotlib.rc_context(STYLE):
        size = (1.5 + 4.3 * columns, 0.8 + 3.6 * rows)
        figure = Figure(figsize=size, layout="constrained")
        set_title(figure, title)
        grid = figure.subplots(rows, columns, squeeze=False).flat
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for axes, (name, lines) in zip(grid, panels.items()):
            for line, points in lines.items():
                if points:
                    handles[line] = _plot_line(axes, points, styles[line])
            # Places are counts; a scale that is set brings ticks of its own.
            axes.locator_params("x", integer=True)
            axes.set(title=name, **settings)
            axes.grid(axis="y", color="0.9", lw=0.6)
            if columns > 1:  # panels below one another may have other scales
                axes.label_outer()
        if handles:
            figure.legend(
                handles.values(),
                handles.keys(),
                loc="outside lower center",
                ncols=min(5, 1 + 2 * columns),
            )
    return figure


def _line_style(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of a line."""
    return dict(
        color=COLOURS[index % len(COLOURS)],
        ls=LINES[index // len(COLOURS) % len(LINES)],
        marker=MARKERS[index % len(MARKERS)],
    )


def _plot_line(
    axes: Axes, points: Mapping[float, Sequence[float]], style: dict[str, Any]
) -> Any:
    """Plot a line through the means of its points; return its handle."""
    positions = sorted(points)
    means = [fmean(points[position]) for position in positions]
    if len(positions) == 1:
        without_marker = {**style, "marker": ""}
        return axes.axhline(means[0], **without_marker)
    errors = [interval(points[position])[1] for position in positions]
    return axes.errorbar(positions, means, yerr=errors, ms=4, capsize=2, **style)


def set_title(figure: Figure, title: str) -> None:
    """Set the title of a figure, wrapped to its width."""
    figure.suptitle(textwrap.fill(title, int(10 * figure.get_figwidth())))
