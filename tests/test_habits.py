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


def run(module, *options):
    """Run a tool of the environment in the root of the checkout."""
    return subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("options", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff(options):
    done = run("ruff", *options, "--no-cache", ".")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # a hook of pre-commit does it too
def test_mypy():
    done = run(
        "mypy", "--cache-dir", os.devnull
    )  # writing a cache takes as long as a third of the check
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # takes as long as all other checks of the code
def test_the_oldest_python_has_all_that_is_used():
    oldest = re.search(
        r"python_requires = >=([\d.]+)", (ROOT / "setup.cfg").read_text()
    )[1]
    vermin = Path(sys.executable).with_name("vermin")  # it has no module to run
    folders = [path.name for path in (*PACKAGES, ROOT / "experiments")]
    command = [
        vermin,
        f"--target={oldest}-",
        "--violations",
        "--eval-annotations",
        *folders,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_annotations_are_installed():
    assert all((package / "py.typed").exists() for package in PACKAGES)


def test_no_plot_names_a_colour_of_its_own():
    colour = re.compile(
        r"[\"'](?:#[0-9a-fA-F]{6}|tab:\w+|C\d|red|green|blue|orange)[\"']"
    )
    for folder in ("crumb_avalanche", "experiments"):
        for path in (ROOT / folder).rglob("*.py"):
            found = (
                []
                if path == ROOT / "crumb_avalanche/report/pictures.py"
                else colour.findall(path.read_text())
            )
            assert not found, f"{path.relative_to(ROOT)}: {found}"


def replaced_terms(text):
    """Lines with a replaced term, each with its number and the better term."""
    for term, better in REPLACED.items():
        for match in re.finditer(term.replace(" ", r"\s+"), text, re.IGNORECASE):
            yield f"{text.count(chr(10), 0, match.start()) + 1}: {match.group()!r}, say {better!r}"


def test_no_replaced_term_is_left():
    assert list(replaced_terms("The storing\nrule")) == [
        "1: 'storing\\nrule', say 'selection rule'"
    ]
    assert not list(
        replaced_terms(
            "the selection rule; RNG state; recommended; restore them afterwards"
        )
    )
    paths = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    for folder in (
        "benchmarks_toybox_ilab",
        "crumb_avalanche",
        "docs",
        "experiments",
        "tests",
    ):
        paths += [
            path
            for path in (ROOT / folder).rglob("*")
            if path.suffix in (".py", ".md", ".css", ".js")
        ]
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in paths
        if path != Path(__file__)
    }
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, text in texts.items()
        for line in replaced_terms(text)
    ]
    assert not found, "\n".join(found)
