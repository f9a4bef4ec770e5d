"""Two processes under torchrun learn what one does, and go on together where they were cut off."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import small_models
import torch
from forked import start_script
from small_models import coloured
from torch.utils.data import BatchSampler, SequentialSampler

from crumb_avalanche.models.weights import read_weights
from crumb_avalanche.training.checkpoint import CheckpointError, CheckpointFolder
from crumb_avalanche.training.pretraining import PretrainingSettings, ProcessGroup, Shares, pretrain, processes

SETTINGS = PretrainingSettings(epochs=4, batch_size=9, learning_rate=0.02)

# Each process writes what it has; tests/helpers has the small model.
SCRIPT = """
import json, os, sys
from dataclasses import asdict
from pathlib import Path
import torch
sys.path[:0] = sys.argv[1].split(os.pathsep)
from small_models import coloured, make_model
from test_pretraining_processes import SETTINGS
from crumb_avalanche.training.pretraining import pretrain, processes
from crumb_avalanche.training.checkpoint import CheckpointFolder
from crumb_avalanche.models.weights import weights_hash

folder, stop = Path(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)


class CutOff(torch.utils.data.Dataset):
    seen = 0

    def __init__(self, whole):
        self.whole = whole

    def __len__(self):
        return len(self.whole)

    def __getitem__(self, row):
        CutOff.seen += 1
        if CutOff.seen == stop:
            raise SystemExit("cut off")
        return self.whole[row]


with processes("cpu") as group:
    torch.manual_seed(0)
    model = make_model(seed=group.rank)  # the leader's counts
    checkpoints = CheckpointFolder(folder / "checkpoints")
    history = pretrain(model, CutOff(coloured()), SETTINGS, group.is_leader, checkpoints, group)
    said = dict(rank=group.rank, size=group.size, leads=group.is_leader, history=history, weights=weights_hash(model))
    said["told"] = group.broadcast(["from", group.rank])
    said["sum"] = float(group.all_reduce(torch.ones(1)))
    said["gathered"] = group.gather(group.rank)
    (folder / f"rank{group.rank}.json").write_text(json.dumps(said))
    with group.leader_first():
        with open(folder / "order", "a") as file:
            file.write(str(group.rank))
"""


PATHS = os.pathsep.join([str(Path(__file__).parent), str(Path(small_models.__file__).parent)])


def start(folder: Path) -> subprocess.CompletedProcess:
    """Two processes of torchrun."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, PATHS, str(folder), "0"], capture_output=True, text=True, env=environment, timeout=300
    )


def cut_off(folder: Path, stop: int) -> None:
    """Do what ``start`` does, without torchrun and without importing torch three times."""
    (folder / "script.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = [
        start_script(folder / "script.py", PATHS, folder, stop, **place, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in (0, 1)
    ]
    for process in ranks:
        process.join(300)
        assert process.exitcode not in (0, None)


def said(folder: Path, rank: int) -> dict:
    return json.loads((folder / f"rank{rank}.json").read_text())


@pytest.fixture(scope="module")
def two(tmp_path_factory, make_model):
    """The folder of two processes that were cut off in the third epoch and went on, and what they printed."""
    folder = tmp_path_factory.mktemp("two")
    cut_off(folder, stop=50)
    files = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert files == ["00000000.safetensors", "00000001.safetensors"] and not (folder / "rank0.json").exists()
    with pytest.raises(CheckpointError, match=r"in 2 processes, not 1; start as many \(torchrun --nproc-per-node\)"):
        pretrain(make_model(), coloured(), SETTINGS, False, CheckpointFolder(folder / "checkpoints"))
    done = start(folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stderr


def test_two_processes_learn_what_one_does(two, make_model):
    # 40 images in batches of 9: shares of 5 and 4, and in the last batch of 2 and 2.
    folder, printed = two
    results = [said(folder, rank) for rank in (0, 1)]
    model = make_model()
    alone = pretrain(model, coloured(), SETTINGS, False)
    assert [result["size"] for result in results] == [2, 2]
    assert results[0]["weights"] == results[1]["weights"]
    assert results[0]["history"] == results[1]["history"]
    assert len(alone) == 4 and alone[-1]["loss"] < alone[0]["loss"]
    for together, one in zip(results[0]["history"], alone, strict=True):
        assert together["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert together["direct_accuracy"] == one["direct_accuracy"]
        assert together["codebook_accuracy"] == one["codebook_accuracy"]
    kept = read_weights(folder / "checkpoints" / "00000003.safetensors")
    for name, values in model.state_dict().items():
        torch.testing.assert_close(kept[f"model.{name}"], values, rtol=1e-4, atol=1e-5)
    assert printed.count("epoch 4: 40/40 images") == 1  # one process shows progress, of all images
    assert "epoch 3" in printed and "epoch 2" not in printed


def test_processes_talk_to_each_other(two):
    folder, _ = two
    for rank in (0, 1):
        result = said(folder, rank)
        assert (result["rank"], result["leads"]) == (rank, rank == 0)
        assert result["told"] == ["from", 0] and result["sum"] == 2 and result["gathered"] == [0, 1]
    assert (folder / "order").read_text() == "01"


@pytest.mark.slow
def test_going_on_changes_nothing(two, tmp_path):
    assert start(tmp_path).returncode == 0
    assert [said(tmp_path, rank) for rank in (0, 1)] == [said(two[0], rank) for rank in (0, 1)]


def test_shares_make_up_the_batches():
    batches = BatchSampler(SequentialSampler(range(11)), 5, drop_last=False)
    shares = [list(Shares(batches, rank, 3)) for rank in range(3)]
    assert shares[0] == [[0, 3], [5, 8], [10]]
    assert shares[1] == [[1, 4], [6, 9], [10]]  # the last one's first item, to be counted as nothing
    assert shares[2] == [[2], [7], [10]]
    assert list(Shares(batches, 0, 1)) == list(batches) and len(Shares(batches, 0, 1)) == 3


def test_without_torchrun_one_is_alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    with processes("cuda") as group:
        assert group == ProcessGroup() and group.is_leader and group.size == 1
        assert group.device("cuda") == "cuda" and group.broadcast({"a": 1}) == {"a": 1}
        with group.leader_first():
            group.barrier()


def test_more_processes_than_gpus_are_told(monkeypatch):
    for name, value in dict(RANK=0, WORLD_SIZE=2, MASTER_ADDR="localhost", LOCAL_RANK=0, LOCAL_WORLD_SIZE=2).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    words = (
        r"torchrun started 2 processes on this machine, which has 1 GPUs; start one for each GPU \(--nproc-per-node\)"
    )
    with pytest.raises(ValueError, match=words), processes("cuda"):
        pass
