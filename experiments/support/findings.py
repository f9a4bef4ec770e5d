"""Cells of a table with their finished runs, and what compares them with a reference.

The difference to the paper is given on the paper's benchmark only; the difference to
"Ours" within a table is comparable on any benchmark, so it is given for the paper and
for our runs.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np
from support.paper_numbers import PaperValue
from support.recorded_runs import RecordedRun
from support.runs import FinishedRun, finished_runs
from support.statistics import Comparison, first_task_filter, holm, paired_t_test

from crumb_avalanche.report.paired import Paired, paired, unit_means

Run = FinishedRun | RecordedRun


@dataclass(frozen=True)
class Cell:
    """One number of a table: how its runs are made, where they lie, what it is beside.

    Attributes:
        row: name of the row.
        benchmark: name of the stream.
        protocol: order of the stream.
        folder: has the `runN` folders; None if nothing can be run.
        settings: of `crumb run` that differ from those of the table.
        paper: the paper's number; None if it has none.
        paper_dataset: the data set that the paper's number is of.
        reference: folder of the runs that the cell is tested against.
        paper_reference: the paper's number of the reference.
        category: group of rows in the paper's table.
        note: why the cell was not run, or a remark.
    """

    row: str
    benchmark: str
    protocol: str
    folder: Path | None
    settings: dict = field(default_factory=dict)
    paper: PaperValue | None = None
    paper_dataset: str = ""
    reference: Path | None = None
    paper_reference: PaperValue | None = None
    category: str = ""
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """A cell with its finished runs, compared with the reference's of the same numbers.

    Attributes:
        cell: the cell.
        runs: its finished runs.
        paired: comparison with the reference, the run (or split) as the unit.
        s4: the paper's test, on batches of test images.
        s4_filtered: the paper's test after the first-task filter.
        p_holm: p of `paired`, corrected for all tests of the table and protocol.
        s4_holm: p of `s4`, corrected likewise.
        s4_filtered_holm: p of `s4_filtered`, corrected likewise.
    """

    cell: Cell
    runs: tuple[Run, ...]
    paired: Paired | None = None
    s4: Comparison | None = None
    s4_filtered: Comparison | None = None
    p_holm: float | None = None
    s4_holm: float | None = None
    s4_filtered_holm: float | None = None

    @property
    def finals(self) -> list[float]:
        """Final accuracy of each run in percent."""
        return [run.final for run in self.runs]

    @property
    def units(self) -> list[float]:
        """Final accuracy of each independent unit: split, or run where there is one."""
        return unit_means(self.finals, [run.split for run in self.runs])

    @property
    def mean(self) -> float | None:
        """Mean final accuracy in percent."""
        return fmean(self.finals) if self.runs else None

    @cached_property
    def filter(self) -> tuple[list[Run], float | None]:
        """The runs that pass the first-task filter, and the accuracy it required."""
        return filtered_runs(self.runs)

    @property
    def mean_filtered(self) -> float | None:
        """Mean final accuracy in percent of the filtered runs."""
        runs = self.filter[0]
        return fmean(run.final for run in runs) if runs else None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None on another benchmark than the paper's."""
        if self.mean is None or self.cell.paper is None:
            return None
        if self.cell.benchmark != self.cell.paper_dataset:
            return None
        return self.mean - self.cell.paper.value

    @property
    def paper_effect(self) -> float | None:
        """The paper's number minus the paper's reference."""
        paper = self.cell.paper
        reference = self.cell.paper_reference
        if paper is None or reference is None:
            return None
        return paper.value - reference.value

    def ledger(self, name: str) -> list[float]:
        """An entry of the ledger of each run."""
        return [run.ledger[name] for run in self.runs]


def finals_of(runs: Iterable[Run]) -> dict[int, float]:
    """Final accuracy of runs in percent, by number."""
    return {run.number: run.final for run in runs}


def splits_of(runs: Iterable[Run]) -> dict[int, str]:
    """Hash of the table of frames of runs, by number."""
    return {run.number: run.split for run in runs}


def filtered_runs(runs: Sequence[Run]) -> tuple[list[Run], float | None]:
    """Apply the first-task filter; an offline bound has no first task and keeps all."""
    if not runs or any(run.joint for run in runs):
        return list(runs), None
    indices, cut = first_task_filter([run.accuracy_after[0] for run in runs])
    return [runs[index] for index in indices], cut


def tested_on_batches(first: Sequence[Run], second: Sequence[Run]) -> Comparison | None:
    """Do the paper's t-test on batches of 100 test images, pooled over common runs.

    Returns:
        The comparison of `second` with `first`; None without a common run.

    Raises:
        ValueError: two runs of one number were tested on different images.
    """
    by_number = {run.number: run for run in first if run.batches is not None}
    first_batches = []
    second_batches = []
    for run in second:
        partner = by_number.get(run.number)
        if partner is None or run.batches is None:
            continue
        if partner.test_images != run.test_images:
            raise ValueError(
                f"run {run.number}: the two runs were tested on different images, so "
                "their batches cannot be paired; compare runs of the same number on "
                "the same benchmark"
            )
        first_batches.append(partner.batches)
        second_batches.append(run.batches)
    if not first_batches:
        return None
    return paired_t_test(np.concatenate(first_batches), np.concatenate(second_batches))


def runs_in_folders(cell: Cell, numbers: Sequence[int]) -> list[Run]:
    """Read the finished runs of a cell from its folder; none if it has no folder."""
    if cell.folder is None:
        return []
    return finished_runs(cell.folder, numbers)


RunsOf = Callable[[Cell, Sequence[int]], Sequence[Run]]


def find(
    cells: Sequence[Cell], numbers: Sequence[int], runs_of: RunsOf = runs_in_folders
) -> list[Finding]:
    """Read the runs of all cells and compare each with its reference.

    P-values are corrected by Holm within benchmark and protocol, where cells of one
    folder count once.

    Args:
        cells: cells of a table.
        numbers: numbers of the runs.
        runs_of: finished runs of a cell.
    """
    by_folder: dict[Path | None, tuple[Run, ...]] = {}
    for cell in cells:
        if cell.folder is not None:
            by_folder[cell.folder] = tuple(runs_of(cell, numbers))
    findings = []
    for cell in cells:
        runs = by_folder.get(cell.folder, ())
        reference = by_folder.get(cell.reference)
        if reference is None and cell.reference is not None:
            reference = finished_runs(cell.reference, numbers)
        finding = Finding(cell, runs)
        if runs and reference is not None and cell.reference != cell.folder:
            finding = compared(finding, reference)
        findings.append(finding)
    return corrected(findings)


def compared(finding: Finding, reference: Sequence[Run]) -> Finding:
    """Compare a finding with the runs of its reference."""
    reference_finals = finals_of(reference)
    finals = finals_of(finding.runs)
    difference = paired(
        reference_finals, finals, splits_of(reference), splits_of(finding.runs)
    )
    return replace(
        finding,
        paired=difference,
        s4=tested_on_batches(reference, finding.runs),
        s4_filtered=tested_on_batches(filtered_runs(reference)[0], finding.filter[0]),
    )


PValues = dict[Path | None, float | None]  # by folder; None if too few were compared
# Names of a test, and of its corrected p-value.
TESTS = {"paired": "p_holm", "s4": "s4_holm", "s4_filtered": "s4_filtered_holm"}


def corrected(findings: Sequence[Finding]) -> list[Finding]:
    """Correct the p-values of findings within each benchmark and protocol."""
    result = list(findings)
    for family in dict.fromkeys(map(family_of, findings)):
        indices = []
        for index, finding in enumerate(findings):
            if finding.paired is not None and family_of(finding) == family:
                indices.append(index)
        of_family = _corrected_family([findings[index] for index in indices])
        for index, finding in zip(indices, of_family):
            result[index] = finding
    return result


def _corrected_family(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Correct the p-values of the compared findings of a benchmark and protocol."""
    for test, corrected_name in TESTS.items():
        p_of_folder = _corrected_by_folder(findings, test)
        changed = []
        for finding in findings:
            p = p_of_folder[finding.cell.folder]
            changed.append(replace(finding, **{corrected_name: p}))
        findings = changed
    return findings


def family_of(finding: Finding) -> tuple[str, str]:
    """Benchmark and protocol, within which tests are corrected."""
    return finding.cell.benchmark, finding.cell.protocol


def _corrected_by_folder(findings: Iterable[Finding], test: str) -> PValues:
    """Correct the p-values of a test, of which each folder counts once.

    Args:
        findings: of one family.
        test: name of the test, a key of `TESTS`.
    """
    p_of_folder: PValues = {}
    for finding in findings:
        folder = finding.cell.folder
        if folder in p_of_folder:
            continue
        comparison = getattr(finding, test)
        p_of_folder[folder] = None if comparison is None else comparison.p
    corrected_values = holm(list(p_of_folder.values()))
    return dict(zip(p_of_folder, corrected_values))
