"""Where in a photo the evidence for an answer lies."""

import pytest
import torch
from patch_images import SIZE, images
from small_lessons import taught

from crumb_avalanche.learner.evidence import evidence_by_location
from crumb_avalanche.learner.predictor import NothingTaughtError


def test_explain_takes_a_single_image(make):
    learner = taught(make(), 2)
    assert learner.explain(images(0, 1)).shape == (SIZE, SIZE)
    with pytest.raises(ValueError, match="single image"):
        learner.explain(images(0, 3))
    with pytest.raises(NothingTaughtError):
        make().explain(images(0, 1))


def test_the_shares_of_a_linear_discriminant_add_up_to_the_margin(make):
    learner = taught(make("slda"), 4)
    for number in range(4):
        pixels = torch.from_numpy(images(number, 1, seed=4)).permute(0, 3, 1, 2)
        arguments = learner.network.model, learner._classifier.features, learner._classifier.statistics
        shares = evidence_by_location(*arguments, pixels, [0, 1, 2, 3])
        known = learner._classifier.statistics.scores(learner._classifier.compute(learner.network.model, pixels))[0]
        first, second = known.topk(2).values
        assert float(shares.sum()) == pytest.approx(float(first - second), rel=1e-4)
