"""`differences` finds what differs between two run folders, and nothing in times."""

import json

import pytest
from support.same_results import differences


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
    weights = other / "checkpoint/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert differences(one, other) == ["checkpoint/model.safetensors"]
    weights.unlink()
    assert differences(one, other) == ["checkpoint/model.safetensors"]
