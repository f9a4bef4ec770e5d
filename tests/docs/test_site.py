"""The built site, and the arguments of scripts that pages name."""

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


NEEDS_DOCS = 'the site needs pip install -e ".[docs]"'


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Each notebook with its outputs, and the folder of all."""
    pytest.importorskip("nbclient", reason=NEEDS_DOCS)
    folder = tmp_path_factory.mktemp("notebooks")
    return {name: notebooks.executed(name, folder) for name in notebooks.NAMES}, folder


@pytest.fixture(scope="module")
def site(executed, tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("mkdocstrings", reason=NEEDS_DOCS)
    folder = tmp_path_factory.mktemp("site")
    options = ["build", "--strict", "--site-dir", str(folder)]
    _, notebook_folder = executed
    process = subprocess.run(
        [sys.executable, "-m", "mkdocs", *options],
        cwd=ROOT,
        env={**os.environ, "CRUMB_NOTEBOOKS": str(notebook_folder)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return folder


def text_of(site, page):
    """The HTML of a page."""
    return (site / page / "index.html").read_text(encoding="utf-8")


LOADED = re.compile(
    r"<(?:script|img|iframe|source|audio|video)\b[^>]*\bsrc=\"?([^\"\s>]+)"
)
LINK = re.compile(r"<link\b[^>]*>")
NOT_LOADED = re.compile(r"rel=\"?(canonical|next|prev)\b")
HREF = re.compile(r"href=\"?([^\"\s>]+)")


def loaded_by(text):
    """The addresses of what a page loads."""
    addresses = LOADED.findall(text)
    for tag in LINK.findall(text):
        if not NOT_LOADED.search(tag):
            addresses += HREF.findall(tag)
    return addresses


def test_no_page_makes_a_request_to_another_host(site):
    requests = []
    for path in site.rglob("*.html"):
        for address in loaded_by(path.read_text(encoding="utf-8")):
            if re.match(r"(https?:)?//", address):
                requests.append((path, address))
    assert requests == []


def test_no_style_sheet_makes_a_request_to_another_host(site):
    request = re.compile(r"(url\(|@import)\s*[\"']?(https?:)?//")
    paths = []
    for path in site.rglob("*.css"):
        if request.search(path.read_text(encoding="utf-8")):
            paths.append(path)
    assert paths == []


def test_a_table_is_in_its_page(site):
    text = text_of(site, "compared")
    assert "rainbow_memory</code>" in text
    assert "build:" not in text


def test_the_reference_has_methods(site):
    anchor = 'id="crumb_avalanche.learner.learner.Learner.teach"'
    assert anchor in text_of(site, "api/crumb_avalanche/learner")


def test_the_reference_names_inherited_keywords(site):
    text = text_of(site, "api/benchmarks_toybox_ilab/datasets")
    _, entry = text.split('id="benchmarks_toybox_ilab.datasets.eth80.ETH80"')
    entry, _ = entry.split('id="benchmarks_toybox_ilab.datasets.host_streams"')
    assert "StreamKeywords" in entry


def test_the_site_has_results_of_the_repository(site):
    path = "experiments/results/eth80_runs.csv"
    published = site / "repository" / path
    assert published.read_bytes() == (ROOT / path).read_bytes()


PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}


@pytest.mark.skipif(camera_browser.PROGRAM is None, reason="needs Chromium")
def test_no_page_is_longer_than_12000_pixels_on_a_phone(site, tmp_path):
    # Given all pages
    names = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    assert names
    # When a phone shows them
    heights = {}
    with camera_browser.Chromium(tmp_path) as browser:
        browser.send("Emulation.setDeviceMetricsOverride", **PHONE)
        for name in names:
            browser.open(site / name / "index.html")
            height = browser.evaluate("document.documentElement.scrollHeight")
            heights[name] = height
    # Then none is longer
    assert {name: height for name, height in heights.items() if height > 12000} == {}


@pytest.mark.parametrize("name", ["paper_accuracy", "compared", "how"])
def test_figures_need_no_script(name, site):
    source = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    figures = source.count("<!-- build: figure")
    assert figures > 1
    assert text_of(site, name).count("<svg viewBox") == figures


def test_equations_need_no_script(site):
    text = text_of(site, "how")
    assert text.count('display="block"') >= 5
    assert "arithmatex" not in text
    assert "$$" not in text


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_page_shows_the_pictures_of_its_notebook(name, site):
    text = text_of(site, f"notebooks/{name}")
    pictures = re.findall(rf'<img alt="([^"]*)" src="../({name}_\w+.png)"', text)
    assert pictures
    for alternative_text, file in pictures:
        assert alternative_text
        assert (site / "notebooks" / file).stat().st_size > 1000


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_page_shows_what_its_notebook_prints(name, executed, site):
    # Given what the cells of a notebook print
    notebook_of, _ = executed
    printed = []
    for cell in notebook_of[name].cells:
        for output in cell.get("outputs", []):
            if "text" in output and "Warning" not in output.text:
                printed.append(output.text)
    # Then the words of the last are in its page
    text = re.sub("<[^>]*>", " ", text_of(site, f"notebooks/{name}"))
    assert set(printed[-1].split()) <= set(text.split())


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_s_cells_are_those_of_jupytext(name):
    # Given the cells of a script as jupytext reads them
    jupytext = pytest.importorskip("jupytext", reason=NEEDS_DOCS)
    expected = []
    for cell in jupytext.read(ROOT / "docs" / "notebooks" / f"{name}.py").cells:
        is_code = cell.cell_type == "code"
        alternative_text = cell.metadata.get("alt", "")
        expected.append(notebooks.Cell(is_code, cell.source, alternative_text))
    # Then the site has the same
    assert notebooks.cells(name) == expected


class ParsedError(BaseException):
    """The arguments were accepted."""


@pytest.fixture
def stop_when_parsed(monkeypatch):
    """Scripts raise ``ParsedError`` where they have parsed their arguments."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser):
        parse(parser)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)


SCRIPTS: set[tuple[str, ...]] = set()
for page in pages():
    for words in commands(page.read_text(encoding="utf-8")):
        if words[0] == "python":
            SCRIPTS.add(tuple(words))


@pytest.mark.usefixtures("stop_when_parsed")
@pytest.mark.parametrize("words", sorted(SCRIPTS), ids=" ".join)
def test_a_script_takes_its_arguments(words, monkeypatch):
    arguments = [word for word in words[1:] if word != "..."]  # more of the same
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(ParsedError):
        runpy.run_path(words[1], run_name="__main__")
