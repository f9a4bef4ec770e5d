"""The paper's numbers and ours side by side: cells, findings, and their tables.

A cell without runs is empty. The difference to the paper is given on the benchmark of the paper only; the difference to
"Ours" within a table is comparable on any benchmark, so it is given for the paper and for our runs.
"""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from support.finished_runs import FinishedRun, finished_runs
from support.paper_numbers import PaperValue
from support.paper_statistics import Comparison, Filtered, first_task_filter, holm, paired_batches, paired_t_test

from crumb_avalanche.runs.run_folder import write_text
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
        effect: mean difference to the reference; None without common runs.
        test: paired test against the reference; None without common runs.
        p_holm: p-value of the test, corrected for all comparisons of the table and protocol.
        test_filtered: paired test after the first-task filter on both sides.
        p_holm_filtered: p-value of that test, corrected.
    """

    cell: Cell
    runs: tuple[FinishedRun, ...]
    effect: float | None = None
    test: Comparison | None = None
    p_holm: float | None = None
    test_filtered: Comparison | None = None
    p_holm_filtered: float | None = None

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


def paired_effect(ours: Sequence[FinishedRun], others: Sequence[FinishedRun]) -> float | None:
    """Mean of second minus first over the common runs, in points; None without any."""
    finals = {run.number: run.final for run in ours}
    differences = [run.final - finals[run.number] for run in others if run.number in finals]
    return statistics.fmean(differences) if differences else None


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
                effect=paired_effect(ours, runs),
                test=tested(ours, runs),
                test_filtered=tested(kept, finding.filtered_runs),
            )
        findings.append(finding)
    return corrected(findings)


def corrected(findings: Sequence[Finding]) -> list[Finding]:
    """Apply Holm's correction over all comparisons of a benchmark and protocol; rows of one folder count once."""
    out = list(findings)
    for family in dict.fromkeys((item.cell.benchmark, item.cell.protocol) for item in findings):
        places: dict[Path | None, list[int]] = {}
        for place, item in enumerate(findings):
            if (item.cell.benchmark, item.cell.protocol) == family and item.test is not None:
                places.setdefault(item.cell.folder, []).append(place)
        first = [findings[same[0]] for same in places.values()]
        plain = holm([item.test.p for item in first])
        filtered = holm([None if item.test_filtered is None else item.test_filtered.p for item in first])
        for same, p, p_filtered in zip(places.values(), plain, filtered):
            for place in same:
                out[place] = replace(out[place], p_holm=p, p_holm_filtered=p_filtered)
    return out


def p_text(p: float | None) -> str:
    """Format a p-value."""
    return "" if p is None else "<1e-4" if p < 1e-4 else f"{p:.4f}"


HEADER = ["row", "paper", "ours", "ours - paper", "runs", "filtered", "kept"]
TEST_HEADER = ["paper's effect", "our effect", "p", "p Holm", "p filtered", "p filtered, Holm"]
LEGEND = """ours: mean +- standard deviation of runs (n - 1). filtered, kept: mean and number of the runs that reach
80 % after the first task, or the lower cut named where none of a method's does. effect: the row minus the row it is
tested against. p: paired t-test on fixed batches of 100 test images, pooled over the runs that both have; Holm:
corrected for all tests of the table. *: the paper says p < 0.01. Empty: not run, or not in the paper."""


def line_of(finding: Finding, with_tests: bool) -> list[str]:
    """Format a finding as a line of text; a star marks numbers of the paper that differ from "Ours" there."""
    cell, test, filtered = finding.cell, finding.test, finding.test_filtered
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
            p_text(None if test is None else test.p),
            p_text(finding.p_holm),
            p_text(None if filtered is None else filtered.p),
            p_text(finding.p_holm_filtered),
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
    *("difference", "filter_cut", "ours_filtered", "runs_filtered", "paper_effect", "effect"),
    *("batch_difference", "pairs", "p", "p_holm"),
    *("batch_difference_filtered", "pairs_filtered", "p_filtered", "p_holm_filtered"),
    *("run_numbers", "folder", "note"),
)


def csv_line(finding: Finding) -> list:
    """A finding as a line of CSV, with None for empty cells."""
    cell, paper = finding.cell, finding.cell.paper
    tests = []
    for test, p_holm in ((finding.test, finding.p_holm), (finding.test_filtered, finding.p_holm_filtered)):
        tests += [None] * 4 if test is None else [test.difference, test.pairs, test.p, p_holm]
    return [
        *(cell.category, cell.row, cell.benchmark, cell.protocol, cell.paper_dataset),
        *((None, None) if paper is None else (paper.value, paper.differs)),
        *(finding.mean, finding.spread, len(finding.runs) or None, finding.difference),
        *((finding.filter.cut, finding.mean_filtered, len(finding.filter.kept)) if finding.runs else (None,) * 3),
        *(finding.paper_effect, finding.effect, *tests, " ".join(str(run.number) for run in finding.runs)),
        *("" if cell.folder is None else cell.folder.name, cell.note),
    ]


def write_findings(output: Path, name: str, findings: Sequence[Finding], heading: str) -> list[Path]:
    """Write `NAME.csv` and `NAME.md`; return the paths."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for finding in findings:
        writer.writerow(["" if value is None else value for value in csv_line(finding)])
    write_text(output / f"{name}.csv", text.getvalue())
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
