"""Finished runs, read from the folders of a sweep, and compared bit by bit."""

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
import yaml
from support.statistics import batch_accuracies

from crumb_avalanche.methods.registry import STRATEGIES, get_strategy
from crumb_avalanche.methods.run_header import LEARNER
from crumb_avalanche.runs.plan import DEFAULTS, RunPlan
from crumb_avalanche.runs.predictions import PREDICTIONS, read_predictions
from crumb_avalanche.runs.run_folder import DIGESTS, RESULT, provenance, read_result
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings, flat
from crumb_avalanche.system.tensor_file import read_tensors

# Values of a result that depend on the machine and the moment.
IGNORED = ("seconds", "tuning_seconds", "versions", *DIGESTS)
MATRIX = "accuracy_matrix.csv"
NEEDED = ("final_accuracy", "accuracy_after", "final_accuracy_per_experience")
# Settings that have a column of their own beside the text of the others.
OWN_COLUMNS = {"benchmark", "run", "runs"}
# Settings whose value is listed even where it is the default.
ALWAYS_LISTED = {*DEFAULTS, "replay_weight"}
TUNED = "learning_rate"  # where it is None
METHOD = "method."  # before the name of a setting of a method
PRESET = "preset"  # listed first
# Settings that are listed by the file's name and content, without its folder.
FILES = {"weights", "pretrained"}
# Characters that stand for themselves in a value of a list; a space does not.
PLAIN_CHARACTERS = string.punctuation.replace("%", "")


def settings_text(settings: Mapping[str, Any], contents: Mapping[str, str]) -> str:
    """List settings of a run as ``name=value``, separated by spaces.

    The preset comes first, and always; then all settings that differ from the default
    of `RunSettings`, those of `ALWAYS_LISTED` and all of the method. Left out are those
    of `OWN_COLUMNS` and those that do not change results. A learning rate of ``None``
    is tuned. Spaces and other odd characters of a value are percent-encoded. A file is
    listed by its name, ``@`` and the first 8 hexadecimal digits of its SHA-256, so that
    the text is the same on every machine.

    Args:
        settings: flat settings of a `RunPlan`.
        contents: hash of the content of each file, as in the provenance of a result.
    """
    preset = settings.get(PRESET) or "paper"
    own_defaults = vars(RunSettings())
    texts = [f"{PRESET}={preset}"]
    for name, value in settings.items():
        if name in NON_RESULT_SETTINGS | OWN_COLUMNS | {PRESET}:
            continue
        is_default = value == own_defaults.get(name)
        is_always_listed = name in ALWAYS_LISTED or name.startswith(METHOD)
        is_absent = value is None and name != TUNED
        is_left_out = is_absent or not is_always_listed
        if is_default and is_left_out:
            continue
        if name in FILES and value is not None:
            value = _file_text(value, contents.get(name, ""))
        texts.append(_word(name, value))
    return " ".join(texts)


def _word(name: str, value: object) -> str:
    """A setting of a list."""
    return f"{name}={quote(str(value), safe=PLAIN_CHARACTERS)}"


def _file_text(path: str, content: str) -> str:
    """Name of a file and the first digits of its hash, if it has one."""
    name = Path(path).name
    algorithm, _, digits = content.partition(":")
    if algorithm == "sha256":
        return f"{name}@{digits[:8]}"
    return name


def planned_text(settings: RunSettings) -> str:
    """List the settings of a run still to be done, as `settings_text` does."""
    plan = RunPlan.of(settings)
    return settings_text(flat(vars(plan)), provenance(plan))


def same_settings(recorded: str, planned: str) -> bool:
    """Tell whether a recorded run has the settings of a run still to be done.

    A setting that a recorded run does not name is newer than the run: it agrees if the
    planned value is the default, with which results stay as they were.

    Args:
        recorded: list of settings of the recorded run, see `settings_text`.
        planned: list of settings of the run still to be done.
    """
    recorded_texts = recorded.split(" ")
    names = {text.partition("=")[0] for text in recorded_texts}
    newer_defaults = set()
    for name, value in {**DEFAULTS, **_method_defaults(planned)}.items():
        if name not in names:
            newer_defaults.add(_word(name, value))
    texts = [text for text in planned.split(" ") if text not in newer_defaults]
    return texts == recorded_texts


def _method_defaults(settings: str) -> dict[str, Any]:
    """Defaults of the settings of the method of a list, by name."""
    for text in settings.split(" "):
        setting_name, _, value = text.partition("=")
        if setting_name == "strategy" and value in STRATEGIES:
            defaults = asdict(get_strategy(value).settings())
            return {f"{METHOD}{name}": default for name, default in defaults.items()}
    return {}


def settings_hash(settings: str) -> str:
    """SHA-256 of a list of settings, in 64 hexadecimal digits."""
    return hashlib.sha256(settings.encode()).hexdigest()


@dataclass(frozen=True)
class FinishedRun:
    """A run with a `result.json`: its folder, number and result."""

    folder: Path
    number: int
    result: dict

    @property
    def joint(self) -> bool:
        """Whether the run trained on all classes at once, so it has no first task."""
        return len(self.accuracy_after) == 1 and len(self.per_experience) > 1

    @property
    def final(self) -> float:
        """Accuracy over all classes at the end, in percent."""
        return self.result["final_accuracy"]

    @property
    def accuracy_after(self) -> Sequence[float | None]:
        """Accuracy over all seen classes after each experience; None if not tested."""
        return self.result["accuracy_after"]

    @property
    def per_experience(self) -> Sequence[float]:
        """Accuracy at the end on the test images of each experience, in percent."""
        return self.result["final_accuracy_per_experience"]

    @property
    def seconds(self) -> float | None:
        """Time of the run; None if it was not recorded."""
        return self.result.get("seconds")

    @property
    def learning_rate(self) -> float | None:
        """Learning rate of training, given or tuned; None if it was not recorded."""
        return self.result.get("learning_rate")

    @property
    def split(self) -> str:
        """Hash of the table of frames, which runs may share; empty if not recorded."""
        return self.result.get("frame_table_sha256", "")

    @property
    def commit(self) -> str:
        """Commit of the checkout that made the run; empty if it was not recorded."""
        return self.result.get("versions", {}).get("commit", "")

    @property
    def cpu(self) -> str:
        """CPU that made the run; empty if it was not recorded."""
        return self.result.get("versions", {}).get("cpu", "")

    @cached_property
    def ledger(self) -> dict:
        """Content of `ledger.json`."""
        return json.loads((self.folder / "ledger.json").read_text())

    @cached_property
    def predictions(self) -> dict[str, np.ndarray] | None:
        """`row`, `label` and `answer` of each test image; None if there is no file."""
        if not (self.folder / PREDICTIONS).exists():
            return None
        return read_predictions(self.folder)

    @property
    def test_images(self) -> str:
        """SHA-256 of the rows and labels of the test images; empty if not recorded."""
        if self.predictions is None:
            return ""
        digest = hashlib.sha256(self.predictions["row"].astype("<i8").tobytes())
        digest.update(self.predictions["label"].astype("<i8").tobytes())
        return digest.hexdigest()

    @property
    def batches(self) -> np.ndarray | None:
        """Accuracy on each fixed batch of test images in percent, if recorded."""
        if self.predictions is None:
            return None
        return batch_accuracies(self.predictions)

    @property
    def settings(self) -> str:
        """Settings of the run, as `settings_text` lists them; empty without a file."""
        path = self.folder / "config.yaml"
        if not path.exists():
            return ""
        settings = flat(yaml.safe_load(path.read_text()))
        return settings_text(settings, self.result.get("provenance", {}))


def finished_runs(folder: Path, numbers: Sequence[int]) -> list[FinishedRun]:
    """Read the finished runs among `folder/runN`, in the order of `numbers`."""
    runs = []
    for number in dict.fromkeys(numbers):
        path = folder / f"run{number}" / RESULT
        if path.exists():
            runs.append(FinishedRun(path.parent, number, _checked_result(path)))
    return runs


def _checked_result(path: Path) -> dict:
    """Read a result; ValueError if it is damaged, or was not made by `crumb run`."""
    try:
        result = json.loads(path.read_text())
        missing = set(NEEDED) - set(result)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); run it again with --overwrite true"
        ) from error
    if missing:
        raise ValueError(
            f"{path} has no {', '.join(sorted(missing))}; it was not made by crumb "
            "run: remove it"
        )
    if DIGESTS[0] in result:  # raises if the files of the run are not those hashed
        read_result(path.parent)
    return result


def differences(first: Path, second: Path) -> list[str]:
    """List the differences of two run folders, bit by bit, but for times."""
    lines = []
    if (first / MATRIX).read_bytes() != (second / MATRIX).read_bytes():
        lines.append(MATRIX)
    lines += _different_tensors(first / LEARNER, second / LEARNER)
    if _predictions_differ(first, second):
        lines.append("predictions")
    lines += _different_results(first / RESULT, second / RESULT)
    return lines


def _different_tensors(first: Path, second: Path) -> list[str]:
    """List the tensors of two learner files that differ, or that only one has."""
    tensors = read_tensors(first)[0] if first.exists() else {}
    second_tensors = read_tensors(second)[0] if second.exists() else {}
    lines = []
    for name in sorted(tensors.keys() | second_tensors.keys()):
        in_both = name in tensors and name in second_tensors
        if not in_both or not torch.equal(tensors[name], second_tensors[name]):
            lines.append(f"{LEARNER}: {name}")
    return lines


def _predictions_differ(first: Path, second: Path) -> bool:
    """Whether two runs answered otherwise, or about other images."""
    predictions = read_predictions(first)
    second_arrays = read_predictions(second)
    return not all(
        np.array_equal(values, second_arrays[name])
        for name, values in predictions.items()
    )


def _different_results(first: Path, second: Path) -> list[str]:
    """List the entries of two results that differ."""
    result = json.loads(first.read_text())
    second_entries = json.loads(second.read_text())
    lines = []
    for name in sorted(result.keys() | second_entries.keys()):
        value = result.get(name)
        other_value = second_entries.get(name)
        if name not in IGNORED and value != other_value:
            lines.append(f"{RESULT}: {name} is {value!r} and {other_value!r}")
    return lines
