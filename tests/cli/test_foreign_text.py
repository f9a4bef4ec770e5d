"""Names and metadata that would command a terminal, reorder a line, or be computed by a spreadsheet."""

import ast
import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest
from called_command import ask

import benchmarks_toybox_ilab
import crumb_avalanche

ROOT = Path(crumb_avalanche.__file__).parents[1]
SOURCES = [Path(package.__file__).parent for package in (crumb_avalanche, benchmarks_toybox_ilab)]
SOURCES = sorted(path for folder in (*SOURCES, ROOT / "experiments") for path in folder.rglob("*.py"))
WRITERS = ("tables/text.py", "tables/csv.py")  # where text leaves
BAD = "\x1b[2J\u202e\nlearned cup: 9 images"
unusual_names = pytest.mark.skipif(os.name == "nt", reason="no such file names")


def harmless(*texts):
    """Whether texts hold nothing that a terminal obeys, and no line that begins as a name does."""
    return not any({"\x1b", "\u202e", "\r", "\x9b"} & set(text) or "\nlearned cup" in text for text in texts)


@unusual_names
def test_file_names_and_reasons_are_one_line_each(mine, place, tmp_path, capsys):
    folder = tmp_path / "photos"
    folder.mkdir()
    shutil.copy(place / "photos" / "red.png", folder / f"a{BAD}.png")
    (folder / f"b{BAD}.png").write_bytes(b"no image")
    code, out, err = ask(capsys, "predict", mine, folder)
    assert code == 1 and harmless(out, err) and r"a\x1b[2J\u202e\nlearned cup: 9 images.png  red" in out
    assert len(err.splitlines()) == 2 and r"b\x1b[2J\u202e\n" in err
    code, out, err = ask(capsys, "predict", mine, folder, "--json")
    assert harmless(out, err) and json.loads(out)["label"] == "red"
    code, out, err = ask(capsys, "predict", mine, folder / f"c{BAD}.png")
    assert code == 1 and harmless(out, err) and len(err.splitlines()) == 1
    code, out, err = ask(capsys, "teach", mine, folder, "--label", "red", "--progress", "false")
    assert code == 0 and harmless(out, err) and "could not read" in out and len(err.splitlines()) == 0
    code, out, err = ask(capsys, "predict", mine, folder, "--html", tmp_path / "page.html")
    assert harmless((tmp_path / "page.html").read_text())


@unusual_names
def test_spreadsheets_get_no_formula(mine, place, tmp_path, capsys, monkeypatch):
    ask(capsys, "learner", "rename", mine, "red", "=1+1")
    shutil.copy(place / "photos" / "red.png", tmp_path / "@sum.png")
    monkeypatch.chdir(tmp_path)
    code, out, _ = ask(capsys, "predict", mine, "@sum.png", "--csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert code == 0 and row["path"] == "'@sum.png" and row["label"] == "'=1+1" and float(row["confidence"]) > 0.3


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\u202eb", "a\u200bb", "cup\u200d"])
def test_names_that_are_not_seen_are_refused(mine, name, capsys):
    code, out, err = ask(capsys, "learner", "rename", mine, "red", name)
    assert code == 1 and harmless(out, err) and "invisible" in err


@unusual_names
def test_settings_and_folders_of_foreign_runs(tmp_path, capsys):
    folder = tmp_path / f"run{BAD}"
    folder.mkdir()
    (folder / "config.yaml").write_text(f"strategy: {json.dumps('crumb' + BAD)}\n")
    (folder / "result.json").write_text("{}")
    assert harmless(*ask(capsys, "report", tmp_path)[1:])
    for text in (f"{json.dumps('x' + BAD)}: 3\n", f"epochs: {json.dumps(BAD)}\n", f"strategy: {json.dumps(BAD)}\n"):
        (tmp_path / "settings.yaml").write_text(text)
        with pytest.raises(SystemExit) if "strategy" not in text else pytest.MonkeyPatch.context():
            ask(capsys, "run", "--config", tmp_path / "settings.yaml")
        assert harmless(*capsys.readouterr())


def calls(path):
    """Names of what a file calls or reads, such as ``sys.stdout.buffer``, with their line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute | ast.Name):
            yield ast.unparse(node), node.lineno


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_text_leaves_through_the_writers_alone(path):
    """Nothing goes round the streams of `safe_output`, and CSV is formatted in one place."""
    if path.as_posix().endswith(WRITERS):
        return
    streams = {"sys.__stdout__", "sys.__stderr__", "sys.stdout.buffer", "sys.stderr.buffer"}
    streams |= {"csv.writer", "csv.DictWriter"}
    found = [f"line {line}: {name}" for name, line in calls(path) if name in streams]
    assert not found, found


PROGRAMS = [path for path in SOURCES if path.stem == "__main__" or '\nif __name__ == "__main__":' in path.read_text()]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_program_prints_through_safe_output(path):
    text = path.read_text()
    program = text if path.stem == "__main__" else text.partition('\nif __name__ == "__main__":')[2]
    assert any(call in program for call in ("with safe_output():", "run_script(main)", "raise SystemExit(main())"))
