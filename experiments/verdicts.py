"""Compare methods over the recorded runs, with the run (or split) as the unit.

    python experiments/verdicts.py

Runs that share a split count as one. Reads the runs behind the published tables and
prints each family of comparisons in `rows/verdicts.yaml`. "as in S4" is the recorded
p-value (Holm) of the paper's own test, whose unit is a batch of 100 test images. Writes
`verdicts.csv`.
"""

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.common_options import run_script
from support.rows import rows_of
from support.statistics import holm
from support.tables import each_text, interval_text, p_text, paired_columns

from crumb_avalanche.report.paired import Paired, paired
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import format_table

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "docs" / "results"
HEADER = [
    "row",
    "difference",
    "95 % interval",
    "units",
    "of the runs",
    "p Holm",
    "verdict",
    "as in S4",
]


@dataclass(frozen=True)
class Verdict:
    """A row of a family beside its reference.

    Attributes:
        row: name of the row.
        reference: name of the reference.
        difference: accuracy of the row minus that of the reference, by run.
        p: p-value, corrected over the family; None with a single unit.
        s4: p-value of the paper's test as text; empty if it was not recorded.
    """

    row: str
    reference: str
    difference: Paired
    p: float | None
    s4: str

    @property
    def line(self) -> list[str]:
        """Values of `HEADER`."""
        return [
            f"{self.row} - {self.reference}",
            f"{self.difference.mean:+.1f}",
            interval_text(self.difference),
            str(len(self.difference.units)),
            each_text(self.difference),
            p_text(self.p),
            self.difference.verdict(self.p),
            self.s4,
        ]

    @property
    def columns(self) -> dict[str, object]:
        """Columns of the CSV file."""
        columns = {"row": self.row, "reference": self.reference}
        for name, value in paired_columns(self.difference, self.p).items():
            columns[name] = f"{value:.6g}" if isinstance(value, float) else value
        columns["as_in_s4"] = self.s4
        return columns


def read(path: Path, only: dict[str, str]) -> list[dict[str, str]]:
    """Read the lines of a CSV file with a header that have these values."""
    with open(path, newline="") as file:
        lines = list(csv.DictReader(file))
    for name, value in only.items():
        lines = [line for line in lines if line[name] == value]
    return lines


@dataclass
class RecordedFamily:
    """The recorded runs of a family of comparisons.

    Attributes:
        accuracies: accuracy in percent by row and number of the run.
        splits: hash of the table of frames by row and number of the run.
        s4: corrected p-value of the paper's test by row, as text.
    """

    accuracies: dict[str, dict[int, float]]
    splits: dict[str, dict[int, str]]
    s4: dict[str, str]

    @classmethod
    def read(cls, family: dict) -> "RecordedFamily":
        """Read the files that a family of `rows/verdicts.yaml` names."""
        only = family.get("only", {})
        accuracies: dict[str, dict[int, float]] = {}
        splits: dict[str, dict[int, str]] = {}
        for line in read(ROOT / family["runs"], only):
            number = int(line["run"])
            accuracy = float(line.get("final_accuracy") or line["accuracy"])
            accuracies.setdefault(line["row"], {})[number] = accuracy
            split = line.get("frame_table_sha256") or line["frame_table"]
            splits.setdefault(line["row"], {})[number] = split
        s4 = {}
        if "recorded" in family:
            for line in read(ROOT / family["recorded"], only):
                s4[line["row"]] = line["s4_p_holm"]
        return cls(accuracies, splits, s4)


def reference_of(row: str, reference: str) -> str:
    """Name of the row that a row is compared with.

    "n=200 Im. replay" is compared with "n=200 Ours".
    """
    return f"{row.split()[0]} {reference}" if row.startswith("n=") else reference


def comparisons(family: dict) -> list[Verdict]:
    """Compare each row of a family with its reference.

    Rows that are the reference under another name are left out.
    """
    recorded = RecordedFamily.read(family)
    own_reference = family.get("reference", "Ours")
    references = {}
    differences = {}
    for row, accuracies in recorded.accuracies.items():
        reference = reference_of(row, own_reference)
        ours = recorded.accuracies[reference]
        is_reference = row == reference or accuracies == ours
        if is_reference or row not in family.get("rows", [row]):
            continue
        splits = recorded.splits
        difference = paired(ours, accuracies, splits[reference], splits[row])
        if difference is not None:
            references[row] = reference
            differences[row] = difference
    corrected = holm([difference.p for difference in differences.values()])
    verdicts = []
    for (row, difference), p in zip(differences.items(), corrected):
        s4 = recorded_p_text(recorded.s4.get(row))
        verdicts.append(Verdict(row, references[row], difference, p, s4))
    return verdicts


def recorded_p_text(p: str | None) -> str:
    """Format a recorded p-value; empty if there is none."""
    return p_text(float(p)) if p else ""


def csv_rows_of(families: dict[str, Sequence[Verdict]]) -> list[list[object]]:
    """Header, and a row for every comparison."""
    rows: list[list[object]] = []
    for family, verdicts in families.items():
        for verdict in verdicts:
            columns = {"family": family, **verdict.columns}
            if not rows:
                rows.append(list(columns))
            rows.append(list(columns.values()))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--output", default="runs/verdicts", help="folder of the table")
    path = Path(parser.parse_args().output) / "verdicts.csv"
    families = {
        name: comparisons(family) for name, family in rows_of("verdicts").items()
    }
    for name, verdicts in families.items():
        lines = [verdict.line for verdict in verdicts]
        print(f"\n{name}\n" + format_table(HEADER, lines))
    write_csv(path, csv_rows_of(families))
    print(f"\nwritten: {path}")
    return 0


if __name__ == "__main__":
    run_script(main)
