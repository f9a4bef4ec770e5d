"""Scripts in experiments/ import each other by their bare names, and so do their tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
