"""What a command reports is saved, what is saved is reported, and no output replaces a file of another kind."""

import os
import stat
import sys

import pytest
from fake_runs import fake_run

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


@posix
@pytest.mark.parametrize(("kind", "code"), [("full", OUTPUT_LOST), ("pipe", 141)])
def test_a_lesson_that_cannot_be_reported_is_said_to_be_saved(
    mine, place, capsys, monkeypatch, kind, code
):
    output = output_that_takes_nothing(kind)
    monkeypatch.setattr(sys, "stdout", output)
    assert (
        main(
            [
                "teach",
                str(mine),
                str(place / "tree" / "red"),
                "--label",
                "red",
                "--progress",
                "false",
            ]
        )
        == code
    )
    assert sys.stdout is output
    output.close()  # without an error
    err = capsys.readouterr().err
    assert (
        "standard output takes no more" in err
        and err.endswith("what it saves is saved\n")
        and err.count("\n") == 1
    )
    assert len(Learner.load(mine).lessons) == 2
    # Answers that nobody reads end the command; of a reader that has read enough, as
    # before ``| head``, without a word.
    of_mine = (
        ["predict", str(mine), str(place / "photos")],
        ["learner", "show", str(mine)],
    )
    for asked in (*of_mine, ["--help"], ["run", "--help"]):
        monkeypatch.setattr(sys, "stdout", output_that_takes_nothing(kind))
        assert main(asked) == code
        assert capsys.readouterr().err.count("takes no more") == (kind != "pipe")


def test_a_name_that_standard_output_cannot_encode_is_no_error(
    mine, tmp_path, monkeypatch
):
    with (
        open(tmp_path / "said", "w", encoding="ascii") as output,
        monkeypatch.context() as patch,
    ):
        patch.setattr(sys, "stdout", output)
        assert main(["learner", "rename", str(mine), "red", "grün"]) == 0
    assert (tmp_path / "said").read_text() == "renamed red to gr\\xfcn\n"


@posix
def test_a_change_that_cannot_be_saved_is_not_reported(mine, crumb):
    import resource

    before, limits = mine.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        code, out, err = crumb("learner", "forget", mine, "red")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (
        (code, out) == (1, "")
        and "takes no file that large" in err
        and err.count("\n") == 1
    )
    assert mine.read_bytes() == before and os.listdir(mine.parent) == [mine.name]


def test_what_is_written_is_locked_from_before_it_is_read_until_it_is_saved(
    mine, place, tmp_path, done, monkeypatch
):
    other, held = tmp_path / "other.safetensors", []
    other.write_bytes(mine.read_bytes())
    for name in ("red", "green", "blue"):
        done("learner", "forget", other, name)

    def watched(function):
        def call(*given, **named):
            with pytest.raises(FolderInUseError), locked_file(mine):
                pass
            held.append(function.__name__)
            return function(*given, **named)

        return call

    monkeypatch.setattr(Learner, "load", classmethod(watched(Learner.load.__func__)))
    monkeypatch.setattr(Learner, "save", watched(Learner.save))
    assert "3 classes" in done(
        "learner", "merge", mine, other, "--output", mine
    ) and held == ["load", "load", "save"]
    for action in (["rename", mine, "red", "rot"], ["forget", mine, "rot"]):
        done("learner", *action)
    done(
        "teach", mine, place / "tree" / "blue", "--label", "blue", "--progress", "false"
    )
    assert held[3:] == ["load", "save"] * 3


def test_an_output_of_another_kind_stays_as_it_is(
    mine, place, clips, tiny, tmp_path, refused
):
    pytest.importorskip("onnxruntime")
    names = ("folder", "notes.txt", "a.html", "a.safetensors", "network.safetensors")
    folder, notes, page, pretrained, network = (tmp_path / name for name in names)
    folder.mkdir()
    kept = [folder / name for name in ("config.yaml", "report.csv", "summary.json")]
    files = [notes, page, pretrained, network, *kept]
    for path in files:
        path.write_text("mine")
    other, run = tmp_path / "other.safetensors", fake_run(tmp_path / "run")
    other.write_bytes(mine.read_bytes())
    pretrain = [
        "pretrain",
        "--data",
        clips,
        *NEW,
        "--weights",
        "none",
        "--overwrite",
        "true",
    ]
    cases = [
        (
            ["export", mine, "--output", mine],
            "mine.safetensors exists and is not an ONNX file of crumb export",
        ),
        (
            ["learner", "merge", mine, other, "--output", notes],
            "notes.txt exists and is not a learner",
        ),
        (["predict", mine, place / "photos", "--html", page], "not a page of this"),
        ([*pretrain, "--output", pretrained], "not of crumb pretrain"),
        (
            ["demo", "--overwrite", "true", "--output", tmp_path],
            "network.safetensors exists and is not of a demo",
        ),
        (
            ["report", run, "--output", folder],
            "report.csv exists and is of another program",
        ),
        ([*tiny, "--output", folder], "config.yaml exists and is of another program"),
        (
            [*tiny, "--output", folder, "--runs", "2"],
            "summary.json exists and is of another program",
        ),
    ]
    before = {path: path.read_bytes() for path in (mine, *files)}
    for arguments, words in cases:
        err = refused(f"{words}.*stays as it is: choose another --", *arguments)
        assert (
            err.count("\n") == 1
            and {path: path.read_bytes() for path in before} == before
        )
    assert sorted(folder.iterdir()) == kept


def test_an_output_of_the_same_kind_is_replaced_and_a_report_locked_meanwhile(
    mine, place, tmp_path, done, monkeypatch
):
    run, page, replace, held = (
        fake_run(tmp_path / "run"),
        tmp_path / "page.html",
        os.replace,
        [],
    )
    page.touch()  # as mktemp leaves it
    monkeypatch.setattr(
        os,
        "replace",
        lambda *paths: held.append((paths[1].parent, in_use(run))) or replace(*paths),
    )
    for arguments in (
        ["predict", mine, place / "photos", "--html", page],
        ["report", run],
    ):
        for _ in range(2):
            done(*arguments)
    assert set(held) == {(tmp_path, False), (run, True)}


def test_what_another_process_holds_is_refused_and_stays(
    mine, place, clips, tiny, tmp_path, refused, monkeypatch
):
    def unlocked(*_):
        raise ValueError("the command went on without the lock")

    for name in ("cli.serve.run", "runs.demo.shapes"):  # which take long, or do not end
        monkeypatch.setattr(f"crumb_avalanche.{name}", unlocked)
    folder, other, before = (
        tmp_path / "out",
        tmp_path / "other.safetensors",
        mine.read_bytes(),
    )
    other.write_bytes(before)
    run = [*tiny, "--strategy", "ncm", "--output", folder]
    pretrained = [
        "pretrain",
        "--data",
        clips,
        *NEW,
        "--weights",
        "none",
        "--epochs",
        "1",
    ]
    for held, arguments in (
        (folder, run),
        (folder / "run3", [*run, "--runs", "3"]),
        (
            folder / "p.safetensors.checkpoints",
            [*pretrained, "--output", folder / "p.safetensors"],
        ),
        (folder, ["report", fake_run(tmp_path / "run"), "--output", folder]),
        (folder, ["demo", "--output", folder]),
        (folder, ["prepare", "core50", "--dataset-root", folder]),
    ):
        with locked(held):
            words = f"{held} is in use by another process.*wait for its end, or choose another --(output|dataset-root)"
            refused(words, *arguments)
        assert not [path for path in folder.rglob("*") if path.is_file()], arguments
    for arguments in (
        ["teach", mine, place / "tree"],
        *(
            ["learner", *words]
            for words in (
                ("forget", mine, "red"),
                ("undo", mine),
                ("rename", mine, "red", "rot"),
            )
        ),
        ["learner", "merge", other, mine, "--output", mine],
        ["export", mine, "--output", mine],
        ["serve", mine, "--port", "0"],
    ):
        with locked_file(mine):
            refused(f"{mine} is being changed by another process", *arguments)
    assert mine.read_bytes() == before


@posix
def test_a_learner_keeps_its_link_and_its_permissions(
    mine, place, tmp_path, done, refused
):
    (tmp_path / "link").symlink_to(mine.name)
    mine.chmod(0o600)
    done("teach", tmp_path / "link", place / "tree", "--progress", "false")
    done("learner", "undo", mine)
    assert (tmp_path / "link").is_symlink() and stat.S_IMODE(
        mine.stat().st_mode
    ) == 0o600
    with locked_file(mine):
        refused(
            "is being changed by another process",
            "learner",
            "forget",
            tmp_path / "link",
            "red",
        )
    os.link(mine, tmp_path / "second")
    with pytest.warns(
        UserWarning, match=r"mine.safetensors has other names \(hard links\)"
    ):
        done("learner", "rename", mine, "red", "rot")


def test_a_learner_is_not_saved_over_one_that_took_its_place(mine, tmp_path):
    first, second = Learner.load(mine), Learner.load(mine)
    first.rename("red", "rot")
    first.save(mine)
    first.save(mine)
    second.forget("red")
    with pytest.raises(
        ReplacedError,
        match=r"was replaced by another program .* load it and repeat the change",
    ):
        second.save(mine)
    assert "rot" in [one.name for one in Learner.load(mine).classes]
    second.save(tmp_path / "second")
    mine.write_bytes(b"something else")
    with pytest.raises(ReplacedError):
        first.save(mine)
    mine.unlink()
    second.save(mine)
    assert "red" not in [one.name for one in Learner.load(mine).classes]
