"""Numbers of things in words."""

from crumb_avalanche.system.counted import counted


def test_one_is_no_plural():
    cases = [(0, "image"), (1, "image"), (1234, "image"), (2, "class"), (2, "memory")]
    assert [counted(*case) for case in cases] == ["0 images", "1 image", "1,234 images", "2 classes", "2 memories"]
