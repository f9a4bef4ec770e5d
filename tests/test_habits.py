"""Checks of the code as text: ruff, mypy, vermin, and the words of the vocabulary."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks_toybox_ilab
import crumb_avalanche

ROOT = Path(__file__).parents[1]
PACKAGES = [
    Path(package.__file__).parent
    for package in (crumb_avalanche, benchmarks_toybox_ilab)
]
# A replaced term, and the better one. A space stands for any white space; the command
# line's flags keep their names.
REPLACED = {
    r"storing rules?": "selection rule",
    r"\bmended|Mended[A-Z]": "patched",
    r"\bwhole[ _]files?\b": "atomic write",
    r"\bmade_from": "provenance",
    r"goingon|going on (from|with)": "resume",
    r"\bgenerous": "round_up",
    r"give_way_to_others": "limit_openmp_spin",
    r"NO_PART_OF_THE_RESULT": "NON_RESULT_SETTINGS",
    r"random states?\b|random_states_kept": "RNG state",
    r"in the hands of|in other hands": "used by, locked by",
    r"they are afterwards": "restore",
    r"\b(to|will|would|may|must) suffer\b": "crash, be affected",
    r"\b(is|are|was|were|be) told\b": "reported, printed, given",
    r"\b(whoever|whomever|whatever it is)\b": "who, what",
    r"\bbe it\b": "whether",
    r"\bthus\b": "so",
}


COLOUR = re.compile(r"[\"'](?:#[0-9a-fA-F]{6}|tab:\w+|C\d|red|green|blue|orange)[\"']")
PALETTE = ROOT / "crumb_avalanche" / "report" / "pictures.py"
FOLDERS = (
    "benchmarks_toybox_ilab",
    "crumb_avalanche",
    "docs",
    "examples",
    "experiments",
    "tests",
)


def run(module, *options):
    """Run a tool of the environment in the root of the checkout."""
    command = [sys.executable, "-m", module, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def files_of(*folders, suffixes=(".py",)):
    """The files below folders of the checkout."""
    paths = []
    for folder in folders:
        paths += [
            path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes
        ]
    return paths


@pytest.mark.parametrize("options", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff(options):
    process = run("ruff", *options, "--no-cache", ".")
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.slow  # a hook of pre-commit and a workflow do it too
def test_mypy():
    # Writing a cache takes as long as a third of the check.
    process = run("mypy", "--cache-dir", os.devnull)
    assert process.returncode == 0, process.stdout + process.stderr


def test_mypy_excepts_nothing():
    assert "ignore_errors" not in (ROOT / "setup.cfg").read_text(encoding="utf-8")


@pytest.mark.slow  # takes as long as all other checks of the code
def test_the_oldest_python_has_all_that_is_used():
    setup = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    oldest = re.search(r"python_requires = >=([\d.]+)", setup)[1]
    vermin = Path(sys.executable).with_name("vermin")  # it has no module to run
    command = [vermin, f"--target={oldest}-", "--violations", "--eval-annotations"]
    folders = (*PACKAGES, ROOT / "experiments", ROOT / "examples")
    command += [path.name for path in folders]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_annotations_are_installed(package):
    assert (package / "py.typed").exists()


def test_no_plot_names_a_colour_of_its_own():
    named = {
        path.relative_to(ROOT): COLOUR.findall(path.read_text(encoding="utf-8"))
        for path in files_of("crumb_avalanche", "experiments")
        if path != PALETTE
    }
    assert {path: colours for path, colours in named.items() if colours} == {}


def replaced_terms(text):
    """Lines with a replaced term, each with its number and the better term."""
    for term, better in REPLACED.items():
        for match in re.finditer(term.replace(" ", r"\s+"), text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{line}: {match.group()!r}, say {better!r}"


def test_replaced_terms_are_found():
    (line,) = replaced_terms("The storing\nrule")
    assert line == "1: 'storing\\nrule', say 'selection rule'"


def test_better_terms_are_left_alone():
    text = "the selection rule; RNG state; recommended; restore them afterwards"
    assert list(replaced_terms(text)) == []


def test_no_replaced_term_is_left():
    paths = files_of(*FOLDERS, suffixes=(".py", ".md", ".css", ".js"))
    paths += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    paths.remove(Path(__file__))
    lines = []
    for path in paths:
        for line in replaced_terms(path.read_text(encoding="utf-8")):
            lines.append(f"{path.relative_to(ROOT)}:{line}")
    assert not lines, "\n".join(lines)
