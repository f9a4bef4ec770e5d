"""The lines at the end of ``crumb run`` and ``crumb report``, which are written without torch."""

from dataclasses import asdict

import pytest

from crumb_avalanche.baselines.method_settings import method_settings
from crumb_avalanche.learner import file
from crumb_avalanche.learner.kinds import KINDS
from crumb_avalanche.runs.usage import FEATURES, LEARNER, TEACHABLE, usage_of


def test_names_are_those_of_the_learner():
    assert tuple(KINDS) == TEACHABLE and LEARNER == file.LEARNER
    assert set(FEATURES) == {name for kind in KINDS.values() for name in kind.moments}
    for name, kind in KINDS.items():
        usual = asdict(method_settings(name, {}))
        assert {key: usual.get(key, value) for key, value in kind.moments.items()} == kind.moments


@pytest.mark.parametrize(
    ("strategy", "method", "lines"),
    [("rda", {}, 2), ("rda", {"power": 1.0}, 1), ("rda", {"own": 0.5}, 2), ("ncm", {}, 2), ("er", {}, 1)],
)
def test_what_can_be_done_with_a_run(tmp_path, strategy, method, lines):
    folder = tmp_path / "my run"
    folder.mkdir()
    assert usage_of(folder, strategy, method) == []  # --keep-learner none
    (folder / LEARNER).touch()
    found = usage_of(folder, strategy, method)
    assert len(found) == lines and f"crumb predict '{folder}' photo.jpg" in found[0]
    if lines == 2:
        assert all(part in found[1] for part in (f"'{folder / LEARNER}'", "crumb teach", "crumb serve"))
