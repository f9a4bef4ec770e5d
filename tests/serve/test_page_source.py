"""The page: its texts, its headers, and that it is whole."""

import json
import re

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from crumb_avalanche.serve.page_source import PAGE, page

TEXTS = json.loads((PAGE / "texts.json").read_text(encoding="utf-8"))
PLACES = re.compile(r"\{\w+\}")


def places(text):
    """The places for values in a text, or in the two that a count decides between."""
    return set(PLACES.findall(str(text)))


@pytest.mark.parametrize("language", TEXTS)
def test_each_language_has_the_same_names(language):
    assert TEXTS[language].keys() == TEXTS["en"].keys()


@pytest.mark.parametrize("name", TEXTS["en"])
@pytest.mark.parametrize("language", TEXTS)
def test_each_text_has_the_same_values(language, name):
    assert places(TEXTS[language][name]) == places(TEXTS["en"][name])


def test_the_page_uses_texts_that_exist():
    script = (PAGE / "page.js").read_text(encoding="utf-8")
    html = (PAGE / "page.html").read_text(encoding="utf-8")
    used = set(re.findall(r'\btext\("(\w+)"', script))
    used |= set(re.findall(r'counted\([^()]*(?:\([^()]*\))?[^()]*, "(\w+)"\)', script))
    used |= set(re.findall(r'data-(?:text|label|example)="(\w+)"', html))
    assert len(used) > 80
    assert used <= TEXTS["en"].keys()


def test_the_headers_of_the_page(served):
    headers = served[0].get("/").headers
    assert headers["content-type"].startswith("text/html")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    policy = dict(
        rule.strip().split(" ", 1)
        for rule in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["base-uri"] == "'none'"
    assert policy["form-action"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/=]{44}'", policy["script-src"])


@pytest.mark.parametrize("file", PAGE.iterdir(), ids=lambda path: path.name)
def test_the_page_needs_nothing_from_elsewhere(file):
    foreign = r"https?://|\bsrc=|@import|url\(|innerHTML|insertAdjacent|eval\("
    assert not re.search(foreign, file.read_text(encoding="utf-8"))


def test_the_page_is_sent_whole(served):
    html = page()[0]
    assert html == served[0].get("/").text
    assert "/* page." not in html
    assert html.count("<script") == 1
    # The policy blocks style attributes and handlers.
    assert not re.search(r"<[^>]+\s(style|on\w+)=", html)


def test_the_page_has_the_elements_it_names():
    html = page()[0]
    ids = set(re.findall(r'\bid="([\w-]+)"', html))
    used = set(re.findall(r'at\("([\w-]+)"\)', html))
    references = r'(?:for|list|aria-labelledby|aria-describedby)="([\w-]+)"'
    labelled = set(re.findall(references, html))
    assert len(used) > 15
    assert labelled
    assert used | labelled <= ids
