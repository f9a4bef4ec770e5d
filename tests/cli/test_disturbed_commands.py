"""A command is killed, meets a failing disk, or runs beside others; nothing is lost."""

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import time
import urllib.error
import urllib.request
import zipfile
from contextlib import contextmanager

import pytest
from checksums import checksums
from faults import command_killed_at, watched_changes
from forked import start, start_crumb
from support.runs import differences

from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.cli import main
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.system.tensor_file import flatten, read_tensors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="signals and limits of POSIX"),
]
QUIET = ("--threads", "1", "--progress", "false")
NETWORK = ("--backbone", "small_cnn", "--image-size", "32", *QUIET)
CASES = 12  # of each command and disturbance
ROUNDS = 100  # of all who change one learner
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES)
IN_USE = (
    "being changed by another process",
    "in use by another process",
    "already holds a finished run",
    "exists",
)


def learned(path):
    """What a learner knows."""
    learner = Learner.load(path)
    images = {info.name: info.images for info in learner.classes}
    _, tensors = flatten(learner.state_dict()["statistics"])
    return images, checksums(tensors)


def pretrained(path):
    """What a pretrained file holds, wherever it is."""
    tensors, metadata = read_tensors(path)
    return checksums(tensors), {**json.loads(metadata["made_with"]), "output": ""}


def finished_run(folder):
    return folder if (folder / "result.json").exists() else None


def run(folder, place):
    data = ("--benchmark", "clip_folder", "--dataset-root", place / "clips")
    network = ("--weights", "none", *NETWORK, "--preset", "paper")
    size = ("--first-epochs", 1, "--batch-size", 4, "--budget-images", 9)
    output = ("--checkpoint-every", 1, "--output", folder / "run")
    return ["run", *data, *network, *size, *output]


def teach(folder, place):
    path = folder / "mine.safetensors"
    if not path.exists():
        shutil.copy(place / "base.safetensors", path)
    return ["teach", path, place / "clips" / "cup", "--label", "cup", *QUIET]


def pretrain(folder, place):
    network = ("--weights", "none", *NETWORK, "--epochs", 2, "--codebook-size", 8)
    output = ("--output", folder / "p.safetensors")
    return ["pretrain", "--data", place / "clips", *network, *output]


def prepare(folder, place):
    folders = ("--dataset-root", folder / "tiny", "--source", place / "tiny.zip")
    quiet = ("--workers", 1, "--progress", "false")
    return ["prepare", "tiny_imagenet", *folders, *quiet]


def prepared(folder):
    return tuple(FrameTable.from_csv(folder / "tiny_imagenet.csv", folder))


COMMANDS = {  # how it is called, and what it leaves
    run: lambda folder: finished_run(folder / "run"),
    teach: lambda folder: learned(folder / "mine.safetensors"),
    pretrain: lambda folder: pretrained(folder / "p.safetensors"),
    prepare: lambda folder: prepared(folder / "tiny"),
}
EACH = pytest.mark.parametrize("command", COMMANDS)


def called(words):
    """Call a command in this process, which ends well."""
    assert main(list(map(str, words))) == 0


def save_archive(path, photos):
    """Write six photos to learn and two to test, of two classes."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, photo in enumerate(photos):
            split = "train" if number < 6 else "test"
            archive.write(photo, f"{split}/n0000000{number % 2}/{number}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory, clips, weights_file):
    """A folder with clips, an archive, a learner, and two to merge into it."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(clips, folder / "clips")
    save_archive(folder / "tiny.zip", sorted(clips.rglob("*.png"))[:8])
    photos = folder / "photos"
    shutil.copytree(clips / "dice" / "object0" / "clip0", photos)
    learners = {
        "base": ("box", "gone0", "gone1"),
        "other0": ("merged0",),
        "other1": ("merged1",),
    }
    new = ("--weights", weights_file, *NETWORK)
    for name, labels in learners.items():
        path = folder / f"{name}.safetensors"
        for label in labels:
            options = QUIET if path.exists() else new
            called(["teach", path, photos, "--label", label, *options])
    return folder


@pytest.fixture(scope="module")
def undisturbed(place, tmp_path_factory):
    """A function that does a command once, undisturbed.

    It gives the folder of the command, and the number of changes of files in it.
    """
    finished = {}

    def of(command):
        if command not in finished:
            folder = tmp_path_factory.mktemp(command.__name__)
            changes = []
            with watched_changes(folder, changes.append):
                called(command(folder, place))
            finished[command] = folder, len(changes)
        return finished[command]

    return of


def check_again(crumb, command, folder, place, reference):
    """Give the same command again; check that it leaves what an undisturbed one does.

    Unless a lesson is there already.
    """
    result = COMMANDS[command]
    if command is not teach or result(folder) != result(reference):
        code, _, err = crumb(*command(folder, place))
        assert code == 0 or any(text in err for text in IN_USE), err
    if command is run:
        assert differences(result(reference), result(folder)) == []
    else:
        assert result(reference) == result(folder)
    shutil.rmtree(folder)


SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


@EACH
def test_a_kill_before_any_change_of_a_file(
    command, crumb, place, undisturbed, tmp_path
):
    reference, changes = undisturbed(command)
    draws = random.Random(0)
    for _ in range(CASES):
        folder = tmp_path / "work"
        folder.mkdir()
        words = list(map(str, command(folder, place)))
        number = draws.choice(SIGNALS)
        kills = 1
        if command is run:  # which resumes after each kill
            kills = draws.randint(1, 4)
        for _ in range(kills):
            change = draws.randint(1, changes)
            process = start(command_killed_at, change, number, str(folder), words)
            process.join(120)
            assert process.exitcode in (0, 1, -number, 128 + number), number
        check_again(crumb, command, folder, place, reference)


@EACH
def test_a_disk_that_fails_at_any_change(command, crumb, place, undisturbed, tmp_path):
    reference, changes = undisturbed(command)
    draws = random.Random(1)
    for _ in range(CASES * 2 // 3):
        folder = tmp_path / "work"
        folder.mkdir()
        words = command(folder, place)
        fail = failing_after(draws.randint(1, changes), draws.choice(DISK_ERRORS))
        with watched_changes(folder, fail):
            code, _, err = crumb(*words)
        assert "Traceback" not in err and (code == 0 or err.strip()), (code, err)
        check_again(crumb, command, folder, place, reference)


def failing_after(count, error):
    """A function of changes of files that fails at the one of this number."""
    paths = []

    def fail(path):
        paths.append(path)
        if len(paths) >= count:
            raise OSError(error, os.strerror(error), path)

    return fail


@EACH
def test_a_disk_that_takes_no_large_file(command, crumb, place, undisturbed, tmp_path):
    # Which meets what is written without Python, too.
    reference, _ = undisturbed(command)
    draws = random.Random(2)
    for _ in range(CASES // 3):
        folder = tmp_path / "work"
        folder.mkdir()
        words = command(folder, place)
        with largest_file(draws.choice((0, 3000, 200_000))):
            code, _, err = crumb(*words)
        assert "Traceback" not in err and (code == 0 or err.strip()), (code, err)
        check_again(crumb, command, folder, place, reference)


@contextmanager
def largest_file(size):
    """Let files have so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def address_of(process, output):
    """The address and the token that a server says; ``None`` if it ends before."""
    while process.is_alive():
        if output.exists():
            match = re.search(r"Open (\S+)/\?token=(\S+)", output.read_text())
            if match:
                return match.groups()
        time.sleep(0.02)
    return None


def is_acknowledged(process, output, photo, label):
    """Whether a server acknowledges a photo as a lesson."""
    found_address = address_of(process, output)
    if found_address is None:
        return False
    address, token = found_address
    request = urllib.request.Request(
        f"{address}/teach?label={label}",
        photo,
        {"X-Crumb-Token": token},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status == 200
    except urllib.error.HTTPError:
        return False


def commands_of_a_round(place, folder):
    """Two of teach, merge, forget and serve on one learner, by what they change."""
    mine = folder / "mine.safetensors"
    commands = {}
    for number in "01":
        merged = place / f"other{number}.safetensors"
        new = f"new{number}"
        gone = f"gone{number}"
        commands |= {
            new: ["teach", mine, place / "photos", "--label", new, *QUIET],
            f"merged{number}": ["learner", "merge", mine, merged, "--output", mine],
            gone: ["learner", "forget", mine, gone],
            f"served{number}": ["serve", mine, "--port", "0", "--threads", "1"],
        }
    return commands


def one_round(place, folder, draws):
    """Start all commands of a round; return the kinds that reported a change."""
    mine = folder / "mine.safetensors"
    photo = sorted(place.rglob("*.png"))[0].read_bytes()
    folder.mkdir()
    shutil.copy(place / "base.safetensors", mine)
    commands = commands_of_a_round(place, folder)
    processes = {}
    reported = set()
    for label in draws.sample(sorted(commands), len(commands)):
        processes[label] = start_crumb(*commands[label], output=str(folder / label))
        time.sleep(draws.choice((0, 0, 0.2, 0.5)))
    for label in ("served0", "served1"):
        if is_acknowledged(processes[label], folder / label, photo, label):
            reported.add(label)
        if processes[label].is_alive():
            os.kill(processes[label].pid, signal.SIGINT)
    for label, process in processes.items():
        process.join(120)
        assert process.exitcode in (0, 1, 130), (label, process.exitcode)
        if process.exitcode == 0:
            reported.add(label)
    names = {info.name for info in Learner.load(mine).classes}
    assert names == {"box", "gone0", "gone1"} ^ reported
    left = [name for name in os.listdir(folder) if is_unfinished(name)]
    assert left == []
    shutil.rmtree(folder)
    return {label[:-1] for label in reported}


def is_unfinished(name):
    return name.startswith(".") or name.endswith(".part")


def test_every_change_that_was_reported_is_there(place, tmp_path):
    pytest.importorskip("uvicorn")
    draws = random.Random(0)
    kinds = []
    for number in range(ROUNDS):
        kinds.append(one_round(place, tmp_path / str(number), draws))
    assert set().union(*kinds) == {"new", "merged", "gone", "served"}
