"""Every strategy resumes from a checkpoint written at any step, and ends with the same bits."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from variants import VARIANTS, entry_of
from watched import Answers

from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings, build_strategy
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.system.rng_state import get_rng_state, set_rng_state
from crumb_avalanche.system.tensor_file import flatten, read_state, write_state
from crumb_avalanche.training.checkpoint import CheckpointPlugin, Position

pytestmark = pytest.mark.filterwarnings("ignore")
SETTINGS = LearningSettings(learning_rate=0.02, batch_size=5, eval_batch_size=8, first_epochs=2)
COMPUTED = "crumb with replay_compute"
CLASSES = ("fish", "house", "key", "leaf", "ring", "star")  # three experiences of two
BUDGET = 8 * 3 * 16**2


def build(name, make_model, make_stream, save, every=1):
    """A learner and its stream, as a new process would build them."""
    settings = replace(SETTINGS, replay_compute=2.0) if name == COMPUTED else SETTINGS
    entry, method = entry_of("crumb" if name == COMPUTED else name)
    torch.manual_seed(0)
    np.random.seed(0)
    stream = make_stream(classes=CLASSES)
    model = calibrate(make_model(n_classes=6, codebook=entry.codebook), stream.train_stream[0].dataset)
    count = entry.memories_in_budget(model, BUDGET, stream.n_classes)
    answers = Answers()
    strategy = build_strategy(
        entry.name, model, settings, count, 0, method=method, plugins=[answers], evaluator=EvaluationPlugin(loggers=[])
    )
    checkpoints = CheckpointPlugin(save, every)
    strategy.plugins.append(checkpoints)
    return strategy, stream, answers, checkpoints


def learn_from(number, strategy, stream, joint, save):
    for place in range(number, 3):
        strategy.train(stream.train_stream[place], shuffle=joint)
        strategy.eval(stream.test_stream[: place + 1])
        save(Position(place + 1))


def snapshot(strategy):
    """Return the complete state of a learner as a file stores it."""
    return flatten({"strategy": strategy.state_dict(), "random": get_rng_state()})


def without_seconds(tree):
    """Return the tree without measured seconds."""
    tree = json.loads(json.dumps(tree))
    (strategy,) = (part for key, part in tree["dict"] if key == "strategy")
    strategy["dict"] = [pair for pair in strategy["dict"] if pair[0] != "seconds"]
    return tree


@pytest.mark.parametrize("name", [*STRATEGIES, *VARIANTS, COMPUTED])
def test_resumes_bit_for_bit(name, make_model, make_stream, tmp_path):
    joint = name in STRATEGIES and STRATEGIES[name].joint
    saved = []

    def keep(position):
        saved.append((position, copy.deepcopy({"strategy": strategy.state_dict(), "random": get_rng_state()})))

    strategy, stream, answers, _ = build(name, make_model, make_stream, keep)
    learn_from(0, strategy, stream, joint, keep)
    tree, tensors = snapshot(strategy)
    # two in each epoch of the first experience, in the middle of others, and between experiences
    chosen = [saved[i] for i in sorted({1, 5, len(saved) // 2, len(saved) - 3})]
    chosen += [next(one for one in saved if one[0] == Position(1))]
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
        assert without_seconds(again_tree) == without_seconds(tree), position
        assert again_tensors.keys() == tensors.keys()
        assert all(torch.equal(again_tensors[key], tensors[key]) for key in tensors), position
