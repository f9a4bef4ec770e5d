"""The checks of .github/release.py on this checkout, and on copies with planted faults."""

import configparser
import re
import runpy
import shutil

import pytest
import yaml
from page_commands import ROOT

RELEASE = runpy.run_path(str(ROOT / ".github" / "release.py"))


@pytest.fixture
def copy(tmp_path):
    """The files that name the version."""
    (tmp_path / "crumb_avalanche").mkdir()
    for name in ("CITATION.cff", "CHANGELOG.md", "crumb_avalanche/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_version_and_citation_are_right():
    assert RELEASE["check_versions"]().startswith(RELEASE["version"]())
    assert RELEASE["check_citation"]()


def test_the_conda_recipe_has_the_version_and_bounds_of_the_package():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    wanted = set()
    for line in setup["options"]["install_requires"].splitlines():
        if line and not line.startswith("#"):
            name, bound = re.split(r"[ ;]", line)[:2]
            wanted.add(f"{named.get(name, name)} {bound.removeprefix('==')}")
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    python, *found = recipe["requirements"]["run"]
    assert set(found) == wanted and recipe["context"]["version"] == RELEASE["version"]()
    bounds = f">={recipe['context']['python_min']}," + python.rpartition(",")[2]
    assert bounds == setup["options"]["python_requires"]


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("CITATION.cff", "version: 0.2.0", "version: 0.1.0", "CITATION.cff has version 0.1.0, crumb_avalanche 0.2.0"),
        ("CHANGELOG.md", "## 0.2.0", "## Unreleased", "Unreleased.*rename it to 0.2.0"),
        ("CHANGELOG.md", "## 0.2.0", "## 0.2.0\n\n## 0.1.9", "is empty"),
        ("crumb_avalanche/__init__.py", "0.2.0", "0.2.0.dev1", "three numbers"),
        ("CITATION.cff", "title: crumb", "titel: crumb", "are required"),
    ],
)
def test_planted_faults_are_found(copy, name, old, new, words):
    old, new, words = (text.replace("0.2.0", RELEASE["version"]()) for text in (old, new, words))
    text = (copy / name).read_text(encoding="utf-8")
    assert old in text
    (copy / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(RELEASE["Failure"], match=words):
        RELEASE["check_citation" if "title" in old else "check_versions"](copy)


@pytest.mark.slow
def test_two_builds_of_the_wheel_are_the_same_file(tmp_path):
    pytest.importorskip("build", reason="the release needs pip install build twine")
    wheels = [RELEASE["built"](tmp_path / name)[1].read_bytes() for name in ("one", "another")]
    assert wheels[0] == wheels[1]
