"""Every strategy resumes from a checkpoint written at any step, and ends with the same bits."""

import copy
import json

import numpy as np
import pytest
import torch
from variants import VARIANTS, entry_of
from watched import Answers, built

from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.system.process import get_rng_state, set_rng_state
from crumb_avalanche.system.tensor_file import flatten, read_state, write_state
from crumb_avalanche.training.checkpoint import CheckpointPlugin, Position

pytestmark = pytest.mark.filterwarnings("ignore")
COMPUTED = "crumb with replay_compute"
THOROUGH = (COMPUTED, "crumb", "remind", "icarl", "rda")
QUICK = (*THOROUGH, "er", "gss", "bic", "rainbow_memory", "si", "aanets")  # that keep most, each in its own way
OTHERS = [name for name in (*STRATEGIES, *VARIANTS) if name not in QUICK]
EXPERIENCES = 2
BUDGET = 8 * 3 * 16**2


def build(name, make_model, make_stream, save, every=1):
    """A learner and its stream, as a new process would build them."""
    settings = {"replay_compute": 2.0} if name == COMPUTED else {}
    entry, method = entry_of("crumb" if name == COMPUTED else name)
    torch.manual_seed(0)
    np.random.seed(0)
    stream = make_stream()
    model = calibrate(make_model(codebook=entry.codebook), stream.train_stream[0].dataset)
    count = entry.memories_in_budget(model, BUDGET, stream.n_classes)
    answers, checkpoints = Answers(), CheckpointPlugin(save, every)
    strategy = built(entry.name, model, count, settings, method=method, plugins=[answers])
    strategy.plugins.append(checkpoints)
    return strategy, stream, answers, checkpoints


def learn_from(number, strategy, stream, joint, save):
    for place in range(number, EXPERIENCES):
        strategy.train(stream.train_stream[place], shuffle=joint)
        strategy.eval(stream.test_stream[: place + 1])
        save(Position(place + 1))


def snapshot(strategy):
    """The complete state of a learner as a file stores it, but for measured seconds."""
    state = {**strategy.state_dict(), "seconds": {}}
    tree, tensors = flatten({"strategy": state, "random": get_rng_state()})
    return json.dumps(tree), tensors


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_resumes_bit_for_bit(name, make_model, make_stream, tmp_path):
    joint = name in STRATEGIES and STRATEGIES[name].joint
    saved = []

    def keep(position):
        saved.append((position, copy.deepcopy({"strategy": strategy.state_dict(), "random": get_rng_state()})))

    strategy, stream, answers, _ = build(name, make_model, make_stream, keep)
    learn_from(0, strategy, stream, joint, keep)
    tree, tensors = snapshot(strategy)
    chosen = [saved[len(saved) - 3]]  # in the second experience
    if name in THOROUGH:  # in the second epoch of the first experience, and between the two
        chosen += [saved[5], next(one for one in saved if one[0] == Position(1))]
    for position, kept in chosen:
        write_state(tmp_path / "state.safetensors", kept, {})
        found, _ = read_state(tmp_path / "state.safetensors")
        strategy, stream, again, checkpoints = build(name, make_model, make_stream, lambda position: None, every=0)

        def restore(strategy=strategy, found=found):
            strategy.load_state_dict(found["strategy"])
            set_rng_state(found["random"])

        restore()
        if position.inside:
            checkpoints.resume_from(position, checkpoints.epoch_start, restore)
        learn_from(position.experience, strategy, stream, joint, lambda position: None)
        again_tree, again_tensors = snapshot(strategy)
        assert again.given == answers.given, position
        assert again_tree == tree, position
        assert again_tensors.keys() == tensors.keys()
        assert all(torch.equal(again_tensors[key], tensors[key]) for key in tensors), position
