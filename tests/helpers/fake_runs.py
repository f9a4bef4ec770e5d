"""Hand-made run folders, and their report."""

import json
from pathlib import Path

import yaml

from crumb_avalanche.report.report import main
from crumb_avalanche.runs.command_settings import ReportSettings
from crumb_avalanche.runs.run_folder import with_digests

CONFIG = dict(benchmark="toy_shapes", protocol="class_instance", strategy="crumb", preset="paper", pretrained=None)
CONFIG |= dict(classes_per_experience=2, threads=1, replay_weight=5.0)
LEDGER = dict(buffer_items=12, buffer_bytes=64896, label_bytes=24, codebook_bytes=16384, statistics_bytes=0)
LEDGER |= dict(memory_bytes=81304, plastic_bytes=805152, frozen_bytes=2152988, optimizer_bytes=821536)
LEDGER |= dict(peak_rss_bytes=2192580608, images_per_second=80.0, train_seconds=10.0, seconds_features=0.0)
LEDGER |= dict(seconds_search=2.0, seconds_plastic=5.0, seconds_replay=2.0, seconds_other=1.0)
CLASSES = ["cup", "pear", "dog", "car"]


def fake_run(folder: Path, final: float = 70.0, run: int = 0, ledger=None, result=None, rows=None, **settings) -> Path:
    """Write a finished run of two experiences; an offline one learns both at once.

    Entries of ``ledger`` and ``result`` replace the usual ones; one that is ``...`` is left out. ``rows`` are lines of
    the accuracy matrix.
    """
    joint = settings.get("strategy") == "offline"
    after = [final] if joint else [100.0, final]
    usual = ["0,60.0000,80.0000"] if joint else ["0,100.0000,", "1,60.0000,80.0000"]
    lines = ["after,experience_0,experience_1", *(rows or usual)]
    folder.mkdir(parents=True)
    config = {**CONFIG, "run": run, "output": str(folder), **settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "ledger.json").write_text(json.dumps({**LEDGER, **(ledger or {})}))
    (folder / "accuracy_matrix.csv").write_text("\n".join(lines) + "\n")
    usual = {"run": run, "final_accuracy": final, "accuracy_after": after, "classes_order": CLASSES}
    usual |= {"classes_per_experience": [4] if joint else [2, 2], "frame_table_sha256": "abc", **(result or {})}
    written = {name: value for name, value in usual.items() if value is not ...}
    (folder / "result.json").write_text(json.dumps(with_digests(folder, written)))
    return folder


def report(*folders: Path, output: Path | None = None) -> None:
    main(ReportSettings([str(folder) for folder in folders], output and str(output)))


def sweep(folder: Path) -> Path:
    """Write three runs of CRUMB: finals 60, 70, 80, mean 70, standard deviation sqrt((100 + 0 + 100) / 2) = 10."""
    for run, final in enumerate([60.0, 70.0, 80.0]):
        ledger = {"memory_bytes": 1000 + run, "buffer_items": 10 + run, "images_per_second": 50.0 + 10 * run}
        fake_run(folder / "crumb" / f"run{run}", final, run, ledger, threads=run + 1)
    fake_run(folder / "finetune", 25.0, 0, {"memory_bytes": 0, "buffer_items": 0}, strategy="finetune")
    return folder
