"""A learner file with a damaged byte anywhere, or cut anywhere, is refused with a line that names it."""

import random

import numpy as np
import pytest
from PIL import Image

from crumb_avalanche.learner.learner import Learner

FLIPS, CUTS = 500, 50
PARTS = ("length", "header", "padding", "tensors")


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photos") / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    return path


@pytest.fixture
def learner_file(tmp_path, weights_file):
    """The file of a learner that was taught two classes."""
    learner = Learner("recommended", "small_cnn", weights_file, 32)
    for label in ("Straße", "<b>mug"):
        learner.teach(np.random.default_rng(len(label)).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8), label)
    path = tmp_path / "mine.safetensors"
    learner.save(path)
    return path


@pytest.fixture
def run_file(tmp_path, crumb, tiny):
    """The learner file of a finished run."""
    code, _, err = crumb(*tiny, "--output", tmp_path / "run", "--strategy", "rda", "--budget-images", 8)
    assert code == 0, err
    return tmp_path / "run" / "learner.safetensors"


def parts_of(whole):
    """The bytes of each part of a ``.safetensors`` file, as ranges."""
    start = 8 + int.from_bytes(whole[:8], "little")
    end = whole[:start].rindex(b"}") + 1
    return dict(zip(PARTS, (range(8), range(8, end), range(end, start), range(start, len(whole))), strict=True))


def flips(whole, count, seed):
    """Copies of a file with a byte changed, with the part that it lies in; the first ones lie in each part once."""
    draws, places = random.Random(seed), parts_of(whole)
    kinds = [part for part in PARTS if places[part]]
    kinds += draws.choices(kinds, [1 if part in ("length", "padding") else 8 for part in kinds], k=count - len(kinds))
    for part in kinds:
        damaged = bytearray(whole)
        damaged[draws.choice(places[part])] ^= draws.randrange(1, 256)
        yield part, bytes(damaged)


def check_refused(crumb, path, photo, what):
    """Check that ``crumb predict`` prints one line that names the file, and nothing else."""
    code, out, err = crumb("predict", path, photo, "--threads", 1)
    assert code == 1 and not out and err.count("\n") == 1 and str(path) in err, (what, out, err)


def check_flips(crumb, path, photo, count, seed):
    whole, found = path.read_bytes(), dict.fromkeys(PARTS, 0)
    for number, (part, damaged) in enumerate(flips(whole, count, seed)):
        path.write_bytes(damaged)
        check_refused(crumb, path, photo, (part, number))
        found[part] += 1
    print(f"{count} of {count} flips refused: {found}")
    path.write_bytes(whole)
    code, out, err = crumb("predict", path, photo, "--threads", 1)
    assert code == 0 and "photo.png" in out, err


def check_cuts(crumb, path, photo, count, seed):
    whole = path.read_bytes()
    for length in [0, 8, *random.Random(seed).sample(range(len(whole)), count - 2)]:
        path.write_bytes(whole[:length])
        check_refused(crumb, path, photo, length)
    path.write_bytes(whole + b"\0")
    check_refused(crumb, path, photo, "longer")


def test_20_flips_and_5_cuts_are_refused(crumb, learner_file, photo):
    check_flips(crumb, learner_file, photo, 20, seed=1)
    check_cuts(crumb, learner_file, photo, 5, seed=1)


@pytest.mark.slow
def test_500_flips_are_refused(crumb, learner_file, photo):
    check_flips(crumb, learner_file, photo, FLIPS, seed=0)


@pytest.mark.slow
def test_50_cuts_are_refused(crumb, learner_file, photo):
    check_cuts(crumb, learner_file, photo, CUTS, seed=0)


@pytest.mark.slow
def test_500_flips_and_50_cuts_of_a_run_are_refused(crumb, run_file, photo):
    check_flips(crumb, run_file, photo, FLIPS, seed=2)
    check_cuts(crumb, run_file, photo, CUTS, seed=2)
