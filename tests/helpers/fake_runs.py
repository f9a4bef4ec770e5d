"""Hand-made run folders, their report and its pages, and what a run learned."""

import csv
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import yaml
from markupsafe import Markup

from crumb_avalanche.methods.run_file import LEARNER
from crumb_avalanche.report.page import environment
from crumb_avalanche.report.report import main
from crumb_avalanche.report.settings import ReportSettings
from crumb_avalanche.runs.run_folder import with_digests
from crumb_avalanche.system.tensor_file import read_tensors

CONFIG = dict(
    benchmark="toy_shapes",
    protocol="class_instance",
    strategy="crumb",
    preset="paper",
    pretrained=None,
)
CONFIG |= dict(classes_per_experience=2, threads=1, replay_weight=5.0)
LEDGER = dict(
    buffer_items=12,
    buffer_bytes=64896,
    label_bytes=24,
    codebook_bytes=16384,
    statistics_bytes=0,
)
LEDGER |= dict(
    memory_bytes=81304,
    plastic_bytes=805152,
    frozen_bytes=2152988,
    optimizer_bytes=821536,
)
LEDGER |= dict(
    peak_rss_bytes=2192580608,
    images_per_second=80.0,
    train_seconds=10.0,
    seconds_features=0.0,
)
LEDGER |= dict(
    seconds_search=2.0, seconds_plastic=5.0, seconds_replay=2.0, seconds_other=1.0
)
CLASSES = ["cup", "pear", "dog", "car"]


def fake_run(
    folder: Path,
    final: float = 70.0,
    run: int = 0,
    ledger=None,
    result=None,
    rows=None,
    **settings,
) -> Path:
    """Write a finished run of two experiences; an offline one learns both at once.

    Entries of ``ledger`` and ``result`` replace the usual ones; one that is ``...`` is
    left out. ``rows`` are lines of the accuracy matrix.
    """
    joint = settings.get("strategy") == "offline"
    after = [final] if joint else [100.0, final]
    usual = ["0,60.0000,80.0000"] if joint else ["0,100.0000,", "1,60.0000,80.0000"]
    lines = ["after,experience_0,experience_1", *(rows or usual)]
    folder.mkdir(parents=True)
    config = {**CONFIG, "run": run, "output": str(folder), **settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "ledger.json").write_text(json.dumps({**LEDGER, **(ledger or {})}))
    (folder / "accuracy_matrix.csv").write_text("\n".join(lines) + "\n")
    last = [float(value) for value in lines[-1].split(",")[1:] if value]
    usual = {
        "run": run,
        "final_accuracy": final,
        "accuracy_after": after,
        "final_accuracy_per_experience": last,
    }
    usual |= {
        "classes_order": CLASSES,
        "classes_per_experience": [2] * len(last),
        "frame_table_sha256": "abc",
    }
    usual |= {"provenance": {}, "bad_frames": [], **(result or {})}
    written = {name: value for name, value in usual.items() if value is not ...}
    (folder / "result.json").write_text(json.dumps(with_digests(folder, written)))
    return folder


def report(*folders: Path, output: Path | None = None) -> None:
    main(ReportSettings([str(folder) for folder in folders], output and str(output)))


def sweep(folder: Path) -> Path:
    """Write three runs of CRUMB: finals 60, 70, 80, mean 70, standard deviation sqrt((100 + 0 + 100) / 2) = 10."""
    for run, final in enumerate([60.0, 70.0, 80.0]):
        ledger = {
            "memory_bytes": 1000 + run,
            "buffer_items": 10 + run,
            "images_per_second": 50.0 + 10 * run,
        }
        fake_run(folder / "crumb" / f"run{run}", final, run, ledger, threads=run + 1)
    fake_run(
        folder / "finetune",
        25.0,
        0,
        {"memory_bytes": 0, "buffer_items": 0},
        strategy="finetune",
    )
    return folder


def tensors_of(folder: Path) -> dict:
    """All tensors that a run learned, by name."""
    return read_tensors(folder / LEARNER)[0]


def weights_of(folder: Path) -> dict:
    """The weights that training changes, by their name in the model."""
    prefix = "strategy.model."
    return {
        name.removeprefix(prefix): one
        for name, one in tensors_of(folder).items()
        if name.startswith(prefix)
    }


VOID = {"meta", "link", "br", "img", "input", "hr", "col", "wbr"}
ATTACK = (
    '<script>window.attacked = 1</script><img src=x onerror="window.attacked = 1">"\'&'
)


class Page(HTMLParser):
    """What is on a page: tables by id, as rows of column name -> cell; fails where tags do not fit together."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.ids, self.used, self.tables, self.texts = [], [], set(), {}, []
        self.tags, self.attributes, self.table, self.in_head = (
            Counter(),
            [],
            None,
            False,
        )
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert len(values) == len(attrs), f"{tag} has an attribute twice: {attrs}"
        self.tags[tag] += 1
        self.attributes += [(tag, *pair) for pair in attrs]
        self.ids += [value for key, value in attrs if key == "id"]
        self.used.update(
            re.findall(
                r"url\(#([^)]+)\)", values.get("style") or values.get("clip-path") or ""
            )
        )
        if (values.get("href") or "").startswith("#"):
            self.used.add(values["href"][1:])
        if tag == "table":
            self.table = self.tables.setdefault(
                values.get("id", f"table-{len(self.tables)}"), []
            )
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
    values = {
        "title": "T & T",
        "lead": "lead",
        "headings": {"one": "A < B"},
        "body": Markup(body),
    }
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
