"""``report.html``: one page about finished runs that makes no request and is readable without its script."""

import io
import re
import statistics

import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.report.page import EMPTY, Cell, Matrix, Table, render
from crumb_avalanche.report.pictures import PAGE_COLOURS, STYLE, Curve, chance_of, draw_curves, draw_finals
from crumb_avalanche.report.run_tables import curves_table, ledger_tables, settings_tables
from crumb_avalanche.report.runs import Group, notes_on, streams_of
from crumb_avalanche.runs.tables import cell
from crumb_avalanche.system.progress import counted

OPEN_MATRICES = 6  # groups; with more, the matrices are collapsed
WIDE = 12  # experiences; with more, the matrices are set smaller
CROWDED = 8  # curves; with more, bands would cover each other


def report_page(groups: list[Group], summary: Table, runs: Table, left_out: list[str]) -> str:
    """Render the page about groups of runs, with a table of the groups, one of the runs, and what is left out."""
    shown = dict.fromkeys(stream for streams in streams_of(groups) for stream in streams)
    names = " and ".join(dict.fromkeys(f"{cell(stream[0])}, {cell(stream[1])}" for stream in shown))
    total = sum(len(group.runs) for group in groups)
    lead = f"{counted(total, 'finished run')} in {counted(len(groups), 'group')}; the runs of a group differ in their "
    lead += "seed only. Accuracy is in percent of the test images, mean ± standard deviation over runs (n - 1)."
    times = "times of different runs are comparable only when measured side by side on the same machine"
    differ, same = settings_tables(groups)
    kept, spent = ledger_tables(groups)
    return render(
        "report.html",
        title=f"{names if len(names) <= 80 else 'Finished runs'}: {counted(total, 'run')}",
        lead=lead,
        numbers=range(len(groups)),
        run_numbers=[number for number, group in enumerate(groups) for _ in group.runs],
        summary=summary,
        notes=[*notes_on(groups), *left_out, times],
        streams=_streams(groups),
        matrices=[(group, _matrix(group), _classes(group)) for group in groups],
        ledger_bytes=kept,
        ledger_seconds=spent,
        runs=runs,
        settings_differ=differ,
        settings_same=same,
        OPEN_MATRICES=OPEN_MATRICES,
    )


def _streams(groups: list[Group]) -> list[dict]:
    """Two figures and a table for each stream, because accuracies on different streams do not compare."""
    streams: dict[tuple, list[int]] = {}
    for number, seen_on in enumerate(streams_of(groups)):
        for stream in seen_on:
            streams.setdefault(stream, []).append(number)
    found = []
    for place, (stream, numbers) in enumerate(streams.items()):
        name = f"{cell(stream[0])}, {cell(stream[1])}"
        shown = [groups[number] for number in numbers]
        curves = [group.curve for group in shown]
        for curve, label in zip(curves, _labels_within(shown)):
            curve.label = label
        banded = len(curves) <= CROWDED and any(curve.std for curve in curves)
        band = ", band of one standard deviation" if banded else ""
        labels = (
            f"Accuracy over all classes seen: mean of runs{band}",
            "Final accuracy: bar mean, line one standard deviation, dots runs",
        )
        drawn = [
            (inline_svg(figure, f"{kind}-{place}-", f"{label}; {name}", numbers), label)
            for kind, figure, label in zip(("curves", "finals"), _figures(curves), labels)
        ]
        found.append({"name": name, "figures": drawn, "table": curves_table(shown), "numbers": numbers})
    return found


def _labels_within(groups: list[Group]) -> list[str]:
    """Labels of groups on one stream, without the stream's name if they stay distinct."""
    labels = [group.label for group in groups]
    for name in ("benchmark", "protocol", "dataset_root"):
        labels = [label.replace(f", {name}={cell(g.settings.get(name), 24)}", "") for g, label in zip(groups, labels)]
    return labels if len(set(labels)) == len(labels) else [group.label for group in groups]


def _matrix(group: Group) -> Matrix:
    width, rows = len(group.runs[0].matrix[-1]), []
    for after, cells in enumerate(group.runs[0].matrix):
        row = []
        for place in range(width):
            values = [run.matrix[after][place] for run in group.runs if place < len(run.matrix[after])]
            seen = place < len(cells) and len(values) == len(group.runs)
            row.append((_mean(values), f"{statistics.fmean(values) / 100:.1%}") if seen else (EMPTY, ""))
        overall = [run.result["accuracy_after"][after] for run in group.runs]
        row.append((EMPTY if None in overall else _mean(overall), ""))
        rows.append(("joint" if group.curve.joint else f"exp {after + 1}", row))
    heads = [f"exp {place + 1}" if width <= WIDE else str(place + 1) for place in range(width)]
    return Matrix(["after", *heads, "all seen"], rows, width > WIDE)


def _mean(values: list[float]) -> Cell:
    """A mean to a tenth, and with its standard deviation as a tooltip."""
    mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
    return Cell(f"{mean:.1f}", None if spread is None else f"{mean:.2f} ± {spread:.2f}")


def _classes(group: Group) -> list[list]:
    """The classes of each experience if the group has one order of them, else nothing."""
    run = group.runs[0]
    if len(group.runs) > 1 or not run.classes_seen or run.joint:
        return []
    return [run.result["classes_order"][old:new] for old, new in zip([0, *run.classes_seen], run.classes_seen)]


def _figures(curves: list[Curve]) -> tuple[Figure, Figure]:
    """Draw the accuracy after each experience, and the final accuracy; of one height, as they stand side by side."""
    height, chance = max(4.6, 1 + 0.4 * len(curves)), chance_of(curves)
    with matplotlib.rc_context(STYLE):
        after, finals = (Figure(figsize=(8, height), layout="constrained") for _ in range(2))
        left, right = after.subplots(), finals.subplots()
        draw_curves(left, curves, chance, bands=len(curves) <= CROWDED)
        after.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        draw_finals(right, curves, chance[-1] if chance else None)
        right.set_ylim(max(len(curves), 4) - 0.4, -0.6)
        left.set_title("")  # the page shows it as a caption
        right.set_title("")
    return after, finals


def inline_svg(figure: Figure, prefix: str, label: str, groups: list[int]) -> Markup:
    """Draw a figure as an ``svg`` element in the colours of the page.

    Args:
        figure: what to draw.
        prefix: of all ids in it, which are unique on the page with it.
        label: what the figure shows, for screen readers.
        groups: for each curve, the page's number of its group of runs; its elements get it as ``data-group``.
    """
    file = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = re.sub(r"<(metadata|style).*?</\1>", "", file.getvalue(), flags=re.DOTALL)
    text = re.sub(r'style="[^"]*"', _style_of_page, text)
    text = re.sub(r'(<\w+ id=")', rf"\1{prefix}", text)
    drawn = re.compile(rf'(?<=<g )(?=id="{prefix}group-(\d+)-)')
    text = drawn.sub(lambda found: f'data-group="{groups[int(found[1])]}" ', text)
    text = text.replace('xlink:href="#', f'href="#{prefix}').replace("url(#", f"url(#{prefix}")
    box, inner = re.findall(r'<svg [^>]*(viewBox="[^"]*")[^>]*>(.*)', " ".join(text.split()))[0]
    return Markup(f'<svg {box} role="img" aria-label="{escape(printable(label))}">{inner}')


def _style_of_page(found: re.Match) -> str:
    """Return a style attribute with the colours and fonts of the page."""
    style = re.sub(r"#[0-9a-f]{6}", lambda colour: PAGE_COLOURS.get(colour[0], colour[0]), found[0])
    return re.sub(r"font-family: [^;\"]*;? ?", "", style)
