"""The site as MkDocs builds it, and the pages' scripts with the parsers of their
arguments.
"""

import argparse
import os
import re
import runpy
import subprocess
import sys

import camera_browser
import pytest
from page_commands import ROOT, commands, pages
from site_parts import notebooks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Each notebook with its outputs, and the folder of all."""
    pytest.importorskip("nbclient", reason='the site needs pip install -e ".[docs]"')
    folder = tmp_path_factory.mktemp("notebooks")
    return {name: notebooks.executed(name, folder) for name in notebooks.NAMES}, folder


@pytest.fixture(scope="module")
def site(executed, tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip(
        "mkdocstrings", reason='the site needs pip install -e ".[docs]"'
    )
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(folder),
    ]
    environment = {**os.environ, "CRUMB_NOTEBOOKS": str(executed[1])}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_no_page_makes_a_request_to_another_host(site):
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(
            r"<(?:script|img|iframe|source|audio|video)\b[^>]*\bsrc=\"?([^\"\s>]+)",
            text,
        )
        for tag in re.findall(r"<link\b[^>]*>", text):
            if not re.search(r"rel=\"?(canonical|next|prev)\b", tag):
                loaded += re.findall(r"href=\"?([^\"\s>]+)", tag)
        assert not [one for one in loaded if re.match(r"(https?:)?//", one)], path
    for path in site.rglob("*.css"):
        assert not re.search(
            r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text(encoding="utf-8")
        ), path


def test_tables_and_reference_are_in_the_pages(site):
    text = (site / "compared" / "index.html").read_text(encoding="utf-8")
    assert "rainbow_memory</code>" in text and "build:" not in text
    assert 'id="crumb_avalanche.learner.learner.Learner.teach"' in (
        site / "api" / "crumb_avalanche" / "learner" / "index.html"
    ).read_text(encoding="utf-8")
    text = (
        site / "api" / "benchmarks_toybox_ilab" / "datasets" / "index.html"
    ).read_text(encoding="utf-8")
    _, entry = text.split('id="benchmarks_toybox_ilab.datasets.eth80.ETH80"')
    entry, _ = entry.split('id="benchmarks_toybox_ilab.datasets.host_streams"')
    assert "StreamKeywords" in entry
    assert (
        site / "repository" / "experiments" / "results" / "eth80_runs.csv"
    ).read_bytes() == (ROOT / "experiments" / "results" / "eth80_runs.csv").read_bytes()


@pytest.mark.skipif(camera_browser.PROGRAM is None, reason="needs Chromium")
def test_no_page_is_longer_than_12000_pixels_on_a_phone(site, tmp_path):
    with camera_browser.Chromium(tmp_path) as browser:
        browser.send(
            "Emulation.setDeviceMetricsOverride",
            width=390,
            height=844,
            deviceScaleFactor=1,
            mobile=False,
        )
        heights = {}
        for path in sorted((ROOT / "docs").glob("*.md")):
            browser.open(site / path.stem / "index.html")
            heights[path.stem] = browser.evaluate(
                "document.documentElement.scrollHeight"
            )
    assert (
        heights
        and {name: height for name, height in heights.items() if height > 12000} == {}
    )


def test_figures_and_equations_need_no_script(site):
    for name in ("paper_accuracy", "compared", "how"):
        source = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        text = (site / name / "index.html").read_text(encoding="utf-8")
        assert text.count("<svg viewBox") == source.count("<!-- build: figure") > 1
    assert (
        text.count('display="block"') >= 5
        and "arithmatex" not in text
        and "$$" not in text
    )


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_page_shows_the_outputs_of_its_notebook(name, executed, site):
    text = (site / "notebooks" / name / "index.html").read_text(encoding="utf-8")
    folder = site / "notebooks"
    pictures = re.findall(rf'<img alt="([^"]*)" src="../({name}_\w+.png)"', text)
    assert pictures
    for alt, file in pictures:
        assert alt
        assert (folder / file).stat().st_size > 1000
    printed = []
    for cell in executed[0][name].cells:
        for output in cell.get("outputs", []):
            if "text" in output and "Warning" not in output.text:
                printed.append(output.text)
    assert set(printed[-1].split()) <= set(re.sub("<[^>]*>", " ", text).split())


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_s_cells_are_those_of_jupytext(name):
    jupytext = pytest.importorskip(
        "jupytext", reason='the site needs pip install -e ".[docs]"'
    )
    read = jupytext.read(ROOT / "docs" / "notebooks" / f"{name}.py")
    cells = []
    for cell in read.cells:
        is_code = cell.cell_type == "code"
        cells.append(notebooks.Cell(is_code, cell.source, cell.metadata.get("alt", "")))
    assert notebooks.cells(name) == cells


class ParsedError(BaseException):
    """The arguments were accepted."""


SCRIPTS: set[tuple[str, ...]] = set()
for page in pages():
    SCRIPTS.update(map(tuple, commands(page.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    "words", sorted(words for words in SCRIPTS if words[0] == "python"), ids=" ".join
)
def test_a_script_takes_its_arguments(words, monkeypatch):
    original = argparse.ArgumentParser.parse_args

    def stop(self):
        original(self)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(
        sys, "argv", [word for word in words[1:] if word != "..."]
    )  # dots are more of the same
    with pytest.raises(ParsedError):
        runpy.run_path(words[1], run_name="__main__")
