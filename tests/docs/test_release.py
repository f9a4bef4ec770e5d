"""What a release needs.

One version, the conda recipe, workflows and hooks that name what exists.
"""

import configparser
import re
import runpy
import shutil

import pytest
import yaml
from page_commands import ROOT

RELEASE = runpy.run_path(str(ROOT / ".github" / "release.py"))
NAMES_THE_VERSION = ("CITATION.cff", "CHANGELOG.md", "crumb_avalanche/__init__.py")
# Files that name others of the repository.
NAMING = (
    ".ci/run",
    ".github/release.py",
    ".github/workflows/checks.yaml",
    ".pre-commit-config.yaml",
    "CONTRIBUTING.md",
    "conda/recipe.yaml",
)
PATH = re.compile(
    r"(?<![\w/.])(?:\.github|\.ci|conda|crumb_avalanche|docs|experiments|tests)"
    r"/[\w/.-]*\w"
)


def read_yaml(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def setup():
    """The package's metadata."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_the_versions_agree():
    assert RELEASE["check_versions"]().startswith(RELEASE["version"]())


def test_the_citation_is_complete():
    assert RELEASE["check_citation"]()


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        (
            "CITATION.cff",
            "version: 0.2.0",
            "version: 0.1.0",
            "CITATION.cff has version 0.1.0, crumb_avalanche 0.2.0",
        ),
        ("CHANGELOG.md", "## 0.2.0", "## Unreleased", "Unreleased.*rename it to 0.2.0"),
        ("CHANGELOG.md", "## 0.2.0", "## 0.2.0\n\n## 0.1.9", "is empty"),
        ("crumb_avalanche/__init__.py", "0.2.0", "0.2.0.dev1", "three numbers"),
        ("CITATION.cff", "title: crumb", "titel: crumb", "are required"),
    ],
)
def test_planted_faults_are_found(tmp_path, name, old, new, words):
    (tmp_path / "crumb_avalanche").mkdir()
    for file in NAMES_THE_VERSION:
        shutil.copy(ROOT / file, tmp_path / file)
    old, new, words = (
        text.replace("0.2.0", RELEASE["version"]()) for text in (old, new, words)
    )
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    check = "check_citation" if "title" in old else "check_versions"
    with pytest.raises(RELEASE["Failure"], match=words):
        RELEASE[check](tmp_path)


@pytest.mark.slow
def test_two_builds_are_the_same_file(tmp_path):
    pytest.importorskip("build", reason="the release needs pip install build twine")
    _, first = RELEASE["built"](tmp_path / "one")
    _, second = RELEASE["built"](tmp_path / "another")
    assert first.read_bytes() == second.read_bytes()


def test_the_recipe_has_the_version():
    recipe = read_yaml("conda/recipe.yaml")
    assert recipe["context"]["version"] == RELEASE["version"]()


def test_the_recipe_has_the_bounds(setup):
    named = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    expected = set()
    for line in setup["options"]["install_requires"].splitlines():
        if line and not line.startswith("#"):
            name, bound = re.split(r"[ ;]", line)[:2]
            expected.add(f"{named.get(name, name)} {bound.removeprefix('==')}")
    python, *bounds = read_yaml("conda/recipe.yaml")["requirements"]["run"]
    assert set(bounds) == expected
    assert python.startswith("python >=${{ python_min }},")


def test_the_recipe_has_the_pythons(setup):
    recipe = read_yaml("conda/recipe.yaml")
    _, newest = recipe["requirements"]["run"][0].split(",")
    pythons = f">={recipe['context']['python_min']},{newest}"
    assert pythons == setup["options"]["python_requires"]


@pytest.mark.parametrize("name", NAMING)
def test_named_files_exist(name):
    paths = PATH.findall((ROOT / name).read_text(encoding="utf-8"))
    missing = []
    for path in paths:
        if not (ROOT / path).exists() and "TABLE" not in path:
            missing.append(path)
    assert missing == []


def steps(job):
    """The commands of a job of the workflow, one after the other."""
    jobs = read_yaml(".github/workflows/checks.yaml")["jobs"]
    return [step["run"] for step in jobs[job]["steps"] if "run" in step]


@pytest.mark.parametrize(
    ("job", "command"),
    [
        ("lint", "ruff check ."),
        ("lint", "ruff format --check ."),
        ("types", "mypy"),
        ("tests", ".ci/run"),
    ],
)
def test_the_workflow_runs(job, command):
    assert command in steps(job)


def test_the_workflow_runs_every_change():
    # YAML 1.1 reads the key "on" as true.
    triggers = read_yaml(".github/workflows/checks.yaml")[True]
    assert triggers == {"push": {"branches": ["main"]}, "pull_request": None}


def test_the_workflow_has_oldest_and_newest_python(setup):
    jobs = read_yaml(".github/workflows/checks.yaml")["jobs"]
    tested = jobs["tests"]["strategy"]["matrix"]["python-version"]
    minors = [int(version.removeprefix("3.")) for version in tested]
    bounds = f">=3.{min(minors)},<3.{max(minors) + 1}"
    assert bounds == setup["options"]["python_requires"]


def refused(message):
    """The hooks that refuse the message of a commit."""
    (repository,) = read_yaml(".pre-commit-config.yaml")["repos"]
    return [
        hook["id"]
        for hook in repository["hooks"]
        if hook.get("stages") == ["commit-msg"]
        and re.search(hook["entry"], message, re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize(
    ("message", "hooks"),
    [
        ("runs: refuse NaN\n\nbecause " + "a long reason " * 9, []),
        ("tests/cli: name the flag\n", []),
        ("Merge branch 'main'\n", []),
        ("runs: " + "x" * 66, []),
        ("runs: " + "x" * 67, ["subject-length"]),
        ("Refuse NaN\n", ["subject-form"]),
        ("Refuse NaN\n\nruns: because\n", ["subject-form"]),
        ("runs:", ["subject-form"]),
    ],
)
def test_subjects_of_commits(message, hooks):
    assert refused(message) == hooks
