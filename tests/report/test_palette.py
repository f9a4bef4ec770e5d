"""One palette for all plots."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_plot_names_a_colour_of_its_own():
    for folder in ("crumb_avalanche", "experiments"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "palette.py":
                found = re.findall(r"[\"'](?:#[0-9a-fA-F]{6}|tab:\w+|C\d|red|green|blue|orange)[\"']", path.read_text())
                assert not found, f"{path.relative_to(ROOT)}: {found}"
