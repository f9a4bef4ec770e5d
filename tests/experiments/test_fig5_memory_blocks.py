"""Use of blocks is counted over slices that are not zero; a finished run is built again."""

import numpy as np
import pytest
import torch
import yaml
from fig5_memory_blocks import Usage, summary, usage_of
from support.runs import rebuilt
from support.shape_bias import PLAIN, logits_of
from torch import nn

from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.settings import RunSettings


def test_usage_against_a_loop():
    plastic = nn.Sequential()
    for name, layer in (("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten()), ("head", nn.Linear(6, 2))):
        plastic.add_module(name, layer)
    codebook = Codebook(4, 3)
    codebook.blocks.data = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    model = SplitModel(nn.Conv2d(3, 6, 1), plastic, "head", codebook, image_size=4)
    maps = torch.rand(5, 6, 3, 2, generator=torch.Generator().manual_seed(0))
    maps[maps < 0.5] = 0
    counts, zeros, codes = [0] * 4, 0, np.zeros((5, 3, 2), int)
    for number, image in enumerate(maps):
        for row in range(3):
            for column in range(2):
                for piece in (image[:3, row, column], image[3:, row, column]):
                    zeros += not piece.any()
                    counts[1 + int(piece.argmax())] += bool(piece.any())
                first = image[:3, row, column]
                codes[number, row, column] = 1 + int(first.argmax()) if first.any() else -1
    usage = usage_of(model, iter(maps.split(2)))
    assert usage.counts.tolist() == counts and usage.zeros == zeros and (usage.codes == codes).all()
    assert usage.shares.tolist() == (np.array(counts) / sum(counts)).tolist()


def test_summary():
    codes = np.zeros((3, 1, 1))
    before, after = Usage(np.array([5, 5, 0]), 10, codes), Usage(np.array([0, 4, 4]), 0, codes)
    rows = dict((name, values) for name, *values in summary(before, after))
    assert rows["slices that are all zero, %"] == ["50.00", "0.00"]
    assert rows["blocks never used"] == ["1", "1"] and rows["as varied as so many equal blocks"] == ["2.0", "2.0"]


def test_a_rebuilt_run_has_its_accuracy_and_needs_its_model(ran, tmp_path):
    result, _ = ran(tmp_path)
    settings = RunSettings(**yaml.safe_load((tmp_path / "config.yaml").read_text()))
    run = rebuilt(settings)
    answers = logits_of(run.after, run.batches())[PLAIN].argmax(1)
    accuracy = 100 * (answers == run.table.labels[run.rows]).mean()
    assert accuracy == pytest.approx(result["final_accuracy"])
    (tmp_path / "learner.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no learner.safetensors; run it again with --keep-learner"):
        rebuilt(settings)
