"""``crumb strategies``: the list of all methods, and what it says of one."""

import subprocess
import sys
from dataclasses import fields

import pytest

from crumb_avalanche.methods.descriptions import descriptions
from crumb_avalanche.methods.registry import STRATEGIES

LIST = """
import sys
from crumb_avalanche.cli import main
main(["strategies"])
heavy = {"torch", "numpy", "scipy", "avalanche", "pydantic"} & {*sys.modules}
assert not heavy, heavy
"""


def unwrapped(text):
    """A text in one line."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def listed():
    """What a process prints that imports nothing heavy."""
    command = [sys.executable, "-W", "ignore", "-c", LIST]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_method_is_listed(listed, name):
    entry = STRATEGIES[name]
    (block,) = [text for text in listed.split("\n\n") if text.startswith(f"{name}: ")]
    assert entry.summary in unwrapped(block)
    assert f"from {entry.source} stores {entry.stores} budget" in unwrapped(block)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_list_says_what_the_registry_says(name):
    method = descriptions()[name]
    entry = STRATEGIES[name]
    for attribute in fields(method):
        assert getattr(method, attribute.name) == getattr(entry, attribute.name)


def test_the_list_is_in_the_order_of_the_registry():
    assert list(descriptions()) == list(STRATEGIES)


def test_the_list_fits_80_columns(listed):
    assert max(map(len, listed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("image_replay", "(budget - fixed bytes) / bytes of one memory, rounded down"),
        ("image_replay", "image_replay: raw uint8 images"),
        ("crumb", "rounded up if three quarters of a last memory fit"),
        ("crumb", "own settings, --method.NAME VALUE direct_weight 0.0, codebook_"),
        ("finetune", "its size does not depend on the budget"),
    ],
)
def test_one_method_is_shown(done, name, words):
    out = done("strategies", name)
    assert out.startswith(f"{name}: ")
    assert words in unwrapped(out)
    assert "\n\n" not in out


def test_a_method_of_a_user_is_shown(done, monkeypatch):
    entry = STRATEGIES["finetune"]
    monkeypatch.setitem(STRATEGIES._entries, "mine", entry)
    assert done("strategies", "mine").startswith("finetune: ")
