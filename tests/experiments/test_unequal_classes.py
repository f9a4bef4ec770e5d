"""The script for classes of unequal size: sizes, and figures of a quick run."""

import json

from called_script import called
from unequal_classes import LEAST, MOST, ROWS, sizes_of


def test_sizes_are_geometric_in_another_order_in_each_run():
    sizes = [sizes_of(3, run).tolist() for run in range(8)]
    assert all(sorted(some) == [LEAST, 14, MOST] for some in sizes), "14 is the root of 200"
    assert len({tuple(some) for some in sizes}) > 1 and sizes[0] == sizes_of(3, 0).tolist()


def test_quick():
    done = called("unequal_classes", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert set(figures) == set(ROWS)
    assert all(0 <= value <= 100 for row in figures.values() for place in ("small", "all") for value in row[place])
