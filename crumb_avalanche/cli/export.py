"""``crumb export``: convert a learner for other programs."""

from pathlib import Path

import torch

from crumb_avalanche.learner.export import export_onnx, is_export
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.runs.command_settings import ExportSettings
from crumb_avalanche.system.counted import counted
from crumb_avalanche.system.folder_lock import output_file


def main(settings: ExportSettings) -> None:
    """Write the learner in another format and print how well the result agrees with it."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    learner = Learner.load(settings.model, settings.weights)
    path = Path(settings.output or Path(settings.model).with_suffix(f".{settings.to}"))
    with output_file(path, "an ONNX file of crumb export", is_export):
        parity = export_onnx(learner, path, settings.images)
    print(f"compared with the learner on {parity}")
    print(f"{path}: {counted(len(learner.classes), 'class')}, file of {path.stat().st_size:,} bytes")
