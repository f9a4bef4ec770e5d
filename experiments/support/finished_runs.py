"""The finished runs of one row of a sweep, as read from their folders; `sweep.grid` puts each in `ROW/runN`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from crumb_avalanche.runs.run_folder import RESULT


@dataclass(frozen=True)
class FinishedRun:
    """A run that has its `result.json`.

    Attributes:
        folder: of the run.
        number: its seed.
        result: what `result.json` holds.
    """

    folder: Path
    number: int
    result: dict

    @property
    def joint(self) -> bool:
        """Whether all classes were learned at once, so that there is no first task."""
        return len(self.result["accuracy_after"]) == 1 and len(self.result["final_accuracy_per_experience"]) > 1

    @property
    def final(self) -> float:
        """Accuracy over all classes at the end, in percent."""
        return self.result["final_accuracy"]

    @property
    def first_task(self) -> float:
        """Accuracy after the first experience, in percent."""
        return self.result["accuracy_after"][0]

    @cached_property
    def ledger(self) -> dict:
        """What `ledger.json` holds."""
        return json.loads((self.folder / "ledger.json").read_text())

    @cached_property
    def predictions(self) -> dict[str, np.ndarray] | None:
        """`row`, `label` and `answer` of each test image; None for a run of before these were kept."""
        from crumb_avalanche.runs.predictions import PREDICTIONS, read_predictions

        return read_predictions(self.folder) if (self.folder / PREDICTIONS).exists() else None


def finished_runs(folder: Path, numbers: Sequence[int]) -> list[FinishedRun]:
    """Those of the runs `folder/runN` that are finished, in the order of `numbers`.

    Raises:
        ValueError: a `result.json` that cannot be read, or lacks what every run writes; says which.
    """
    found = []
    for number in numbers:
        path = folder / f"run{number}" / RESULT
        if not path.exists():
            continue
        try:
            result = json.loads(path.read_text())
            missing = {"final_accuracy", "accuracy_after", "final_accuracy_per_experience"} - set(result)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}); run it again with --overwrite true") from error
        if missing:
            raise ValueError(f"{path} has no {', '.join(sorted(missing))}; it was not made by crumb run: take it away")
        found.append(FinishedRun(path.parent, number, result))
    return found
