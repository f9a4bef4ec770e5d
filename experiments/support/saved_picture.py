"""Pictures of the scripts, and the common end of a script: printed table, files and picture."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from support.run_list import Listed, write_run_list
from support.side_by_side import Finding, print_findings, write_findings

from crumb_avalanche.report.palette import COLOURS, LINES, MARKERS
from crumb_avalanche.report.pictures import STYLE
from crumb_avalanche.report.pictures import save as save_picture

__all__ = ["COLOURS", "LINES", "MARKERS", "STYLE", "findings_picture", "publish", "save_picture", "set_title"]


def set_title(figure: Figure, title: str) -> None:
    """Set the title of a figure, wrapped to its width."""
    figure.suptitle(textwrap.fill(title, int(10 * figure.get_figwidth())))


def publish(findings: Sequence[Finding], heading: str, output: Path, name: str, figure: Figure | None = None) -> None:
    """Print a table; write it with its runs and its picture, by default `findings_picture`."""
    print(f"\n{heading}")
    print_findings(findings)
    written = write_findings(output, name, findings, heading)
    listed = [Listed(item.cell.row, item.cell.benchmark, item.cell.protocol, item.runs) for item in findings]
    written.append(write_run_list(output / f"{name}_runs.csv", listed))
    written += save_picture(figure or findings_picture(findings, heading), output, name)
    print("\nwritten: " + ", ".join(map(str, written)))


def findings_picture(findings: Sequence[Finding], title: str) -> Figure:
    """Plot a panel for each benchmark and protocol: a bar with the deviation of runs, a diamond for the paper.

    Rows without runs have no bar.
    """
    panels = list(dict.fromkeys((item.cell.benchmark, item.cell.protocol) for item in findings))
    rows = list(dict.fromkeys(item.cell.row for item in findings))
    by_cell = {(item.cell.benchmark, item.cell.protocol, item.cell.row): item for item in findings}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3 + 4.2 * len(panels), 1.8 + 0.28 * len(rows)), layout="constrained")
        set_title(figure, title)
        places = np.arange(len(rows))
        for axes, panel in zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels):
            items = [by_cell.get((*panel, row)) for row in rows]
            run = [(place, item) for place, item in zip(places, items) if item is not None and item.runs]
            axes.barh(
                [place for place, _ in run],
                [item.mean for _, item in run],
                xerr=[math.nan if item.spread is None else item.spread for _, item in run],
                height=0.65,
                color=COLOURS[5],
                ecolor="0.3",
                capsize=2,
                label="ours: mean, standard deviation of runs",
            )
            paper = [(place, item.cell) for place, item in zip(places, items) if item is not None and item.cell.paper]
            datasets = ", ".join(dict.fromkeys(cell.paper_dataset for _, cell in paper))
            if paper:
                values = [cell.paper.value for _, cell in paper]
                label = f"the paper, on {datasets}"
                axes.plot(values, [place for place, _ in paper], "D", ms=4, color=COLOURS[1], label=label)
            axes.set(xlim=(0, 100), title=f"{panel[0]}, {panel[1].replace('_', '-')}", yticks=places, yticklabels=rows)
            axes.set_xlabel("accuracy over all classes at the end (%)")
            axes.grid(axis="x", color="0.9", lw=0.6)
            axes.set_axisbelow(True)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        shown = {label: handle for one in figure.axes for handle, label in zip(*one.get_legend_handles_labels())}
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=2)
    return figure
