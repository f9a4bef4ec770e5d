"""A report with everything in it."""

from pathlib import Path

import pytest
from fake_runs import report
from html_pages import mixed


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    where = mixed(tmp_path_factory.mktemp("report") / "<b>$x&amp;")
    report(where)
    return where
