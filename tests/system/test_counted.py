"""Numbers of things in words."""

import pytest

from crumb_avalanche.system.counted import counted


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        *((0, "image", "0 images"), (1, "image", "1 image"), (1234, "image", "1,234 images")),
        *((1, "class", "1 class"), (2, "class", "2 classes"), (2, "memory", "2 memories")),
    ],
)
def test_one_is_no_plural(count, noun, words):
    assert counted(count, noun) == words
