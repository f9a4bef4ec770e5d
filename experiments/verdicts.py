"""Compare methods over the recorded runs, with the run (the split, where runs share one) as the unit.

    python experiments/verdicts.py

Reads the runs behind the published tables and prints, for each family of comparisons: the difference of a row to its
reference in points, with 95 % interval, in every run, p-value corrected by Holm over the family, and what that decides.
"as in S4" is the recorded p-value (Holm) of the paper's own test, whose unit is a batch of 100 test images. Writes
`verdicts.csv` to --output.
"""

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.common_options import run_script
from support.paper_statistics import holm
from support.run_statistics import Paired, paired
from support.side_by_side import interval_text, p_text, paired_columns

from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import table

ROOT = Path(__file__).parent.parent
REMIND = "remind, one image at a time"  # as its authors run it
RUNS, TABLES = ROOT / "experiments" / "results", ROOT / "docs" / "results"


@dataclass(frozen=True)
class Family:
    """Comparisons that are claimed together.

    Attributes:
        name: its name.
        runs: CSV file with a line for each run.
        reference: what a row is compared with: the name of a row, or for each row the ending of its own reference.
        only: values that a run must have, by column.
        recorded: table with the paper's tests, or None.
        rows: rows to compare; empty takes all.
    """

    name: str
    runs: Path
    reference: str = "Ours"
    only: tuple[tuple[str, str], ...] = ()
    recorded: Path | None = None
    rows: tuple[str, ...] = ()

    def reference_of(self, row: str) -> str:
        """Return the reference of a row; "n=200 Im. replay" has "n=200 Ours"."""
        return f"{row.split()[0]} {self.reference}" if row.startswith("n=") else self.reference


def of_paper(name: str, table: str, benchmark: str, protocol: str) -> Family:
    """Return the comparisons of a table of the paper."""
    only = (("benchmark", benchmark), ("protocol", protocol))
    return Family(name, RUNS / f"{table}_runs.csv", only=only, recorded=TABLES / f"{table}.csv")


FAMILIES = (
    of_paper("Table 1, ETH-80, class-instance", "table1", "eth80", "class_instance"),
    of_paper("Table 1, ETH-80, class-i.i.d.", "table1", "eth80", "class_iid"),
    of_paper("Table 1, Online-CIFAR100", "table1", "cifar100", "class_iid"),
    of_paper("Table 3, ETH-80, class-instance", "table3", "eth80", "class_instance"),
    of_paper("Table 3, ETH-80, class-i.i.d.", "table3", "eth80", "class_iid"),
    of_paper("Table 3, ETH-80, class-instance, from Tiny-ImageNet", "table3_tiny_imagenet", "eth80", "class_instance"),
    of_paper("Table 3, ETH-80, class-i.i.d., from Tiny-ImageNet", "table3_tiny_imagenet", "eth80", "class_iid"),
    of_paper("Table 3, Online-CIFAR100", "table3_cifar100", "cifar100", "class_iid"),
    of_paper("Table 4, ETH-80, class-instance", "table4", "eth80", "class_instance"),
    of_paper("Table 4, ETH-80, class-i.i.d.", "table4_class_iid", "eth80", "class_iid"),
    of_paper("Table 4, ETH-80, class-instance, from Tiny-ImageNet", "table4_tiny_imagenet", "eth80", "class_instance"),
    of_paper(
        "Table 4, ETH-80, class-i.i.d., from Tiny-ImageNet", "table4_tiny_imagenet_class_iid", "eth80", "class_iid"
    ),
    of_paper("Table 4, Online-CIFAR100", "table4_cifar100", "cifar100", "class_iid"),
    Family("recommended, ETH-80 (development)", ROOT / "docs/recommended_eth80.csv", "recommended"),
    Family("CRUMB tuned, ETH-80", ROOT / "docs/recommended_eth80.csv", "crumb, tuned", rows=(REMIND, "paper")),
    Family("recommended, Online-CIFAR100", ROOT / "docs/recommended_cifar100.csv", "recommended"),
    Family("recommended, Tiny-ImageNet", ROOT / "docs/recommended_tiny_imagenet.csv", "recommended"),
    Family("recommended at 0.60 MB, ETH-80 (development)", ROOT / "docs/recommended_eth80_small.csv", "recommended"),
    Family("recommended at 2.26 MB, Online-CIFAR100", ROOT / "docs/recommended_cifar100_small.csv", "recommended"),
    Family("recommended at 2.26 MB, Tiny-ImageNet", ROOT / "docs/recommended_tiny_imagenet_small.csv", "recommended"),
    Family(
        "recommended at 0.60 MB, sign digits (development)",
        ROOT / "docs/recommended_sign_digits_small.csv",
        "recommended",
    ),
    Family(
        "recommended at 0.60 MB, toy dots (development)", ROOT / "docs/recommended_toy_dots_small.csv", "recommended"
    ),
    Family("recommended, sign digits (development)", ROOT / "docs/recommended_sign_digits.csv", "recommended"),
    Family("recommended, toy dots (development)", ROOT / "docs/recommended_toy_dots.csv", "recommended"),
    Family("recommended, toy shapes (development)", ROOT / "docs/recommended_toy_shapes.csv", "recommended"),
    Family(
        "recommended at 0.60 MB, toy shapes (development)",
        ROOT / "docs/recommended_toy_shapes_small.csv",
        "recommended",
    ),
)


@dataclass(frozen=True)
class Comparison:
    """A row compared with its reference.

    Attributes:
        row, reference: names.
        found: the differences.
        p_holm: p-value, corrected over the family.
        s4: the recorded p-value of the paper's test, as text.
    """

    row: str
    reference: str
    found: Paired
    p_holm: float | None
    s4: str


def read(path: Path) -> list[dict[str, str]]:
    """Read a CSV file with a header."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def comparisons(family: Family) -> list[Comparison]:
    """Compare each row of a family with its reference; rows that are the reference under another name are left out."""
    accuracy: dict[str, dict[int, float]] = {}
    splits: dict[int, str] = {}
    for line in read(family.runs):
        if all(line[name] == value for name, value in family.only):
            number = int(line["run"])
            accuracy.setdefault(line["row"], {})[number] = float(line.get("final_accuracy") or line["accuracy"])
            splits[number] = line.get("frame_table_sha256") or line["frame_table"]
    recorded = {
        line["row"]: line["s4_p_holm"]
        for line in (read(family.recorded) if family.recorded else [])
        if all(line[name] == value for name, value in family.only)
    }
    rows, found = [], []
    for row, runs in accuracy.items():
        reference = family.reference_of(row)
        if row == reference or runs == accuracy[reference] or (family.rows and row not in family.rows):
            continue
        difference = paired(accuracy[reference], runs, splits)
        if difference is not None:
            rows.append((row, reference, recorded.get(row, "")))
            found.append(difference)
    corrected = holm([one.p for one in found])
    return [
        Comparison(row, reference, one, p, p_text(float(s4)) if s4 else "")
        for (row, reference, s4), one, p in zip(rows, found, corrected)
    ]


HEADER = ["row", "difference", "95 % interval", "units", "of the runs", "p Holm", "verdict", "as in S4"]


def text_of(one: Comparison) -> list[str]:
    """Format a comparison as text."""
    mean, *_, units, _, p_holm, decided = paired_columns(one.found, one.p_holm)
    each = " ".join(f"{value:+.1f}" for value in one.found.differences.values())
    interval = interval_text(one.found)
    return [f"{one.row} - {one.reference}", f"{mean:+.1f}", interval, str(units), each, p_text(p_holm), decided, one.s4]


def rows_of(found: Sequence[tuple[Family, Sequence[Comparison]]]) -> list[list[object]]:
    """Return a header and a row for every comparison."""
    columns = ("effect", "effect_low", "effect_high", "effect_of_runs", "units", "p", "p_holm", "verdict")
    rows = [["family", "row", "reference", *columns, "as_in_s4"]]
    for family, some in found:
        for one in some:
            values = [
                f"{value:.6g}" if isinstance(value, float) else value for value in paired_columns(one.found, one.p_holm)
            ]
            rows.append([family.name, one.row, one.reference, *values, one.s4])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--output", default="runs/verdicts", help="folder of the table")
    chosen = parser.parse_args()
    found = [(family, comparisons(family)) for family in FAMILIES]
    for family, some in found:
        print(f"\n{family.name}\n" + table(HEADER, [text_of(one) for one in some]))
    path = Path(chosen.output) / "verdicts.csv"
    write_csv(path, rows_of(found))
    print(f"\nwritten: {path}")
    return 0


if __name__ == "__main__":
    run_script(main)
