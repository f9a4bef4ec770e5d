"""The Python of pages, run, and docstrings of the names that the packages export."""

import ast
import copy
import re
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from fake_data import values_of
from page_commands import ROOT, blocks
from resumed import restore_as_a_run
from site_parts import reference

from crumb_avalanche.methods.registry import (
    STRATEGIES,
    LearningSettings,
    Recipe,
    build_strategy,
)
from crumb_avalanche.models.initialisers import init_normal_


def blocks_of(page: str) -> list[str]:
    """The Python blocks of a page."""
    return blocks((ROOT / "docs" / page).read_text(encoding="utf-8"), "python")


def run_blocks(page: str, codes: list[str]) -> dict:
    """Run blocks of a page one after the other; return what they define."""
    names: dict = {}
    for code in codes:
        exec(compile(code, page, "exec"), names)
    return names


def stream_accuracy(results: dict) -> float:
    """The accuracy on a stream among an evaluator's results."""
    (name,) = [name for name in results if name.startswith("Top1_Acc_Stream")]
    return results[name]


# Coming from scikit-learn


@pytest.fixture(scope="module")
def for_scikit_learn():
    pytest.importorskip("sklearn")
    return run_blocks("coming_from.md", blocks_of("coming_from.md"))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_method_here_learns(for_scikit_learn):
    names = for_scikit_learn
    assert names["here"].score(names["features"], names["labels"]) > 0.9


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_method_there_learns(for_scikit_learn):
    names = for_scikit_learn
    answers = names["model"].predict(names["features"])
    assert (answers == names["labels"]).mean() > 0.9


def test_a_pipeline_has_the_classes(for_scikit_learn):
    assert for_scikit_learn["pipeline"].classes_.tolist() == ["cup", "dog"]


# Adding a method, a data set and a buffer


@pytest.fixture(scope="module")
def names():
    """What the examples of adding things define; their methods are removed again."""
    list(STRATEGIES.values())  # imports the package's, which stay afterwards
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(STRATEGIES, "_entries", dict(STRATEGIES._entries))
        yield run_blocks("extend.md", blocks_of("extend.md"))


def test_the_data_set_has_its_classes(names):
    assert names["table"].classes == ("blue", "green", "red", "yellow")
    assert len(names["table"]) == 48


def test_the_data_set_holds_out_an_object(names):
    table = names["table"]
    objects = values_of(table.object_name, table.rows("test"))
    assert objects == {"2"}


def test_the_data_set_is_a_stream(names):
    assert names["benchmark"].n_classes == 4
    assert len(names["benchmark"].train_stream) == 2


def test_the_strategy_learns(names):
    assert stream_accuracy(names["results"]) > 0.5  # chance is 0.25


def test_the_buffer_holds_the_bytes_that_it_says(names):
    buffer = names["buffer"]
    assert len(buffer) == 8
    assert buffer.buffer_bytes == 8 * buffer.item_bytes(names["model"])


def test_the_buffer_gives_maps_back(names):
    buffer = names["buffer"]
    model = names["model"]
    maps = torch.randn(2, *model.map_shape)
    rows = buffer.to_rows(SimpleNamespace(feature_map=maps), [0, 1], model)
    torch.testing.assert_close(buffer.to_maps(rows, model), maps, rtol=0, atol=1e-2)


def test_the_entry_builds_the_strategy(names, make_model):
    model = make_model()
    entry = STRATEGIES["clipped_replay"]
    init_normal_(model.codebook, torch.zeros(1), torch.Generator().manual_seed(0))
    recipe = Recipe(
        model=model,
        settings=LearningSettings(),
        method=entry.method_settings({"norm": 2}),
        mem_size=8,
        n_classes=4,
        seed=0,
        device="cpu",
        host={},
    )
    strategy = entry.build(recipe)
    assert isinstance(strategy, names["ClippedReplay"])
    assert strategy.norm == 2
    assert strategy.storage_policy.max_size == 8


@pytest.mark.usefixtures("names")
def test_the_entry_counts_its_memories(make_model):
    model = make_model()
    channels, height, width = model.map_shape
    budget = 10 * 2 * channels * height * width
    assert STRATEGIES["clipped_replay"].memories_in_budget(model, budget, 4) == 10


@pytest.mark.parametrize("method", ["clipped_replay", "scaled_means"])
def test_an_interrupted_run_of_it_resumes(names, method, tmp_path):
    def built():
        model = copy.deepcopy(names["model"])
        evaluator = EvaluationPlugin(loggers=[])
        return build_strategy(method, model, mem_size=8, evaluator=evaluator)

    trained = built()
    fresh = built()
    trained.train(names["benchmark"].train_stream[0])
    restore_as_a_run(trained, fresh, tmp_path)
    assert fresh.clock.train_exp_counter == 1
    assert fresh.seen_classes.seen == trained.seen_classes.seen


def test_the_closed_form_learns(names):
    assert stream_accuracy(names["closed_form_results"]) > 0.5
    assert names["scaled"].statistics.settings["least"] == 0.01


def test_the_closed_form_counts_its_bytes(names):
    strategy = names["scaled"]
    entry = STRATEGIES["scaled_means"]
    fixed = entry.fixed_bytes(strategy.model, entry.settings(), 4)
    assert fixed == strategy.statistics_bytes


@pytest.mark.usefixtures("names")
def test_the_closed_form_has_a_range():
    with pytest.raises(ValueError, match=r"least is 0; give more than 0"):
        STRATEGIES["scaled_means"].method_settings({"least": 0})


# Docstrings

ENTRY = re.compile(r"^    (\w[\w, ]*):", re.MULTILINE)
SEE = re.compile(r"[Ss]ee\s+`[^`]+`(?:,?\s+(?:and )?`[^`]+`)*")
SHAPE = re.compile(r"`\([^`]*\)|any shape|[Ss]calar|same shape|\d x \d")  # as `(B, C)`
# Avalanche's and torch's; described there.
HOOKS = re.compile(r"(before|after)_\w+|(load_)?state_dict|result|reset")


@dataclass(frozen=True)
class Definition:
    """An exported class or function: its full name and its syntax tree."""

    target: str
    node: ast.ClassDef | ast.FunctionDef


def definition_of(target: str) -> Definition | None:
    """The definition of an exported name; None for what is neither."""
    module, _, name = target.rpartition(".")
    tree = ast.parse(reference.source(module).read_text(encoding="utf-8"))
    for node in tree.body:
        is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef)
        if is_definition and node.name == name:
            return Definition(target, node)
    return None


def definitions() -> list[Definition]:
    """All exported classes and functions."""
    exported = []
    for names in reference.exported().values():
        exported += map(definition_of, names.values())
    return [definition for definition in exported if definition is not None]


DEFINITIONS = definitions()


@cache
def docstrings() -> dict[str, str]:
    """The docstrings of the streams' package by the names of functions and classes, and
    of methods with their class.
    """
    texts = {}
    for path in (ROOT / "benchmarks_toybox_ilab").glob("**/*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                texts[node.name] = ast.get_docstring(node) or ""
            for method in getattr(node, "body", ()):
                if isinstance(method, ast.ClassDef | ast.FunctionDef):
                    name = f"{getattr(node, 'name', '')}.{method.name}"
                    texts[name] = ast.get_docstring(method) or ""
    return texts


def undescribed(function, docstring: str) -> list[str]:
    """Parameters that neither a docstring nor one that it refers to lists or names."""
    texts = [docstring]
    for match in SEE.finditer(docstring):
        for name in re.findall(r"`(?:[a-z]\w*\.)?([^`]+)`", match[0]):
            texts.append(docstrings().get(name, ""))
    text = "\n".join(texts)
    described = {"self", "cls", *re.findall(r"`(\w+)`", text)}
    for entry in ENTRY.findall(text):
        described.update(name.strip() for name in entry.split(","))
    spec = function.args
    names = [entry.arg for entry in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]]
    return [name for name in names if name not in described]


def unlisted(function, docstring: str) -> list[str]:
    """Errors that a function itself raises and that a docstring does not list."""
    _, _, listed = docstring.partition("Raises:\n")
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            is_call = isinstance(node.exc, ast.Call)
            names.add(ast.unparse(node.exc.func if is_call else node.exc))
    return sorted(
        name for name in names if not re.search(rf"^    {name}: ", listed, re.MULTILINE)
    )


def without_shape(function, docstring: str) -> list[str]:
    """Tensors and arrays that a function takes or returns, where a docstring says
    nothing of a shape.
    """
    if SHAPE.search(docstring):
        return []
    entries = [*function.args.args, *function.args.kwonlyargs]
    annotations = [entry.annotation for entry in entries] + [function.returns]
    kinds = set()
    for annotation in annotations:
        if annotation:
            kinds.update(re.findall(r"\b(Tensor|ndarray)\b", ast.unparse(annotation)))
    return sorted(kinds)


def missing(target: str, function, docstring: str) -> list[str]:
    """All that a docstring lacks of a function."""
    names = undescribed(function, docstring)
    names += unlisted(function, docstring)
    names += without_shape(function, docstring)
    return [f"{target}: {name}" for name in names]


def problems(target: str, node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    """What the docstrings of a class and its methods, or of a function, lack."""
    own = ast.get_docstring(node) or ""
    lines = [] if own else [f"{target} has no docstring"]
    if isinstance(node, ast.FunctionDef):
        return lines + missing(target, node, own)
    for method in node.body:
        if isinstance(method, ast.FunctionDef):
            lines += method_problems(target, method, own)
    return lines


def method_problems(target: str, method: ast.FunctionDef, own: str) -> list[str]:
    """What is missing in the docstring of a method of a class with the docstring
    ``own``.
    """
    text = ast.get_docstring(method)
    if method.name == "__init__":
        return missing(target, method, own)
    if method.name.startswith("_"):
        return []
    name = f"{target}.{method.name}"
    if text and not HOOKS.fullmatch(method.name):
        return missing(name, method, text)
    # The class lists what a hook raises.
    return [f"{name}: {error}" for error in unlisted(method, own)]


def test_there_are_public_names():
    assert len(DEFINITIONS) > 50


@pytest.mark.parametrize(
    "definition", DEFINITIONS, ids=lambda definition: definition.target
)
def test_parameters_errors_and_shapes_are_described(definition):
    assert problems(definition.target, definition.node) == []


ROOT_CODE = """
def root(x: Tensor, y) -> Tensor:
    if y:
        raise NaNError
    raise ValueError(f'x is {x}')
"""
DESCRIBED = """Take the root of `x`, `(n,)` float32.

Args:
    y: flag.

Raises:
    ValueError: never.
"""


@pytest.mark.parametrize(
    ("docstring", "names"),
    [
        ("Take it.", ["x", "y", "NaNError", "ValueError", "Tensor"]),
        (DESCRIBED, ["NaNError"]),
    ],
    ids=["nothing", "all but an error"],
)
def test_what_is_not_described_is_found(docstring, names):
    (function,) = ast.parse(ROOT_CODE).body
    assert missing("root", function, docstring) == [f"root: {name}" for name in names]


def test_what_is_described_elsewhere():
    text = "Take it.\n\nSee `orders.StreamKeywords` and `Benchmark.stream`."
    (function,) = ast.parse("def root(seed, dataset_root, where): pass").body
    assert missing("root", function, text) == ["root: where"]
