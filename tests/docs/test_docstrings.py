"""Docstrings of the names that the packages export, which the API reference shows: arguments, shapes, errors."""

import ast
import re
from functools import cache

from page_commands import ROOT
from site_parts import reference

ENTRY = re.compile(r"^    (\w[\w, ]*):", re.MULTILINE)
SEE = re.compile(r"[Ss]ee\s+`[^`]+`(?:,?\s+(?:and )?`[^`]+`)*")
SHAPE = re.compile(r"`\([^`]*\)|any shape|[Ss]calar|same shape|\d x \d")  # as `(B, C)`
HOOKS = re.compile(r"(before|after)_\w+|(load_)?state_dict|result|reset")  # Avalanche's and torch's; described there


def definitions():
    """Yield the full name and the syntax tree of each exported class and function."""
    for names in reference.exported().values():
        for target in names.values():
            module, _, name = target.rpartition(".")
            tree = ast.parse(reference.source(module).read_text(encoding="utf-8"))
            for node in tree.body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                    yield target, node


@cache
def docstrings() -> dict[str, str]:
    """The docstrings of the streams' package by the names of functions and classes, and of methods with their class."""
    found = {}
    for path in (ROOT / "benchmarks_toybox_ilab").glob("**/*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for one in (node, *getattr(node, "body", ())):
                if isinstance(one, ast.ClassDef | ast.FunctionDef):
                    name = one.name if one is node else f"{getattr(node, 'name', '')}.{one.name}"
                    found[name] = ast.get_docstring(one) or ""
    return found


def undescribed(function, docstring: str) -> list[str]:
    """Parameters that neither a docstring nor one that it says to see lists or names."""
    spec = function.args
    names = [one.arg for one in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]]
    seen = [name for match in SEE.finditer(docstring) for name in re.findall(r"`(?:[a-z]\w*\.)?([^`]+)`", match[0])]
    text = "\n".join([docstring, *(docstrings().get(name, "") for name in seen)])
    listed = {name.strip() for match in ENTRY.finditer(text) for name in match[1].split(",")}
    return [name for name in names if name not in {"self", "cls", *listed} and not re.search(rf"`{name}`", text)]


def unlisted(function, docstring: str) -> list[str]:
    """Errors that a function itself raises and that a docstring does not list."""
    raised = [node.exc for node in ast.walk(function) if isinstance(node, ast.Raise) and node.exc is not None]
    names = {ast.unparse(one.func if isinstance(one, ast.Call) else one) for one in raised}
    listed = docstring.partition("Raises:\n")[2]
    return sorted(name for name in names if not re.search(rf"^    {name}: ", listed, re.MULTILINE))


def without_shape(function, docstring: str) -> list[str]:
    """Tensors and arrays that a function takes or returns, where a docstring says nothing of a shape."""
    annotations = [one.annotation for one in [*function.args.args, *function.args.kwonlyargs]] + [function.returns]
    kinds = {name for one in annotations if one for name in re.findall(r"\b(Tensor|ndarray)\b", ast.unparse(one))}
    return [] if SHAPE.search(docstring) else sorted(kinds)


def missing(target: str, function, docstring: str) -> list[str]:
    """All that a docstring lacks of a function."""
    found = undescribed(function, docstring) + unlisted(function, docstring) + without_shape(function, docstring)
    return [f"{target}: {name}" for name in found]


def problems(target: str, node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    """What is missing in the docstrings of a class with its methods, or of a function."""
    own = ast.get_docstring(node) or ""
    found = [] if own else [f"{target} has no docstring"]
    if isinstance(node, ast.FunctionDef):
        return found + missing(target, node, own)
    for method in node.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        text = ast.get_docstring(method)
        if method.name == "__init__":
            found += missing(target, method, own)
        elif text and not method.name.startswith("_") and not HOOKS.fullmatch(method.name):
            found += missing(f"{target}.{method.name}", method, text)
        elif not method.name.startswith("_"):  # the class lists what it raises
            found += [f"{target}.{method.name}: {name}" for name in unlisted(method, own)]
    return found


def test_public_names_describe_parameters_errors_and_shapes():
    looked_at = dict(definitions())
    assert len(looked_at) > 50
    found = [problem for target, node in looked_at.items() for problem in problems(target, node)]
    assert not found, "\n".join(found)


def test_what_is_not_described_is_found():
    code = "def root(x: Tensor, y) -> Tensor:\n    if y:\n        raise NaNError\n    raise ValueError(f'x is {x}')"
    node = ast.parse(code)
    assert missing("root", node.body[0], "Take it.") == [
        f"root: {name}" for name in ("x", "y", "NaNError", "ValueError", "Tensor")
    ]
    described = "Take the root of `x`, `(n,)` float32.\n\nArgs:\n    y: flag.\n\nRaises:\n    ValueError: never.\n"
    assert missing("root", node.body[0], described) == ["root: NaNError"]
    text = "Take it.\n\nSee `orders.StreamKeywords` and `Benchmark.stream`."
    node = ast.parse("def root(seed, dataset_root, where): pass")
    assert missing("root", node.body[0], text) == ["root: where"]
