"""Docstrings of the names that the packages export: the API reference shows them."""

import ast
import re

import pytest
from page_commands import ROOT
from site_parts import reference

ENTRY = re.compile(r"^    (\w[\w, ]*):", re.MULTILINE)
HOOKS = re.compile(r"(before|after)_\w+|(load_)?state_dict|result|reset")  # Avalanche's and torch's; described there


def definitions():
    """Yield the full name and the syntax tree of each exported class and function."""
    for names in reference.exported().values():
        for target in names.values():
            module, _, name = target.rpartition(".")
            tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8"))
            for node in tree.body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                    yield target, node


def undescribed(function, docstring: str) -> list[str]:
    """Parameters that a docstring neither lists nor names in its text."""
    spec = function.args
    names = [one.arg for one in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]]
    listed = {name.strip() for match in ENTRY.finditer(docstring) for name in match[1].split(",")}
    return [name for name in names if name not in {"self", "cls", *listed} and not re.search(rf"`{name}`", docstring)]


def problems(target: str, node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    """What is missing in the docstrings of a class with its methods, or of a function."""
    own = ast.get_docstring(node) or ""
    found = [] if own else [f"{target} has no docstring"]
    if isinstance(node, ast.FunctionDef):
        return found + [f"{target}: {name}" for name in undescribed(node, own)]
    for method in node.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        text = ast.get_docstring(method)
        if method.name == "__init__":
            found += [f"{target}: {name}" for name in undescribed(method, own)]
        elif (
            not method.name.startswith("_") and (text := ast.get_docstring(method)) and not HOOKS.fullmatch(method.name)
        ):
            found += [f"{target}.{method.name}: {name}" for name in undescribed(method, text)]
    return found


def test_public_names_describe_their_parameters():
    found = [problem for target, node in definitions() for problem in problems(target, node)]
    assert not found, "\n".join(found)


def test_every_exported_class_and_function_is_looked_at():
    assert {target.rpartition(".")[2] for target, _ in definitions()} >= {
        "Codebook",
        "Learner",
        "split_at",
        "FrameTable",
    }


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ('"""Do it."""', ["a", "b"]),
        ('"""Do it.\n\n    Args:\n        a, b: numbers.\n    """', []),
        ('"""Add `a`."""', ["b"]),
    ],
)
def test_parameters_without_a_description_are_found(text, missing):
    node = ast.parse(f"def add(a, b):\n    {text}\n").body[0]
    assert undescribed(node, ast.get_docstring(node)) == missing
