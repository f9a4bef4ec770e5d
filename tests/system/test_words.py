"""Numbers as people say them."""

import pytest

from crumb_avalanche.system.words import error_rates, frequency


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "1 in 50 at most"),
        (0.019, "1 in 50 at most"),
        (0.02, "about 1 in 50"),
        (0.04, "about 1 in 25"),
        (0.26, "about 1 in 4"),
        (0.4, "about 1 in 3"),
        (0.5, "about 1 in 2"),
        (0.65, "about 7 in 10"),
        (0.68, "about 7 in 10"),
        (0.94, "about 9 in 10"),
        (0.95, "nearly all"),
        (1.0, "nearly all"),
    ],
)
def test_frequency(share, words):
    assert frequency(share) == words


def test_error_rates():
    assert error_rates(0.2, 0.25, 0.68) == (
        "of things that were taught it would not know about 1 in 5, and of others it "
        "would name about 1 in 4, of those that look very alike at worst about 7 in 10"
    )
