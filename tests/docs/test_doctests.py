"""The examples in docstrings of the names that a user meets first."""

import doctest

import pytest

import crumb_avalanche

NAMES = (
    "Learner",
    "CRUMBStrategy",
    "CRUMBPlugin",
    "SeenClassesPlugin",
    "Codebook",
    "CodeBuffer",
    "build_strategy",
    "calibrate",
    "split_at",
    "split_backbone",
)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_name_runs(name):
    docstring = getattr(crumb_avalanche, name).__doc__
    example = doctest.DocTestParser().get_doctest(docstring, {}, name, name, 0)
    printed = []
    results = doctest.DocTestRunner().run(example, out=printed.append)
    assert results.attempted > 2
    assert results.failed == 0, "".join(printed)
