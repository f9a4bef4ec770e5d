"""Read the finished runs of a row of a sweep, from `ROW/runN`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from crumb_avalanche.runs.run_folder import RESULT, check_digests


@dataclass(frozen=True)
class FinishedRun:
    """A run with a `result.json`.

    Attributes:
        folder: folder of the run.
        number: seed of the run.
        result: content of `result.json`.
    """

    folder: Path
    number: int
    result: dict

    @property
    def joint(self) -> bool:
        """Whether the run trained on all classes at once, so that it has no first task."""
        return len(self.result["accuracy_after"]) == 1 and len(self.result["final_accuracy_per_experience"]) > 1

    @property
    def final(self) -> float:
        """Accuracy over all classes at the end, in percent."""
        return self.result["final_accuracy"]

    @property
    def diverged(self) -> bool:
        """Whether training diverged; the accuracy is then that of the last finite weights."""
        return self.result.get("diverged_in_experience") is not None

    @property
    def first_task(self) -> float:
        """Accuracy after the first experience, in percent."""
        return self.result["accuracy_after"][0]

    @property
    def split(self) -> str:
        """Hash of the table of frames, which runs may share; empty if the result has none."""
        return self.result.get("frame_table_sha256", "")

    @cached_property
    def ledger(self) -> dict:
        """Content of `ledger.json`."""
        return json.loads((self.folder / "ledger.json").read_text())

    @cached_property
    def predictions(self) -> dict[str, np.ndarray] | None:
        """`row`, `label` and `answer` of each test image; None if the run has no `predictions.npz`."""
        from crumb_avalanche.runs.recorder import PREDICTIONS, read_predictions

        return read_predictions(self.folder) if (self.folder / PREDICTIONS).exists() else None


def finished_runs(folder: Path, numbers: Sequence[int]) -> list[FinishedRun]:
    """The finished runs among `folder/runN`, in the order of `numbers`.

    Raises:
        ValueError: a `result.json` that cannot be read, or lacks keys that every run writes; or a file of a run was
            changed since.
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
            raise ValueError(f"{path} has no {', '.join(sorted(missing))}; it was not made by crumb run: remove it")
        check_digests(path.parent, result)
        found.append(FinishedRun(path.parent, number, result))
    return found
