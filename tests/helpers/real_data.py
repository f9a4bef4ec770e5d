"""Folder of real data for tests."""

import os
from pathlib import Path

# A folder that does not exist where the variable is unset, so that the tests skip.
TEST_DATA = Path(os.environ.get("CRUMB_TEST_DATA", "CRUMB_TEST_DATA-is-not-set"))
