"""The learner where what only Linux has is missing, as on Windows and macOS."""

import importlib.util
import json
import subprocess
import sys

import pytest

# Hides what Linux has and others lack, and then runs commands.
HIDDEN = """
import builtins, io, json, os, sys

modules, functions, commands = (json.loads(text) for text in sys.argv[1:])

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in modules:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hidden())

def without_proc(function):
    def hidden(path=".", *arguments, **keywords):
        if str(path).startswith(("/proc", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *arguments, **keywords)
    return hidden

# Built for each system.
import numpy, torch, torchvision, PIL.Image, safetensors.torch, filelock
builtins.open = io.open = without_proc(open)
for name in ("open", "stat", "listdir", "scandir", "readlink"):
    setattr(os, name, without_proc(getattr(os, name)))
for name in functions:
    if hasattr(os, name):
        delattr(os, name)
from crumb_avalanche.cli import main
for command in commands:
    code = main(command)
    assert code == 0, (command, code)
print("hidden", [name for name in modules if name in sys.modules])
"""
MODULES = ("resource", "fcntl", "pwd", "grp", "termios", "syslog")
FUNCTIONS = [
    "fork",
    "forkpty",
    "posix_fallocate",
    "posix_fadvise",
    "sched_getaffinity",
    "sched_setaffinity",
    "getuid",
    "geteuid",
    "getgid",
    "sysconf",
    "getloadavg",
    "killpg",
    "setsid",
    "getpgid",
    "nice",
    "fchmod",
    "fchown",
    "chown",
    "mkfifo",
    "statvfs",
    "fstatvfs",
    "uname",
    "wait4",
    "waitid",
    "WNOHANG",
    "sync",
    "pread",
    "pwrite",
    "sendfile",
]


@pytest.mark.slow  # a process that imports torch
def test_teach_predict_change_and_export(place, tmp_path):
    mine = tmp_path / "mine.safetensors"
    weights = place / "weights.safetensors"
    new = ["--weights", weights, "--backbone", "small_cnn", "--image-size", "32"]
    commands = [
        ["teach", mine, place / "tree", *new, "--threads", "1"],
        ["teach", mine, place / "tree" / "red", "--label", "pink"],
        ["predict", mine, place / "photos", "--json"],
        ["learner", "forget", mine, "pink"],
        ["learner", "show", mine],
    ]
    has_onnx = importlib.util.find_spec("onnxruntime") is not None
    if has_onnx:
        commands.append(["export", mine, "--threads", "1"])
    arguments = []
    for value in (MODULES, FUNCTIONS, commands):
        arguments.append(json.dumps(value, default=str))
    program = [sys.executable, "-c", HIDDEN, *arguments]
    process = subprocess.run(program, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "hidden []" in process.stdout
    assert "red: 6 images" in process.stdout
    assert "forgot pink" in process.stdout
    assert '"label": "blue"' in process.stdout
    assert "Traceback" not in process.stderr
    assert not list(tmp_path.glob(".*.lock"))
    assert (tmp_path / "mine.onnx").exists() == has_onnx
