"""Checkpoints: atomic files that run no code; each strategy resumes anywhere."""

import copy
import json
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from crafted import crafted, json_of
from faults import full_disk
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from watched import VARIANTS, Answers, built, entry_of

from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.system.process import get_rng_state, set_rng_state
from crumb_avalanche.system.tensor_file import flatten, read_state, write_state
from crumb_avalanche.training import checkpoint
from crumb_avalanche.training.checkpoint import (
    CheckpointError,
    CheckpointFolder,
    CheckpointPlugin,
    Position,
)

SETTINGS = {"learning_rate": 0.001, "strategy": "crumb"}
TENSORS = {
    "t0": torch.arange(6.0).view(2, 3),
    "t1": torch.tensor(7),
    "t2": torch.empty(0),
}


# Files


@pytest.fixture
def files(tmp_path):
    return CheckpointFolder(tmp_path / "resume", SETTINGS)


def write_numbered(files, *numbers):
    for number in numbers:
        files.write({"number": number}, TENSORS)


def file_names(files):
    return [path.name for path in files.folder.iterdir()]


def damage(path):
    path.write_bytes(path.read_bytes()[:40])


def test_a_checkpoint_reads_back(files):
    write_numbered(files, 0)
    newest = files.newest()
    assert newest.notes == {"number": 0}
    assert newest.state.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(newest.state[name], tensor)


def test_there_is_no_checkpoint_at_first(files):
    assert files.newest() is None


def test_the_newest_two_are_kept(files):
    write_numbered(files, 0, 1, 2)
    assert files.numbers() == [2, 1]
    assert files.newest().number == 2


def test_a_full_disk_leaves_the_earlier_ones(files):
    write_numbered(files, 0)
    words = (
        r"00000001.safetensors cannot be written \(.*No space left on device.*\); "
        "the one before it is untouched"
    )
    with full_disk(files.folder), pytest.raises(CheckpointError, match=words):
        write_numbered(files, 1)
    assert file_names(files) == ["00000000.safetensors"]
    assert files.newest().notes == {"number": 0}


# Removal


def test_nothing_is_cleared_at_first(files):
    files.clear()
    assert not files.folder.exists()


def test_the_newest_is_removed_last(files, monkeypatch):
    write_numbered(files, 0, 1)
    unlink = type(files.folder).unlink

    def interrupted(path, missing_ok=False):
        if path == files.path(1):
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    monkeypatch.setattr(type(files.folder), "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.clear()
    assert file_names(files) == ["00000001.safetensors"]


def test_folders_are_removed_too(files):
    write_numbered(files, 0)
    (files.folder / "maps").mkdir()
    (files.folder / "maps" / "lock").touch()
    files.clear()
    assert not files.folder.exists()


def test_a_named_file_is_not_removed(files):
    write_numbered(files, 0)
    (files.folder / "lock").touch()
    files.clear(but="lock")
    assert file_names(files) == ["lock"]


# Damage


def test_a_damaged_checkpoint_is_passed_over(files):
    write_numbered(files, 0, 1)
    damage(files.path(1))
    with pytest.warns(UserWarning, match="is damaged"):
        newest = files.newest()
    assert newest.notes == {"number": 0}


def test_a_damaged_checkpoint_is_removed_first(files):
    write_numbered(files, 0, 1, 2)
    files.path(2).write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is damaged"):
        files.newest()
    write_numbered(files, 3)
    assert files.numbers() == [3, 1]


def test_all_checkpoints_are_damaged(files):
    write_numbered(files, 0, 1)
    damage(files.path(0))
    damage(files.path(1))
    words = r"all checkpoints in .* are damaged; remove that folder"
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(CheckpointError, match=words),
    ):
        files.newest()


def test_a_checkpoint_of_another_program(files):
    write_numbered(files, 0)
    header = {"format": "of another program", "settings": "{}", "notes": "{}"}
    write_state(files.path(0), TENSORS, header)
    words = r"all checkpoints in .* are damaged; remove that folder"
    with (
        pytest.warns(UserWarning, match="its format is of another"),
        pytest.raises(CheckpointError, match=words),
    ):
        files.newest()


def write_crafted(path, changed):
    """Write a changed checkpoint with right checksums; return whether a file can."""
    header = {"format": checkpoint.FORMAT}
    try:
        for name in changed.keys() & {"settings", "notes"}:
            header[name] = json_of(changed[name])
        write_state(path, changed.get("state"), header)
    except (ValueError, RecursionError, TypeError):
        return False
    return True


@settings(max_examples=100, phases=[Phase.generate])
@given(data=st.data())
def test_crafted_checkpoints(tmp_path_factory, data):
    """One written by hand is read as it is, or passed over with a line."""
    values = {
        "settings": SETTINGS,
        "notes": {"number": 1},
        "state": {**TENSORS, "list": [1, {"a": 2}]},
    }
    files = CheckpointFolder(tmp_path_factory.mktemp("crafted"), SETTINGS)
    changed = crafted(data.draw, values)
    if not write_crafted(files.path(0), changed):
        return
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            assert json_of(files.newest().notes) == json_of(changed["notes"])
        except CheckpointError as error:
            assert "\n" not in str(error)
    for warning in warned:
        assert "\n" not in str(warning.message)


# Strategies that resume

COMPUTED = "crumb with replay_compute"
THOROUGH = (COMPUTED, "crumb", "remind", "icarl", "rda")
# Those that keep most, each in its own way.
QUICK = (*THOROUGH, "er", "gss", "bic", "rainbow_memory", "si", "aanets")
SLOW = [name for name in (*STRATEGIES, *VARIANTS) if name not in QUICK]
BUDGET = 8 * 3 * 16**2  # in bytes


def state_of(strategy):
    """All that decides how a learner goes on."""
    return {"strategy": strategy.state_dict(), "random": get_rng_state()}


class Learning:
    """A learner on its stream, as a new process would build them.

    Attributes:
        saved: the position and state at each checkpoint.
        answers: the plugin that notes the classes it answered in evaluations.
    """

    def __init__(self, name, make_model, make_stream, every):
        method_name = "crumb" if name == COMPUTED else name
        learning = {"replay_compute": 2.0} if name == COMPUTED else {}
        entry, method = entry_of(method_name)
        torch.manual_seed(0)
        np.random.seed(0)
        self.joint = entry.joint
        self.stream = make_stream()
        if entry.joint:
            self.stream = make_stream(4, protocol="offline")
        model = make_model(codebook=entry.codebook)
        calibrate(model, self.stream.train_stream[0].dataset)
        self.answers = Answers()
        self.saved = []
        self.strategy = built(
            entry.name,
            model,
            entry.memories_in_budget(model, BUDGET, self.stream.n_classes),
            learning,
            method=method,
            plugins=[self.answers],
        )
        self.checkpoints = CheckpointPlugin(self.save, every)
        self.strategy.plugins.append(self.checkpoints)

    def save(self, position):
        state = copy.deepcopy(state_of(self.strategy))
        self.saved.append(Saved(position, state))

    def learn_from(self, first):
        """Learn from an experience on, with an evaluation after each."""
        for number in range(first, len(self.stream.train_stream)):
            experience = self.stream.train_stream[number]
            self.strategy.train(experience, shuffle=self.joint)
            self.strategy.eval(self.stream.test_stream[: number + 1])
            self.save(Position(number + 1))

    def resume(self, position, state):
        def restore():
            self.strategy.load_state_dict(state["strategy"])
            set_rng_state(state["random"])

        restore()
        if position.inside:
            epoch = self.checkpoints.rng_at_epoch_start
            self.checkpoints.resume_from(position, epoch, restore)
        self.learn_from(position.experience)

    def snapshot(self):
        """What a file stores of it, but for measured seconds: text and tensors."""
        state = state_of(self.strategy)
        state["strategy"] = {**state["strategy"], "seconds": {}}
        tree, tensors = flatten(state)
        return json.dumps(tree), tensors


@dataclass(frozen=True)
class Saved:
    """A checkpoint in memory."""

    position: Position
    state: Any


def through_a_file(path, state):
    write_state(path, state, {})
    return read_state(path)[0]


def assert_resumes(learning, resumed, saved, path):
    """Go on from a checkpoint, and compare with the learner that was never stopped."""
    resumed.resume(saved.position, through_a_file(path, saved.state))
    tree, tensors = learning.snapshot()
    resumed_tree, resumed_tensors = resumed.snapshot()
    assert resumed.answers.given == learning.answers.given, saved.position
    assert resumed_tree == tree, saved.position
    assert resumed_tensors.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert torch.equal(resumed_tensors[key], tensor), (saved.position, key)


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_resumes_bit_for_bit(name, make_model, make_stream, tmp_path):
    learning = Learning(name, make_model, make_stream, every=1)
    learning.learn_from(0)
    checkpoints = [learning.saved[-3]]  # in the last experience
    if name in THOROUGH:
        checkpoints.append(learning.saved[5])  # in the second epoch of the first
        checkpoints += [
            saved for saved in learning.saved if saved.position == Position(1)
        ]
    for saved in checkpoints:
        resumed = Learning(name, make_model, make_stream, every=0)
        assert_resumes(learning, resumed, saved, tmp_path / "state.safetensors")
