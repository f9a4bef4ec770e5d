"""What is said of the methods of this folder, without importing torch.

A list of all methods reads their calls of ``register`` as text: importing all of them
takes seconds and a gigabyte.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Description:
    """What is said of a method.

    Attributes:
        name, summary, source, stores: see ``Entry``.
        joint, round_up, budgeted: see ``Entry``.
    """

    name: str
    summary: str
    source: str
    stores: str
    joint: bool
    round_up: bool
    budgeted: bool

    @property
    def budget_rule(self) -> str:
        """How the number of memories follows from the budget."""
        if self.joint:
            return "none: a bound that is trained on all images"
        if not self.budgeted:
            return (
                "none: its size does not depend on the budget; the ledger lists its "
                "bytes"
            )
        rule = "(budget - fixed bytes) / bytes of one memory, rounded down"
        if self.round_up:
            rule += "; rounded up if three quarters of a last memory fit"
        return rule


@cache
def descriptions() -> dict[str, Description]:
    """Return what is said of each method of this folder, in the order of the files."""
    paths = sorted(Path(__file__).parent.glob("*.py"))
    modules = [_Module.read(path) for path in paths]
    classes: dict[str, ast.ClassDef] = {}
    for module in modules:
        classes |= module.classes
    by_name = {}
    for module in modules:
        for node, call in module.registered():
            description = _description(node, call, module.texts, classes)
            by_name[description.name] = description
    return by_name


@dataclass(frozen=True)
class _Module:
    """The top level of a file.

    Attributes:
        nodes: its statements.
        classes: those that it defines, by name.
        texts: values of its constants that are texts, by name.
    """

    nodes: list[ast.stmt]
    classes: dict[str, ast.ClassDef]
    texts: dict[str, str]

    @staticmethod
    def read(path: Path) -> "_Module":
        """Parse a file of this folder; see the class."""
        nodes = ast.parse(path.read_text(encoding="utf-8")).body
        classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        texts = {}
        for node in nodes:
            if not isinstance(node, ast.Assign):
                continue
            if isinstance(node.value, ast.Constant):
                texts[ast.unparse(node.targets[0])] = str(node.value.value)
        return _Module(nodes=nodes, classes=classes, texts=texts)

    def registered(self) -> Iterator[tuple[ast.stmt, ast.Call]]:
        """Yield each definition that ``register`` decorates, with that call."""
        for node in self.nodes:
            for decorator in getattr(node, "decorator_list", ()):
                if not isinstance(decorator, ast.Call):
                    continue
                if ast.unparse(decorator.func) == "register":
                    yield node, decorator


def _description(
    node: ast.stmt,
    call: ast.Call,
    texts: dict[str, str],
    classes: dict[str, ast.ClassDef],
) -> Description:
    """Describe a method by the source of its ``@register(...)``, without importing it.

    Args:
        node: definition of the method, a class or a function.
        call: of ``register``, which decorates it.
        texts: values of string constants of its file, by name.
        classes: definitions of the classes in all files of this folder, by name.
    """
    # Values of the call's arguments, by name; these two may be left out.
    arguments: dict[str, Any] = {"joint": False, "round_up": False}
    for keyword in call.keywords:
        argument = None  # of what is computed, such as a function
        if isinstance(keyword.value, ast.Constant):
            argument = keyword.value.value
        elif isinstance(keyword.value, ast.Name):
            argument = texts.get(keyword.value.id)
        arguments[str(keyword.arg)] = argument
    # Whether the bytes that a run may store decide how much the method stores.
    is_budgeted = "buffer" in arguments or "item_bytes" in arguments
    if isinstance(node, ast.ClassDef) and not is_budgeted:
        is_budgeted = _is_budgeted(node, classes)
    return Description(
        name=ast.literal_eval(call.args[0]),
        summary=arguments["summary"],
        source=arguments["source"],
        stores=arguments["stores"],
        joint=arguments["joint"],
        round_up=arguments["round_up"],
        budgeted=is_budgeted,
    )


def _is_budgeted(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """Whether the budget of a run decides how much a method's class stores.

    The source says so by an attribute ``buffer``, or ``budgeted = True``, of the class
    or of one that it is derived from.

    Args:
        node: definition of the class.
        classes: definitions of the classes in all files of this folder, by name.
    """
    for statement in node.body:
        source = ast.unparse(statement)
        if source.startswith(("buffer:", "buffer =")):
            return True
        if source.startswith("budgeted"):
            return source.endswith("True")
    for base in node.bases:
        parent = classes.get(ast.unparse(base))
        if parent is not None and _is_budgeted(parent, classes):
            return True
    return False
