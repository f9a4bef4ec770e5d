"""Records of predictions when classes get other numbers."""

import torch

from crumb_avalanche.learner.confidence import RIVALS, Records


def test_a_rival_that_becomes_the_true_class_is_none():
    rivals = torch.full((1, RIVALS), -1)
    rivals[0, 0] = 1
    gaps = torch.full((1, RIVALS), -torch.inf)
    gaps[0, 0] = -0.5
    number = torch.tensor([0])
    records = Records(
        labels=number,
        lessons=number,
        images=number,
        classes=number + 2,
        typicality=torch.zeros(1, 3),
        rivals=rivals,
        gaps=gaps,
    )
    merged = records.renumbered({0: 4, 1: 4}, lessons=2)
    assert merged.labels.tolist() == [4]
    assert merged.lessons.tolist() == [2]
    assert merged.rivals.tolist() == [[-1] * RIVALS]
    assert merged.gaps.tolist() == [[-float("inf")] * RIVALS]
