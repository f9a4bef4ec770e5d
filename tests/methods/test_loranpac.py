"""LoRanPAC by hand, where the random projection is the unit matrix."""

import torch

from crumb_avalanche.methods.loranpac import LoRanPAC


def fed(truncated):
    """Two images (2, 0) of class 0 and one (0, 1) of class 1, and the answers to the two axes."""
    form = LoRanPAC(2, 2, projection=2, rank=1.0, truncated=truncated)
    form._weights = torch.eye(2, dtype=torch.float64)
    form.update(torch.tensor([[2.0, 0], [2, 0], [0, 1]]), torch.tensor([0, 0, 1]))
    return form, form.scores(torch.eye(2))


def test_what_is_small_is_dropped_for_good():
    """Squared singular values are 8 along the first axis and 1 along the second; class sums are (4, 0) and (0, 1).

    Least squares has the weights 4 / 8 and 1 / 1. With 60 % truncated, one direction of three images is kept, and
    class 1 has no weight. Two images (0, 2) of class 1 then make squared singular values of 8 and 8 instead of 9, two
    of five directions are kept, and the sum of class 1 is (0, 5).
    """
    _, answers = fed(truncated=0.25)
    torch.testing.assert_close(answers, torch.tensor([[0.5, 0], [0, 1]], dtype=torch.float64))
    form, answers = fed(truncated=0.6)
    torch.testing.assert_close(answers, torch.tensor([[0.5, 0], [0, 0]], dtype=torch.float64))
    form.update(torch.tensor([[0.0, 2], [0, 2]]), torch.tensor([1, 1]))
    torch.testing.assert_close(form.scores(torch.eye(2)), torch.tensor([[0.5, 0], [0, 5 / 8]], dtype=torch.float64))


def test_one_class_a_step_with_more_features_than_images_stays_accurate():
    """Equal features of hundreds of images leave all singular values but a few at the rounding of float32."""
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(8, 16, generator=generator)
    form = LoRanPAC(8, 16, projection=300, rank=0.5)
    for label, centre in enumerate(centres):
        rows = centre + 1e-3 * torch.randn(60, 16, generator=generator)
        for some in rows.split(7):
            form.update(some, torch.full((len(some),), label))
    scores = form.scores(centres)
    torch.testing.assert_close(scores, torch.eye(8, dtype=torch.float64), rtol=0, atol=0.02)
