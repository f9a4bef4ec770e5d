"""Kill a run at random moments, give the same command again each time, and compare with a run that nobody disturbed.

    python experiments/kill_runs.py --kills 20
    python experiments/kill_runs.py --kills 20 -- --benchmark eth80 --dataset-root ETH80 --feature-cache CACHE

Settings of `crumb run` come after `--`; without any, rendered shapes are streamed through a tiny network. Every kill is
a SIGKILL, some while the process is still starting, the others a random moment after a random number of checkpoints.
Weights, buffer, answers on all test images and accuracies have to be the same to the bit. Exit code 1 if they are not,
or if the run was finished before all kills.
"""

import argparse
import math
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from support.same_results import differences
from tqdm import tqdm

from crumb_avalanche.runs.run_folder import RESULT, RESUME

TINY = [
    *("--benchmark", "toy_shapes", "--weights", "none", "--backbone", "small_cnn", "--image-size", "32"),
    *("--first-epochs", "1", "--budget-images", "200", "--batch-size", "32", "--threads", "1"),
]


def command(settings: list[str], output: Path, every: int) -> list[str]:
    """A run with checkpoints every so many steps."""
    more = ["--output", str(output), "--checkpoint-every", str(every), "--progress", "false"]
    return [sys.executable, "-m", "crumb_avalanche.cli", "run", *settings, *more]


def newest(output: Path) -> int:
    """Number of the newest checkpoint, -1 if there is none."""
    return max((int(path.stem) for path in (output / RESUME).glob("[0-9]*.safetensors")), default=-1)


def killed(process: subprocess.Popen, output: Path, draws: random.Random) -> bool:
    """Wait for a random moment and kill; whether it was still running."""
    starting = draws.random() < 0.2  # killed while it starts, or reads its checkpoint
    aim, last = newest(output) + draws.randint(1, 4), time.monotonic() + (draws.uniform(0, 8) if starting else math.inf)
    while process.poll() is None and newest(output) < aim and time.monotonic() < last:
        time.sleep(0.005)
    time.sleep(draws.uniform(0, 0.2))
    process.kill()
    return process.wait() != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--every", type=int, default=1, help="steps between two checkpoints")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--output", default="runs/kill_runs")
    parser.add_argument("settings", nargs="*", help="of crumb run, after --")
    options = parser.parse_args()
    settings, output, draws = options.settings or TINY, Path(options.output), random.Random(options.seed)
    for name in ("undisturbed", "killed"):  # of an earlier call
        shutil.rmtree(output / name, ignore_errors=True)
    subprocess.run(command(settings, output / "undisturbed", options.every), check=True, stdout=subprocess.DEVNULL)
    kills = 0
    for _ in tqdm(range(options.kills), unit=" kills", disable=None):
        disturbed = command(settings, output / "killed", options.every)
        process = subprocess.Popen(disturbed, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if not killed(process, output / "killed", draws):
            break
        if process.returncode != -9:
            print(process.stderr.read().decode(), file=sys.stderr)
            return 1
        kills += 1
    if not (output / "killed" / RESULT).exists():
        subprocess.run(disturbed, check=True, stdout=subprocess.DEVNULL)
    found = differences(output / "undisturbed", output / "killed")
    print(f"killed {kills} times; " + (f"different: {', '.join(found)}" if found else "the same to the bit"))
    if kills < options.kills:
        print(f"finished before all of {options.kills} kills; give a longer run, or fewer --kills", file=sys.stderr)
    return int(bool(found) or kills < options.kills)


if __name__ == "__main__":
    sys.exit(main())
