"""`differences` finds what differs between two run folders, and nothing in times."""

import json
import shutil

from support.runs import differences

from crumb_avalanche.learner.run_file import LEARNER
from crumb_avalanche.system.tensor_file import read_state, write_state


def test_a_difference_is_found(crumb, tiny, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    assert crumb(*tiny, "--strategy", "ncm", "--output", one)[0] == 0
    shutil.copytree(one, other)
    result = json.loads((other / "result.json").read_text())
    (other / "result.json").write_text(json.dumps({**result, "seconds": 1e6}))
    assert differences(one, other) == []
    (other / "result.json").write_text(json.dumps({**result, "run": 41}))
    assert differences(one, other) == ["result.json: run is 0 and 41"]
    (other / "result.json").write_text(json.dumps(result))
    state, metadata = read_state(other / LEARNER)
    state["strategy"]["method"]["counts"][0] += 1
    write_state(other / LEARNER, state, metadata)
    assert differences(one, other) == [f"{LEARNER}: strategy.method.counts"]
    (other / LEARNER).unlink()
    assert f"{LEARNER}: strategy.method.counts" in differences(one, other)
