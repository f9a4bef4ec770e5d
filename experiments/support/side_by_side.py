"""The paper's numbers and ours side by side: cells, findings, and their tables.

A cell without runs is empty. The difference to the paper is given on the benchmark of the paper only; the difference to
"Ours" within a table is comparable on any benchmark, so it is given for the paper and for our runs.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from support.finished_runs import FinishedRun, finished_runs
from support.paper_numbers import PaperValue
from support.paper_statistics import Comparison, Filtered, first_task_filter, holm, paired_batches, paired_t_test
from support.run_statistics import Paired, paired, verdict

from crumb_avalanche.runs.run_folder import write_csv, write_text
from crumb_avalanche.runs.tables import markdown, mean_text, number, table


@dataclass(frozen=True)
class Cell:
    """One number of a table of the paper, and the folder of our runs.

    Attributes:
        row: name of the row in the paper.
        benchmark: benchmark of our runs.
        protocol: protocol of our runs.
        folder: folder of the `runN` folders; None if nothing can be run.
        paper: the paper's number; None without one.
        paper_dataset: data set of the paper's number.
        reference: folder of the runs that the cell is tested against; None for the reference itself.
        paper_reference: the paper's number of the reference.
        category: group of rows in the paper's table.
        note: reason why the cell was not run, or a remark.
    """

    row: str
    benchmark: str
    protocol: str
    folder: Path | None
    paper: PaperValue | None = None
    paper_dataset: str = ""
    reference: Path | None = None
    paper_reference: PaperValue | None = None
    category: str = ""
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """A cell with its finished runs, compared with the reference's runs of the same numbers.

    Attributes:
        cell: the cell.
        runs: finished runs.
        paired: differences to the reference, run by run; None without common runs.
        p_holm: p-value of `paired`, corrected for all comparisons of the table and protocol.
        s4: the paper's test against the reference, on batches of test images; None without common runs.
        s4_holm: p-value of that test, corrected.
        s4_filtered: the paper's test after the first-task filter on both sides.
        s4_filtered_holm: p-value of that test, corrected.
    """

    cell: Cell
    runs: tuple[FinishedRun, ...]
    paired: Paired | None = None
    p_holm: float | None = None
    s4: Comparison | None = None
    s4_holm: float | None = None
    s4_filtered: Comparison | None = None
    s4_filtered_holm: float | None = None

    @property
    def effect(self) -> float | None:
        """Mean difference to the reference; None without common runs."""
        return None if self.paired is None else self.paired.mean

    @property
    def verdict(self) -> str:
        """What the comparison decides; empty without one."""
        return "" if self.paired is None else verdict(self.paired, self.p_holm)

    @cached_property
    def filter(self) -> Filtered:
        """The first-task filter."""
        return kept_runs(self.runs)

    @property
    def filtered_runs(self) -> tuple[FinishedRun, ...]:
        """The runs that pass the first-task filter."""
        return tuple(self.runs[place] for place in self.filter.kept)

    @property
    def mean(self) -> float | None:
        """Mean final accuracy in percent."""
        return mean_of(self.runs)

    @property
    def mean_filtered(self) -> float | None:
        """Mean final accuracy in percent of the filtered runs."""
        return mean_of(self.filtered_runs)

    @property
    def spread(self) -> float | None:
        """Standard deviation over runs (n - 1)."""
        return statistics.stdev(run.final for run in self.runs) if len(self.runs) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None on another benchmark than the paper's."""
        if self.mean is None or self.cell.paper is None or self.cell.benchmark != self.cell.paper_dataset:
            return None
        return self.mean - self.cell.paper.value

    @property
    def paper_effect(self) -> float | None:
        """The paper's number minus the paper's reference."""
        paper, reference = self.cell.paper, self.cell.paper_reference
        return None if paper is None or reference is None else paper.value - reference.value


def mean_of(runs: Sequence[FinishedRun]) -> float | None:
    """Mean final accuracy in percent, or None without runs."""
    return statistics.fmean(run.final for run in runs) if runs else None


def kept_runs(runs: Sequence[FinishedRun]) -> Filtered:
    """Apply the first-task filter to runs; an offline bound has no first task and keeps all."""
    if not runs or any(run.joint for run in runs):
        return Filtered(tuple(range(len(runs))), None)
    return first_task_filter([run.first_task for run in runs])


def tested(ours: Sequence[FinishedRun], others: Sequence[FinishedRun]) -> Comparison | None:
    """Paired t-test on batches of 100 images, pooled over the common runs; None without any."""
    by_number = {run.number: run for run in ours if run.predictions is not None}
    both = [run for run in others if run.number in by_number and run.predictions is not None]
    if not both:
        return None
    return paired_t_test(
        *paired_batches([by_number[run.number].predictions for run in both], [run.predictions for run in both])
    )


def compared(ours: Sequence[FinishedRun], others: Sequence[FinishedRun]) -> Paired | None:
    """Compare final accuracies over the common runs; None without any."""
    splits = {run.number: run.split for run in ours}
    return paired({run.number: run.final for run in ours}, {run.number: run.final for run in others}, splits)


def find(cells: Sequence[Cell], numbers: Sequence[int]) -> list[Finding]:
    """Read the runs of all cells and test each against its reference.

    Raises:
        ValueError: a damaged run folder, or runs tested on different images.
    """
    findings = []
    for cell in cells:
        runs = tuple(finished_runs(cell.folder, numbers)) if cell.folder is not None else ()
        finding = Finding(cell, runs)
        if runs and cell.reference is not None and cell.reference != cell.folder:
            ours = finished_runs(cell.reference, numbers)
            kept = [ours[place] for place in kept_runs(ours).kept]
            finding = replace(
                finding,
                paired=compared(ours, runs),
                s4=tested(ours, runs),
                s4_filtered=tested(kept, finding.filtered_runs),
            )
        findings.append(finding)
    return corrected(findings)


def corrected(findings: Sequence[Finding]) -> list[Finding]:
    """Apply Holm's correction over all comparisons of a benchmark and protocol; rows of one folder count once."""
    out = list(findings)
    for family in dict.fromkeys((item.cell.benchmark, item.cell.protocol) for item in findings):
        places: dict[Path | None, list[int]] = {}
        for place, item in enumerate(findings):
            if (item.cell.benchmark, item.cell.protocol) == family and item.paired is not None:
                places.setdefault(item.cell.folder, []).append(place)
        first = [findings[same[0]] for same in places.values()]
        tests = [(item.paired, item.s4, item.s4_filtered) for item in first]
        by_test = [holm([None if test is None else test.p for test in column]) for column in zip(*tests)]
        for same, p_values in zip(places.values(), zip(*by_test)):
            for place in same:
                names = ("p_holm", "s4_holm", "s4_filtered_holm")
                out[place] = replace(out[place], **dict(zip(names, p_values)))
    return out


def p_text(p: float | None) -> str:
    """Format a p-value."""
    return "" if p is None else "<1e-4" if p < 1e-4 else f"{p:.4f}"


HEADER = ["row", "paper", "ours", "ours - paper", "runs", "filtered", "kept"]
TEST_HEADER = ["paper's effect", "our effect", "95 % interval", "of the runs", "p Holm", "verdict", "as in S4"]
LEGEND = """ours: mean +- standard deviation of runs (n - 1). filtered, kept: mean and number of the runs that reach
80 % after the first task, or the lower cut named where none of a method's does. effect: the row minus the row it is
tested against; interval and p: Student's t over runs, or over splits where runs share one; Holm: corrected for all
tests of the table. verdict: at p < 0.05 by Holm; not decided with fewer than 5 runs or splits. as in S4: p by Holm of
the paper's test, on batches of 100 test images pooled over runs, and after the first-task filter; it knows nothing of
the spread between runs. *: the paper says p < 0.01. Empty: not run, or not in the paper."""


def interval_text(found: Paired | None) -> str:
    """Format the interval of a comparison."""
    interval = None if found is None else found.interval
    return "" if interval is None else f"{interval[0]:+.1f} to {interval[1]:+.1f}"


def line_of(finding: Finding, with_tests: bool) -> list[str]:
    """Format a finding as a line of text; a star marks numbers of the paper that differ from "Ours" there."""
    cell = finding.cell
    paper = "" if cell.paper is None else f"{cell.paper.value:g}{'*' if cell.paper.differs else ''}"
    cut = "" if finding.filter.cut in (None, 80.0) else f" (cut {finding.filter.cut:.0f} %)"
    line = [
        cell.row,
        paper,
        mean_text([run.final for run in finding.runs]),
        number(finding.difference, "+.1f"),
        str(len(finding.runs) or ""),
        f"{number(finding.mean_filtered)}{cut}",
        str(len(finding.filter.kept)) if finding.runs else "",
    ]
    if with_tests:
        line += [
            number(finding.paper_effect, "+.1f"),
            number(finding.effect, "+.1f"),
            interval_text(finding.paired),
            "" if finding.paired is None else " ".join(f"{one:+.1f}" for one in finding.paired.differences.values()),
            p_text(finding.p_holm),
            finding.verdict,
            ", ".join(filter(None, (p_text(finding.s4_holm), p_text(finding.s4_filtered_holm)))),
        ]
    return line


def tables_of(findings: Sequence[Finding]) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, header, lines) for each benchmark and protocol, in the order of the findings."""
    out = []
    for benchmark, protocol in dict.fromkeys((item.cell.benchmark, item.cell.protocol) for item in findings):
        part = [item for item in findings if (item.cell.benchmark, item.cell.protocol) == (benchmark, protocol)]
        tests = any(item.cell.reference is not None for item in part)
        others = {item.cell.paper_dataset for item in part if item.cell.paper is not None} - {benchmark}
        title = f"{benchmark}, {protocol.replace('_', '-')}: final accuracy over all classes, percent"
        if others:
            title += f" (the paper's numbers are of {', '.join(sorted(others))})"
        notes = any(item.cell.note for item in part)
        header = HEADER + (TEST_HEADER if tests else []) + (["note"] if notes else [])
        lines = [line_of(item, tests) + ([item.cell.note] if notes else []) for item in part]
        out.append((title, header, lines))
    return out


COLUMNS = (
    *("category", "row", "benchmark", "protocol", "paper_dataset", "paper", "paper_differs_p01", "ours", "std", "runs"),
    *("difference", "filter_cut", "ours_filtered", "runs_filtered", "paper_effect"),
    *("effect", "effect_low", "effect_high", "effect_of_runs", "units", "p", "p_holm", "verdict"),
    *("s4_difference", "s4_pairs", "s4_p", "s4_p_holm"),
    *("s4_filtered_difference", "s4_filtered_pairs", "s4_filtered_p", "s4_filtered_p_holm"),
    *("run_numbers", "folder", "note"),
)


def paired_columns(found: Paired | None, p_holm: float | None) -> list:
    """The columns from `effect` to `verdict`, with None for empty cells."""
    if found is None:
        return [None] * 8
    low, high = found.interval or (None, None)
    each = " ".join(f"{one:.4f}" for one in found.differences.values())
    return [found.mean, low, high, each, len(found.units), found.p, p_holm, verdict(found, p_holm)]


def csv_line(finding: Finding) -> list:
    """A finding as a line of CSV, with None for empty cells."""
    cell, paper = finding.cell, finding.cell.paper
    tests = paired_columns(finding.paired, finding.p_holm)
    for test, p_holm in ((finding.s4, finding.s4_holm), (finding.s4_filtered, finding.s4_filtered_holm)):
        tests += [None] * 4 if test is None else [test.difference, test.pairs, test.p, p_holm]
    return [
        *(cell.category, cell.row, cell.benchmark, cell.protocol, cell.paper_dataset),
        *((None, None) if paper is None else (paper.value, paper.differs)),
        *(finding.mean, finding.spread, len(finding.runs) or None, finding.difference),
        *((finding.filter.cut, finding.mean_filtered, len(finding.filter.kept)) if finding.runs else (None,) * 3),
        *(finding.paper_effect, *tests, " ".join(str(run.number) for run in finding.runs)),
        *("" if cell.folder is None else cell.folder.name, cell.note),
    ]


def write_findings(output: Path, name: str, findings: Sequence[Finding], heading: str) -> list[Path]:
    """Write `NAME.csv` and `NAME.md`; return the paths."""
    csv_rows = [COLUMNS]
    for finding in findings:
        csv_rows.append(["" if value is None else value for value in csv_line(finding)])
    write_csv(output / f"{name}.csv", csv_rows)
    parts = [f"# {heading}\n"]
    for title, header, lines in tables_of(findings):
        rows = [header, ["---"] * len(header), *lines]
        parts.append(f"\n## {title}\n\n" + markdown(rows))
    parts.append(f"\n{LEGEND}\n")
    write_text(output / f"{name}.md", "".join(parts))
    return [output / f"{name}.csv", output / f"{name}.md"]


def print_findings(findings: Sequence[Finding]) -> None:
    """Print all tables."""
    for title, header, lines in tables_of(findings):
        print(f"\n{title}\n" + table(header, lines))
    print(f"\n{LEGEND}")
