"""Compare methods over the recorded runs, with the run (the split, where runs share one) as the unit.

    python experiments/verdicts.py

Reads the runs behind the published tables and prints each family of comparisons in
`rows/verdicts.yaml`. "as in S4" is the recorded p-value (Holm) of the paper's own test,
whose unit is a batch of 100 test images. Writes `verdicts.csv`.
"""

import argparse
import csv
from pathlib import Path

from support.common_options import run_script
from support.rows import rows_of
from support.statistics import Paired, holm, paired
from support.tables import each_text, interval_text, p_text, paired_columns

from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import table

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


def read(path: Path, only: dict[str, str]) -> list[dict[str, str]]:
    """Read the lines of a CSV file with a header that have these values."""
    with open(path, newline="") as file:
        return [
            line
            for line in csv.DictReader(file)
            if all(line[name] == value for name, value in only.items())
        ]


def comparisons(family: dict) -> list[tuple[str, str, Paired, float | None, str]]:
    """Compare each row of a family with its reference; rows that are the reference under another name are left out.

    Returns row, reference, differences, p-value corrected over the family, and that of
    the paper's test.
    """
    accuracy: dict[str, dict[int, float]] = {}
    splits: dict[int, str] = {}
    only, own = family.get("only", {}), family.get("reference", "Ours")
    for line in read(ROOT / family["runs"], only):
        number = int(line["run"])
        accuracy.setdefault(line["row"], {})[number] = float(
            line.get("final_accuracy") or line["accuracy"]
        )
        splits[number] = line.get("frame_table_sha256") or line["frame_table"]
    recorded = read(ROOT / family["recorded"], only) if "recorded" in family else []
    s4 = {line["row"]: line["s4_p_holm"] for line in recorded}
    rows = []
    for row, runs in accuracy.items():
        reference = (
            f"{row.split()[0]} {own}" if row.startswith("n=") else own
        )  # "n=200 Im. replay" has "n=200 Ours"
        if (
            row == reference
            or runs == accuracy[reference]
            or row not in family.get("rows", [row])
        ):
            continue
        if (difference := paired(accuracy[reference], runs, splits)) is not None:
            rows.append((row, reference, difference))
    corrected = holm([one.p for *_, one in rows])
    texts = [p_text(float(s4[row])) if s4.get(row) else "" for row, *_ in rows]
    return [(*row, p, text) for row, p, text in zip(rows, corrected, texts)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--output", default="runs/verdicts", help="folder of the table")
    path = Path(parser.parse_args().output) / "verdicts.csv"
    rows: list[list[object]] = []
    columns: dict[str, object] = {}
    for name, family in rows_of("verdicts").items():
        lines = []
        for row, reference, found, p_holm, s4 in comparisons(family):
            line = [
                f"{row} - {reference}",
                f"{found.mean:+.1f}",
                interval_text(found),
                str(len(found.units)),
            ]
            lines.append(
                [*line, each_text(found), p_text(p_holm), found.verdict(p_holm), s4]
            )
            columns = paired_columns(found, p_holm)
            values = [
                f"{value:.6g}" if isinstance(value, float) else value
                for value in columns.values()
            ]
            rows.append([name, row, reference, *values, s4])
        print(f"\n{name}\n" + table(HEADER, lines))
    write_csv(path, [["family", "row", "reference", *columns, "as_in_s4"], *rows])
    print(f"\nwritten: {path}")
    return 0


if __name__ == "__main__":
    run_script(main)
