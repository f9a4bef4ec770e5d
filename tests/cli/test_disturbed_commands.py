"""A command that is killed, meets a failing disk, or runs beside others: what was reported is there in the end."""

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

import pytest
from faults import command_killed_at, watched_changes
from forked import start, start_crumb
from support.runs import differences

from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.cli import main
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.system.tensor_file import checksum, flatten, read_tensors

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


def sums(tensors):
    return {name: checksum(name, tensor) for name, tensor in tensors.items()}


def learned(path):
    learner = Learner.load(path)
    return {one.name: one.images for one in learner.classes}, sums(
        flatten(learner.state_dict()["statistics"])[1]
    )


def made(path):
    tensors, metadata = read_tensors(path)
    return sums(tensors), {**json.loads(metadata["made_with"]), "output": ""}


def run(folder, place):
    clips = (
        "--benchmark",
        "clip_folder",
        "--dataset-root",
        place / "clips",
        "--weights",
        "none",
        *NETWORK,
    )
    size = (
        "--preset",
        "paper",
        "--first-epochs",
        1,
        "--batch-size",
        4,
        "--budget-images",
        9,
    )
    return ["run", *clips, *size, "--checkpoint-every", 1, "--output", folder / "run"]


def teach(folder, place):
    if not (folder / "mine.safetensors").exists():
        shutil.copy(place / "base.safetensors", folder / "mine.safetensors")
    return [
        "teach",
        folder / "mine.safetensors",
        place / "clips" / "cup",
        "--label",
        "cup",
        *QUIET,
    ]


def pretrain(folder, place):
    small = ("--weights", "none", *NETWORK, "--epochs", 2, "--codebook-size", 8)
    return [
        "pretrain",
        "--data",
        place / "clips",
        *small,
        "--output",
        folder / "p.safetensors",
    ]


def prepare(folder, place):
    more = ("--workers", 1, "--progress", "false")
    return [
        "prepare",
        "tiny_imagenet",
        "--dataset-root",
        folder / "tiny",
        "--source",
        place / "tiny.zip",
        *more,
    ]


COMMANDS = {  # how it is called, and what it leaves
    run: lambda folder: (
        folder / "run" if (folder / "run" / "result.json").exists() else None
    ),
    teach: lambda folder: learned(folder / "mine.safetensors"),
    pretrain: lambda folder: made(folder / "p.safetensors"),
    prepare: lambda folder: tuple(
        FrameTable.from_csv(folder / "tiny" / "tiny_imagenet.csv", folder / "tiny")
    ),
}
EACH = pytest.mark.parametrize("command", COMMANDS)


@pytest.fixture(scope="module")
def place(tmp_path_factory, clips, weights_file):
    """A folder with clips, an archive of a data set, a learner, and two learners to merge into it."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(clips, folder / "clips")
    with zipfile.ZipFile(folder / "tiny.zip", "w") as archive:
        for number, photo in enumerate(sorted(clips.rglob("*.png"))[:8]):
            archive.write(
                photo,
                f"{'train' if number < 6 else 'test'}/n0000000{number % 2}/{number}.png",
            )
    shutil.copytree(clips / "dice" / "object0" / "clip0", folder / "photos")
    learners = {
        "base": ("box", "gone0", "gone1"),
        "other0": ("merged0",),
        "other1": ("merged1",),
    }
    for name, labels in learners.items():
        new = ("--weights", weights_file, *NETWORK)
        for label in labels:
            teach = [
                "teach",
                folder / f"{name}.safetensors",
                folder / "photos",
                "--label",
                label,
                *new,
            ]
            assert main(list(map(str, teach))) == 0
            new = QUIET
    return folder


@pytest.fixture(scope="module")
def undisturbed(place, tmp_path_factory):
    """A function that gives the folder of an undisturbed command, done once, and the changes of files in it."""
    done = {}

    def of(command):
        if command not in done:
            folder, changes = tmp_path_factory.mktemp(command.__name__), []
            with watched_changes(folder, changes.append):
                assert main(list(map(str, command(folder, place)))) == 0
            done[command] = folder, len(changes)
        return done[command]

    return of


def again(crumb, command, folder, place, reference):
    """Give the same command again, unless a lesson is there; check that what it leaves is as if undisturbed."""
    if command is not teach or COMMANDS[teach](folder) != COMMANDS[teach](reference):
        code, _, err = crumb(*command(folder, place))
        assert code == 0 or any(text in err for text in IN_USE), err
    one, other = COMMANDS[command](reference), COMMANDS[command](folder)
    assert differences(one, other) == [] if command is run else one == other
    shutil.rmtree(folder)


@EACH
def test_a_kill_before_any_change_of_a_file(
    command, crumb, place, undisturbed, tmp_path
):
    reference, changes = undisturbed(command)
    draws = random.Random(0)
    for _ in range(CASES):
        folder = tmp_path / "work"
        folder.mkdir()
        arguments = list(map(str, command(folder, place)))
        number = draws.choice(
            (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
        )
        for _ in range(
            draws.randint(1, 4) if command is run else 1
        ):  # which resumes after each kill
            process = start(
                command_killed_at,
                draws.randint(1, changes),
                number,
                str(folder),
                arguments,
            )
            process.join(120)
            assert process.exitcode in (0, 1, -number, 128 + number), (
                number,
                process.exitcode,
            )
        again(crumb, command, folder, place, reference)


@EACH
def test_a_disk_that_fails_at_any_change_of_a_file(
    command, crumb, place, undisturbed, tmp_path
):
    reference, changes = undisturbed(command)
    draws = random.Random(1)
    for case in range(CASES):
        folder = tmp_path / "work"
        folder.mkdir()
        arguments, error, left = (
            command(folder, place),
            draws.choice(DISK_ERRORS),
            draws.randint(1, changes),
        )

        def fail(path, error=error, left=left, seen=[]):  # noqa: B006
            seen.append(path)
            if len(seen) >= left:
                raise OSError(error, os.strerror(error), path)

        if case % 3:
            with watched_changes(folder, fail):
                code, _, err = crumb(*arguments)
        else:  # which meets what is written without Python, too
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (draws.choice((0, 3000, 200_000)), hard)
            )
            try:
                code, _, err = crumb(*arguments)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "Traceback" not in err and (code == 0 or err.strip()), (code, err)
        again(crumb, command, folder, place, reference)


def asked(process, output, photo, labels):
    """Teach a photo to a server as these labels once it has said its address; yield those that it acknowledged."""
    found = None
    while process.is_alive() and not found:
        found = (
            re.search(r"Open (\S+)/\?token=(\S+)", output.read_text())
            if output.exists()
            else None
        )
        time.sleep(0.02)
    for label in labels if found else ():
        headers = {"X-Crumb-Token": found[2]}
        request = urllib.request.Request(
            f"{found[1]}/teach?label={label}", photo, headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                if answer.status == 200:
                    yield label
        except urllib.error.HTTPError:
            return


def one_round(place, folder, draws):
    """Start two each of teach, merge, forget and serve on one learner; return the kinds that reported a change."""
    mine, photo = (
        folder / "mine.safetensors",
        sorted(place.rglob("*.png"))[0].read_bytes(),
    )
    folder.mkdir()
    shutil.copy(place / "base.safetensors", mine)
    commands = {}
    for number in "01":
        other = place / f"other{number}.safetensors"
        commands[f"new{number}"] = [
            "teach",
            mine,
            place / "photos",
            "--label",
            f"new{number}",
            *QUIET,
        ]
        commands[f"merged{number}"] = [
            "learner",
            "merge",
            mine,
            other,
            "--output",
            mine,
        ]
        commands[f"gone{number}"] = ["learner", "forget", mine, f"gone{number}"]
        commands[f"served{number}"] = ["serve", mine, "--port", "0", "--threads", "1"]
    processes, done = {}, set()
    for label in draws.sample(sorted(commands), len(commands)):
        processes[label] = start_crumb(*commands[label], output=str(folder / label))
        time.sleep(draws.choice((0, 0, 0.2, 0.5)))
    for label in ("served0", "served1"):
        done.update(asked(processes[label], folder / label, photo, [label]))
        if processes[label].is_alive():
            os.kill(processes[label].pid, signal.SIGINT)
    for label, process in processes.items():
        process.join(120)
        assert process.exitcode in (0, 1, 130), (label, process.exitcode)
        if process.exitcode == 0:
            done.add(label)
    assert {one.name for one in Learner.load(mine).classes} == {
        "box",
        "gone0",
        "gone1",
    } ^ done
    assert not [
        name
        for name in os.listdir(folder)
        if name.startswith(".") or name.endswith(".part")
    ]
    shutil.rmtree(folder)
    return {label[:-1] for label in done}


def test_every_change_that_was_reported_is_there(place, tmp_path):
    pytest.importorskip("uvicorn")
    draws = random.Random(0)
    kinds = [
        one_round(place, tmp_path / str(number), draws) for number in range(ROUNDS)
    ]
    assert set().union(*kinds) == {"new", "merged", "gone", "served"}
