"""Runs for a report with everything in it, and a parser of its page."""

import csv
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from fake_runs import fake_run, sweep
from markupsafe import Markup

from crumb_avalanche.report.page import environment

VOID = {"meta", "link", "br", "img", "input", "hr", "col", "wbr"}
ATTACK = '<script>window.attacked = 1</script><img src=x onerror="window.attacked = 1">"\'&'


class Page(HTMLParser):
    """What is on a page: tables by id, as rows of column name -> cell; fails where tags do not fit together."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.ids, self.used, self.tables, self.texts = [], [], set(), {}, []
        self.tags, self.attributes, self.table, self.in_head = Counter(), [], None, False
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert len(values) == len(attrs), f"{tag} has an attribute twice: {attrs}"
        self.tags[tag] += 1
        self.attributes += [(tag, *pair) for pair in attrs]
        self.ids += [value for key, value in attrs if key == "id"]
        self.used.update(re.findall(r"url\(#([^)]+)\)", values.get("style") or values.get("clip-path") or ""))
        if (values.get("href") or "").startswith("#"):
            self.used.add(values["href"][1:])
        if tag == "table":
            self.table = self.tables.setdefault(values.get("id", f"table-{len(self.tables)}"), [])
            self.names = []
        if tag == "thead":
            self.in_head = True
        if tag == "tr" and not self.in_head:
            self.table.append({})
        if tag in ("td", "th"):
            if self.in_head:
                self.names.append(values.get("data-name"))
            else:
                self.name = self.names[len(self.table[-1])] or str(len(self.table[-1]))
                self.table[-1][self.name] = {
                    "text": "",
                    "value": values.get("data-value"),
                    "style": values.get("style"),
                }
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another element"
        self.in_head = self.in_head and tag != "thead"

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th") and not self.in_head:
            self.table[-1][self.name]["text"] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page_with(body: str) -> str:
    """A page of one section with HTML of its own."""
    page = '{% extends "page.html" %}{% block main %}<section id="one">{{ body }}</section>{% endblock %}'
    values = {"title": "T & T", "lead": "lead", "headings": {"one": "A < B"}, "body": Markup(body)}
    return environment().from_string(page).render(values)


def page_of(folder: Path) -> Page:
    return Page((folder / "report.html").read_text())


def csv_of(folder: Path, name: str = "report.csv") -> list[dict]:
    with open(folder / name, newline="") as file:
        return list(csv.DictReader(file))


def mixed(folder: Path) -> Path:
    """Groups with finals 70 ± 10, 25 and a joint 90, on one stream, one of class_iid, and one that attacks the page."""
    sweep(folder)
    fake_run(folder / "offline", 90.0, strategy="offline")
    fake_run(folder / "iid", 55.0, protocol="class_iid", replay_weight=3.0)
    fake_run(folder / "attack", 5.5, pretrained=ATTACK, **{"new" + ATTACK: ATTACK})
    return folder
