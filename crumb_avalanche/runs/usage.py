"""How to use what a run learned, as lines for a person. Imports no torch, since ``crumb report`` needs none."""

import shlex
from pathlib import Path

# As in learner.file and learner.kinds, which import torch.
LEARNER = "learner.safetensors"
TEACHABLE = ("rda", "slda", "ncm", "ranpac")


def usage_of(folder: Path, strategy: str) -> list[str]:
    """Return the commands that ask the learner of a finished run and, if it can be taught on, teach it.

    Args:
        folder: folder of the run.
        strategy: of the run.
    """
    file = folder / LEARNER
    if not file.exists():
        return []
    lines = [f"ask it: crumb predict {shlex.quote(str(folder))} photo.jpg"]
    if strategy in TEACHABLE:
        lines.append(
            f"teach a copy: cp {shlex.quote(str(file))} mine.safetensors, then crumb teach mine.safetensors FOLDER "
            "--label NAME, or crumb serve mine.safetensors"
        )
    return lines
