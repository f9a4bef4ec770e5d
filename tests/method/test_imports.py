"""Who may import whom, and what must stay quick to import."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks_toybox_ilab
import crumb_avalanche

METHOD = Path(crumb_avalanche.__file__).parent
STREAMS = Path(benchmarks_toybox_ilab.__file__).parent
# What a user may want within a second or two; the rest needs Avalanche.
QUICK = [
    *("codebook", "codebook_init", "search", "packing", "split_model", "backbones", "weights"),
    *("head_input", "traced_split"),
    *("preparation", "pretraining", "storage_rules", "stopwatch", "checkpoint", "random_states", "distributed"),
]


def imported(path):
    """The packages that a file imports anywhere in it, inside functions too, and as text for ``import_module``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            constants = [part for part in ast.walk(node) if isinstance(part, ast.Constant)]
            yield from (part.value for part in constants if isinstance(part.value, str))


def files(package):
    return sorted(package.rglob("*.py"))


def imports_of(path, package):
    return [name for name in imported(path) if name.split(".")[0] == package]


@pytest.mark.parametrize("path", files(STREAMS), ids=lambda path: path.name)
def test_the_streams_know_nothing_of_the_method(path):
    assert not imports_of(path, "crumb_avalanche")


@pytest.mark.parametrize("path", files(METHOD), ids=lambda path: str(path.relative_to(METHOD)))
def test_the_method_knows_nothing_of_the_streams_and_of_its_command_line(path):
    if METHOD / "cli" not in path.parents:
        assert not imports_of(path, "benchmarks_toybox_ilab")
        assert not [name for name in imported(path) if name.startswith("crumb_avalanche.cli")]


def test_nothing_installed_knows_the_experiments_and_the_tests():
    for path in files(METHOD) + files(STREAMS):
        assert not imports_of(path, "experiments") and not imports_of(path, "tests"), path


def test_the_walk_sees_imports(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("import a.b\ndef f():\n    from c.d import e\n    return import_module(f'g.h.{e}')\n")
    assert list(imported(path)) == ["a.b", "c.d", "g.h."]


def test_no_circles():
    names = {path: ".".join(path.relative_to(METHOD.parent).with_suffix("").parts) for path in files(METHOD)}
    arrows = {name: {i for i in imported(path) if i in names.values()} for path, name in names.items()}
    while arrows:
        ready = [name for name, needs in arrows.items() if not needs & arrows.keys()]
        assert ready, f"these import each other: {sorted(arrows)}"
        for name in ready:
            del arrows[name]


def modules_after(code):
    """The top-level names in ``sys.modules`` of a fresh interpreter that ran ``code``."""
    code += "\nimport sys, json; print('\\n' + json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1])), done.stdout


def test_the_codebook_comes_without_avalanche():
    modules, _ = modules_after("import " + ", ".join(f"crumb_avalanche.{name}" for name in QUICK))
    assert "torch" in modules and "avalanche" not in modules


def test_the_packages_alone_import_nothing_heavy():
    modules, _ = modules_after("import crumb_avalanche, benchmarks_toybox_ilab.tables.frame_table")
    assert not modules & {"torch", "avalanche", "faiss", "matplotlib"}


def test_help_comes_without_torch():
    modules, output = modules_after(
        "import runpy, sys\n"
        "sys.argv = ['crumb', '--help']\n"
        "try: runpy.run_module('crumb_avalanche.cli', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code"
    )
    assert "usage: crumb" in output and "pretrain" in output
    assert not modules & {"torch", "avalanche"}


def test_public_names_exist_and_others_are_told():
    for name in crumb_avalanche.__all__:
        assert getattr(crumb_avalanche, name) is not None
    assert set(dir(crumb_avalanche)) == set(crumb_avalanche.__all__)
    with pytest.raises(AttributeError, match="module 'crumb_avalanche' has no attribute 'Codebok'; it has __version__"):
        crumb_avalanche.Codebok  # noqa: B018
