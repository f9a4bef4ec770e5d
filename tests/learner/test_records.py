"""Records of predictions when classes get other numbers."""

import torch

from crumb_avalanche.learner.records import RIVALS, Records


def test_a_rival_that_becomes_the_true_class_is_none():
    rivals = torch.full((1, RIVALS), -1)
    rivals[0, :2] = torch.tensor([1, 2])
    gaps = torch.full((1, RIVALS), -torch.inf)
    gaps[0, :2] = torch.tensor([-0.5, -0.7])
    number = torch.tensor([1])
    records = Records(
        labels=torch.tensor([0]),
        clip_numbers=number,
        images=number,
        classes=number + 2,
        mean_log_clips=torch.zeros(1),
        shortage=torch.zeros(1),
        typicality=torch.zeros(1, 3),
        left_out=torch.zeros(1, 3),
        rivals=rivals,
        gaps=gaps,
    )
    merged = records.renumbered({0: 4, 1: 4, 2: 5}, clips=2)
    assert merged.labels.tolist() == [4]
    assert merged.clip_numbers.tolist() == [3]
    assert merged.rivals[0, :3].tolist() == [-1, 5, -1]
    assert merged.gaps[0, 0] == -torch.inf
