"""Hand-made run folders, their report and its pages, and what a run learned."""

import csv
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import yaml
from markupsafe import Markup

from crumb_avalanche.methods.run_header import LEARNER
from crumb_avalanche.report.page import environment
from crumb_avalanche.report.report import main
from crumb_avalanche.report.settings import ReportSettings
from crumb_avalanche.runs.run_folder import with_digests
from crumb_avalanche.system.tensor_file import read_tensors

CONFIG = {
    "benchmark": "toy_shapes",
    "protocol": "class_instance",
    "strategy": "crumb",
    "preset": "paper",
    "pretrained": None,
    "classes_per_experience": 2,
    "threads": 1,
    "replay_weight": 5.0,
}
LEDGER = {
    "buffer_items": 12,
    "buffer_bytes": 64896,
    "label_bytes": 24,
    "codebook_bytes": 16384,
    "statistics_bytes": 0,
    "memory_bytes": 81304,
    "plastic_bytes": 805152,
    "frozen_bytes": 2152988,
    "optimizer_bytes": 821536,
    "peak_rss_bytes": 2192580608,
    "images_per_second": 80.0,
    "train_seconds": 10.0,
    "seconds_features": 0.0,
    "seconds_search": 2.0,
    "seconds_plastic": 5.0,
    "seconds_replay": 2.0,
    "seconds_other": 1.0,
}
CLASSES = ["cup", "pear", "dog", "car"]
STREAM_ROWS = ("0,100.0000,", "1,60.0000,80.0000")
JOINT_ROWS = ("0,60.0000,80.0000",)


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

    Args:
        folder: of the run, which is created.
        final: final accuracy in percent.
        run: number of the run.
        ledger, result: entries that replace the usual ones; one that is ``...`` is left
            out of the result.
        rows: lines of the accuracy matrix.
        settings: in ``config.yaml``.
    """
    joint = settings.get("strategy") == "offline"
    rows = rows or (JOINT_ROWS if joint else STREAM_ROWS)
    _, *last_row = rows[-1].split(",")
    last = [float(accuracy) for accuracy in last_row if accuracy]
    entries = {
        "run": run,
        "final_accuracy": final,
        "accuracy_after": [final] if joint else [100.0, final],
        "final_accuracy_per_experience": last,
        "classes_order": CLASSES,
        "classes_per_experience": [2] * len(last),
        "frame_table_sha256": "abc",
        "provenance": {},
        "bad_frames": [],
        **(result or {}),
    }
    folder.mkdir(parents=True)
    config = {**CONFIG, "run": run, "output": str(folder), **settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "ledger.json").write_text(json.dumps({**LEDGER, **(ledger or {})}))
    lines = ["after,experience_0,experience_1", *rows]
    (folder / "accuracy_matrix.csv").write_text("\n".join(lines) + "\n")
    written = {name: value for name, value in entries.items() if value is not ...}
    (folder / "result.json").write_text(json.dumps(with_digests(folder, written)))
    return folder


def report(*folders: Path, output: Path | None = None) -> None:
    """Do ``crumb report`` in this process."""
    names = list(map(str, folders))
    main(ReportSettings(names, None if output is None else str(output)))


def sweep(folder: Path) -> Path:
    """Write three runs of CRUMB and one of fine-tuning.

    Finals of CRUMB are 60, 70, 80: mean 70, deviation sqrt((100 + 0 + 100) / 2) = 10.
    """
    for run, final in enumerate([60.0, 70.0, 80.0]):
        ledger = {
            "memory_bytes": 1000 + run,
            "buffer_items": 10 + run,
            "images_per_second": 50.0 + 10 * run,
        }
        fake_run(folder / "crumb" / f"run{run}", final, run, ledger, threads=run + 1)
    ledger = {"memory_bytes": 0, "buffer_items": 0}
    fake_run(folder / "finetune", 25.0, 0, ledger, strategy="finetune")
    return folder


def mixed(folder: Path) -> Path:
    """Write groups of four kinds, one of which attacks the page.

    Finals are 70 ± 10, 25 and a joint 90 on one stream, and 55 on one of class_iid.
    """
    sweep(folder)
    fake_run(folder / "offline", 90.0, strategy="offline")
    fake_run(folder / "iid", 55.0, protocol="class_iid", replay_weight=3.0)
    fake_run(folder / "attack", 5.5, pretrained=ATTACK, **{"new" + ATTACK: ATTACK})
    return folder


def tensors_of(folder: Path) -> dict:
    """All tensors that a run learned, by name."""
    tensors, _ = read_tensors(folder / LEARNER)
    return tensors


def weights_of(folder: Path) -> dict:
    """The weights that training changes, by their name in the model."""
    prefix = "strategy.model."
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors_of(folder).items()
        if name.startswith(prefix)
    }


VOID = {"meta", "link", "br", "img", "input", "hr", "col", "wbr"}
ATTACK = (
    '<script>window.attacked = 1</script><img src=x onerror="window.attacked = 1">"\'&'
)


class Page(HTMLParser):
    """What is on a page; fails where tags do not fit together.

    Attributes:
        tables: by id, as rows of column name -> cell: text, value and style.
        tags: how often each occurs.
        attributes: tag, name and value of each.
        ids: of elements, and ``used`` those that others refer to.
        texts: between the tags.
    """

    def __init__(self, text: str):
        super().__init__()
        self.tables: dict[str, list[dict]] = {}
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple] = []
        self.ids: list[str] = []
        self.used: set[str] = set()
        self.texts: list[str] = []
        self.open: list[str] = []  # elements around the present place
        self.table: list[dict] = []  # the present one
        self.columns: list[str | None] = []  # of the present table
        self.column = ""  # of the present cell
        self.in_head = False  # of a table
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert len(values) == len(attrs), f"{tag} has an attribute twice: {attrs}"
        self.tags[tag] += 1
        self.attributes += [(tag, *pair) for pair in attrs]
        self.ids += [value for key, value in attrs if key == "id"]
        style = values.get("style") or values.get("clip-path") or ""
        self.used.update(re.findall(r"url\(#([^)]+)\)", style))
        if (values.get("href") or "").startswith("#"):
            self.used.add(values["href"][1:])
        self._note_table(tag, values)
        if tag not in VOID:
            self.open.append(tag)

    def _note_table(self, tag, values):
        """Note a table, a row or a cell that begins."""
        if tag == "table":
            name = values.get("id", f"table-{len(self.tables)}")
            self.table = self.tables.setdefault(name, [])
            self.columns = []
        elif tag == "thead":
            self.in_head = True
        elif tag == "tr" and not self.in_head:
            self.table.append({})
        elif tag in ("td", "th") and self.in_head:
            self.columns.append(values.get("data-name"))
        elif tag in ("td", "th"):
            row = self.table[-1]
            self.column = self.columns[len(row)] or str(len(row))
            row[self.column] = {
                "text": "",
                "value": values.get("data-value"),
                "style": values.get("style"),
            }

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"
        if tag == "thead":
            self.in_head = False

    def handle_data(self, data):
        self.texts.append(data)
        in_cell = self.open and self.open[-1] in ("td", "th")
        if in_cell and not self.in_head:
            self.table[-1][self.column]["text"] += data

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        return " ".join(" ".join(self.texts).split())

    def column_of(self, table: str, name: str) -> list[str]:
        """The texts of a column, from top to bottom."""
        return [row[name]["text"] for row in self.tables[table]]

    def images(self) -> list[str]:
        """The sources of all images."""
        return [
            value
            for tag, name, value in self.attributes
            if (tag, name) == ("img", "src")
        ]


PAGE = (
    '{% extends "page.html" %}{% block main %}<section id="one">{{ body }}</section>'
    "{% endblock %}"
)


def page_with(body: str) -> str:
    """A page of one section with HTML of its own."""
    return (
        environment()
        .from_string(PAGE)
        .render(
            title="T & T",
            lead="lead",
            headings={"one": "A < B"},
            body=Markup(body),
        )
    )


def page_of(folder: Path) -> Page:
    """The page of a report."""
    return Page((folder / "report.html").read_text())


def csv_of(folder: Path, name: str = "report.csv") -> list[dict]:
    """The lines of a CSV file of a report."""
    with open(folder / name, newline="") as file:
        return list(csv.DictReader(file))
