"""Two processes each of teach, merge, forget and serve change one file: what one reports is there in the end."""

import contextlib
import os
import random
import re
import shutil
import signal
import time
import urllib.error
import urllib.request

import pytest
from called_command import NEW
from forked import start_crumb

from crumb_avalanche.cli import main
from crumb_avalanche.learner.learner import Learner

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="stops a server by SIGINT")

ROUNDS = 200
QUIET = ("--threads", "1", "--progress", "false")


@pytest.fixture(scope="module")
def learners(place):
    """A learner of the classes that are forgotten, and two that are merged into it; all of one network."""
    new = ["--weights", str(place / "weights.safetensors"), *NEW]
    for name, labels in {"base": ("gone0", "gone1"), "other0": ("merged0",), "other1": ("merged1",)}.items():
        for label in labels:
            assert main(["teach", str(place / name), str(place / "photos"), "--label", label, *new]) == 0
            new = [*new[:2], *QUIET]
        new = ["--weights", str(place / "weights.safetensors"), *NEW]
    return place


def served(process, output, label, photo):
    """Teach a photo to a server once it has said its address, and stop it; return whether it said that it learned."""
    found = None
    while process.is_alive() and not found:
        found = re.search(r"Open (\S+)/\?token=(\S+)", output.read_text()) if output.exists() else None
        time.sleep(0.02)
    if not found:
        return False
    request = urllib.request.Request(
        f"{found[1]}/teach?label={label}", photo, {"X-Crumb-Token": found[2]}, method="POST"
    )
    learned = False
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=60) as answer:
        learned = answer.status == 200
    os.kill(process.pid, signal.SIGINT)
    return learned


def one_round(place, folder, draws):
    """Start all eight on a copy of the learner, in random order; return the kinds that reported a change."""
    mine, photo = folder / "mine.safetensors", (place / "photos" / "red.png").read_bytes()
    folder.mkdir()
    shutil.copy(place / "base", mine)
    commands = {f"new{number}": ["teach", mine, place / "photos", "--label", f"new{number}", *QUIET] for number in "01"}
    commands |= {
        f"merged{number}": ["learner", "merge", mine, place / f"other{number}", "--output", mine] for number in "01"
    }
    commands |= {f"gone{number}": ["learner", "forget", mine, f"gone{number}"] for number in "01"}
    commands |= {f"served{number}": ["serve", mine, "--port", "0", "--threads", "1"] for number in "01"}
    processes = {}
    for label in draws.sample(sorted(commands), len(commands)):
        processes[label] = start_crumb(*commands[label], output=str(folder / label))
        time.sleep(draws.choice((0, 0, 0.2, 0.5)))
    done = {label for label in ("served0", "served1") if served(processes[label], folder / label, label, photo)}
    for label, process in processes.items():
        process.join(120)
        assert process.exitcode in (0, 1, 130), (label, process.exitcode)
        if process.exitcode == 0:
            done.add(label)
    assert {one.name for one in Learner.load(mine).classes} == {"gone0", "gone1"} ^ done
    assert not [name for name in os.listdir(folder) if name.startswith(".") or name.endswith(".part")]
    shutil.rmtree(folder)
    return {label[:-1] for label in done}


@pytest.mark.slow
def test_every_change_that_was_reported_is_there(learners, tmp_path):
    draws, counts = random.Random(0), dict.fromkeys(("new", "merged", "gone", "served"), 0)
    for number in range(ROUNDS):
        for kind in one_round(learners, tmp_path / str(number), draws):
            counts[kind] += 1
    print(f"rounds in which a change of a kind was reported: {counts} of {ROUNDS}")
    assert all(counts.values())
