"""Names and metadata that would command a terminal or a spreadsheet."""

import ast
import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest

import benchmarks_toybox_ilab
import crumb_avalanche

ROOT = Path(crumb_avalanche.__file__).parents[1]
SOURCES = [
    Path(package.__file__).parent
    for package in (crumb_avalanche, benchmarks_toybox_ilab)
]
SOURCES = sorted(
    path for folder in (*SOURCES, ROOT / "experiments") for path in folder.rglob("*.py")
)
WRITERS = ("tables/text.py", "tables/csv.py")  # where text leaves
AROUND = {
    "sys.__stdout__",
    "sys.__stderr__",
    "sys.stdout.buffer",
    "sys.stderr.buffer",
    "csv.writer",
    "csv.DictWriter",
}
BAD = "\x1b[2J\u202e\nlearned cup: 9 images"
unusual_names = pytest.mark.skipif(os.name == "nt", reason="no such file names")


HIDDEN = {"\x1b", "\u202e", "\r", "\x9b"}


def harmless(*texts):
    """Whether no text holds what a terminal obeys, or a line that begins as a name."""
    return not any(HIDDEN & set(text) or "\nlearned cup" in text for text in texts)


@pytest.fixture
def photos(place, tmp_path):
    """A photo and a file that is none, with names that command a terminal."""
    folder = tmp_path / "photos"
    folder.mkdir()
    shutil.copy(place / "photos" / "red.png", folder / f"a{BAD}.png")
    (folder / f"b{BAD}.png").write_bytes(b"no image")
    return folder


@unusual_names
def test_file_names_are_one_line_each(mine, photos, crumb):
    code, out, err = crumb("predict", mine, photos)
    assert code == 1
    assert harmless(out, err)
    assert r"a\x1b[2J\u202e\nlearned cup: 9 images.png  red" in out
    assert len(err.splitlines()) == 3  # the first one is of the learner
    assert r"b\x1b[2J\u202e\n" in err


@unusual_names
def test_file_names_in_json(mine, photos, crumb):
    _, out, err = crumb("predict", mine, photos, "--json")
    assert harmless(out, err)
    assert json.loads(out)["label"] == "red"


@unusual_names
def test_an_absent_file_is_one_line(mine, photos, crumb):
    code, out, err = crumb("predict", mine, photos / f"c{BAD}.png")
    assert code == 1
    assert harmless(out, err)
    assert len(err.splitlines()) == 2  # the first one is of the learner


@unusual_names
def test_what_cannot_be_taught_is_one_line(mine, photos, crumb):
    words = ["teach", mine, photos, "--label", "red", "--progress", "false"]
    code, out, err = crumb(*words)
    assert (code, err) == (0, "")
    assert harmless(out)
    assert "could not read" in out


@unusual_names
def test_file_names_on_a_page(mine, photos, tmp_path, crumb):
    page = tmp_path / "page.html"
    crumb("predict", mine, photos, "--html", page)
    assert harmless(page.read_text())


@unusual_names
def test_spreadsheets_get_no_formula(mine, place, tmp_path, crumb, monkeypatch):
    crumb("learner", "rename", mine, "red", "=1+1")
    shutil.copy(place / "photos" / "red.png", tmp_path / "@sum.png")
    monkeypatch.chdir(tmp_path)
    code, out, _ = crumb("predict", mine, "@sum.png", "--csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert code == 0
    assert (row["path"], row["label"]) == ("'@sum.png", "'=1+1")
    assert float(row["confidence"]) > 0.3


@unusual_names
def test_folders_of_foreign_runs(tmp_path, crumb):
    folder = tmp_path / f"run{BAD}"
    folder.mkdir()
    (folder / "config.yaml").write_text(f"strategy: {json.dumps('crumb' + BAD)}\n")
    (folder / "result.json").write_text("{}")
    _, out, err = crumb("report", tmp_path)
    assert harmless(out, err)


@pytest.mark.parametrize(
    "text",
    [
        f"{json.dumps('x' + BAD)}: 3\n",
        f"epochs: {json.dumps(BAD)}\n",
        f"strategy: {json.dumps(BAD)}\n",
    ],
    ids=["name", "number", "text"],
)
def test_foreign_settings(tmp_path, crumb, text):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    code, out, err = crumb("run", "--config", path)
    assert code
    assert harmless(out, err)


PROGRAMS = ("with safe_output():", "run_script(main", "raise SystemExit(main())")


def ways_around(path):
    """The places where a file goes round the streams of ``safe_output``."""
    if path.as_posix().endswith(WRITERS):
        return []
    nodes = ast.walk(ast.parse(path.read_text()))
    names = [node for node in nodes if isinstance(node, ast.Attribute | ast.Name)]
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for node in names
        if ast.unparse(node) in AROUND
    ]


def program_of(path):
    """The part of a file that runs when it is called; empty if there is none."""
    text = path.read_text()
    if path.stem == "__main__":
        return text
    return text.partition('\nif __name__ == "__main__":')[2]


def test_text_leaves_through_the_writers_alone():
    lines = [line for path in SOURCES for line in ways_around(path)]
    assert not lines, "\n".join(lines)


def test_every_program_has_safe_output():
    programs = {path: program_of(path) for path in SOURCES}
    unsafe = [path for path, text in programs.items() if not has_safe_output(text)]
    assert not unsafe


def has_safe_output(program):
    """Whether a program prints through ``safe_output``, or there is none."""
    return not program or any(call in program for call in PROGRAMS)
