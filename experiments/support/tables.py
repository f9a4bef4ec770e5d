"""Tables of finished runs beside the paper's numbers: text, CSV and pictures.

A cell without runs is empty.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev

from matplotlib.figure import Figure
from support.findings import Finding, family_of
from support.paper_numbers import PaperValue
from support.pictures import bars
from support.recorded_runs import RecordedRun, write_recorded
from support.statistics import Comparison

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from crumb_avalanche.report.paired import Paired
from crumb_avalanche.report.pictures import save
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import format_table, markdown, mean_text, number

FIRST_CUT = 80.0  # percent that a run has to reach after the first task
ACCURACY = "accuracy over all classes at the end (%)"
LEGEND = """\
ours: mean +- standard deviation of runs (n - 1). filtered, kept: mean and number of the
runs that reach 80 % after the first task, or the lower cut named where none of a method's
does. effect: the row minus the row it is tested against; interval and p: Student's t over
runs, or over splits where runs share one; Holm: corrected for all tests of the table.
verdict: at p < 0.05 by Holm; not decided with fewer than 5 runs or splits. as in S4: p by
Holm of the paper's test, on batches of 100 test images pooled over runs, and after the
first-task filter; it knows nothing of the spread between runs. *: the paper says p < 0.01.
Empty: not run, or not in the paper."""


def p_text(p: float | None) -> str:
    """Format a p-value."""
    if p is None:
        return ""
    return "<1e-4" if p < 1e-4 else f"{p:.4f}"


def interval_text(comparison: Paired | None, form: str = "+.1f") -> str:
    """Format the interval of a comparison."""
    if comparison is None or comparison.interval is None:
        return ""
    low, high = comparison.interval
    return f"{low:{form}} to {high:{form}}"


def each_text(comparison: Paired | None, form: str = "+.1f") -> str:
    """Format the differences of all runs."""
    if comparison is None:
        return ""
    return " ".join(f"{value:{form}}" for value in comparison.differences.values())


def paper_text(paper: PaperValue | None) -> str:
    """Format a number of the paper, with a star where it differs from "Ours" there."""
    if paper is None:
        return ""
    return f"{paper.value:g}*" if paper.differs else f"{paper.value:g}"


def filtered_text(finding: Finding) -> str:
    """Format the mean of the filtered runs, with the cut where it is not the first."""
    cut = finding.filter[1]
    text = number(finding.mean_filtered)
    return text if cut in (None, FIRST_CUT) else f"{text} (cut {cut:.0f} %)"


def filtered_count_text(finding: Finding) -> str:
    """Format the number of the filtered runs; empty without runs."""
    return str(len(finding.filter[0])) if finding.runs else ""


def effect_text(finding: Finding) -> str:
    """Format the mean difference to the reference."""
    return number(finding.paired and finding.paired.mean, "+.1f")


def verdict_text(finding: Finding) -> str:
    """What the comparison with the reference decides; empty without one."""
    if finding.paired is None:
        return ""
    return finding.paired.verdict(finding.p_holm)


def s4_text(finding: Finding) -> str:
    """Format the p-values of the paper's test, of all runs and of the filtered ones."""
    texts = [p_text(finding.s4_holm), p_text(finding.s4_filtered_holm)]
    return ", ".join(text for text in texts if text)


Columns = Mapping[str, Callable[[Finding], object]]
OURS: Columns = {
    "row": lambda finding: finding.cell.row,
    "paper": lambda finding: paper_text(finding.cell.paper),
    "ours": lambda finding: mean_text(finding.finals),
    "ours - paper": lambda finding: number(finding.difference, "+.1f"),
    "runs": lambda finding: str(len(finding.runs) or ""),
    "filtered": filtered_text,
    "kept": filtered_count_text,
}
EFFECT: Columns = {
    "paper's effect": lambda finding: number(finding.paper_effect, "+.1f"),
    "our effect": effect_text,
    "95 % interval": lambda finding: interval_text(finding.paired),
    "of the runs": lambda finding: each_text(finding.paired),
    "p Holm": lambda finding: p_text(finding.p_holm),
    "verdict": verdict_text,
    "as in S4": s4_text,
}
# Columns that a table without numbers of the paper leaves out.
OF_PAPER = ("paper", "ours - paper", "paper's effect")
NOTE: Columns = {"note": lambda finding: finding.cell.note}


def paired_columns(
    comparison: Paired | None, p_holm: float | None
) -> dict[str, object]:
    """Columns of a comparison in a CSV file, with None for empty cells."""
    columns: dict[str, object] = {
        "effect": None,
        "effect_low": None,
        "effect_high": None,
        "effect_of_runs": None,
        "units": None,
        "p": None,
        "p_holm": None,
        "verdict": None,
    }
    if comparison is None:
        return columns
    if comparison.interval is not None:
        low, high = comparison.interval
        columns["effect_low"] = low
        columns["effect_high"] = high
    columns["effect"] = comparison.mean
    columns["effect_of_runs"] = each_text(comparison, ".4f")
    columns["units"] = len(comparison.units)
    columns["p"] = comparison.p
    columns["p_holm"] = p_holm
    columns["verdict"] = comparison.verdict(p_holm)
    return columns


def s4_columns(
    name: str, comparison: Comparison | None, p_holm: float | None
) -> dict[str, object]:
    """Columns of the paper's test in a CSV file, with None for empty cells."""
    return {
        f"{name}_difference": comparison and comparison.difference,
        f"{name}_pairs": comparison and comparison.pairs,
        f"{name}_p": comparison and comparison.p,
        f"{name}_p_holm": p_holm,
    }


def csv_columns(finding: Finding) -> dict[str, object]:
    """A finding as the columns of a CSV file, with None for empty cells."""
    cell = finding.cell
    runs = finding.runs
    return {
        "category": cell.category,
        "row": cell.row,
        "benchmark": cell.benchmark,
        "protocol": cell.protocol,
        "paper_dataset": cell.paper_dataset,
        "paper": cell.paper and cell.paper.value,
        "paper_differs_p01": cell.paper and cell.paper.differs,
        "ours": finding.mean,
        "std": stdev(finding.finals) if len(runs) > 1 else None,
        "runs": len(runs) or None,
        "difference": finding.difference,
        "filter_cut": finding.filter[1],
        "ours_filtered": finding.mean_filtered,
        "runs_filtered": len(finding.filter[0]) if runs else None,
        "paper_effect": finding.paper_effect,
        **paired_columns(finding.paired, finding.p_holm),
        **s4_columns("s4", finding.s4, finding.s4_holm),
        **s4_columns("s4_filtered", finding.s4_filtered, finding.s4_filtered_holm),
        "run_numbers": " ".join(str(run.number) for run in runs),
        "folder": "" if cell.folder is None else cell.folder.name,
        "note": cell.note,
    }


def csv_rows_of(findings: Sequence[Finding]) -> list[list[object]]:
    """Header and a row for each finding."""
    rows: list[list[object]] = [list(csv_columns(findings[0]))]
    for finding in findings:
        values = csv_columns(finding).values()
        rows.append(["" if value is None else value for value in values])
    return rows


def panels_of(findings: Sequence[Finding]) -> dict[tuple[str, str], list[Finding]]:
    """The findings of each benchmark and protocol, in the order of the findings."""
    panels: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        panels.setdefault(family_of(finding), []).append(finding)
    return panels


@dataclass(frozen=True)
class TextTable:
    """A table of one benchmark and protocol as text.

    Attributes:
        title: benchmark, protocol and what the numbers are.
        header: names of the columns.
        lines: a cell for each column.
    """

    title: str
    header: list[str]
    lines: list[list[str]]


def text_tables(findings: Sequence[Finding]) -> list[TextTable]:
    """The tables of benchmarks and protocols as text."""
    tables = []
    for (benchmark, protocol), panel in panels_of(findings).items():
        tables.append(_text_table(benchmark, protocol, panel))
    return tables


def _text_table(
    benchmark: str, protocol: str, findings: Sequence[Finding]
) -> TextTable:
    """The table of a benchmark and protocol as text."""
    columns = dict(OURS)
    if any(finding.cell.reference is not None for finding in findings):
        columns |= EFFECT
    if not any(finding.cell.paper for finding in findings):
        for name in OF_PAPER:
            columns.pop(name, None)
    if any(finding.cell.note for finding in findings):
        columns |= NOTE
    lines = []
    for finding in findings:
        lines.append([str(text(finding)) for text in columns.values()])
    return TextTable(
        title=_title(benchmark, protocol, findings),
        header=list(columns),
        lines=lines,
    )


def _title(benchmark: str, protocol: str, findings: Sequence[Finding]) -> str:
    """Title of a table, which says where the paper's numbers are of other data."""
    order = protocol.replace("_", "-")
    title = f"{benchmark}, {order}: final accuracy over all classes, percent"
    datasets = set()
    for finding in findings:
        if finding.cell.paper is not None:
            datasets.add(finding.cell.paper_dataset)
    datasets.discard(benchmark)
    if datasets:
        title += f" (the paper's numbers are of {', '.join(sorted(datasets))})"
    return title


def recorded_runs_of(findings: Iterable[Finding]) -> list[RecordedRun]:
    """Every run of the findings, with all that is needed to repeat it."""
    recorded = []
    for finding in findings:
        cell = finding.cell
        for run in finding.runs:
            recorded.append(
                RecordedRun.of(cell.row, cell.benchmark, cell.protocol, run)
            )
    return recorded


def publish(
    findings: Sequence[Finding],
    heading: str,
    output: Path,
    name: str,
    figure: Figure | None = None,
    csv_rows: Sequence[Sequence[object]] | None = None,
) -> None:
    """Print the tables; write them, their runs and their picture.

    Args:
        findings: cells with their runs.
        heading: printed above the tables.
        output: folder of `NAME.md`, `NAME.csv`, `NAME_runs.csv` and the picture.
        name: name of the files.
        figure: the picture; default `findings_picture`.
        csv_rows: rows of `NAME.csv`; default `csv_rows_of`.
    """
    print(f"\n{heading}")
    sections = [f"# {heading}\n"]
    for text_table in text_tables(findings):
        header = text_table.header
        print(f"\n{text_table.title}\n" + format_table(header, text_table.lines))
        lines = markdown([header, ["---"] * len(header), *text_table.lines])
        sections.append(f"\n## {text_table.title}\n\n{lines}")
    print(f"\n{LEGEND}")
    sections.append(f"\n{LEGEND}\n")
    write_text(output / f"{name}.md", "".join(sections))
    write_csv(output / f"{name}.csv", csv_rows or csv_rows_of(findings))
    write_recorded(output / f"{name}_runs.csv", recorded_runs_of(findings))
    save(figure or findings_picture(findings, heading), output, name)
    written = f"{name}.csv, {name}.md, {name}_runs.csv, {name}.png, {name}.svg"
    print(f"\nwritten to {output}: {written}")


def write_table(
    output: Path,
    name: str,
    header: Sequence[str],
    lines: Sequence[Sequence[str]],
    csv_rows: Sequence[Sequence[object]] | None = None,
    figure: Figure | None = None,
) -> None:
    """Print a table, and write it and its picture.

    Args:
        output: folder of `NAME.md`, `NAME.csv` and the picture.
        name: name of the files.
        header: of the columns.
        lines: of the table.
        csv_rows: header and rows of `NAME.csv`; default those of the table.
        figure: the picture; None for none.
    """
    print("\n" + format_table(header, lines))
    write_text(output / f"{name}.md", markdown([header, ["---"] * len(header), *lines]))
    write_csv(output / f"{name}.csv", csv_rows or [header, *lines])
    written = f"{name}.csv, {name}.md"
    if figure is not None:
        save(figure, output, name)
        written += f", {name}.png, {name}.svg"
    print(f"\nwritten to {output}: {written}")


def findings_picture(findings: Sequence[Finding], title: str) -> Figure:
    """Plot a panel for each benchmark and protocol, the paper's numbers beside ours."""
    panels: dict[str, dict[str, dict[str, list[float]]]] = {}
    for (benchmark, protocol), panel in panels_of(findings).items():
        ours: dict[str, list[float]] = {}
        series = {"ours": ours}
        for finding in panel:
            cell = finding.cell
            ours[cell.row] = finding.units
            if cell.paper:
                paper = series.setdefault(f"the paper, on {cell.paper_dataset}", {})
                paper[cell.row] = [cell.paper.value]
        panels[f"{benchmark}, {protocol.replace('_', '-')}"] = series
    return bars(panels, title, ACCURACY, (0, 100))
