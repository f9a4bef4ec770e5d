"""Which room may import which, and what must stay quick to import."""

import ast
import graphlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from site_parts.reference import rooms

import benchmarks_toybox_ilab
import crumb_avalanche

METHOD = Path(crumb_avalanche.__file__).parent
STREAMS = Path(benchmarks_toybox_ilab.__file__).parent
# Lowest first: a room imports itself and the rooms before it.
ROOMS = {METHOD: rooms("crumb_avalanche"), STREAMS: rooms("benchmarks_toybox_ilab")}
TOP_LEVEL = {METHOD: {"__init__"}, STREAMS: {"__init__", "catalog"}}
# What compares methods, and what people use: neither room imports one of the others.
RESEARCH = ("runs", "report")
APPLICATION = ("learner", "serve")
# Rooms that know the streams; of the learner only folders of clips. Every room may
# import the tables.
KNOW_STREAMS = {"images", "learner", "runs", "report", "serve", "cli"}
TABLES = "benchmarks_toybox_ilab.tables."
# Rooms whose modules come without Avalanche, which takes seconds to import.
LIGHT = ("system", "models", "memory", "report")
# Closed forms, their features, and the registry.
LIGHT_METHODS = (
    "budgeted_statistics class_tensors closed_form directions feature_statistics "
    "features fecam gaussian_solution gaussians klda loranpac lr_rgda ncm "
    "packed_scatter plda randumb ranpac rda registry simple_cil slda srda"
)
PACKAGES = pytest.mark.parametrize("package", ROOMS, ids=lambda package: package.name)


# What files import


def modules_of(node):
    """The modules that a statement or a call imports."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative import"
        # The name may be a module of the package that it is imported from.
        return [f"{node.module}.{name.name}" for name in node.names]
    if isinstance(node, ast.Call) and called_name(node) == "import_module":
        return texts_in(node)
    return []


def called_name(call):
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return getattr(call.func, "id", "")


def texts_in(node):
    constants = [child for child in ast.walk(node) if isinstance(child, ast.Constant)]
    return [child.value for child in constants if isinstance(child.value, str)]


@cache
def imported(path):
    """All modules that a file imports, in functions too."""
    modules = []
    for node in ast.walk(ast.parse(path.read_text())):
        modules += modules_of(node)
    return modules


def imports_of(path, package):
    """The modules of a package that a file imports."""
    return [name for name in imported(path) if name.split(".")[0] == package]


CODE = """
import a.b
def f():
    from c.d import e
    return import_module(f'g.h.{e}')
"""


def test_the_walk_sees_imports(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(CODE)
    assert imported(path) == ["a.b", "c.d.e", "g.h."]


# Files and rooms


def files(folder):
    return sorted(folder.rglob("*.py"))


def files_in(package, room_names):
    """The files of some rooms."""
    paths = []
    for room in room_names:
        paths += files(package / room)
    return paths


def name_of(path, package):
    """The dotted name of a file."""
    return ".".join(path.relative_to(package.parent).with_suffix("").parts)


def room_of(path, package):
    """The room of a file; None at the package's top level."""
    folders = path.relative_to(package).parts[:-1]
    return folders[0] if folders else None


def room_of_module(module, package):
    """The room of an imported module; None at the package's top level."""
    names = module.split(".")[1:]
    if names and names[0] in ROOMS[package]:
        return names[0]
    return None


@PACKAGES
def test_every_folder_is_a_room(package):
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert folders == set(ROOMS[package])


@PACKAGES
def test_no_module_lies_outside_of_rooms(package):
    assert {path.stem for path in package.glob("*.py")} == TOP_LEVEL[package]


# Who may import whom


def is_above(module, room, package):
    """Whether a room imports what it must not: a later one, or the catalog."""
    if module == f"{package.name}.catalog":
        return True
    order = ROOMS[package]
    other = room_of_module(module, package)
    return other is not None and order.index(other) > order.index(room)


@PACKAGES
def test_a_room_imports_only_rooms_below_it(package):
    wrong = []
    for room in ROOMS[package]:
        for path in files(package / room):
            for module in imports_of(path, package.name):
                if is_above(module, room, package):
                    wrong.append(f"{name_of(path, package)} imports {module}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("room_names", "unknown"), [(RESEARCH, APPLICATION), (APPLICATION, RESEARCH)]
)
def test_research_and_application_are_apart(room_names, unknown):
    wrong = []
    for path in files_in(METHOD, room_names):
        for module in imports_of(path, METHOD.name):
            if room_of_module(module, METHOD) in unknown:
                wrong.append(f"{name_of(path, METHOD)} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_the_streams_know_nothing_of_the_method():
    for path in files(STREAMS):
        assert not imports_of(path, METHOD.name), path


def test_only_upper_rooms_know_the_streams():
    lower = set(ROOMS[METHOD]) - KNOW_STREAMS
    for path in [*files_in(METHOD, sorted(lower)), METHOD / "__init__.py"]:
        for module in imports_of(path, STREAMS.name):
            assert module.startswith(TABLES), path


@PACKAGES
@pytest.mark.parametrize("outside", ["experiments", "support", "tests"])
def test_nothing_installed_knows(package, outside):
    for path in files(package):
        assert not imports_of(path, outside), path


@PACKAGES
def test_no_circles(package):
    needs = {name_of(path, package): set() for path in files(package)}
    for path in files(package):
        for module in imports_of(path, package.name):
            if module not in needs:  # a name of a module
                module = module.rpartition(".")[0]
            if module in needs:
                needs[name_of(path, package)].add(module)
    graphlib.TopologicalSorter(needs).prepare()  # raises


# What must stay quick to import

HELP = """
import runpy
sys.argv = ['crumb', '--help']
try: runpy.run_module("crumb_avalanche.cli", run_name="__main__")
except SystemExit as end: assert not end.code
"""
START = (
    "import crumb_avalanche, crumb_avalanche.system.process, "
    "benchmarks_toybox_ilab.tables.frame_table, benchmarks_toybox_ilab.catalog"
)


def light_modules():
    paths = files_in(METHOD, LIGHT)
    paths += [METHOD / "methods" / f"{name}.py" for name in LIGHT_METHODS.split()]
    return ", ".join(name_of(path, METHOD) for path in paths)


# What is imported in one process, each after those before it, and what none of them
# imports.
STEPS = [
    ("import crumb_avalanche.cli", "numpy yaml dataclasses"),
    (START, "torch torchvision avalanche av faiss matplotlib"),
    (HELP, "torch avalanche"),
    (HELP.replace("'crumb'", "'crumb', 'prepare'"), "torch avalanche"),
    (
        "import crumb_avalanche.report.report",
        "torch avalanche tkinter matplotlib.pyplot",
    ),
    (f"import torch, {light_modules()}", "avalanche torchvision"),
]


def checking_program():
    """A program of all steps, which fails at the first heavy import."""
    lines = ["import sys"]
    for code, heavy in STEPS:
        lines.append(code)
        lines.append(f"heavy = {set(heavy.split())} & {{*sys.modules}}")
        lines.append("assert not heavy, heavy")
    return "\n".join(lines)


def test_what_comes_without_heavy_libraries():
    command = [sys.executable, "-W", "ignore", "-c", checking_program()]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


# Public names


@pytest.mark.parametrize("name", crumb_avalanche.__all__)
def test_public_names_exist(name):
    assert getattr(crumb_avalanche, name) is not None


def test_only_public_names_are_listed():
    assert set(dir(crumb_avalanche)) == set(crumb_avalanche.__all__)


def test_other_names_are_reported():
    with pytest.raises(AttributeError, match="No crumb_avalanche attribute Codebok"):
        crumb_avalanche.Codebok  # noqa: B018
