"""Learner files of every format answer as they did when they were made; see tests/data/make_learner_fixture.py."""

import importlib.util
import json
from pathlib import Path

import pytest

from crumb_avalanche.learner.learner import Learner

SCRIPT = Path(__file__).parents[1] / "data" / "make_learner_fixture.py"
SPEC = importlib.util.spec_from_file_location("make_learner_fixture", SCRIPT)
fixture = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fixture)
STORED = sorted(fixture.FOLDER.glob("*.safetensors"))


def check_answers(path):
    """Check that a file gives the answers that are stored beside it, and can be taught."""
    with fixture.slim():
        learner = Learner.load(path)
        expected = json.loads((path.parent / fixture.ANSWERS).read_text())[path.name]
        for found, then in zip(fixture.answers(learner), expected, strict=True):
            assert (found["label"], found["known"]) == (then["label"], then["known"])
            assert found["confidence"] == pytest.approx(then["confidence"], abs=1e-4)
            for one, other in zip(found["runners_up"], then["runners_up"], strict=True):
                assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-4)
        if "run" not in path.name:
            assert [info.name for info in learner.classes] == ["Straße <0>", "class 1", "class 2", "class 3"]
            assert learner.undo().images == {"class 1": 2}
        learner.teach(fixture.photos(5, 3, seed=0), "new")
        assert learner.predict(fixture.photos(5, 1, seed=1)).label == "new"


@pytest.mark.parametrize("path", STORED, ids=[path.stem for path in STORED])
def test_a_stored_file_gives_the_answers_of_its_time(path):
    check_answers(path)


def test_the_files_of_today(tmp_path, capsys):
    made = fixture.make(tmp_path)
    assert len(made) == 3 and all(path.stat().st_size < 200_000 for path in made)
    for path in made:
        check_answers(path)
    known = json.loads((tmp_path / fixture.ANSWERS).read_text())
    for path in made[:2]:
        assert len({answer["label"] for answer in known[path.name]}) == 4
    contents = [path.read_bytes() for path in made]
    assert not fixture.make(tmp_path) and [path.read_bytes() for path in made] == contents, "files are left as they are"
