"""Odd values for every setting of every command: it ends well with them, or says in some lines which one is wrong."""

import dataclasses
import os
import shutil

import pytest
import yaml
from faults import is_ours
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from crumb_avalanche import cli
from crumb_avalanche.cli.commands import COMMANDS

pytestmark = pytest.mark.slow
# Never drawn: those that start thousands of processes, measure, open devices or the
# network, or print bars.
LEFT_OUT = {
    "workers",
    "threads",
    "runtime",
    "config",
    "camera",
    "host",
    "port",
    "data",
    "progress",
    "check",
}
LEFT_OUT |= {
    "folders",
    "model",
    "sources",
    "action",
    "names",
    "name",
}  # the objects of a command
SLOW = {"crumb demo", "crumb serve", "crumb connect"}
PATHS = {
    "output",
    "dataset_root",
    "feature_cache",
    "html",
    "source",
    "pretrained",
    "weights",
}
PLACES = (
    "new",
    "a/b",
    "/proc/x",
    "/dev/full",
    "",
    " ",
    "x" * 300,
    "\udcff",
    "~nobody/x",
    "/" + "y/" * 3000,
    "none",
)
NUMBERS = "0 1 2 3 7 16 32 0.5 1e-3 0.9 -1 -0.5 1e300 -1e300 .inf -.inf .nan 1e18 99999999999999999999 0x10 1_000 ٣ 1e"
TEXTS = (
    "",
    " ",
    "none",
    "true",
    "~",
    "a b",
    "\n",
    "\x1b[31m",
    "{}",
    "[1, 2]",
    "{a: 1}",
    "'",
    '"',
    "../..",
    "x" * 5000,
)
TEXTS += (
    "%s%n",
    "--help",
    "-",
    "ü",
    "\U0001f600",
    "!!python/object:os.system {}",
    "[" * 200,
    "a: b: c",
    "\udcff",
)
NAMES = "crumb ncm rda finetune er paper recommended fair class_iid toy_shapes_short cuda cuda:0 meta bf16 kmeans skip"
FILES = (
    "",
    "- 1",
    "a: [",
    "\t",
    "\ufeff",
    "a: &x [*x]",
    "[" * 3000,
    "{" * 3000,
    "\0",
    "1",
    "a: 1\na: 2",
)
NETWORK = (
    "--backbone",
    "small_cnn",
    "--image-size",
    32,
    "--threads",
    1,
    "--progress",
    "false",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory, clips, weights_file):
    """A folder with a finished run, a learner, and the folder in which commands work."""
    folder = tmp_path_factory.mktemp("odd")
    run = [
        "run",
        "--benchmark",
        "clip_folder",
        "--dataset-root",
        clips,
        "--weights",
        "none",
        "--strategy",
        "ncm",
    ]
    assert cli.main(list(map(str, [*run, *NETWORK, "--output", folder / "run"]))) == 0
    teach = [
        "teach",
        folder / "base.safetensors",
        clips / "cup",
        "--label",
        "cup",
        "--weights",
        weights_file,
        *NETWORK,
    ]
    assert cli.main(list(map(str, teach))) == 0
    return folder


def valid(command, place, work, clips, draw):
    """Valid arguments of a command."""
    mine, photo = work / "mine.safetensors", sorted(clips.rglob("*.png"))[0]
    shutil.copy(place / "base.safetensors", mine)
    run = [
        "--benchmark",
        "clip_folder",
        "--dataset-root",
        clips,
        "--weights",
        "none",
        "--first-epochs",
        1,
    ]
    run += [*NETWORK, "--output", work / "out", "--strategy"]
    actions = ("show", "forget", "rename", "undo", "merge", "eat")
    names = st.lists(st.sampled_from(["cup", "", "x", "ü"]), max_size=2)
    return {
        "run": lambda: [*run, draw(st.sampled_from(["ncm", "crumb"]))],
        "pretrain": lambda: [
            "--data",
            clips,
            "--weights",
            "none",
            "--epochs",
            1,
            *NETWORK,
            "--output",
            work / "p",
        ],
        "prepare": lambda: [
            "tiny_imagenet",
            "--dataset-root",
            work / "out",
            "--source",
            clips,
            "--workers",
            1,
        ],
        "report": lambda: [place / "run", "--output", work / "out"],
        "strategies": lambda: [draw(st.sampled_from(["ncm", "x", ""]))],
        "backbones": lambda: ["small_cnn", "--threads", 1],
        "teach": lambda: [mine, clips / "dice", "--label", "dice", *NETWORK[4:]],
        "predict": lambda: [mine, photo, "--threads", 1],
        "learner": lambda: [draw(st.sampled_from(actions)), mine, *draw(names)],
        "export": lambda: [mine, "--threads", 1, "--output", work / "mine.onnx"],
    }[command]()


def value_for(name, draw):
    if name in PATHS:
        return draw(st.sampled_from(PLACES))
    numbers = st.sampled_from(NUMBERS.split()) | st.integers(1, 40).map(str)
    return draw(
        numbers | numbers | st.sampled_from(TEXTS) | st.sampled_from(NAMES.split())
    )


def same(given, taken):
    """Whether a setting has the value that was given, as text or as a number."""
    if (
        given.strip().lower() in ("", "null", "none", "~")
        or str(taken) == given.strip()
    ):
        return True
    try:
        return float(yaml.safe_load(given)) == float(taken)
    except (TypeError, ValueError, yaml.YAMLError):
        return False


@settings(
    max_examples=250, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_any_settings(place, clips, crumb, monkeypatch, data):
    draw, work = data.draw, place / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    monkeypatch.chdir(work)  # some paths are relative
    command = draw(
        st.sampled_from(
            [name for name in COMMANDS if f"crumb {name}" not in SLOW] + ["run"] * 6
        )
    )
    fields = [
        item.name
        for item in dataclasses.fields(COMMANDS[command].settings)
        if item.name not in LEFT_OUT
    ]
    names = draw(
        st.lists(
            st.sampled_from([*fields, "method.power", "nothing"]),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    drawn = {name: value_for(name, draw) for name in names}
    more = [f"--{name}={value}" for name, value in drawn.items() if "\0" not in value]
    if draw(st.integers(0, 4)) == 0:
        text = draw(st.sampled_from(FILES)) or "\n".join(
            f"{name}: {value}" for name, value in drawn.items()
        )
        (work / "settings.yaml").write_text(text, errors="surrogateescape")
        drawn, more = {}, ["--config", work / "settings.yaml"]
    errors, words_for = [], cli.words_for
    with monkeypatch.context() as patched:
        patched.setattr(
            cli, "words_for", lambda error: errors.append(error) or words_for(error)
        )
        code, _, err = crumb(command, *valid(command, place, work, clips, draw), *more)
    assert "Traceback" not in err and all(map(is_ours, errors)), err
    if code:
        assert err.strip() and err.count("\n") <= 20, err
    elif (config := work / "out" / "config.yaml").exists() and command == "run":
        taken = yaml.safe_load(config.read_text())
        assert all(
            same(value, taken[name]) for name, value in drawn.items() if name in taken
        )
    os.chdir(place)
