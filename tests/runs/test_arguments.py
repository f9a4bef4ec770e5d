"""Flags of ``RunSettings`` for scripts that leave some out."""

import pytest
from jsonargparse import ArgumentParser

from crumb_avalanche.runs.arguments import add_run_arguments


def test_only_fields_can_be_left_out():
    with pytest.raises(ValueError, match="no field colour;"):
        add_run_arguments(ArgumentParser(), {"colour", "run"})
    parser = ArgumentParser()
    add_run_arguments(parser, {"run"})
    found = parser.parse_args([])
    assert "run" not in found and "threads" in found
