"""`differences` finds what differs between two run folders, and nothing in times."""

import json

import pytest
from support.runs import differences

from crumb_avalanche.learner.run_file import LEARNER
from crumb_avalanche.system.tensor_file import read_state, write_state


@pytest.fixture
def folders(crumb, tiny, tmp_path):
    """Two equal runs."""
    for name in ("one", "other"):
        code, _, err = crumb(*tiny, "--strategy", "ncm", "--output", tmp_path / name)
        assert code == 0, err
    return tmp_path / "one", tmp_path / "other"


def test_a_difference_is_found(folders):
    one, other = folders
    assert differences(one, other) == []
    result = json.loads((other / "result.json").read_text())
    (other / "result.json").write_text(json.dumps({**result, "seconds": 1e6}))
    assert differences(one, other) == []
    (other / "result.json").write_text(json.dumps({**result, "run": 41}))
    assert differences(one, other) == ["result.json: run is 0 and 41"]
    (other / "result.json").write_text(json.dumps(result))
    path = other / LEARNER
    state, metadata = read_state(path)
    state["strategy"]["method"]["counts"][0] += 1
    write_state(path, state, metadata)
    assert differences(one, other) == [f"{LEARNER}: strategy.method.counts"]
    path.unlink()
    assert f"{LEARNER}: strategy.method.counts" in differences(one, other)
