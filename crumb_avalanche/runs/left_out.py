"""Frames whose features cannot be used, which a run with ``--on-bad-frame skip`` leaves out.

Only computing the features of all frames finds them. That is done once the first one is met, since it happens with
damaged weights alone where pixels have 8 bits; then the run starts again without them.
"""

import json
from pathlib import Path

import torch

from crumb_avalanche.methods.registry import get_strategy
from crumb_avalanche.models.backbone_names import preprocessing_of
from crumb_avalanche.models.finite import LARGEST_FEATURE
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.provenance import provenance
from crumb_avalanche.runs.run_folder import LEFT_OUT, tidy_up, write_json
from crumb_avalanche.runs.session import build_model
from crumb_avalanche.runs.stream import open_stream
from crumb_avalanche.system.progress import progress_bar

AT_A_TIME = 32  # images


def left_out_before(plan: RunPlan) -> list[str]:
    """Return the paths of the frames that an interrupted attempt of the same run left out."""
    path = Path(plan.output) / LEFT_OUT
    if plan.overwrite or plan.on_bad_frame != "skip" or not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return []  # they are found again
    same = isinstance(found, dict) and found.get("plan") == plan.sha256 and found.get("provenance") == provenance(plan)
    return list(found["frames"]) if same else []


def leave_out_more(plan: RunPlan, left_out: list[str]) -> list[str]:
    """Find the frames whose features cannot be used, and prepare the folder for another attempt without them.

    Args:
        plan: plan of the run.
        left_out: paths of frames that are left out already.

    Returns:
        The paths of all frames to leave out; as many as before if there are no others.
    """
    every = left_out + unusable_frames(plan, left_out)
    if len(every) > len(left_out):
        folder = Path(plan.output)
        tidy_up(folder)
        write_json(folder / LEFT_OUT, {"plan": plan.sha256, "provenance": provenance(plan), "frames": every})
    return every


@torch.no_grad()
def unusable_frames(plan: RunPlan, left_out: list[str]) -> list[str]:
    """Return the paths of the frames whose feature maps are not finite or too large, besides those left out already."""
    from benchmarks_toybox_ilab.streams.torch_dataset import pixel_transform

    stream = open_stream(plan, left_out=left_out)
    model = build_model(plan, stream.benchmark.n_classes, get_strategy(plan.strategy).codebook).to(plan.device).eval()
    model.set_precision(plan.precision)
    transform = pixel_transform(plan.image_size, preprocessing_of(plan.backbone).interpolation)
    table, found = stream.table, []
    with progress_bar(len(table), "checking features", show=plan.progress) as bar:
        for rows in torch.arange(len(table)).split(AT_A_TIME):
            pixels = torch.stack([transform(table.read(row)) for row in rows.tolist()])
            usable = (model.extract(pixels.to(plan.device)).flatten(1).abs() <= LARGEST_FEATURE).all(1)  # not if NaN
            found += [table.path[row] for row in rows[~usable.cpu()].tolist()]
            bar.update(len(rows))
    return found
