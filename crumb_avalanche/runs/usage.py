"""How to use what a run learned, as lines for a person. Imports no torch, since ``crumb report`` needs none."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crumb_avalanche.baselines.method_settings import method_settings

# As in learner.file and learner.kinds, which import torch.
LEARNER = "learner.safetensors"
TEACHABLE = ("rda", "slda", "ncm", "ranpac")
FEATURES = ("maps", "deviations", "power")  # settings that a learner has at their defaults only


def usage_of(folder: Path, strategy: str, method: Mapping[str, Any]) -> list[str]:
    """Return the commands that ask the learner of a finished run and, if it can be taught on, teach it.

    Args:
        folder: folder of the run.
        strategy: of the run.
        method: settings that only the strategy has.
    """
    file = folder / LEARNER
    if not file.exists():
        return []
    lines = [f"ask it: crumb predict {shlex.quote(str(folder))} photo.jpg"]
    if strategy in TEACHABLE:
        usual = asdict(method_settings(strategy, {}))
        if all(method.get(name, usual[name]) == usual[name] for name in FEATURES if name in usual):
            lines.append(
                f"teach a copy: cp {shlex.quote(str(file))} mine.safetensors, then crumb teach mine.safetensors FOLDER "
                "--label NAME, or crumb serve mine.safetensors"
            )
    return lines
