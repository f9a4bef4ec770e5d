"""Tables of finished runs beside the paper's numbers: rows from `rows/*.yaml`, cells, tests, text, CSV and pictures.

A cell without runs is empty. The difference to the paper is given on the benchmark of
the paper only; the difference to "Ours" within a table is comparable on any benchmark,
so it is given for the paper and for our runs.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

import yaml
from matplotlib.figure import Figure
from support.pictures import bars
from support.runs import FinishedRun, finished_runs
from support.statistics import (
    Comparison,
    Paired,
    first_task_filter,
    holm,
    paired,
    paired_batches,
    paired_t_test,
)

from crumb_avalanche.report.pictures import save
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import markdown, mean_text, number, table
from crumb_avalanche.system.atomic_file import write_text

ROWS = Path(__file__).parents[1] / "rows"
PAPER_VALUES = Path(__file__).parent / "paper_values.csv"
FINAL = "final_top1_percent"
DIFFERS = {"yes": True, "no": False, "": None}


def rows_of(name: str) -> dict:
    """Read the rows of a table: `rows/NAME.yaml`."""
    return yaml.safe_load((ROWS / f"{name}.yaml").read_text())


def folder_name(row: str) -> str:
    """Name of the folder of a row."""
    return "".join(letter if letter.isalnum() else "_" for letter in row)


def chosen_rows(rows: Mapping[str, object], names: Sequence[str] | None) -> list[str]:
    """The named rows of a table, in its order, and always the first, which the others are compared with; or all."""
    if unknown := [name for name in names or () if name not in rows]:
        raise ValueError(
            f"there is no row {unknown[0]!r}; the rows are {', '.join(rows)}"
        )
    return [
        name
        for place, name in enumerate(rows)
        if not names or name in names or place == 0
    ]


@dataclass(frozen=True)
class PaperValue:
    """A number of the paper, and whether it differs from "Ours" there at p < 0.01; None where the paper has no test."""

    value: float
    differs: bool | None = None


class PaperNumbers(dict):
    """The numbers of `paper_values.csv` by `(table, dataset, protocol, row, quantity)`; `protocol` may be empty.

    Rows of table `s5` are buffer sizes: budgets from the supplement, counts `n_x` from
    the published scripts (REMIND's from the supplement).
    """

    def __init__(self):
        super().__init__()
        with open(PAPER_VALUES, newline="") as file:
            for *key, value, differs in list(csv.reader(file))[1:]:
                self[tuple(key)] = PaperValue(float(value), DIFFERS[differs])

    def find(
        self, table: str, dataset: str, protocol: str, row: str, quantity: str = FINAL
    ) -> PaperValue | None:
        """Look up a value; None where the paper has none."""
        return self.get((table, dataset, protocol, row, quantity))

    def has(self, table: str, dataset: str) -> bool:
        """Whether a table of the paper has a data set."""
        return any(key[:2] == (table, dataset) for key in self)


@dataclass(frozen=True)
class Cell:
    """One number of a table: how its runs are made, where they lie, and what it is compared with."""

    row: str
    benchmark: str
    protocol: str
    folder: Path | None  # of the `runN` folders; None if nothing can be run
    settings: dict = field(
        default_factory=dict
    )  # of `crumb run` that differ from those of the table
    paper: PaperValue | None = None
    paper_dataset: str = ""
    reference: Path | None = None  # folder of the runs that the cell is tested against
    paper_reference: PaperValue | None = None
    category: str = ""  # group of rows in the paper's table
    note: str = ""  # why the cell was not run, or a remark


@dataclass(frozen=True)
class Finding:
    """A cell with its finished runs, and what compares them with the reference's runs of the same numbers, if any."""

    cell: Cell
    runs: tuple[FinishedRun, ...]
    paired: Paired | None = None
    p_holm: float | None = (
        # as the other two, corrected for all comparisons of the table and protocol
        None
    )
    s4: Comparison | None = None  # the paper's test on batches of test images
    s4_holm: float | None = None
    s4_filtered: Comparison | None = None  # the same after the first-task filter
    s4_filtered_holm: float | None = None

    @property
    def finals(self) -> list[float]:
        """Final accuracy of each run in percent."""
        return [run.final for run in self.runs]

    @property
    def mean(self) -> float | None:
        """Mean final accuracy in percent."""
        return fmean(self.finals) if self.runs else None

    @cached_property
    def filter(self) -> tuple[list[FinishedRun], float | None]:
        """The runs that pass the first-task filter, and the accuracy that it required."""
        return kept_runs(self.runs)

    @property
    def mean_filtered(self) -> float | None:
        """Mean final accuracy in percent of the filtered runs."""
        return fmean(run.final for run in self.filter[0]) if self.filter[0] else None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None on another benchmark than the paper's."""
        if (
            self.mean is None
            or self.cell.paper is None
            or self.cell.benchmark != self.cell.paper_dataset
        ):
            return None
        return self.mean - self.cell.paper.value

    @property
    def paper_effect(self) -> float | None:
        """The paper's number minus the paper's reference."""
        paper, reference = self.cell.paper, self.cell.paper_reference
        return (
            None
            if paper is None or reference is None
            else paper.value - reference.value
        )

    def ledger(self, name: str) -> list[float]:
        """An entry of the ledger of each run."""
        return [run.ledger[name] for run in self.runs]


def kept_runs(runs: Sequence[FinishedRun]) -> tuple[list[FinishedRun], float | None]:
    """Apply the first-task filter to runs; an offline bound has no first task and keeps all."""
    if not runs or any(run.joint for run in runs):
        return list(runs), None
    kept, cut = first_task_filter([run.result["accuracy_after"][0] for run in runs])
    return [runs[place] for place in kept], cut


def tested(
    ours: Sequence[FinishedRun], others: Sequence[FinishedRun]
) -> Comparison | None:
    """The paper's t-test on batches of 100 images, pooled over the common runs; None without any."""
    by_number = {run.number: run for run in ours if run.predictions is not None}
    both = [
        run for run in others if run.number in by_number and run.predictions is not None
    ]
    if not both:
        return None
    first = [by_number[run.number].predictions for run in both]
    return paired_t_test(*paired_batches(first, [run.predictions for run in both]))


def find(cells: Iterable[Cell], numbers: Sequence[int]) -> list[Finding]:
    """Read the runs of all cells, test each against its reference, and correct by Holm within benchmark and protocol.

    Cells of one folder count once.
    """
    findings = []
    for cell in cells:
        finding = Finding(
            cell,
            tuple(finished_runs(cell.folder, numbers))
            if cell.folder is not None
            else (),
        )
        if (
            finding.runs
            and cell.reference is not None
            and cell.reference != cell.folder
        ):
            ours = finished_runs(cell.reference, numbers)
            finals = [
                {run.number: run.final for run in some} for some in (ours, finding.runs)
            ]
            finding = replace(
                finding,
                paired=paired(*finals, {run.number: run.split for run in ours}),
                s4=tested(ours, finding.runs),
                s4_filtered=tested(kept_runs(ours)[0], finding.filter[0]),
            )
        findings.append(finding)
    for family in dict.fromkeys(
        (item.cell.benchmark, item.cell.protocol) for item in findings
    ):
        places: dict[Path | None, list[int]] = {}
        for place, item in enumerate(findings):
            if (
                item.cell.benchmark,
                item.cell.protocol,
            ) == family and item.paired is not None:
                places.setdefault(item.cell.folder, []).append(place)
        for name, test in (
            ("p_holm", "paired"),
            ("s4_holm", "s4"),
            ("s4_filtered_holm", "s4_filtered"),
        ):
            tests = [getattr(findings[same[0]], test) for same in places.values()]
            for same, p in zip(
                places.values(), holm([None if one is None else one.p for one in tests])
            ):
                for place in same:
                    findings[place] = replace(findings[place], **{name: p})
    return findings


def p_text(p: float | None) -> str:
    """Format a p-value."""
    return "" if p is None else "<1e-4" if p < 1e-4 else f"{p:.4f}"


def interval_text(found: Paired | None, form: str = "+.1f") -> str:
    """Format the interval of a comparison."""
    interval = None if found is None else found.interval
    return "" if interval is None else f"{interval[0]:{form}} to {interval[1]:{form}}"


def each_text(found: Paired | None, form: str = "+.1f") -> str:
    """Format the differences of all runs."""
    return (
        ""
        if found is None
        else " ".join(f"{one:{form}}" for one in found.differences.values())
    )


def paper_text(paper: PaperValue | None) -> str:
    """Format a number of the paper, with a star where it differs from "Ours" there."""
    return "" if paper is None else f"{paper.value:g}{'*' if paper.differs else ''}"


def filtered_text(found: Finding) -> str:
    """Format the mean of the filtered runs, with the cut where it is not the first."""
    cut = found.filter[1]
    return number(found.mean_filtered) + (
        "" if cut in (None, 80.0) else f" (cut {cut:.0f} %)"
    )


Columns = Mapping[str, Callable[[Finding], object]]
OURS: Columns = {
    "row": lambda found: found.cell.row,
    "paper": lambda found: paper_text(found.cell.paper),
    "ours": lambda found: mean_text(found.finals),
    "ours - paper": lambda found: number(found.difference, "+.1f"),
    "runs": lambda found: str(len(found.runs) or ""),
    "filtered": filtered_text,
    "kept": lambda found: str(len(found.filter[0])) if found.runs else "",
}
EFFECT: Columns = {
    "paper's effect": lambda found: number(found.paper_effect, "+.1f"),
    "our effect": lambda found: number(found.paired and found.paired.mean, "+.1f"),
    "95 % interval": lambda found: interval_text(found.paired),
    "of the runs": lambda found: each_text(found.paired),
    "p Holm": lambda found: p_text(found.p_holm),
    "verdict": lambda found: found.paired.verdict(found.p_holm) if found.paired else "",
    "as in S4": lambda found: ", ".join(
        filter(None, (p_text(found.s4_holm), p_text(found.s4_filtered_holm)))
    ),
}
LEGEND = """ours: mean +- standard deviation of runs (n - 1). filtered, kept: mean and number of the runs that reach
80 % after the first task, or the lower cut named where none of a method's does. effect: the row minus the row it is
tested against; interval and p: Student's t over runs, or over splits where runs share one; Holm: corrected for all
tests of the table. verdict: at p < 0.05 by Holm; not decided with fewer than 5 runs or splits. as in S4: p by Holm of
the paper's test, on batches of 100 test images pooled over runs, and after the first-task filter; it knows nothing of
the spread between runs. *: the paper says p < 0.01. Empty: not run, or not in the paper."""


def paired_columns(found: Paired | None, p_holm: float | None) -> dict[str, object]:
    """The columns of a comparison, with None for empty cells."""
    names = (
        "effect",
        "effect_low",
        "effect_high",
        "effect_of_runs",
        "units",
        "p",
        "p_holm",
        "verdict",
    )
    if found is None:
        return dict.fromkeys(names)
    values = (
        found.mean,
        *(found.interval or (None, None)),
        each_text(found, ".4f"),
        len(found.units),
        found.p,
    )
    return dict(zip(names, (*values, p_holm, found.verdict(p_holm))))


def csv_columns(found: Finding) -> dict[str, object]:
    """A finding as the columns of a CSV file, with None for empty cells."""
    cell = found.cell
    tests: dict[str, object] = {}
    for name in ("s4", "s4_filtered"):
        one, p_holm = getattr(found, name), getattr(found, f"{name}_holm")
        values = (
            (None,) * 4 if one is None else (one.difference, one.pairs, one.p, p_holm)
        )
        tests |= dict(
            zip(
                (f"{name}_difference", f"{name}_pairs", f"{name}_p", f"{name}_p_holm"),
                values,
            )
        )
    return {
        **{
            name: getattr(cell, name)
            for name in ("category", "row", "benchmark", "protocol", "paper_dataset")
        },
        "paper": cell.paper and cell.paper.value,
        "paper_differs_p01": cell.paper and cell.paper.differs,
        "ours": found.mean,
        "std": stdev(found.finals) if len(found.runs) > 1 else None,
        "runs": len(found.runs) or None,
        "difference": found.difference,
        "filter_cut": found.filter[1],
        "ours_filtered": found.mean_filtered,
        "runs_filtered": len(found.filter[0]) if found.runs else None,
        "paper_effect": found.paper_effect,
        **paired_columns(found.paired, found.p_holm),
        **tests,
        "run_numbers": " ".join(str(run.number) for run in found.runs),
        "folder": "" if cell.folder is None else cell.folder.name,
        "note": cell.note,
    }


def panels_of(findings: Sequence[Finding]) -> dict[tuple[str, str], list[Finding]]:
    """The findings of each benchmark and protocol, in the order of the findings."""
    panels: dict[tuple[str, str], list[Finding]] = {}
    for item in findings:
        panels.setdefault((item.cell.benchmark, item.cell.protocol), []).append(item)
    return panels


def shown(findings: Sequence[Finding]) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, header, lines) of the tables of benchmarks and protocols."""
    out = []
    for (benchmark, protocol), part in panels_of(findings).items():
        title = f"{benchmark}, {protocol.replace('_', '-')}: final accuracy over all classes, percent"
        if others := {
            item.cell.paper_dataset for item in part if item.cell.paper is not None
        } - {benchmark}:
            title += f" (the paper's numbers are of {', '.join(sorted(others))})"
        columns = {
            **OURS,
            **(EFFECT if any(item.cell.reference is not None for item in part) else {}),
        }
        if any(item.cell.note for item in part):
            columns["note"] = lambda found: found.cell.note
        out.append(
            (
                title,
                list(columns),
                [[str(text(item)) for text in columns.values()] for item in part],
            )
        )
    return out


RUN_COLUMNS = (
    "row",
    "benchmark",
    "protocol",
    "run",
    "final_accuracy",
    "seconds",
    "frame_table_sha256",
    "plan_sha256",
    "commit",
    "cpu",
    "settings",
)


def run_rows(findings: Iterable[Finding]) -> list[list[object]]:
    """Header and a row for every run, with all that is needed to repeat it and to compare what comes of that."""
    rows: list[list[object]] = [list(RUN_COLUMNS)]
    for finding in findings:
        for run in finding.runs:
            cell = finding.cell
            columns = {
                "row": cell.row,
                "benchmark": cell.benchmark,
                "protocol": cell.protocol,
                "run": run.number,
                "final_accuracy": round(run.final, 4),
                "seconds": round(run.result.get("seconds", 0), 1),
                "frame_table_sha256": run.split,
                "plan_sha256": run.plan_sha256,
                "commit": run.version("commit"),
                "cpu": run.version("cpu"),
                "settings": run.settings,
            }
            rows.append([columns[name] for name in RUN_COLUMNS])
    return rows


def publish(
    findings: Sequence[Finding],
    heading: str,
    output: Path,
    name: str,
    figure: Figure | None = None,
    csv_rows: Sequence[Sequence[object]] | None = None,
) -> None:
    """Print the tables; write them as `NAME.md` and `NAME.csv` (or these rows), the runs and the picture."""
    print(f"\n{heading}")
    text = [f"# {heading}\n"]
    for title, header, lines in shown(findings):
        print(f"\n{title}\n" + table(header, lines))
        text.append(
            f"\n## {title}\n\n" + markdown([header, ["---"] * len(header), *lines])
        )
    print(f"\n{LEGEND}")
    write_text(output / f"{name}.md", "".join([*text, f"\n{LEGEND}\n"]))
    if csv_rows is None:
        found = [csv_columns(finding) for finding in findings]
        csv_rows = [
            list(found[0]),
            *([("" if v is None else v) for v in line.values()] for line in found),
        ]
    write_csv(output / f"{name}.csv", csv_rows)
    write_csv(output / f"{name}_runs.csv", run_rows(findings))
    save(figure or findings_picture(findings, heading), output, name)
    print(
        f"\nwritten to {output}: {name}.csv, {name}.md, {name}_runs.csv, {name}.png, {name}.svg"
    )


def write_table(
    output: Path,
    name: str,
    header: Sequence[str],
    lines: Sequence[Sequence[str]],
    csv_rows: Sequence[Sequence[object]] | None = None,
    figure: Figure | None = None,
) -> None:
    """Print a table; write it as `NAME.md`, as `NAME.csv` (or these rows), and its picture."""
    print("\n" + table(header, lines))
    write_text(output / f"{name}.md", markdown([header, ["---"] * len(header), *lines]))
    write_csv(output / f"{name}.csv", csv_rows or [header, *lines])
    if figure is not None:
        save(figure, output, name)
    print(
        f"\nwritten to {output}: {name}.csv, {name}.md"
        + f", {name}.png, {name}.svg" * (figure is not None)
    )


ACCURACY = "accuracy over all classes at the end (%)"


def findings_picture(findings: Sequence[Finding], title: str) -> Figure:
    """Plot a panel for each benchmark and protocol, the paper's numbers beside ours."""
    panels: dict[str, dict[str, dict[str, list[float]]]] = {}
    for (benchmark, protocol), part in panels_of(findings).items():
        series = panels[f"{benchmark}, {protocol.replace('_', '-')}"] = {"ours": {}}
        for item in part:
            series["ours"][item.cell.row] = item.finals
            if item.cell.paper:
                paper = series.setdefault(
                    f"the paper, on {item.cell.paper_dataset}", {}
                )
                paper[item.cell.row] = [item.cell.paper.value]
    return bars(panels, title, ACCURACY, (0, 100))
