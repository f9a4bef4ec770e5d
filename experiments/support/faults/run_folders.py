"""Damage of a finished run's files, as crumb report and a rerun read them."""

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

from support.faults.case import Kind
from support.faults.damage import Tree, damage_some
from support.faults.material import finished_run

from crumb_avalanche.report.runs import groups_of, read_run
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.recorder import read_predictions
from crumb_avalanche.runs.run_folder import finished_result
from crumb_avalanche.runs.settings import RunSettings


def plan_of(run: Path, clips: Path) -> RunPlan:
    """The plan of ``material.finished_run``."""
    values = dict(strategy="ncm", preset="paper", first_epochs=1, batch_size=4, budget_images=9, image_size=32)
    values |= dict(classes_per_experience=1, backbone="small_cnn", weights="none", threads=1, progress=False)
    settings = RunSettings(benchmark="clip_folder", dataset_root=str(clips), output=str(run), **values)
    return replace(RunPlan.of(settings))


class RunFolder(Kind):
    """Files of a run folder.

    Args:
        folder: of the kind.
        names: files that are damaged.
    """

    def __init__(self, folder: Path, *names: str):
        super().__init__(folder)
        self.run = finished_run(folder)
        self.plan = plan_of(self.run, folder / "clips")
        self.tree = Tree(self.run)
        self.paths = [self.run / name for name in names]
        self.learn_base()

    def damage(self, random: Random) -> str:
        return damage_some(self.paths, random)

    def act(self):
        run = read_run(self.run)
        groups = groups_of([run])
        predictions = {name: values.tolist() for name, values in read_predictions(self.run).items()}
        rerun = finished_result(self.run, self.plan)
        return run, [group.label for group in groups], predictions, rerun

    def restore(self) -> None:
        if not self.run.is_dir():
            shutil.rmtree(self.run, ignore_errors=True)
        self.tree.restore()


class Results(RunFolder):
    """``result.json`` and the records whose digests it holds."""

    def __init__(self, folder: Path):
        super().__init__(folder, "result.json", "accuracy_matrix.csv", "ledger.json", "predictions.npz", "metrics.csv")


class Configs(RunFolder):
    """``config.yaml``."""

    def __init__(self, folder: Path):
        super().__init__(folder, "config.yaml")
