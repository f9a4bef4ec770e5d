"""How to use what a run learned, as lines for a person."""

import shlex
from pathlib import Path

from crumb_avalanche.learner.file import LEARNER, LearnerError, read_header
from crumb_avalanche.learner.of_run import cannot_be_taught


def usage_of(folder: Path) -> list[str]:
    """Return the commands that ask the learner of a finished run and, if its method allows, teach it on."""
    file = folder / LEARNER
    if not file.exists():
        return []
    try:
        header = read_header(file)
    except LearnerError as error:
        return [f"its learner cannot be used: {error}"]
    lines = [f"ask it: crumb predict {shlex.quote(str(folder))} photo.jpg"]
    if not cannot_be_taught(header):
        lines.append(
            f"teach a copy: cp {shlex.quote(str(file))} mine.safetensors, then crumb teach mine.safetensors FOLDER "
            "--label NAME, or crumb serve mine.safetensors"
        )
    return lines
