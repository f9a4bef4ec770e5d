"""``report.html``: one page about finished runs that makes no request and is readable without its script."""

import base64
import hashlib
import statistics
from importlib import resources
from typing import NamedTuple

from crumb_avalanche.report.deviations import deviations_of, meanings
from crumb_avalanche.report.html_elements import element, escaped, matrix_element, table_element
from crumb_avalanche.report.html_figures import CROWDED, curves_figure, finals_figure, inline_svg
from crumb_avalanche.report.runs import IDENTITY, Group, differences, notes_on, streams_of
from crumb_avalanche.report.summary import EMPTY, Cell, Column, Table, count, curves_table, seconds, setting
from crumb_avalanche.runs.tables import LEDGER_BYTES, LEDGER_SECONDS, cell

OPEN_MATRICES = 6  # groups; the matrices of more are folded away
WIDE = 12  # experiences; the matrices of more are set smaller


class Section(NamedTuple):
    """A part of the page.

    Attributes:
        name: its id.
        heading: text.
        content: HTML.
    """

    name: str
    heading: str
    content: str


def report_page(groups: list[Group], summary: Table, runs: Table, left_out: list[str]) -> str:
    """The page about groups of runs.

    Args:
        groups: what is reported.
        summary: one line for each group.
        runs: one line for each run.
        left_out: runs that are not in it, and why, in words.
    """
    shown = dict.fromkeys(stream for streams in streams_of(groups) for stream in streams)
    streams = " and ".join(dict.fromkeys(f"{cell(stream[0])}, {cell(stream[1])}" for stream in shown))
    total = sum(len(group.runs) for group in groups)
    title = f"{streams if len(streams) <= 80 else 'Finished runs'}: {_number(total, 'run')}"
    lead = f"{_number(total, 'finished run')} in {_number(len(groups), 'group')}; the runs of a group differ in their "
    lead += "seed only. Accuracy is in percent of the test images, mean ± standard deviation over runs (n - 1)."
    sections = [
        Section("summary", "Summary", _summary(groups, summary, left_out)),
        Section("curves", "Accuracy over the stream", _curves(groups)),
        Section("matrices", "Accuracy on each experience", _matrices(groups)),
        Section("ledger", "Ledger", _ledger(groups)),
        Section("runs", "Every run", table_element(runs, "runs-table", "One line for each run", _numbers(groups))),
        Section("settings", "Settings", _settings(groups)),
        Section("deviations", "Deviations from the paper", _deviations(groups)),
    ]
    return page(title, lead, sections)


def page(title: str, lead: str, sections: list[Section]) -> str:
    """A whole HTML document, in ASCII so that it reads the same in every encoding.

    Args:
        title: text.
        lead: text that says what is on the page.
        sections: its parts; each gets a link at the top.
    """
    style, script = _data("html_page.css"), _data("html_page.js")
    # Only this script may run, and nothing may be fetched, whatever the texts on the page hold.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
    policy += "base-uri 'none'; form-action 'none'"
    links = "".join(element("li", element("a", escaped(part.heading), href=f"#{part.name}")) for part in sections)
    parts = "\n".join(
        element("section", f"\n<h2>{escaped(part.heading)}</h2>\n{part.content}\n", id=part.name) for part in sections
    )
    document = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escaped(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escaped(title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{escaped(title)}</h1>
<p>{escaped(lead)}</p>
<nav aria-label="on this page"><ul>{links}</ul></nav>
</header>
<main>
{parts}
</main>
<script>{script}</script>
</body>
</html>
"""
    return document.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _data(name: str) -> str:
    """A text file that lies beside this module."""
    return resources.files("crumb_avalanche.report").joinpath(name).read_text(encoding="ascii")


def _summary(groups: list[Group], summary: Table, left_out: list[str]) -> str:
    notes = [*notes_on(groups), *left_out]
    notes.append("times of different runs are comparable only when measured side by side on the same machine")
    items = "".join(element("li", escaped(note)) for note in notes)
    numbers = list(range(len(groups)))
    content = table_element(summary, "summary-table", "Final accuracy over all classes; the others are means", numbers)
    return content + element("ul", items, class_="notes")


def _curves(groups: list[Group]) -> str:
    """Two pictures and a table for each stream, for accuracies on different streams do not compare."""
    streams: dict[tuple, list[int]] = {}
    for number, seen_on in enumerate(streams_of(groups)):
        for stream in seen_on:
            streams.setdefault(stream, []).append(number)
    content = ""
    for place, (stream, numbers) in enumerate(streams.items()):
        name = f"{cell(stream[0])}, {cell(stream[1])}"
        shown = [groups[number] for number in numbers]
        curves = [group.curve for group in shown]
        for curve, label in zip(curves, _labels_within(shown)):
            curve.label = label
        banded = len(curves) <= CROWDED and any(curve.std for curve in curves)
        band = ", band of one standard deviation" if banded else ""
        pictures = {
            "curves": (curves_figure(curves), f"Accuracy over all classes seen: mean of runs{band}"),
            "finals": (finals_figure(curves), "Final accuracy: bar mean, line one standard deviation, dots runs"),
        }
        if len(streams) > 1:
            content += f"<h3>{escaped(name)}</h3>\n"
        content += '<div class="pictures">\n'
        for kind, (figure, label) in pictures.items():
            drawing = inline_svg(figure, f"{kind}-{place}-", f"{label}; {name}", numbers)
            content += f"<figure>{drawing}<figcaption>{escaped(label)}</figcaption></figure>\n"
        caption = f"Accuracy over all classes seen, after each experience: {name}"
        content += f"</div>\n{table_element(curves_table(shown), f'curves-table-{place}', caption, numbers)}\n"
    return content


def _labels_within(groups: list[Group]) -> list[str]:
    """Labels of groups on one stream, without its name where they stay apart."""
    labels = [group.label for group in groups]
    for name in ("benchmark", "protocol", "dataset_root"):
        labels = [label.replace(f", {name}={cell(g.settings.get(name), 24)}", "") for g, label in zip(groups, labels)]
    return labels if len(set(labels)) == len(labels) else [group.label for group in groups]


def _matrices(groups: list[Group]) -> str:
    unfolded = len(groups) <= OPEN_MATRICES
    content = "<p>Row: after which experience. Column: on the test images of which experience's classes. Mean of runs; "
    content += "the last column is over all classes seen so far.</p>\n"
    for group in groups:
        folded = element("summary", f"{escaped(group.label)} ({_number(len(group.runs), 'run')})")
        content += element("details", f"{folded}\n{_matrix(group)}{_classes(group)}", open=unfolded) + "\n"
    return content


def _matrix(group: Group) -> str:
    first, curve = group.runs[0], group.curve
    width = len(first.matrix[-1])
    rows, shares = [], []
    for after, cells in enumerate(first.matrix):
        row, share = [Cell("joint" if curve.joint else f"exp {after + 1}")], []
        for place in range(width):
            values = [run.matrix[after][place] for run in group.runs if place < len(run.matrix[after])]
            seen = place < len(cells) and len(values) == len(group.runs)
            row.append(_heat(values) if seen else EMPTY)
            share.append(statistics.fmean(values) / 100 if seen else None)
        overall = [run.result["accuracy_after"][after] for run in group.runs]
        row.append(EMPTY if None in overall else _heat(overall))
        rows.append(row)
        shares.append([*share, None])
    heads = ["after", *[f"exp {place + 1}" if width <= WIDE else str(place + 1) for place in range(width)], "all seen"]
    return matrix_element(rows, shares, heads, f"Accuracy matrix of {group.label}, percent", width > WIDE)


def _heat(values: list[float]) -> Cell:
    """A mean to a tenth; the standard deviation is shown on pointing at it."""
    mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
    return Cell(f"{mean:.1f}", None if spread is None else f"{mean:.2f} ± {spread:.2f}")


def _classes(group: Group) -> str:
    """The classes of each experience, where there is one order of them."""
    run = group.runs[0]
    if len(group.runs) > 1 or not run.classes_seen or run.joint:
        return ""
    order, parts = run.result["classes_order"], zip([0, *run.classes_seen], run.classes_seen)
    items = "".join(element("li", escaped(", ".join(map(str, order[old:new])))) for old, new in parts)
    return f"<p>Classes of each experience:</p>{element('ol', items)}"


def _ledger(groups: list[Group]) -> str:
    content = "<p>Means of runs.</p>\n"
    kept = [Column("group", "group"), Column("buffer_items", "memories stored")]
    kept += [Column(name, f"{label}, bytes") for name, label in LEDGER_BYTES.items()]
    spent = [Column("group", "group"), Column("train_seconds", "training, s")]
    spent += [Column(name, f"{label}, s") for name, label in LEDGER_SECONDS.items()]
    spent += [Column("images_per_second", "images/s")]
    for name, caption, columns, shown in (
        ("ledger-bytes", "What was kept", kept, count),
        ("ledger-seconds", "Where the time went", spent, seconds),
    ):
        rows = [[Cell(g.label), *[shown(g.average(column.name)) for column in columns[1:]]] for g in groups]
        content += table_element(Table(columns, rows), name, caption, list(range(len(groups)))) + "\n"
    return content


def _settings(groups: list[Group]) -> str:
    varying, meaning, content = differences(groups), meanings(), ""
    if varying:
        rows = [[Cell(group.label), *[setting(group.settings.get(name)) for name in varying]] for group in groups]
        columns = [Column("group", "group"), *[Column(str(name), str(name)) for name in varying]]
        caption = "Settings in which the groups differ"
        content += table_element(Table(columns, rows), "settings-differ", caption, list(range(len(groups)))) + "\n"
    same = [name for name in dict.fromkeys([*IDENTITY, *groups[0].settings]) if name not in varying]
    rows = [
        [Cell(str(name)), setting(groups[0].settings[name]), Cell(meaning.get(name, ""))]
        for name in same
        if name in groups[0].settings
    ]
    columns = [Column("setting", "setting"), Column("value", "value"), Column("meaning", "meaning")]
    caption = "Settings that are the same in all groups" if len(groups) > 1 else "All settings"
    shared = table_element(Table(columns, rows), "settings-same", "As in config.yaml")
    return content + element(
        "details", f"<summary>{escaped(caption)} ({len(rows)})</summary>\n{shared}", open=not varying
    )


def _deviations(groups: list[Group]) -> str:
    found = deviations_of(groups)
    if not found:
        return "<p>None: all settings are those of preset paper.</p>"
    rows = []
    for deviation in found:
        everywhere = len(deviation.groups) == len(groups) > 1
        labels = "all" if everywhere else "; ".join(deviation.groups)
        rows.append([Cell(deviation.setting), Cell(deviation.sentence), Cell(labels)])
    columns = [Column("setting", "setting"), Column("deviation", "what is different"), Column("groups", "groups")]
    return table_element(Table(columns, rows), "deviations-table", "Settings that differ from preset paper, in words")


def _numbers(groups: list[Group]) -> list[int]:
    """For each run, the number of its group."""
    return [number for number, group in enumerate(groups) for _ in group.runs]


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
