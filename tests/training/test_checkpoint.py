"""Checkpoints: files are atomic and run no code; every strategy resumes from any step and ends with the same bits."""

import copy
import json
import warnings

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


@pytest.fixture
def files(tmp_path):
    return CheckpointFolder(tmp_path / "resume", SETTINGS)


def test_a_checkpoint_reads_back_and_the_newest_two_are_kept(files):
    assert files.newest() is None
    for place in range(3):
        files.write({"place": place}, TENSORS)
    found = files.newest()
    assert (found.number, found.notes, files.numbers()) == (2, {"place": 2}, [2, 1])
    assert all(torch.equal(found.state[name], TENSORS[name]) for name in TENSORS)


def test_clear_keeps_the_given_file_and_removes_the_newest_last(files, monkeypatch):
    files.clear()  # nothing there yet
    for place in range(2):
        files.write({"place": place}, TENSORS)
    (files.folder / "maps").mkdir()
    (files.folder / "maps" / "lock").touch()
    unlink = type(files.folder).unlink

    def cut_off(path, missing_ok=False):
        if path == files.path(1):
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(files.folder), "unlink", cut_off)
        files.clear()
    assert [path.name for path in files.folder.iterdir()] == ["00000001.safetensors"]
    (files.folder / "lock").touch()
    files.clear(but="lock")
    assert [path.name for path in files.folder.iterdir()] == ["lock"]
    files.clear()
    assert not files.folder.exists()


def test_damaged_checkpoints_are_passed_over_and_removed_first(files):
    for place in range(3):
        files.write({"place": place}, TENSORS)
    files.path(2).write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is damaged"):
        files.newest()
    files.write({"place": 3}, TENSORS)
    assert files.numbers() == [3, 1]
    files.path(3).write_bytes(files.path(3).read_bytes()[:40])
    with pytest.warns(UserWarning, match="is damaged"):
        assert files.newest().notes == {"place": 1}
    write_state(
        files.path(1),
        TENSORS,
        {"format": "of another program", "settings": "{}", "notes": "{}"},
    )
    words = r"all checkpoints in .* are damaged; remove that folder"
    with (
        pytest.warns(UserWarning, match="its format is of another"),
        pytest.raises(CheckpointError, match=words),
    ):
        files.newest()


def test_a_full_disk_leaves_the_earlier_ones(files):
    files.write({"place": 0}, TENSORS)
    words = r"00000001.safetensors cannot be written \(.*No space left on device.*\); the one before it is untouched"
    with full_disk(files.folder), pytest.raises(CheckpointError, match=words):
        files.write({"place": 1}, TENSORS)
    assert [path.name for path in files.folder.iterdir()] == ["00000000.safetensors"]
    assert files.newest().notes == {"place": 0}


@settings(max_examples=100, phases=[Phase.generate])
@given(data=st.data())
def test_100_crafted_checkpoints(tmp_path_factory, data):
    """One that somebody wrote by hand, with right checksums, is read as it is or passed over with a line."""
    parts = {
        "settings": SETTINGS,
        "notes": {"place": 1},
        "state": {**TENSORS, "list": [1, {"a": 2}]},
    }
    changed = crafted(data.draw, parts)
    files = CheckpointFolder(tmp_path_factory.mktemp("crafted"), SETTINGS)
    try:
        about = {
            name: json_of(changed[name])
            for name in ("settings", "notes")
            if name in changed
        }
        write_state(
            files.path(0), changed.get("state"), {"format": checkpoint.FORMAT, **about}
        )
    except (ValueError, RecursionError, TypeError):
        return  # no file can hold it
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = files.newest()
        except CheckpointError as error:
            assert "\n" not in str(error)
        else:
            assert isinstance(found.notes, dict)
    assert all("\n" not in str(one.message) for one in said)


COMPUTED = "crumb with replay_compute"
THOROUGH = (COMPUTED, "crumb", "remind", "icarl", "rda")
QUICK = (
    *THOROUGH,
    "er",
    "gss",
    "bic",
    "rainbow_memory",
    "si",
    "aanets",
)  # that keep most, each in its own way
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
    model = calibrate(
        make_model(codebook=entry.codebook), stream.train_stream[0].dataset
    )
    count = entry.memories_in_budget(model, BUDGET, stream.n_classes)
    answers, checkpoints = Answers(), CheckpointPlugin(save, every)
    strategy = built(
        entry.name, model, count, settings, method=method, plugins=[answers]
    )
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


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_resumes_bit_for_bit(name, make_model, make_stream, tmp_path):
    joint = name in STRATEGIES and STRATEGIES[name].joint
    saved = []

    def keep(position):
        saved.append(
            (
                position,
                copy.deepcopy(
                    {"strategy": strategy.state_dict(), "random": get_rng_state()}
                ),
            )
        )

    strategy, stream, answers, _ = build(name, make_model, make_stream, keep)
    learn_from(0, strategy, stream, joint, keep)
    tree, tensors = snapshot(strategy)
    chosen = [saved[len(saved) - 3]]  # in the second experience
    if (
        name in THOROUGH
    ):  # in the second epoch of the first experience, and between the two
        chosen += [saved[5], next(one for one in saved if one[0] == Position(1))]
    for position, kept in chosen:
        write_state(tmp_path / "state.safetensors", kept, {})
        found, _ = read_state(tmp_path / "state.safetensors")
        strategy, stream, again, checkpoints = build(
            name, make_model, make_stream, lambda position: None, every=0
        )

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
        assert all(torch.equal(again_tensors[key], tensors[key]) for key in tensors), (
            position
        )
