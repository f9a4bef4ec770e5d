"""Every method and every taught learner reaches what was recorded: see ``golden.py``."""

from pathlib import Path

import golden
import pytest

RECORDED = Path(__file__).parent / "data" / "golden.json"


def test_differences_are_found():
    old = {"accuracies": [50.0, 25.0], "answers_digest": "a", "bytes": 7}
    new = {"accuracies": [50.0, 26.5], "answers_digest": "b", "bytes": 8}
    assert list(golden.differences(old, old, same=True)) == []
    found = list(golden.differences(old, new, same=True))
    assert found[0] == "accuracies 1 is 25.0 in the file and 26.5 now (+1.5)"
    assert found[1] == "answers_digest is 'a' in the file and 'b' now"
    assert list(golden.differences(old, new, same=False)) == found[2:] == ["bytes is 7 in the file and 8 now (+1)"]
    assert list(golden.differences({"bytes": 7}, {}, same=True)) == ["bytes is only in the file"]


@pytest.mark.slow
def test_accuracies_answers_and_bytes_are_as_recorded(capsys):
    code = golden.main(["compare", str(RECORDED), "--quick", "methods", "learners"])
    assert code == 0, capsys.readouterr().out
