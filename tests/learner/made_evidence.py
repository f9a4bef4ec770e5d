"""Evidence of made images, and a confidence that observed some."""

import torch

from crumb_avalanche.learner.calibration import Confidence
from crumb_avalanche.learner.evidence import Evidence


def made(scores, typicality=None, labels=None, counts=None):
    """Evidence of images from their scores; the rest is the same for all."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    columns = scores.shape[1]
    return Evidence(
        scores,
        torch.arange(columns) if labels is None else torch.tensor(labels),
        torch.full((columns,), 10) if counts is None else torch.tensor(counts),
        torch.zeros(len(scores), 3, dtype=torch.float64) if typicality is None else torch.as_tensor(typicality),
    )


def random_lesson(seed, label=0, images=12, classes=4, counts=None, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(images, classes, generator=generator, dtype=torch.float64)
    scores[:, label] += 2
    return made(scores, torch.randn(images, 3, generator=generator, dtype=torch.float64), counts=counts)


def taught(lessons=8, **arguments):
    confidence = Confidence()
    for seed in range(lessons):
        confidence.observe(random_lesson(seed, label=seed % 4, **arguments), seed % 4)
    return confidence


def same(one, other):
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys() and first.pop("next") == second.pop("next")
    return all(torch.equal(first[name], second[name]) for name in first)
