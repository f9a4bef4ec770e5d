"""Which room may import which, and what must stay quick to import."""

import ast
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
    "class_tensors closed_form directions features fecam gaussian_solution gaussians "
    "klda loranpac lr_rgda ncm packed_scatter plda randumb ranpac rda registry "
    "simple_cil slda srda"
)
HELP = """
import runpy
sys.argv = ['crumb', '--help']
try: runpy.run_module("crumb_avalanche.cli", run_name="__main__")
except SystemExit as end: assert not end.code
"""


@cache
def imported(path):
    """Pairs (module, inside a function) of what a file imports, as text for
    ``import_module`` too.
    """
    return list(_imported(path))


def _imported(path):
    tree = ast.parse(path.read_text())
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inside = {id(part) for function in functions for part in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, id(node) in inside) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # The name may be a module of the package that it is imported from.
            yield from (
                (f"{node.module}.{name.name}", id(node) in inside)
                for name in node.names
            )
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", ""))
            == "import_module"
        ):
            constants = [
                part for part in ast.walk(node) if isinstance(part, ast.Constant)
            ]
            yield from (
                (part.value, True) for part in constants if isinstance(part.value, str)
            )


def files(package):
    return sorted(package.rglob("*.py"))


def imports_of(path, package):
    return [
        (name, inside)
        for name, inside in imported(path)
        if name.split(".")[0] == package
    ]


def room_of(path, package):
    parts = path.relative_to(package).parts
    return parts[0] if len(parts) > 1 else None


def below(module, package):
    """The room of an imported module; ``None`` at the package's top level."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS[package] else None


@pytest.mark.parametrize("package", ROOMS, ids=lambda package: package.name)
def test_a_room_imports_only_rooms_below_it(package):
    order, wrong = ROOMS[package], []
    for path in files(package):
        room = room_of(path, package)
        if (
            room is None
        ):  # __init__ looks names up on first use, catalog knows all data sets
            continue
        for module, _ in imports_of(path, package.name):
            other = below(module, package)
            above = other is not None and order.index(other) > order.index(room)
            if above or module == f"{package.name}.catalog":
                wrong.append(
                    f"{path.relative_to(package.parent)} in {room}/ imports {module}"
                )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("rooms", "others"), [(RESEARCH, APPLICATION), (APPLICATION, RESEARCH)]
)
def test_research_and_application_do_not_know_each_other(rooms, others):
    paths = [path for room in rooms for path in files(METHOD / room)]
    wrong = [
        f"{path.relative_to(METHOD)} imports {module}"
        for path in paths
        for module, _ in imports_of(path, METHOD.name)
        if below(module, METHOD) in others
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ROOMS, ids=lambda package: package.name)
def test_every_room_exists_and_no_module_lies_outside(package):
    found = {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    assert found == set(ROOMS[package])
    assert {path.stem for path in package.glob("*.py")} == TOP_LEVEL[package]


def test_only_the_upper_rooms_know_the_streams_which_know_nothing_of_the_method():
    for path in files(STREAMS):
        assert not imports_of(path, "crumb_avalanche"), path
    for path in files(METHOD):
        if room_of(path, METHOD) not in KNOW_STREAMS:
            for module, _ in imports_of(path, "benchmarks_toybox_ilab"):
                assert module.startswith(TABLES), path


def test_nothing_installed_knows_the_experiments_and_the_tests():
    for path in files(METHOD) + files(STREAMS):
        for package in ("experiments", "support", "tests"):
            assert not imports_of(path, package), path


def test_the_walk_sees_imports(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(
        "import a.b\ndef f():\n    from c.d import e\n    return "
        "import_module(f'g.h.{e}')\n"
    )
    assert imported(path) == [("a.b", False), ("c.d.e", True), ("g.h.", True)]


@pytest.mark.parametrize("package", ROOMS, ids=lambda package: package.name)
def test_no_circles(package):
    names = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts): path
        for path in files(package)
    }
    arrows = {}
    for name, path in names.items():
        modules = {module for module, _ in imports_of(path, package.name)}
        arrows[name] = {
            i if i in names else i.rpartition(".")[0] for i in modules
        } & names.keys()
    while arrows:
        ready = [name for name, needs in arrows.items() if not needs & arrows.keys()]
        assert ready, f"these import each other: {sorted(arrows)}"
        for name in ready:
            del arrows[name]


def test_what_comes_without_heavy_libraries():
    paths = [path for room in LIGHT for path in files(METHOD / room)]
    paths += [METHOD / "methods" / f"{name}.py" for name in LIGHT_METHODS.split()]
    light = ", ".join(
        ".".join(path.relative_to(METHOD.parent).with_suffix("").parts)
        for path in paths
    )
    program = "import sys\n"
    for code, left_out in (  # each after those before it
        ("import crumb_avalanche.cli", "numpy yaml dataclasses"),
        (
            "import crumb_avalanche, crumb_avalanche.system.process, "
            "benchmarks_toybox_ilab.tables.frame_table, "
            "benchmarks_toybox_ilab.catalog",
            "torch torchvision avalanche av faiss matplotlib",
        ),
        (HELP, "torch avalanche"),
        (HELP.replace("'crumb'", "'crumb', 'prepare'"), "torch avalanche"),
        (
            "import crumb_avalanche.report.report",
            "torch avalanche tkinter matplotlib.pyplot",
        ),
        (f"import torch, {light}", "avalanche torchvision"),
    ):
        unwanted = set(left_out.split())
        program += f"{code}\nfound = {unwanted} & {{*sys.modules}}\n"
        program += "assert not found, found\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_public_names_exist_and_others_are_told():
    for name in crumb_avalanche.__all__:
        assert getattr(crumb_avalanche, name) is not None
    assert set(dir(crumb_avalanche)) == set(crumb_avalanche.__all__)
    with pytest.raises(AttributeError, match="No crumb_avalanche attribute Codebok"):
        crumb_avalanche.Codebok  # noqa: B018
