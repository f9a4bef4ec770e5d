"""Pages of the API reference: one a room, and a list of the names that the packages export."""

import ast
import functools
from pathlib import Path

from site_parts.csv_tables import ROOT

# What each package is, and its rooms, lowest first: a room imports those before it. The
# catalog is a module.
PACKAGES = {
    "crumb_avalanche": (
        "the method: what learns",
        [
            "system",
            "models",
            "memory",
            "training",
            "methods",
            "images",
            "learner",
            "runs",
            "report",
            "serve",
            "cli",
        ],
    ),
    "benchmarks_toybox_ilab": (
        "the streams: what it learns from",
        ["tables", "video", "streams", "datasets", "prepare", "catalog"],
    ),
}


def rooms(package: str) -> list[str]:
    """Return the rooms of a package that are folders, lowest first."""
    _, names = PACKAGES[package]
    return [name for name in names if (ROOT / package / name).is_dir()]


def source(module: str) -> Path:
    """Return the file of a module or package, by its dotted name."""
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def first_line(package: str, room: str) -> str:
    """Return the first line of the docstring of a room, or of a module beside the rooms."""
    text = source(f"{package}.{room}").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]


@functools.cache
def public(path: Path) -> list[str]:
    """Return the public classes and functions of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = ast.ClassDef | ast.FunctionDef
    return [
        node.name
        for node in tree.body
        if isinstance(node, kinds) and not node.name.startswith("_")
    ]


def modules(package: str, room: str) -> list[str]:
    """Return the dotted names of a room's modules that have a public class or function."""
    path = ROOT / package / room
    files = [path.with_suffix(".py")]
    if path.is_dir():
        files = sorted(path.rglob("*.py"))
    names = []
    for file in files:
        if public(file) and file != path / "__init__.py":
            dotted = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            names.append(dotted.removesuffix(".__init__"))
    return names


def exported() -> dict[str, dict[str, str]]:
    """Return the exported names of each package, each with the full name of what it stands for."""
    homes = {}
    for package in PACKAGES:
        stub = (ROOT / package / "__init__.pyi").read_text(encoding="utf-8")
        targets = {}
        for node in ast.parse(stub).body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    targets[alias.name] = f"{package}.{node.module}.{alias.name}"
        homes[package] = dict(sorted(targets.items()))
    return homes


def link(name: str, target: str) -> str:
    """Link to the entry of an exported name."""
    return f"[`{name}`][{target}]"


def room_page(package: str, room: str) -> str:
    """Return the page of a room: its exported names, then its modules."""
    prefix = f"{package}.{room}."  # of the full names
    names = {
        name: target
        for name, target in exported()[package].items()
        if target.startswith(prefix)
    }
    lines = [f"# {package}.{room}", "", first_line(package, room), ""]
    if names:
        links = ", ".join(link(name, target) for name, target in names.items())
        lines += [f"Exported by `{package}`: {links}.", ""]
    for module in modules(package, room):
        lines += [f"::: {module}", ""]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Return the text of each page, by its path in the site."""
    rooms_pages = {}
    lines = ["# API reference", ""]
    lines += [
        "Both packages look up their names on first use, so importing them takes no time.",
        "",
    ]
    for package, (summary, rooms) in PACKAGES.items():
        lines += [
            f"## {package}",
            "",
            f"`{package}` holds {summary}. A room imports only rooms above it.",
            "",
        ]
        lines += ["| room | holds |", "| :-- | :-- |"]
        for room in rooms:
            lines.append(
                f"| [`{room}`]({package}/{room}.md) | {first_line(package, room)} |"
            )
            rooms_pages[f"api/{package}/{room}.md"] = room_page(package, room)
        lines += [
            "",
            f"Names that `from {package} import NAME` gives:",
            "",
            "| name | defined in |",
            "| :-- | :-- |",
        ]
        for name, target in exported()[package].items():
            lines.append(f"| {link(name, target)} | `{target.rpartition('.')[0]}` |")
        lines.append("")
    return {"api/index.md": "\n".join(lines), **rooms_pages}
