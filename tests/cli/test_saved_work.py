"""What a command reports is saved, and no output replaces a file of another kind."""

import os
import stat
import sys
from pathlib import Path

import pytest
from fake_runs import fake_run
from learned_classes import names_of

from crumb_avalanche.cli import OUTPUT_LOST, main
from crumb_avalanche.learner.known_files import ReplacedError
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.system.folder_lock import (
    FolderInUseError,
    in_use,
    locked,
    locked_file,
)

NEW = ["--backbone", "small_cnn", "--image-size", "32", "--progress", "false"]
posix = pytest.mark.skipif(
    os.name != "posix", reason="devices, links and limits of POSIX"
)


def output_that_takes_nothing(kind):
    """A standard output that is full or not read."""
    if kind == "full":
        return open("/dev/full", "w")
    reading, writing = os.pipe()
    os.close(reading)
    return open(writing, "w")


TAKES_NO_MORE = "standard output takes no more"
OUTPUTS = pytest.mark.parametrize(
    ("kind", "code"), [("full", OUTPUT_LOST), ("pipe", 141)]
)


@posix
@OUTPUTS
def test_a_lesson_that_cannot_be_reported(mine, place, capsys, monkeypatch, kind, code):
    output = output_that_takes_nothing(kind)
    monkeypatch.setattr(sys, "stdout", output)
    red = str(place / "tree" / "red")
    words = ["teach", str(mine), red, "--label", "red", "--progress", "false"]
    assert main(words) == code
    assert sys.stdout is output
    output.close()  # without an error
    err = capsys.readouterr().err
    assert TAKES_NO_MORE in err
    assert err.endswith("what it saves is saved\n")
    assert err.count("\n") == 1
    assert len(Learner.load(mine).lessons) == 2


@posix
@OUTPUTS
@pytest.mark.parametrize(
    "command",
    ["predict {mine} {photos}", "learner show {mine}", "--help", "run --help"],
)
def test_an_answer_that_nobody_reads(
    mine, place, capsys, monkeypatch, kind, code, command
):
    # A reader that has read enough, as of ``| head``, ends the command without a word.
    words = command.format(mine=mine, photos=place / "photos").split()
    monkeypatch.setattr(sys, "stdout", output_that_takes_nothing(kind))
    assert main(words) == code
    said = TAKES_NO_MORE in capsys.readouterr().err
    assert said == (kind == "full")


def test_a_name_that_an_output_cannot_encode(mine, tmp_path, monkeypatch):
    output = open(tmp_path / "said", "w", encoding="ascii")  # noqa: SIM115
    with output, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", output)
        assert main(["learner", "rename", str(mine), "red", "grün"]) == 0
    assert (tmp_path / "said").read_text() == "renamed red to gr\\xfcn\n"


@posix
def test_a_change_that_cannot_be_saved(mine, crumb):
    import resource

    before = mine.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        code, out, err = crumb("learner", "forget", mine, "red")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, out) == (1, "")
    assert "takes no file that large" in err
    assert err.count("\n") == 1
    assert mine.read_bytes() == before
    assert os.listdir(mine.parent) == [mine.name]


@pytest.fixture
def under_lock(mine, monkeypatch):
    """The calls that read and save a learner, each while its file is locked."""
    calls = []

    def watched(function):
        def call(*arguments, **keywords):
            with pytest.raises(FolderInUseError), locked_file(mine):
                pass
            calls.append(function.__name__)
            return function(*arguments, **keywords)

        return call

    monkeypatch.setattr(Learner, "load", classmethod(watched(Learner.load.__func__)))
    monkeypatch.setattr(Learner, "save", watched(Learner.save))
    return calls


@pytest.mark.parametrize(
    "command",
    [
        "learner rename {mine} red rot",
        "learner forget {mine} red",
        "teach {mine} {blue} --label blue --progress false",
    ],
)
def test_a_change_is_locked_as_a_whole(mine, place, done, under_lock, command):
    blue = place / "tree" / "blue"
    done(*command.format(mine=mine, blue=blue).split())
    assert under_lock == ["load", "save"]


@pytest.fixture
def empty_learner(mine, tmp_path, done):
    """A learner of the same network that knows nothing any more."""
    learner_file = tmp_path / "other.safetensors"
    learner_file.write_bytes(mine.read_bytes())
    done("learner", "forget", learner_file, "red")
    done("learner", "forget", learner_file, "green")
    done("learner", "forget", learner_file, "blue")
    return learner_file


def test_a_merge_is_locked_as_a_whole(mine, empty_learner, done, under_lock):
    out = done("learner", "merge", mine, empty_learner, "--output", mine)
    assert "3 classes" in out
    assert under_lock == ["load", "load", "save"]


@pytest.fixture
def foreign(tmp_path):
    """Files of other programs, where a command would write its own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    names = ["notes.txt", "a.html", "a.safetensors", "network.safetensors"]
    names += ["folder/config.yaml", "folder/report.csv", "folder/summary.json"]
    files = [tmp_path / name for name in names]
    for path in files:
        path.write_text("mine")
    return files


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "export {mine} --output {mine}",
            "mine.safetensors exists and is not an ONNX file of crumb export",
        ),
        (
            "learner merge {mine} {other} --output {tmp}/notes.txt",
            "notes.txt exists and is not a learner",
        ),
        ("predict {mine} {photos} --html {tmp}/a.html", "not a page of this"),
        (
            "PRETRAIN --overwrite true --output {tmp}/a.safetensors",
            "not of crumb pretrain",
        ),
        (
            "demo --overwrite true --output {tmp}",
            "network.safetensors exists and is not of a demo",
        ),
        (
            "report {run} --output {tmp}/folder",
            "report.csv exists and is of another program",
        ),
        (
            "RUN --output {tmp}/folder",
            "config.yaml exists and is of another program",
        ),
        (
            "RUN --output {tmp}/folder --runs 2",
            "summary.json exists and is of another program",
        ),
    ],
)
def test_an_output_of_another_kind_stays(
    mine, fill, tmp_path, foreign, refused, command, words
):
    if command.startswith("export"):
        pytest.importorskip("onnxruntime")
    before = {path: path.read_bytes() for path in (mine, *foreign)}
    arguments = fill(command)
    err = refused(f"{words}.*stays as it is: choose another --", *arguments)
    lines_of_learner = err.count("cannot tell unknown things yet")
    assert err.count("\n") - lines_of_learner == 1
    assert {path: path.read_bytes() for path in before} == before
    assert sorted((tmp_path / "folder").iterdir()) == foreign[4:]


@pytest.fixture
def fill(mine, place, clips, tiny, tmp_path):
    """A function that fills paths into a command; RUN and PRETRAIN are small ones."""
    second_file = tmp_path / "other.safetensors"
    second_file.write_bytes(mine.read_bytes())
    paths = {
        "mine": mine,
        "other": second_file,
        "photos": place / "photos",
        "tree": place / "tree",
        "run": fake_run(tmp_path / "run"),
        "tmp": tmp_path,
        "out": tmp_path / "out",
    }
    pretrain = ["pretrain", "--data", clips, *NEW, "--weights", "none", "--epochs", "1"]
    small = {"RUN": [*tiny, "--strategy", "ncm"], "PRETRAIN": pretrain}

    def filled(command):
        first, *words = command.split()
        return [*small.get(first, [first]), *(word.format_map(paths) for word in words)]

    return filled


@pytest.fixture
def replaced(tmp_path, monkeypatch):
    """Folders in which files were replaced, each with whether the run was locked."""
    folders = set()
    replace = os.replace

    def noted(source, target):
        folders.add((Path(target).parent, in_use(tmp_path / "run")))
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    return folders


def test_a_page_is_replaced(fill, tmp_path, done, replaced):
    (tmp_path / "page.html").touch()  # as mktemp leaves it
    command = fill("predict {mine} {photos} --html {tmp}/page.html")
    done(*command)
    done(*command)
    assert replaced == {(tmp_path, False)}


def test_a_report_is_replaced_under_a_lock(fill, tmp_path, done, replaced):
    done(*fill("report {run}"))
    done(*fill("report {run}"))
    assert replaced == {(tmp_path / "run", True)}


@pytest.fixture
def no_long_work(monkeypatch):
    """What takes long or does not end, fails."""

    def unlocked(*_):
        raise ValueError("the command went on without the lock")

    monkeypatch.setattr("crumb_avalanche.cli.serve.run", unlocked)
    monkeypatch.setattr("crumb_avalanche.runs.demo.shapes", unlocked)


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        ("", "RUN --output {out}"),
        ("run3", "RUN --output {out} --runs 3"),
        ("p.safetensors.checkpoints", "PRETRAIN --output {out}/p.safetensors"),
        ("", "report {run} --output {out}"),
        ("", "demo --output {out}"),
        ("", "prepare core50 --dataset-root {out}"),
    ],
)
def test_a_folder_in_use(fill, tmp_path, refused, no_long_work, folder, command):
    held = tmp_path / "out" / folder
    words = (
        f"{held} is in use by another process.*wait for its end, or choose another "
        "--(output|dataset-root)"
    )
    with locked(held):
        refused(words, *fill(command))
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert left == []


@pytest.mark.parametrize(
    "command",
    [
        "teach {mine} {tree}",
        "learner forget {mine} red",
        "learner undo {mine}",
        "learner rename {mine} red rot",
        "learner merge {other} {mine} --output {mine}",
        "export {mine} --output {mine}",
        "serve {mine} --port 0",
    ],
)
def test_a_learner_in_use(mine, fill, refused, no_long_work, command):
    before = mine.read_bytes()
    with locked_file(mine):
        refused(f"{mine} is being changed by another process", *fill(command))
    assert mine.read_bytes() == before


@posix
def test_a_learner_keeps_its_link(mine, place, tmp_path, done):
    link = tmp_path / "link"
    link.symlink_to(mine.name)
    mine.chmod(0o600)
    done("teach", link, place / "tree", "--progress", "false")
    done("learner", "undo", mine)
    assert link.is_symlink()
    assert stat.S_IMODE(mine.stat().st_mode) == 0o600


@posix
def test_a_link_has_the_lock_of_its_file(mine, tmp_path, refused):
    link = tmp_path / "link"
    link.symlink_to(mine.name)
    words = "is being changed by another process"
    with locked_file(mine):
        refused(words, "learner", "forget", link, "red")


@posix
def test_a_second_name_is_warned_about(mine, tmp_path, done):
    os.link(mine, tmp_path / "second")
    words = r"mine.safetensors has other names \(hard links\)"
    with pytest.warns(UserWarning, match=words):
        done("learner", "rename", mine, "red", "rot")


REPLACED = r"was replaced by another program .* load it and repeat the change"


def test_a_learner_is_not_saved_over_another(mine, tmp_path):
    first = Learner.load(mine)
    second = Learner.load(mine)
    first.rename("red", "rot")
    first.save(mine)
    first.save(mine)
    second.forget("red")
    with pytest.raises(ReplacedError, match=REPLACED):
        second.save(mine)
    assert "rot" in names_of(mine)
    second.save(tmp_path / "second")
    assert "red" not in names_of(tmp_path / "second")


def test_a_learner_is_not_saved_over_another_file(mine):
    learner = Learner.load(mine)
    mine.write_bytes(b"something else")
    with pytest.raises(ReplacedError):
        learner.save(mine)
    mine.unlink()
    learner.forget("red")
    learner.save(mine)
    assert "red" not in names_of(mine)
