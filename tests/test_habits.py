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
PACKAGES = [Path(package.__file__).parent for package in (crumb_avalanche, benchmarks_toybox_ilab)]
# A replaced term, and the better one. A space stands for any white space; the command line's flags keep their names.
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
# Where an old term has to stay: the file, the term, and the reason.
EXEMPT = {
    "tests/test_habits.py": (r"", "lists them all"),
}


def run(module, *options):
    """Run a tool of the environment in the root of the checkout."""
    return subprocess.run([sys.executable, "-m", module, *options], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("options", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff(options):
    done = run("ruff", *options, "--no-cache", ".")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # a hook of pre-commit does it too
def test_mypy():
    done = run("mypy", "--cache-dir", os.devnull)  # writing a cache takes as long as a third of the check
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_oldest_python_has_all_that_is_used():
    oldest = re.search(r"python_requires = >=([\d.]+)", (ROOT / "setup.cfg").read_text())[1]
    vermin = Path(sys.executable).with_name("vermin")  # it has no module to run
    folders = [path.name for path in (*PACKAGES, ROOT / "experiments")]
    command = [vermin, f"--target={oldest}-", "--violations", "--eval-annotations", *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_annotations_are_installed(package):
    assert (package / "py.typed").exists()


def prose():
    """Source and documentation, by path from the root."""
    folders = ["benchmarks_toybox_ilab", "crumb_avalanche", "docs", "experiments", "tests"]
    paths = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    for folder in folders:
        paths += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".css", ".js")]
    return {path.relative_to(ROOT).as_posix(): path for path in paths}


def replaced_terms(text, exempt=None):
    """Lines with a replaced term, each with its number and the better term."""
    found = []
    for term, better in REPLACED.items():
        if term == exempt:
            continue
        for match in re.finditer(term.replace(" ", r"\s+"), text, re.IGNORECASE):
            number = text.count("\n", 0, match.start()) + 1
            found.append(f"{number}: {match.group()!r}, say {better!r}")
    return found


def test_replaced_terms_are_found():
    assert replaced_terms("The storing\nrule") == ["1: 'storing\\nrule', say 'selection rule'"]
    assert replaced_terms("x\nrandom_states_kept()") == ["2: 'random_states_kept', say 'RNG state'"]
    assert replaced_terms("give_way_to_others(1)") == ["1: 'give_way_to_others', say 'limit_openmp_spin'"]
    assert replaced_terms("the selection rule; RNG state; recommended; restore them afterwards") == []


def test_no_replaced_term_is_left():
    found = [
        f"{name}:{line}"
        for name, path in prose().items()
        if name != "tests/test_habits.py"
        for line in replaced_terms(path.read_text(encoding="utf-8"), *EXEMPT.get(name, ())[:1])
    ]
    assert not found, "\n".join(found)


def test_every_exemption_is_needed():
    for name, (term, _) in EXEMPT.items():
        assert re.search(term, (ROOT / name).read_text(encoding="utf-8"))
