r"""Write what `crumb backbones` shows of the built-in networks.

    python experiments/bench_backbones.py --output crumb_avalanche/models/backbones.csv

Cuts, sizes and images per second are measured with random weights, the last ones in
CPU time of one thread.
Accuracies are those of --preset recommended on ETH-80, means of the runs that
results/recommended_lite0_runs.csv, ../docs/recommended_eth80.csv (SqueezeNet 1.0) and
results/backbones_eth80.csv hold. The last one is made by

    crumb run --preset recommended --benchmark eth80 --dataset-root ETH80 --runs 0-9 \
        --backbone NAME --weights FILE --feature-cache CACHE
"""

import argparse
import csv
import time
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import torch
from support.common_options import run_script

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from benchmarks_toybox_ilab.tables.csv import csv_text
from crumb_avalanche.models.backbones import BACKBONES
from crumb_avalanche.models.recorded_backbones import BackboneRecord
from crumb_avalanche.runs.backbone_measures import measure_backbone
from crumb_avalanche.system.named_values import field_names

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Recorded:
    """A file of finished runs of one network or of several.

    Attributes:
        path: of the CSV file.
        backbone: of its rows; those of several have a column.
        where: value by column of the rows that count.
    """

    path: Path
    backbone: str = ""
    where: dict[str, str] = field(default_factory=dict)


RECORDED = (
    Recorded(
        HERE.parent / "docs" / "recommended_eth80.csv",
        backbone="squeezenet1_0",
        where={"row": "recommended"},
    ),
    Recorded(
        HERE / "results" / "recommended_lite0_runs.csv",
        backbone="efficientnet_lite0",
        where={"stream": "ETH-80"},
    ),
    Recorded(HERE / "results" / "backbones_eth80.csv"),
)


def accuracies() -> dict[str, list[float]]:
    """Return the final accuracies of the recorded runs, by backbone."""
    by_backbone: dict[str, list[float]] = {}
    for recorded in RECORDED:
        with recorded.path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            counts = all(row[name] == value for name, value in recorded.where.items())
            if counts:
                backbone = recorded.backbone or row["backbone"]
                by_backbone.setdefault(backbone, []).append(float(row["accuracy"]))
    return by_backbone


def with_accuracy(record: BackboneRecord, values: list[float]) -> BackboneRecord:
    """Return a record with the mean of the accuracies, if there are any."""
    if not values:
        return record
    return replace(record, eth80=sum(values) / len(values), splits=len(values))


def text_of(value: object) -> str:
    """Format a value of a record as a cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", required=True, help="the CSV file to write")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    by_backbone = accuracies()
    rows = [field_names(BackboneRecord)]
    for name in BACKBONES:
        record = with_accuracy(
            measure_backbone(name, clock=time.process_time), by_backbone.get(name, [])
        )
        rows.append([text_of(value) for value in astuple(record)])
        print(", ".join(rows[-1]))
    with atomic_write(output, "w", encoding="utf-8", newline="") as file:
        file.write(csv_text(rows))


if __name__ == "__main__":
    run_script(main, smoke_test=False)
