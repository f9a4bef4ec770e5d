"""Odd values for every setting: a command ends well, or says which is wrong."""

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
# The objects of a command.
LEFT_OUT |= {"folders", "model", "sources", "action", "names", "name"}
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
NUMBERS = (
    "0 1 2 3 7 16 32 0.5 1e-3 0.9 -1 -0.5 1e300 -1e300 .inf -.inf .nan 1e18 "
    "99999999999999999999 0x10 1_000 ٣ 1e"
)
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
NAMES = (
    "crumb ncm rda finetune er paper recommended fair class_iid toy_shapes_short cuda "
    "cuda:0 meta bf16 kmeans skip"
)
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
    """A folder with a finished run, a learner, and the folder that commands work in."""
    folder = tmp_path_factory.mktemp("odd")
    run = ["run", "--benchmark", "clip_folder", "--dataset-root", clips]
    run += ["--weights", "none", "--strategy", "ncm", *NETWORK]
    assert cli.main(list(map(str, (*run, "--output", folder / "run")))) == 0
    teach = ["teach", folder / "base.safetensors", clips / "cup", "--label", "cup"]
    teach += ["--weights", weights_file, *NETWORK]
    assert cli.main(list(map(str, teach))) == 0
    return folder


def valid(command, place, work, clips, draw):
    """Valid arguments of a command."""
    mine = work / "mine.safetensors"
    shutil.copy(place / "base.safetensors", mine)
    photo = sorted(clips.rglob("*.png"))[0]
    out = work / "out"
    if command == "run":
        words = ["--benchmark", "clip_folder", "--dataset-root", clips]
        words += ["--weights", "none", "--first-epochs", 1, *NETWORK, "--output", out]
        return ["run", *words, "--strategy", draw(st.sampled_from(["ncm", "crumb"]))]
    if command == "pretrain":
        words = ["--data", clips, "--weights", "none", "--epochs", 1, *NETWORK]
        return ["pretrain", *words, "--output", work / "p"]
    if command == "prepare":
        words = ["--dataset-root", out, "--source", clips, "--workers", 1]
        return ["prepare", "tiny_imagenet", *words]
    if command == "learner":
        action = draw(
            st.sampled_from(("show", "forget", "rename", "undo", "merge", "eat"))
        )
        names = st.lists(st.sampled_from(["cup", "", "x", "ü"]), max_size=2)
        return ["learner", action, mine, *draw(names)]
    words = {
        "report": [place / "run", "--output", out],
        "strategies": [draw(st.sampled_from(["ncm", "x", ""]))],
        "backbones": ["small_cnn", "--threads", 1],
        "teach": [mine, clips / "dice", "--label", "dice", *NETWORK[4:]],
        "predict": [mine, photo, "--threads", 1],
        "export": [mine, "--threads", 1, "--output", work / "mine.onnx"],
    }
    return [command, *words[command]]


def value_for(name, draw):
    if name in PATHS:
        return draw(st.sampled_from(PLACES))
    numbers = st.sampled_from(NUMBERS.split()) | st.integers(1, 40).map(str)
    return draw(
        numbers | numbers | st.sampled_from(TEXTS) | st.sampled_from(NAMES.split())
    )


def same(text, value):
    """Whether a setting has the value that was given, as text or as a number."""
    if text.strip().lower() in ("", "null", "none", "~") or str(value) == text.strip():
        return True
    try:
        return float(yaml.safe_load(text)) == float(value)
    except (TypeError, ValueError, yaml.YAMLError):
        return False


def drawn_settings(command, draw):
    """Some settings of a command, or of none, with odd values."""
    fields = dataclasses.fields(COMMANDS[command].settings)
    names = [setting.name for setting in fields if setting.name not in LEFT_OUT]
    choice = st.sampled_from([*names, "method.power", "nothing"])
    chosen = draw(st.lists(choice, min_size=1, max_size=3, unique=True))
    return {name: value_for(name, draw) for name in chosen}


def in_file(drawn, path, draw):
    """Write settings, or something else, to a file; return the flag that reads it."""
    lines = [f"{name}: {value}" for name, value in drawn.items()]
    text = draw(st.sampled_from(FILES)) or "\n".join(lines)
    path.write_text(text, errors="surrogateescape")
    return ["--config", path]


@settings(
    max_examples=250, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_any_settings(place, clips, crumb, monkeypatch, data):
    draw = data.draw
    work = place / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    monkeypatch.chdir(work)  # some paths are relative
    quick = [name for name in COMMANDS if f"crumb {name}" not in SLOW]
    command = draw(st.sampled_from(quick + ["run"] * 6))
    drawn = drawn_settings(command, draw)
    if draw(st.integers(0, 4)) == 0:
        flags = in_file(drawn, work / "settings.yaml", draw)
        drawn = {}
    else:
        texts = {name: value for name, value in drawn.items() if "\0" not in value}
        flags = [f"--{name}={value}" for name, value in texts.items()]
    errors = []
    words_for = cli.words_for

    def noted(error):
        errors.append(error)
        return words_for(error)

    with monkeypatch.context() as patched:
        patched.setattr(cli, "words_for", noted)
        code, _, err = crumb(*valid(command, place, work, clips, draw), *flags)
    assert "Traceback" not in err and all(map(is_ours, errors)), err
    config = work / "out" / "config.yaml"
    if code:
        assert err.strip() and err.count("\n") <= 20, err
    elif config.exists() and command == "run":
        taken = yaml.safe_load(config.read_text())
        checked = taken.keys() & drawn.keys()
        assert all(same(drawn[name], taken[name]) for name in checked)
    os.chdir(place)
