"""Finished runs: read from the folders of a sweep, listed, compared bit by bit, and their models built again."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import yaml

from crumb_avalanche.learner.run_file import LEARNER
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.plan import DEFAULTS, usual_settings
from crumb_avalanche.runs.recorder import PREDICTIONS, read_predictions
from crumb_avalanche.runs.run_folder import DIGESTS, PLAN, RESULT, read_result
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings, flat
from crumb_avalanche.system.tensor_file import read_tensors

# Values of a result that depend on the machine and the moment.
IGNORED = ("seconds", "tuning_seconds", "versions", *DIGESTS)
MATRIX = "accuracy_matrix.csv"
SHOWN_APART = {"benchmark", "protocol", "run", "runs"}
FILES = {"weights", "pretrained"}  # by name without folder
CHUNK = 32  # images of a batch


@dataclass(frozen=True)
class FinishedRun:
    """A run with a `result.json`: its folder, seed and result."""

    folder: Path
    number: int
    result: dict

    @property
    def joint(self) -> bool:
        """Whether the run trained on all classes at once, so that it has no first task."""
        return (
            len(self.result["accuracy_after"]) == 1
            and len(self.result["final_accuracy_per_experience"]) > 1
        )

    @property
    def final(self) -> float:
        """Accuracy over all classes at the end, in percent."""
        return self.result["final_accuracy"]

    @property
    def split(self) -> str:
        """Hash of the table of frames, which runs may share; empty if the result has none."""
        return self.result.get("frame_table_sha256", "")

    def version(self, name: str) -> str:
        """Version of a library, the commit or the CPU that the run was made with; empty if it was not recorded."""
        return self.result.get("versions", {}).get(name, "")

    @property
    def plan_sha256(self) -> str:
        """Hash of all settings of the run, from the first line of `config.yaml`; empty if there is none."""
        path = self.folder / "config.yaml"
        first = path.read_text().partition("\n")[0] if path.exists() else ""
        return first.removeprefix(PLAN) if first.startswith(PLAN) else ""

    @cached_property
    def ledger(self) -> dict:
        """Content of `ledger.json`."""
        return json.loads((self.folder / "ledger.json").read_text())

    @cached_property
    def predictions(self) -> dict[str, np.ndarray] | None:
        """`row`, `label` and `answer` of each test image; None if the run has no `predictions.npz`."""
        return (
            read_predictions(self.folder)
            if (self.folder / PREDICTIONS).exists()
            else None
        )

    @property
    def settings(self) -> str:
        """Settings that differ from the defaults of `crumb run` as ``name=value``, separated by spaces.

        Names of files of weights are followed by ``@`` and the first 8 hexadecimal
        digits of the SHA-256.
        """
        path = self.folder / "config.yaml"
        if not path.exists():
            return ""
        contents = self.result.get("provenance", {})
        settings = flat(yaml.safe_load(path.read_text()))
        usual = usual_settings(
            settings["benchmark"],
            settings.get("preset") or "paper",
            settings["strategy"],
        )
        parts = []
        for name, value in settings.items():
            usual_value = value is None or (
                value == usual.get(name) and name not in DEFAULTS
            )
            if usual_value or name in NON_RESULT_SETTINGS | SHOWN_APART:
                continue
            if name in FILES and value is not None:
                text = str(contents.get(name, ""))
                value = Path(value).name + (
                    f"@{text[7:15]}" if text.startswith("sha256:") else ""
                )
            parts.append(f"{name}={value}")
        return " ".join(parts)


def finished_runs(folder: Path, numbers: Sequence[int]) -> list[FinishedRun]:
    """The finished runs among `folder/runN`, in the order of `numbers`."""
    found = []
    for number in numbers:
        path = folder / f"run{number}" / RESULT
        if not path.exists():
            continue
        try:
            result = json.loads(path.read_text())
            missing = {
                "final_accuracy",
                "accuracy_after",
                "final_accuracy_per_experience",
            } - set(result)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path} is damaged ({error}); run it again with --overwrite true"
            ) from error
        if missing:
            raise ValueError(
                f"{path} has no {', '.join(sorted(missing))}; it was not made by crumb run: remove it"
            )
        if DIGESTS[0] in result:
            read_result(path.parent)
        found.append(FinishedRun(path.parent, number, result))
    return found


def differences(one: Path, other: Path) -> list[str]:
    """A line for each difference of two run folders, bit by bit, but for times."""
    found = []
    if len({(folder / MATRIX).read_bytes() for folder in (one, other)}) > 1:
        found.append(MATRIX)
    files = [folder / LEARNER for folder in (one, other)]
    learned = [read_tensors(path)[0] if path.exists() else {} for path in files]
    for name in sorted(learned[0].keys() | learned[1].keys()):
        values = [tensors.get(name) for tensors in learned]
        if values[0] is None or values[1] is None or not torch.equal(*values):
            found.append(f"{LEARNER}: {name}")
    answers = [read_predictions(folder) for folder in (one, other)]
    if not all(
        np.array_equal(values, answers[1][name]) for name, values in answers[0].items()
    ):
        found.append("predictions")
    results = [json.loads((folder / RESULT).read_text()) for folder in (one, other)]
    for name in sorted(results[0].keys() | results[1].keys()):
        values = [result.get(name) for result in results]
        if name not in IGNORED and values[0] != values[1]:
            found.append(f"{RESULT}: {name} is {values[0]!r} and {values[1]!r}")
    return found


@dataclass(frozen=True)
class RebuiltRun:
    """The test images of a run, their rows of the table in the order of the batches, and its model at both ends."""

    table: object
    rows: np.ndarray
    before: SplitModel
    after: SplitModel
    datasets: list

    def batches(self) -> Iterator[torch.Tensor]:
        """Yield batches of images, or of their cached maps."""
        for dataset in self.datasets:
            for start in range(0, len(dataset), CHUNK):
                yield torch.stack(
                    [
                        dataset[place][0]
                        for place in range(start, min(start + CHUNK, len(dataset)))
                    ]
                )


def rebuilt(settings: RunSettings) -> RebuiltRun:
    """Build a finished run's models again: as it began, from its settings, and as it ended, from its learner file."""
    from crumb_avalanche.learner.run_file import load_learner
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.session import Session, open_stream
    from crumb_avalanche.system.process import set_up_process

    learned = Path(settings.output) / LEARNER
    if not learned.is_file():
        raise ValueError(
            f"{settings.output} has no {LEARNER}; run it again with --keep-learner true"
        )
    plan = RunPlan.of(replace(settings, progress=False, runtime="torch"))
    set_up_process(plan.threads, plan.run)
    session = Session.build(plan, open_stream(plan, joint=False), learner=False)
    after = load_learner(learned, plan.device)[0].model
    datasets = [
        experience.dataset for experience in session.stream.benchmark.test_stream
    ]
    rows = [np.asarray(list(dataset.frame_row)) for dataset in datasets]
    if session.cache is not None:
        labels = [list(map(int, dataset.targets)) for dataset in datasets]
        datasets = [
            session.cache.store.dataset(*parts) for parts in zip(datasets, rows, labels)
        ]
    return RebuiltRun(
        session.stream.table,
        np.concatenate(rows),
        session.model.eval(),
        after.eval(),
        datasets,
    )
