"""One palette for all plots, which stays distinct for every kind of colour vision."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from crumb_avalanche.report.palette import COLOURS

ROOT = Path(__file__).parents[2]
# What is seen without one kind of cones, on linear RGB (Machado, Oliveira and Fernandes, TVCG 2009, severity 1).
VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, vision: np.ndarray) -> np.ndarray:
    """CIE Lab of a colour as it is seen."""
    values = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(np.asarray(vision) @ linear, 0, 1) / TO_XYZ.sum(1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
def test_colours_stay_apart(vision):
    seen = [lab(colour, VISION[vision]) for colour in COLOURS]
    nearest = min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2))
    assert nearest > 10  # 2.3 is just noticeable


def test_no_plot_names_a_colour_of_its_own():
    for folder in ("crumb_avalanche", "experiments"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "palette.py":
                found = re.findall(r"[\"'](?:#[0-9a-fA-F]{6}|tab:\w+|C\d|red|green|blue|orange)[\"']", path.read_text())
                assert not found, f"{path.relative_to(ROOT)}: {found}"
