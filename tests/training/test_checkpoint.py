"""Checkpoint files: atomic, the newest good one is found, those of other settings are refused, no code in them runs."""

import errno
import warnings

import pytest
import torch
from crafted import crafted, json_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from crumb_avalanche.system import tensor_file
from crumb_avalanche.training import checkpoint
from crumb_avalanche.training.checkpoint import CheckpointError, CheckpointFolder

SETTINGS = {"learning_rate": 0.001, "strategy": "crumb"}
TENSORS = {"t0": torch.arange(6.0).view(2, 3), "t1": torch.tensor(7), "t2": torch.empty(0)}


@pytest.fixture
def files(tmp_path):
    return CheckpointFolder(tmp_path / "resume", SETTINGS)


def test_a_checkpoint_reads_back(files):
    assert files.newest() is None
    files.write({"place": 3}, TENSORS)
    found = files.newest()
    assert (found.number, found.notes, found.records) == (0, {"place": 3}, [])
    assert all(torch.equal(found.state[name], TENSORS[name]) for name in TENSORS)


def test_the_newest_two_are_kept(files):
    for place in range(5):
        files.write({"place": place}, TENSORS)
    assert files.numbers() == [4, 3]
    assert files.newest().notes == {"place": 4}


def test_clear_keeps_the_given_file(files):
    files.clear()  # nothing there yet
    files.write({}, TENSORS)
    (files.folder / "maps").mkdir()
    (files.folder / "maps" / "lock").touch()
    (files.folder / "lock").touch()
    files.clear(but="lock")
    assert [path.name for path in files.folder.iterdir()] == ["lock"]
    files.clear()
    assert not files.folder.exists()


def test_the_newest_is_removed_last(files, monkeypatch):
    for place in range(2):
        files.write({"place": place}, TENSORS)
    (files.folder / "maps").mkdir()
    unlink = type(files.folder).unlink

    def cut_off(path, missing_ok=False):
        if path == files.path(1):
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    monkeypatch.setattr(type(files.folder), "unlink", cut_off)
    with pytest.raises(KeyboardInterrupt):
        files.clear()
    assert [path.name for path in files.folder.iterdir()] == ["00000001.safetensors"]


def test_damaged_checkpoints_are_removed_first(files):
    for place in range(3):
        files.write({"place": place}, TENSORS)
    files.path(2).write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is damaged"):
        files.newest()
    files.write({"place": 3}, TENSORS)
    assert files.numbers() == [3, 1]
    files.path(3).write_bytes(b"damaged too")
    with pytest.warns(UserWarning, match="is damaged"):
        assert files.newest().notes == {"place": 1}
    files.clear()
    for place in range(5):
        files.write({"place": place}, TENSORS)
    assert files.numbers() == [4, 3]


def test_only_damaged_checkpoints_are_an_error(files):
    path = files.write({}, TENSORS)
    path.write_bytes(path.read_bytes()[:40])
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(CheckpointError, match=r"all checkpoints in .* are damaged; remove that folder"),
    ):
        files.newest()


def test_other_settings_are_refused_by_name(files):
    files.write({}, TENSORS)
    other = CheckpointFolder(files.folder, {**SETTINGS, "learning_rate": 0.01})
    words = "holds checkpoints made with learning_rate=0.001, not 0.01; resume with the same settings, use another"
    with pytest.raises(CheckpointError, match=words):
        other.newest()


def test_a_full_disk_leaves_the_earlier_ones(files, monkeypatch):
    files.write({"place": 0}, TENSORS)

    def full(tensors, path, metadata):
        with open(path, "wb") as file:
            file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensor_file, "save_file", full)
    words = r"00000001.safetensors cannot be written \(.*No space left on device\); the one before it is untouched"
    with pytest.raises(CheckpointError, match=words):
        files.write({"place": 1}, TENSORS)
    assert [path.name for path in files.folder.iterdir()] == ["00000000.safetensors"]
    assert files.newest().notes == {"place": 0}


def records(number):
    """Return a number of distinct records."""
    return [{"row": [place, 0.5], "name": f"ü{place}"} for place in range(number)]


def test_the_history_is_read_up_to_each_checkpoint(files):
    for place, record in enumerate(records(3)):
        files.write({"place": place}, TENSORS, record)
    files.write({"place": 3}, TENSORS)  # nothing new
    again = CheckpointFolder(files.folder, SETTINGS)
    assert again.newest().records == records(3)
    again.write({"place": 4}, TENSORS, {"row": "new"})
    assert CheckpointFolder(files.folder, SETTINGS).newest().records == [*records(3), {"row": "new"}]


def test_records_beyond_the_checkpoint_are_dropped(files, monkeypatch):
    """A kill between the record and its checkpoint, or within the record, leaves such a file."""
    for record in records(2):
        files.write({}, TENSORS, record)
    whole = files.history.path.read_bytes()
    for tail in (b"", b"half a rec"):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "write_state", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
            again = CheckpointFolder(files.folder, SETTINGS)
            again.newest()
            with pytest.raises(KeyboardInterrupt):
                again.write({}, TENSORS, {"row": "lost"})
        with open(files.history.path, "ab") as file:
            file.write(tail)
        again = CheckpointFolder(files.folder, SETTINGS)
        assert again.newest().records == records(2)
    again.write({}, TENSORS, {"row": "new"})
    assert CheckpointFolder(files.folder, SETTINGS).newest().records == [*records(2), {"row": "new"}]
    assert files.history.path.read_bytes().startswith(whole) and b"lost" not in files.history.path.read_bytes()


def test_a_history_starts_over_with_its_checkpoints(files):
    for record in records(2):
        files.write({}, TENSORS, record)
    files.clear()
    files.write({}, TENSORS, {"row": "first"})
    assert CheckpointFolder(files.folder, SETTINGS).newest().records == [{"row": "first"}]


def test_a_damaged_record_costs_the_checkpoints_that_need_it(files):
    for place, record in enumerate(records(2)):
        files.write({"place": place}, TENSORS, record)
    lines = files.history.path.read_bytes().splitlines(keepends=True)
    files.history.path.write_bytes(lines[0] + lines[1].replace(b"0.5", b"0.6"))
    with pytest.warns(UserWarning, match=r"00000001.safetensors is damaged \(line 2 of .*history.jsonl"):
        found = CheckpointFolder(files.folder, SETTINGS).newest()
    assert (found.notes, found.records) == ({"place": 0}, records(1))
    files.history.path.write_bytes(lines[1] + lines[0])  # each line is good, in another place
    with pytest.warns(UserWarning, match="line 1 of"), pytest.raises(CheckpointError, match="are damaged"):
        CheckpointFolder(files.folder, SETTINGS).newest()


def test_none_of_200_random_flips_is_silent(files):
    state = {
        "weights": torch.randn(40, 5),
        "random": torch.get_rng_state()[:200],
        "plain": [1, 2.5, {"a": (True, None)}],
    }
    generator = torch.Generator().manual_seed(0)
    for place, record in enumerate(records(2)):
        files.write({"place": place}, state, record)
    contents = {path: path.read_bytes() for path in (files.path(1), files.history.path)}
    for number in range(200):
        path = [*contents][number % 4 == 0]
        content = bytearray(contents[path])
        place, bit = (int(torch.randint(most, (), generator=generator)) for most in (len(content), 8))
        content[place] ^= 1 << bit
        path.write_bytes(content)
        again = CheckpointFolder(files.folder, SETTINGS)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                found = again.newest()
            except CheckpointError:
                found = None  # a flip in the first record, which both checkpoints need
        assert any("is damaged" in str(one.message) for one in said), (path.name, place, bit)
        assert found is None or found.notes == {"place": 0}
        path.write_bytes(contents[path])
    assert CheckpointFolder(files.folder, SETTINGS).newest().notes == {"place": 1}


def check_crafted(folder, data):
    """A checkpoint that somebody wrote by hand, with right checksums, is read as it is or passed over with a line."""
    parts = {"settings": SETTINGS, "notes": {"place": 1}, "records": 0, "state": {**TENSORS, "list": [1, {"a": 2}]}}
    changed = crafted(data.draw, parts)
    files = CheckpointFolder(folder, SETTINGS)
    try:
        about = {name: json_of(changed[name]) for name in ("settings", "notes", "records") if name in changed}
        tensor_file.write_state(files.path(0), changed.get("state"), {"format": checkpoint.FORMAT, **about})
    except (ValueError, RecursionError, TypeError):
        return  # no file can hold it
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = files.newest()
        except CheckpointError as error:
            assert "\n" not in str(error)
        else:
            assert isinstance(found.notes, dict) and found.records == []
    assert all("\n" not in str(one.message) for one in said)


@settings(max_examples=100, phases=[Phase.generate])
@given(data=st.data())
def test_100_crafted_checkpoints(tmp_path_factory, data):
    check_crafted(tmp_path_factory.mktemp("crafted"), data)
