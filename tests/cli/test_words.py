"""Damaged settings and results, interrupts and bugs: a line of words for what a user can mend, else a traceback."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import warnings

import pytest
import torch
from fake_runs import fake_run

from benchmarks_toybox_ilab.tables.frame import BadFrameError
from crumb_avalanche.cli import short_warnings, words_for
from crumb_avalanche.cli.parser import usable_paths
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.weights import WeightsError
from crumb_avalanche.system.atomic_file import cured
from crumb_avalanche.system.console import TerminatedError, interrupted_later, terminated_as_interrupted


def fails(crumb, *arguments) -> str:
    code, _, err = crumb(*arguments)
    assert code not in (0, None) and "Traceback" not in err and err.count("\n") <= 3
    return err


def test_a_home_folder_is_expanded(crumb, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "runs").mkdir()
    assert f"{tmp_path / 'runs'} holds no finished run" in fails(crumb, "report", "~/runs")
    home = str(tmp_path)
    assert usable_paths({"folders": ["~/a", "b"], "run": 0}) == {"folders": [f"{home}/a", "b"], "run": 0}


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
    [
        *(b"[" * 500, "\n".join(BOMB).encode(), b"\xff\xfe\x00\xd8", b"weights: \xff"),
        *(b"weights: " + b"[" * 600 + b"]" * 600, b"weights: " + b"1" * 5000, b"weights: 2000-13-45"),
    ],
    ids=lambda content: str(content[:12]),
)
def test_a_file_of_settings_that_cannot_be_read(crumb, tmp_path, content):
    (tmp_path / "odd.yaml").write_bytes(content)
    err = fails(crumb, "predict", tmp_path / "x", "photo.png", "--config", tmp_path / "odd.yaml")
    assert err.startswith("crumb ") and err.count("\n") == 1
    assert "nested too deeply" in fails(crumb, "run", "--method.alpha", "[" * 500)


def test_damaged_results_are_named(crumb, tmp_path):
    path = fake_run(tmp_path / "run") / "result.json"
    result = json.loads(path.read_text())
    changes = [("provenance", [1]), ("classes_order", 3), ("classes_per_experience", "x"), ("strategy_settings", 3)]
    texts = {name: json.dumps(result | {name: value}) for name, value in changes} | {"recursion": "[" * 100_000}
    for name, text in texts.items():
        path.write_text(text)
        err = fails(crumb, "report", path.parent)
        assert f"{path} cannot be used" in err and name in err


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
    with monkeypatch.context() as patch:
        patch.setattr("crumb_avalanche.cli.import_module", lambda name: signal.raise_signal(signal.SIGINT))
        for command, words in (("report", "the same command starts again"), ("teach", "the lesson is not learned")):
            code, _, err = crumb(command, "x")
            assert code == 130 and err.startswith(f"crumb {command}: stopped; {words}")
    monkeypatch.setattr("crumb_avalanche.cli.parser.present", lambda given: signal.raise_signal(signal.SIGINT) or given)
    code, _, err = crumb("strategies", "ncm")
    assert code == 130 and err.startswith("crumb ") and "stopped" in err


def test_the_entry_point_imports_next_to_nothing():
    code = (
        "import crumb_avalanche.cli, sys; print(*{'numpy', 'yaml', 'dataclasses', 'jsonargparse'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.strip()


def test_a_pipe_that_breaks_elsewhere_is_no_end_of_the_output(crumb, monkeypatch):
    def fail(settings):
        raise BrokenPipeError(errno.EPIPE, "of a worker")

    monkeypatch.setattr("crumb_avalanche.cli.strategies.main", fail)
    with pytest.raises(BrokenPipeError, match="of a worker"):
        crumb("strategies")


class _Killed(torch.utils.data.Dataset):
    """Images whose loader process is killed as one is that takes too much memory."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


class _Damaged(_Killed):
    def __getitem__(self, index):
        raise BadFrameError(f"cannot decode frame {index}.png")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal on this system")
@pytest.mark.parametrize(
    ("images", "words"),
    [(_Killed(), "a loader process was killed, .* again, with fewer --workers"), (_Damaged(), r"cannot .* 0\.png$")],
)
def test_the_end_of_a_loader_process_is_said_in_one_line(images, words):
    with pytest.raises((RuntimeError, BadFrameError)) as error:
        list(torch.utils.data.DataLoader(images, num_workers=1))
    assert re.match(words, words_for(error.value)) and "\n" not in words_for(error.value)


def test_a_warning_to_the_user_is_one_line_and_others_name_their_place():
    usual = warnings.formatwarning
    with short_warnings():
        assert warnings.formatwarning("no images", UserWarning, "module.py", 3) == "warning: no images\n"
        assert "module.py:3: DeprecationWarning" in warnings.formatwarning("old", DeprecationWarning, "module.py", 3)
    assert warnings.formatwarning is usual
