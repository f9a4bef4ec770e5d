"""Names and metadata that would command a terminal, reorder a line, or be computed by a spreadsheet."""

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


def harmless(*texts):
    """Whether texts hold nothing that a terminal obeys, and no line that begins as a name does."""
    return not any(
        {"\x1b", "\u202e", "\r", "\x9b"} & set(text) or "\nlearned cup" in text
        for text in texts
    )


@unusual_names
def test_file_names_and_reasons_are_one_line_each(mine, place, tmp_path, crumb):
    folder = tmp_path / "photos"
    folder.mkdir()
    shutil.copy(place / "photos" / "red.png", folder / f"a{BAD}.png")
    (folder / f"b{BAD}.png").write_bytes(b"no image")
    code, out, err = crumb("predict", mine, folder)
    assert (
        code == 1
        and harmless(out, err)
        and r"a\x1b[2J\u202e\nlearned cup: 9 images.png  red" in out
    )
    assert len(err.splitlines()) == 2 and r"b\x1b[2J\u202e\n" in err
    code, out, err = crumb("predict", mine, folder, "--json")
    assert harmless(out, err) and json.loads(out)["label"] == "red"
    code, out, err = crumb("predict", mine, folder / f"c{BAD}.png")
    assert code == 1 and harmless(out, err) and len(err.splitlines()) == 1
    code, out, err = crumb(
        "teach", mine, folder, "--label", "red", "--progress", "false"
    )
    assert code == 0 and harmless(out, err) and "could not read" in out and not err
    crumb("predict", mine, folder, "--html", tmp_path / "page.html")
    assert harmless((tmp_path / "page.html").read_text())


@unusual_names
def test_spreadsheets_get_no_formula(mine, place, tmp_path, crumb, monkeypatch):
    crumb("learner", "rename", mine, "red", "=1+1")
    shutil.copy(place / "photos" / "red.png", tmp_path / "@sum.png")
    monkeypatch.chdir(tmp_path)
    code, out, _ = crumb("predict", mine, "@sum.png", "--csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert (
        code == 0
        and row["path"] == "'@sum.png"
        and row["label"] == "'=1+1"
        and float(row["confidence"]) > 0.3
    )


@unusual_names
def test_settings_and_folders_of_foreign_runs(tmp_path, crumb):
    folder = tmp_path / f"run{BAD}"
    folder.mkdir()
    (folder / "config.yaml").write_text(f"strategy: {json.dumps('crumb' + BAD)}\n")
    (folder / "result.json").write_text("{}")
    assert harmless(*crumb("report", tmp_path)[1:])
    for text in (
        f"{json.dumps('x' + BAD)}: 3\n",
        f"epochs: {json.dumps(BAD)}\n",
        f"strategy: {json.dumps(BAD)}\n",
    ):
        (tmp_path / "settings.yaml").write_text(text)
        code, *said = crumb("run", "--config", tmp_path / "settings.yaml")
        assert code and harmless(*said)


def test_text_leaves_through_the_writers_alone():
    """Nothing goes round the streams of `safe_output`, CSV is formatted in one place, and every program uses them."""
    found, calls = (
        [],
        ("with safe_output():", "run_script(main)", "raise SystemExit(main())"),
    )
    for path in SOURCES:
        text = path.read_text()
        if not path.as_posix().endswith(WRITERS):
            names = [
                node
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Attribute | ast.Name)
            ]
            found += [
                f"{path}:{node.lineno}: {ast.unparse(node)}"
                for node in names
                if ast.unparse(node) in AROUND
            ]
        program = (
            text
            if path.stem == "__main__"
            else text.partition('\nif __name__ == "__main__":')[2]
        )
        if program and not any(call in program for call in calls):
            found.append(f"{path} prints without safe_output")
    assert not found, "\n".join(found)
