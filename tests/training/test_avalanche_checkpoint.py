"""Avalanche's own checkpoints, saved with the patch, resume its strategies bit for bit."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import avalanche_resume
import pytest
import torch
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.training.plugins import EvaluationPlugin
from avalanche_resume import STRATEGIES, finish, make_strategy, resume, save

import crumb_avalanche
from crumb_avalanche import patched_dill
from crumb_avalanche.training.crumb import CRUMBStrategy

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, make_stream):
    """A folder with the checkpoint of each strategy, and what a run without interruption ends with."""
    folder, expected = tmp_path_factory.mktemp("checkpoints"), {}
    for name in STRATEGIES:
        torch.manual_seed(0)
        strategy = make_strategy(name)
        strategy.train(make_stream().train_stream[0])
        save(strategy, folder / f"{name}.pkl")
        expected[name] = finish(strategy)
    return folder, expected


def equal(one, other):
    """Whether two trees of dicts, lists and tensors are equal bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.skipif(torch.__version__ < "2.14", reason="earlier versions of torch.optim can be pickled by value")
def test_the_defect(tmp_path):
    """If this fails, Avalanche, dill or torch was fixed and the patch can be removed."""
    with pytest.raises(pickle.PicklingError, match="sentinel"):
        save_checkpoint(make_strategy("naive"), tmp_path / "checkpoint.pkl")


@pytest.mark.parametrize("name", STRATEGIES)
def test_resumes_bit_for_bit(checkpoints, name):
    folder, expected = checkpoints
    torch.manual_seed(7)
    assert equal(resume(name, folder / f"{name}.pkl"), expected[name])
    assert bool(expected[name]["importances"]) == (name == "ewc")


def test_a_fresh_process_resumes_bit_for_bit(checkpoints):
    folder, expected = checkpoints
    paths = [Path(avalanche_resume.__file__).parent, Path(crumb_avalanche.__file__).parents[1]]
    command = [sys.executable, "-W", "ignore", avalanche_resume.__file__, folder]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in STRATEGIES:
        assert equal(torch.load(folder / f"{name}.pt"), expected[name]), name


def test_a_crumb_strategy_resumes_bit_for_bit(tmp_path, make_model, make_stream):
    def build():
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        arguments = {"train_mb_size": 5, "first_epochs": 2, "evaluator": EvaluationPlugin(loggers=[])}
        return CRUMBStrategy(model=model, optimizer=optimizer, mem_size=10, **arguments)

    strategy, stream = build(), make_stream().train_stream
    strategy.train(stream[0])
    save(strategy, tmp_path / "checkpoint.pkl")
    strategy.train(stream[1])
    again, done = maybe_load_checkpoint(build(), tmp_path / "checkpoint.pkl")
    assert done == 1
    again.train(make_stream().train_stream[1])
    assert equal(again.model.state_dict(), strategy.model.state_dict())
    assert torch.equal(again.storage_policy.rows, strategy.storage_policy.rows)
    assert torch.equal(again.storage_policy.labels, strategy.storage_policy.labels)


def test_the_patch_ends_with_its_block():
    before = dict(vars(torch.optim))
    with pytest.raises(RuntimeError, match="stop"), patched_dill():
        assert torch.optim.sgd.SGD is torch.optim.SGD
        raise RuntimeError("stop")
    assert vars(torch.optim).keys() == before.keys()
    assert all(vars(torch.optim)[name] is value for name, value in before.items())
