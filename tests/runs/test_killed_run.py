"""`crumb run`, killed by SIGKILL at random moments and repeated, gives the bits of an uninterrupted run."""

import math
import random
import time

import pytest
from forked import start_crumb
from support.runs import differences

from crumb_avalanche.runs.run_folder import RESULT, RESUME

KILLS = 20
# Long enough for all kills, of which each waits for up to 4 checkpoints.
SHAPES = [
    *("run", "--benchmark", "toy_shapes", "--weights", "none", "--backbone", "small_cnn", "--image-size", "32"),
    *("--first-epochs", "1", "--budget-images", "200", "--batch-size", "32", "--threads", "1", "--progress", "false"),
]


def newest_checkpoint(output) -> int:
    """Return the number of the newest checkpoint, -1 without any."""
    return max((int(path.stem) for path in (output / RESUME).glob("[0-9]*.safetensors")), default=-1)


def kill_at_random(process, output, draws):
    """Kill after a random number of checkpoints, or, one in five times, while the process starts or reads its own."""
    aim, last = newest_checkpoint(output) + draws.randint(1, 4), math.inf
    if draws.random() < 0.2:
        last = time.monotonic() + draws.uniform(0, 0.5)
    while process.is_alive() and newest_checkpoint(output) < aim and time.monotonic() < last:
        time.sleep(0.005)
    time.sleep(draws.uniform(0, 0.05))  # a step takes about 0.02 s
    process.kill()
    process.join()
    return process.exitcode


@pytest.mark.slow  # see test_resume.py for runs that end by an exception
def test_a_killed_run_ends_with_the_same_bits(crumb, tmp_path):
    command = [*SHAPES, "--checkpoint-every", "1", "--output"]
    killed, draws = tmp_path / "killed", random.Random(0)
    code, _, err = crumb(*command, tmp_path / "undisturbed")
    assert code == 0, err
    for number in range(KILLS):
        code = kill_at_random(start_crumb(*command, killed), killed, draws)
        assert code == -9, f"ended with {code} before kill {number}"
    finished = (killed / RESULT).exists()  # the last kill came after the result, and the command only tidies up
    code, _, _ = crumb(*command, killed)
    assert code == finished
    assert differences(tmp_path / "undisturbed", killed) == []
    assert not (killed / RESUME).exists()
