"""What is recorded of the built-in backbones, in ``backbones.csv``.

Imports neither torch nor a network. ``experiments/bench_backbones.py`` writes the file.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RECORDS = Path(__file__).with_name("backbones.csv")


@dataclass(frozen=True)
class BackboneRecord:
    """A backbone in numbers, as ``split_backbone`` makes it by default.

    Attributes:
        backbone: its name.
        pixels: side of its images.
        stored_after: the last module of F, whose map is stored; empty if F is.
        map_shape: of that map, such as ``112x14x14``, channels first.
        codebook_dim: usual length of a memory block; 0 if F is empty.
        code_bytes: of the codes of a map, with 256 memory blocks of that length.
        trained: of P's weights without the head, in 10^6 bytes.
        features: number of features that ``--preset recommended`` learns from.
        megabytes: of all weights without the head, in 10^6 bytes.
        gflops: operations of a forward pass of one image, in 10^9.
        images_per_second: of forward passes on one thread, in seconds of the CPU that
            wrote the record.
        eth80: final accuracy of ``--preset recommended`` on ETH-80, a mean in percent;
            ``None`` if it was not measured.
        splits: number of splits that it is the mean of.
    """

    backbone: str
    pixels: int
    stored_after: str
    map_shape: str
    codebook_dim: int
    code_bytes: int
    trained: float
    features: int
    megabytes: float
    gflops: float
    images_per_second: float
    eth80: float | None = None
    splits: int = 0


@cache
def recorded_backbones() -> dict[str, BackboneRecord]:
    """Return the records of all built-in backbones, by name."""
    with RECORDS.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {row["backbone"]: _record_of(row) for row in rows}


def _record_of(row: dict[str, str]) -> BackboneRecord:
    """Parse a row of ``backbones.csv``: what was measured of a backbone.

    Args:
        row: texts by the name of their column.
    """
    accuracy = row["eth80"]  # empty if it was not measured
    return BackboneRecord(
        backbone=row["backbone"],
        pixels=int(row["pixels"]),
        stored_after=row["stored_after"],
        map_shape=row["map_shape"],
        codebook_dim=int(row["codebook_dim"]),
        code_bytes=int(row["code_bytes"]),
        trained=float(row["trained"]),
        features=int(row["features"]),
        megabytes=float(row["megabytes"]),
        gflops=float(row["gflops"]),
        images_per_second=float(row["images_per_second"]),
        eth80=float(accuracy) if accuracy else None,
        splits=int(row["splits"]),
    )
