"""Help, damaged settings, interrupts and bugs: a line of words for what a user can mend, else a traceback."""

import errno
import re
import signal
import urllib.error
import warnings
from dataclasses import MISSING, fields

import pytest

from crumb_avalanche.cli import TerminatedError, interrupted_later, short_warnings, terminated_as_interrupted, words_for
from crumb_avalanche.cli.parser import COMMANDS, POSITIONAL, flag_of, usable_paths
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.weights import WeightsError
from crumb_avalanche.system.atomic_file import cured


def test_a_home_folder_is_expanded(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "runs").mkdir()
    refused(f"{tmp_path / 'runs'} holds no finished run", "report", "~/runs")
    assert usable_paths({"folders": ["~/a", "b"], "run": 0}) == {"folders": [f"{tmp_path}/a", "b"], "run": 0}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_works_without_the_paths_that_have_a_default(command):
    usable_paths({item.name: item.default for item in fields(COMMANDS[command][0]) if item.default is not MISSING})


def test_help_shows_what_people_need_and_help_all_every_flag(crumb):
    text = crumb("--help")[1]
    assert list(re.findall(r"^  (\w+)", text, re.MULTILINE)) == list(COMMANDS)
    assert text.index("Teach and ask") < text.index("serve") < text.index("Measure") < text.index("The paper")
    for command, (settings, _) in COMMANDS.items():
        few, every = (crumb(command, flag)[1] for flag in ("--help", "--help-all"))
        flags = [set(re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)) for text in (few, every)]
        assert flags[0] < flags[1] and len(flags[0]) <= 13
        unflagged = POSITIONAL.get(command, {})
        assert {flag_of(item.name) for item in fields(settings) if item.name not in unflagged} <= flags[1]
        assert f"--help-all shows all {len(flags[1])} flags" in few


def test_every_method_or_one_is_listed_with_what_it_stores(done):
    out = done("strategies")
    for name, entry in STRATEGIES.items():
        block = out[out.index(f"{name}: {entry.summary}") :]
        assert entry.source in block and entry.stores in block and "  budget  " in block
    out = done("strategies", "image_replay")
    assert out.startswith("image_replay: raw uint8 images") and "crumb:" not in out
    assert "(budget - fixed bytes) / bytes of one memory, rounded down\n" in out
    assert "rounded up if three quarters of a last memory fit" in done("strategies", "crumb")
    assert "its size does not depend on the budget" in done("strategies", "finetune")


def test_a_mistyped_command_is_answered_with_the_nearest(crumb):
    assert crumb("taech", "x")[::2] == (
        2,
        "crumb: 'taech' is no command; did you mean crumb teach? crumb --help lists all of them\n",
    )
    assert "mean" not in crumb("xyz")[2]


def test_too_little_memory_folders_and_bugs(tmp_path):
    assert "too little memory" in words_for(MemoryError())
    assert "too little memory" in words_for(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))
    for bug in (RuntimeError("shape '[2]' is invalid"), TypeError("x"), OSError("x")):
        assert words_for(bug) is None
    error = OSError(errno.EACCES, "Permission denied", str(tmp_path / "new.onnx.12.part"))
    assert f"change the permissions of the folder {tmp_path}, or choose another path" in cured(error)


BOMB = ["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]


@pytest.mark.parametrize(
    "content",
    [b"[" * 500, "\n".join(BOMB).encode(), b"weights: \xff", b"weights: " + b"1" * 5000, b"weights: 2000-13-45"],
    ids=lambda content: str(content[:12]),
)
def test_a_file_of_settings_that_cannot_be_read(crumb, tmp_path, content):
    (tmp_path / "odd.yaml").write_bytes(content)
    code, _, err = crumb("predict", tmp_path / "x", "photo.png", "--config", tmp_path / "odd.yaml")
    assert code not in (0, None) and err.startswith("crumb ") and err.count("\n") == 1


@pytest.mark.parametrize("error", [urllib.error.URLError("no network"), RuntimeError("invalid hash value")])
def test_without_a_network_the_weights_are_named(monkeypatch, error):
    def fail(*arguments, **keywords):
        raise error

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    with pytest.raises(WeightsError, match=r"resnet18.* https://\S+\.pth .*(no network|invalid hash).*--weights FILE"):
        split_backbone("resnet18", n_classes=2)


def test_an_interrupt_waits_for_the_end_of_imports(usual_signals, crumb, monkeypatch):
    done = []
    with pytest.raises(KeyboardInterrupt), interrupted_later():
        signal.raise_signal(signal.SIGINT)
        done.append("import")
    with pytest.raises(TerminatedError), terminated_as_interrupted(), interrupted_later():
        signal.raise_signal(signal.SIGTERM)
        done.append("import")
    assert len(done) == 2
    monkeypatch.setattr("crumb_avalanche.cli.import_module", lambda name: signal.raise_signal(signal.SIGINT))
    for command, words in (("report", "the same command starts again"), ("teach", "the lesson is not learned")):
        code, _, err = crumb(command, "x")
        assert code == 130 and err.startswith(f"crumb {command}: stopped; {words}")


def test_a_warning_to_the_user_is_one_line_and_others_name_their_place():
    usual = warnings.formatwarning
    with short_warnings():
        assert warnings.formatwarning("no images", UserWarning, "module.py", 3) == "warning: no images\n"
        assert "module.py:3: DeprecationWarning" in warnings.formatwarning("old", DeprecationWarning, "module.py", 3)
    assert warnings.formatwarning is usual
