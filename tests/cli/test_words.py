"""Damaged inputs, unusable paths and interrupts end in a line of words, not in a traceback."""

import errno
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import urllib.error
from pathlib import Path

import pytest
import torch

from benchmarks_toybox_ilab.tables.frame import BadFrameError
from crumb_avalanche.cli import words_for
from crumb_avalanche.cli.parser import usable_paths
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.weights import WeightsError
from crumb_avalanche.runs.run_folder import LEFT_OUT
from crumb_avalanche.system.atomic_file import cured
from crumb_avalanche.system.console import TerminatedError, interrupted_later, terminated_as_interrupted

HEADERS = {
    "longer than memory": struct.pack("<Q", 2**62) + b"{}",
    "longer than an index": struct.pack("<Q", 2**63 + 5) + b"{}",
    "nested": struct.pack("<Q", 200_000) + b"[" * 200_000,
    "another encoding": struct.pack("<Q", 8) + "{}".encode("utf-32-be"),
    "null": struct.pack("<Q", 4) + b"null",
    "empty": b"",
}


def fails(crumb, *arguments) -> str:
    code, _, err = crumb(*arguments)
    assert code not in (0, None)
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("damage", HEADERS)
def test_a_damaged_header_of_a_weight_file(crumb, tiny, tmp_path, damage):
    file = tmp_path / "file.safetensors"
    file.write_bytes(HEADERS[damage])
    err = fails(crumb, *tiny, "--output", tmp_path / "run", "--pretrained", file)
    assert str(file) in err and "no complete .safetensors file" in err


@pytest.mark.parametrize("setting", ["output", "feature_cache"])
def test_paths_that_cannot_be_used(crumb, tiny, tmp_path, setting):
    (tmp_path / "notes").write_text("mine")
    arguments = [*tiny, "--output", tmp_path / "run", f"--{setting}"]
    err = fails(crumb, *arguments, tmp_path / "notes" / "x")
    assert f"{tmp_path / 'notes' / 'x'}" in err and "Not a directory" in err and "choose another" in err
    assert "File name too long; choose a shorter name" in fails(crumb, *arguments, tmp_path / ("a" * 300))
    assert f"{setting} is empty; give a path" in fails(crumb, *arguments, "")
    assert "zero byte" in fails(crumb, *arguments, "a\0b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_a_pipe_among_the_frames(crumb, tiny, clips, tmp_path):
    shutil.copytree(clips, tmp_path / "clips")
    os.mkfifo(tmp_path / "clips" / "cup" / "object0" / "clip0" / "pipe.png")
    arguments = [*tiny, "--strategy", "ncm", "--dataset-root", tmp_path / "clips"]
    err = fails(crumb, *arguments, "--output", tmp_path / "a")
    assert "pipe.png" in err and "not a regular file" in err and "--on-bad-frame skip" in err
    code, _, err = crumb(*arguments, "--output", tmp_path / "b", "--on-bad-frame", "skip")
    assert code == 0, err


def test_a_home_folder_is_expanded(crumb, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "runs").mkdir()
    assert f"{tmp_path / 'runs'} holds no finished run" in fails(crumb, "report", "~/runs")
    assert usable_paths({"output": "~/out", "folders": ["~/a", "b"], "run": 0}) == {
        "output": str(tmp_path / "out"),
        "folders": [str(tmp_path / "a"), "b"],
        "run": 0,
    }


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.EACCES, errno.ENOSPC])
def test_errors_of_a_disk_name_path_reason_and_cure(crumb, tiny, tmp_path, monkeypatch, number):
    def fail(path):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("crumb_avalanche.system.atomic_file.atomic_write", fail)
    err = fails(crumb, *tiny, "--output", tmp_path)
    assert f"{tmp_path / 'config.yaml'}: {os.strerror(number)}; " in err


def test_a_disk_that_fails_when_a_finished_run_is_tidied_up_does_not_fail_the_run(crumb, tiny, tmp_path, monkeypatch):
    unlink = Path.unlink

    def fail(path, *arguments, **keywords):
        if path.name == LEFT_OUT:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        unlink(path, *arguments, **keywords)

    monkeypatch.setattr(Path, "unlink", fail)
    assert crumb(*tiny, "--strategy", "ncm", "--output", tmp_path)[0] == 0


def test_too_little_memory_and_bugs():
    assert "too little memory" in words_for(MemoryError())
    assert "too little memory" in words_for(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))
    assert (
        words_for(RuntimeError("shape '[2]' is invalid"))
        is words_for(TypeError("x"))
        is words_for(OSError("x"))
        is None
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--image-size 224px", "image_size is '224px'; give a whole number"),
        ("--learning-rate high", "learning_rate is 'high'; give a number"),
        ("--overwrite maybe", "overwrite is 'maybe'; give true or false"),
        ("--preset best", "preset is 'best'; give paper, reference, recommended, tuned"),
    ],
)
def test_a_value_of_another_type_is_one_line(crumb, arguments, said):
    assert fails(crumb, "run", *arguments.split()) == f"crumb run: {said}\n"


def test_nested_settings(crumb, tmp_path):
    file = tmp_path / "config.yaml"
    bomb = ["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    for text in ("[" * 500, "\n".join(bomb)):
        file.write_text(text)
        assert f"{file} is no file of settings" in fails(crumb, "run", "--config", file)
    file.write_bytes(b"\xff\xfe\x00\xd8")
    assert f"{file} is no file of settings" in fails(crumb, "run", "--config", file)
    assert "nested too deeply" in fails(crumb, "run", "--method.alpha", "[" * 500)


def test_damaged_results_are_named(crumb, tiny, tmp_path):
    run = tmp_path / "run"
    assert crumb(*tiny, "--output", run, "--strategy", "ncm", "--keep-learner", "none")[0] == 0
    result = json.loads((run / "result.json").read_text())
    changes = [("provenance", [1]), ("classes_order", 3), ("classes_per_experience", "x"), ("strategy_settings", 3)]
    texts = {name: json.dumps(result | {name: value}) for name, value in changes} | {"recursion": "[" * 100_000}
    for number, (name, text) in enumerate(texts.items()):
        damaged = tmp_path / f"damaged{number}"
        shutil.copytree(run, damaged)
        (damaged / "result.json").write_text(text)
        err = fails(crumb, "report", damaged)
        assert f"{damaged / 'result.json'} cannot be used" in err and name in err


def test_a_pretraining_that_diverges(crumb, clips, tmp_path):
    arguments = ["--weights", "none", "--backbone", "small_cnn", "--image-size", 32, "--batch-size", 8, "--threads", 1]
    output = ["--output", tmp_path / "p.safetensors", "--progress", "false", "--learning-rate", "1e6"]
    err = fails(crumb, "pretrain", "--data", clips, *arguments, *output)
    assert "loss became" in err and "lower --learning-rate" in err


@pytest.mark.parametrize("error", [urllib.error.URLError("no network"), RuntimeError("invalid hash value")])
def test_without_a_network_the_weights_are_named(monkeypatch, error):
    def fail(*arguments, **keywords):
        raise error

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    with pytest.raises(WeightsError, match=r"resnet18.* https://\S+\.pth .*(no network|invalid hash).*--weights FILE"):
        split_backbone("resnet18", n_classes=2)


def test_sigterm_saves_as_an_interrupt_does(crumb, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "crumb_avalanche.training.stream_strategy.StreamStrategy.optimizer_step",
        lambda self: signal.raise_signal(signal.SIGTERM),
    )
    before = signal.getsignal(signal.SIGTERM)
    code, _, err = crumb(*tiny, "--output", tmp_path)
    assert code == 128 + signal.SIGTERM and "stopped; the same command resumes" in err.splitlines()[-1]
    assert (tmp_path / "interrupted" / "error.txt").exists() and signal.getsignal(signal.SIGTERM) == before


@pytest.fixture
def usual_signals():
    """Handle signals as in a foreground process: shells let background ones ignore SIGINT."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_interrupt_waits_for_the_end_of_imports(usual_signals):
    done = []
    with pytest.raises(KeyboardInterrupt), interrupted_later():
        signal.raise_signal(signal.SIGINT)
        done.append("import")
    assert done == ["import"]
    with pytest.raises(TerminatedError), terminated_as_interrupted(), interrupted_later():
        signal.raise_signal(signal.SIGTERM)
        done.append("import")
    assert len(done) == 2


def test_an_interrupt_during_the_imports_of_the_parser(usual_signals, crumb, monkeypatch):
    def interrupted(arguments):
        signal.raise_signal(signal.SIGINT)
        return arguments

    monkeypatch.setattr("crumb_avalanche.cli.parser.present", interrupted)
    code, _, err = crumb("strategies", "ncm")
    assert code == 130 and err.startswith("crumb ") and "stopped" in err


def test_the_entry_point_imports_next_to_nothing():
    code = (
        "import crumb_avalanche.cli, sys; print(*{'numpy', 'yaml', 'dataclasses', 'jsonargparse'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.strip()


def test_a_reader_that_has_read_enough_ends_a_command_without_a_word():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as closed:
        command = [sys.executable, "-m", "crumb_avalanche.cli", "run", "--help"]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_pipe_that_breaks_elsewhere_is_no_end_of_the_output(crumb, monkeypatch):
    def fail(settings):
        raise BrokenPipeError(errno.EPIPE, "of a worker")

    monkeypatch.setattr("crumb_avalanche.cli.strategies.main", fail)
    with pytest.raises(BrokenPipeError, match="of a worker"):
        crumb("strategies")


def test_a_file_of_settings_that_is_nested_too_deeply(crumb, tmp_path):
    (tmp_path / "deep.yaml").write_text("strategy: " + "[" * 600 + "]" * 600)
    code, _, err = crumb("teach", tmp_path / "x", "--config", tmp_path / "deep.yaml")
    assert code and "Traceback" not in err and err.count("\n") <= 3


@pytest.mark.parametrize("content", [b"weights: \xff", b"weights: " + b"1" * 5000, b"weights: 2000-13-45"])
def test_a_file_of_settings_with_odd_bytes_or_numbers(crumb, tmp_path, content):
    (tmp_path / "odd.yaml").write_bytes(content)
    code, _, err = crumb("predict", tmp_path / "x", "photo.png", "--config", tmp_path / "odd.yaml")
    assert code and "Traceback" not in err and err.startswith("crumb ") and err.count("\n") == 1


@pytest.mark.parametrize("device", ["mps", "meta", "xpu:0"])
def test_a_device_that_is_not_supported(crumb, tiny, tmp_path, device):
    code, _, err = crumb(*tiny, "--device", device, "--output", tmp_path)
    assert code == 1 and f"device is {device}, but only cpu and cuda" in err


def test_a_folder_that_takes_no_file_is_named(tmp_path):
    error = OSError(errno.EACCES, "Permission denied", str(tmp_path / "new.onnx.12.part"))
    assert f"change the permissions of the folder {tmp_path}, or choose another path" in cured(error)


def test_an_interrupt_during_the_imports_of_a_command(usual_signals, crumb, monkeypatch):
    monkeypatch.setattr("crumb_avalanche.cli.import_module", lambda name: signal.raise_signal(signal.SIGINT))
    for command, words in (("report", "the same command starts again"), ("teach", "the lesson is not learned")):
        code, _, err = crumb(command, "x")
        assert code == 130 and err.startswith(f"crumb {command}: stopped; {words}")


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
