"""The learner where Unix modules, functions and ``/proc`` are missing, as on Windows and macOS."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

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

import numpy, torch, torchvision, PIL.Image, safetensors.torch, jsonargparse, filelock  # built for each system
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
FUNCTIONS = (
    *("fork", "forkpty", "posix_fallocate", "posix_fadvise", "sched_getaffinity", "sched_setaffinity", "getuid"),
    *("geteuid", "getgid", "sysconf", "getloadavg", "killpg", "setsid", "getpgid", "nice", "fchmod", "fchown", "chown"),
    *("mkfifo", "statvfs", "fstatvfs", "uname", "wait4", "waitid", "WNOHANG", "sync", "pread", "pwrite", "sendfile"),
)


@pytest.fixture
def place(tmp_path, weights_file):
    """A folder with weights and photos of two classes."""
    shutil.copy(weights_file, tmp_path / "weights.safetensors")
    draws = np.random.default_rng(0)
    for name in ("cup", "mug"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            pixels = draws.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path


def run_hidden(*commands):
    """Run commands in one process without Unix's parts; return what they print."""
    given = [MODULES, FUNCTIONS, [[str(part) for part in command] for command in commands]]
    program = [sys.executable, "-c", HIDDEN, *map(json.dumps, given)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hidden []" in done.stdout
    return done.stdout, done.stderr


def test_teach_predict_change_and_export(place):
    mine = place / "mine.safetensors"
    new = ["--weights", place / "weights.safetensors", "--backbone", "small_cnn", "--image-size", "32"]
    commands = [
        ["teach", mine, place / "photos", *new, "--threads", "1"],
        ["teach", mine, place / "photos" / "cup", "--label", "glass"],
        ["predict", mine, place / "photos" / "cup", "--json"],
        ["learner", "forget", mine, "glass"],
        ["learner", "show", mine],
    ]
    try:
        import onnxruntime  # noqa: F401

        commands.append(["export", mine, "--threads", "1"])
    except ImportError:
        pass
    out, err = run_hidden(*commands)
    assert "cup: 3 images" in out and "forgot glass" in out and '"label": "cup"' in out
    assert "Traceback" not in err and not list(place.glob(".*.lock"))
    assert len(commands) == 5 or (place / "mine.onnx").exists()
