"""The site as MkDocs builds it, and the pages' commands with the parsers and plans that run them."""

import argparse
import os
import re
import runpy
import subprocess
import sys

import jsonargparse
import pytest
from page_commands import ROOT, commands, pages
from site_parts import notebooks

from crumb_avalanche.cli.parser import parser, present
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RunSettings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("mkdocstrings", reason='the site needs pip install -e ".[docs]"')
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_no_page_makes_a_request_to_another_host(site):
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source|audio|video)\b[^>]*\bsrc=\"?([^\"\s>]+)", text)
        for tag in re.findall(r"<link\b[^>]*>", text):
            if not re.search(r"rel=\"?(canonical|next|prev)\b", tag):
                loaded += re.findall(r"href=\"?([^\"\s>]+)", tag)
        assert not [one for one in loaded if re.match(r"(https?:)?//", one)], path
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text(encoding="utf-8")), path


def test_tables_and_reference_are_in_the_pages(site):
    text = (site / "comparison" / "index.html").read_text(encoding="utf-8")
    assert "<code>rainbow_memory</code>" in text and "build:" not in text
    assert 'id="crumb_avalanche.learner.learner.Learner.teach"' in (
        site / "api" / "crumb_avalanche" / "learner" / "index.html"
    ).read_text(encoding="utf-8")
    assert (site / "repository" / "experiments" / "results" / "eth80_runs.csv").read_bytes() == (
        ROOT / "experiments" / "results" / "eth80_runs.csv"
    ).read_bytes()


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_runs(name, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(ROOT / "docs" / "notebooks" / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") > 5


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_s_cells_are_those_of_jupytext(name):
    jupytext = pytest.importorskip("jupytext", reason='the site needs pip install -e ".[docs]"')
    read = jupytext.read(ROOT / "docs" / "notebooks" / f"{name}.py")
    assert notebooks.cells(name) == [(cell.cell_type, cell.source) for cell in read.cells]


def words_of(program: str) -> list[tuple[str, ...]]:
    """The different commands of a program on all pages."""
    found = {tuple(words) for path in pages() for words in commands(path.read_text(encoding="utf-8"))}
    return sorted(words for words in found if words[0] == program)


@pytest.mark.parametrize("words", [words for words in words_of("crumb") if words[1:2] == ("run",)], ids=" ".join)
def test_a_run_can_be_planned(words):
    values = parser().parse_args(present(list(words[1:])))["run"].as_dict()
    values.pop("config")
    assert RunPlan.of(RunSettings(**values)).strategy


class ParsedError(BaseException):
    """The arguments were accepted."""


@pytest.mark.parametrize("words", words_of("python"), ids=" ".join)
def test_a_script_takes_its_arguments(words, monkeypatch):
    for kind in (argparse.ArgumentParser, jsonargparse.ArgumentParser):
        original = kind.parse_args

        def stop(self, *arguments, original=original, **keywords):
            original(self, *arguments, **keywords)
            raise ParsedError

        monkeypatch.setattr(kind, "parse_args", stop)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", list(words[1:]))
    # Words in brackets or dots stand for more of the same.
    monkeypatch.setattr(sys, "argv", [word for word in sys.argv if word != "..."])
    with pytest.raises(ParsedError):
        runpy.run_path(words[1], run_name="__main__")
