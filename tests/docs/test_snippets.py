"""The Python lines of pages, run one after the other, and docstrings of the names that
the packages export.
"""

import ast
import contextlib
import io
import re
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from page_commands import ROOT, blocks
from PIL import Image
from site_parts import reference
from small_lessons import SIZE, images

from crumb_avalanche.learner.export import export_onnx
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings, Recipe
from crumb_avalanche.models.codebook import init_normal_


def defined_by(page: str, codes=slice(None)) -> dict:
    """What the Python blocks of a page define."""
    names: dict = {}
    for code in blocks((ROOT / "docs" / page).read_text(encoding="utf-8"), "python")[
        codes
    ]:
        exec(compile(code, page, "exec"), names)
    return names


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_models_of_scikit_learns_users_learn():
    pytest.importorskip("sklearn")
    names = defined_by("coming_from.md")
    assert names["here"].score(names["features"], names["labels"]) > 0.9
    assert (names["model"].predict(names["features"]) == names["labels"]).mean() > 0.9
    assert names["pipeline"].classes_.tolist() == ["cup", "dog"]


def test_plain_onnx_runtime_answers_as_the_learner(weights_file, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    learner = Learner(backbone="small_cnn", weights=weights_file, image_size=SIZE)
    for number in range(3):
        learner.teach(images(number), f"c{number}")
    monkeypatch.chdir(tmp_path)
    export_onnx(learner, tmp_path / "mine.onnx")
    Image.fromarray(images(1, 1, seed=3)[0]).save("photo.jpg")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        defined_by("robots.md", slice(-1, None))
    label, share = printed.getvalue().split()
    answer = learner.predict("photo.jpg")
    assert label == answer.label and float(share) == pytest.approx(
        answer.confidence, abs=1e-3
    )


@pytest.fixture(scope="module")
def names():
    """What the examples of adding a method, a data set and a buffer define."""
    return defined_by("extend.md")


def test_the_data_set_holds_out_an_object(names):
    table = names["table"]
    assert len(table) == 48 and table.classes == ("blue", "green", "red", "yellow")
    assert {
        name for name, split in zip(table.object_name, table.split) if split == "test"
    } == {"2"}
    assert (
        names["benchmark"].n_classes == 4 and len(names["benchmark"].train_stream) == 2
    )


def test_the_strategy_learns(names):
    accuracy = next(
        value
        for name, value in names["results"].items()
        if name.startswith("Top1_Acc_Stream")
    )
    assert accuracy > 0.5  # chance is 0.25


def test_the_buffer_holds_the_bytes_that_it_says(names):
    buffer, model = names["buffer"], names["model"]
    assert len(buffer) == 8 and buffer.buffer_bytes == 8 * buffer.item_bytes(model)
    maps = torch.randn(2, *model.map_shape)
    batch = SimpleNamespace(feature_map=maps)
    assert torch.allclose(
        buffer.to_maps(buffer.to_rows(batch, [0, 1], model), model), maps, atol=1e-2
    )


def test_the_entry_builds_the_strategy_and_counts_its_memories(names, make_model):
    model, entry = make_model(), STRATEGIES["clipped_replay"]
    init_normal_(model.codebook, torch.zeros(1), torch.Generator().manual_seed(0))
    recipe = Recipe(
        model,
        LearningSettings(),
        entry.method_settings({"norm": 2}),
        8,
        4,
        0,
        "cpu",
        {},
    )
    built = entry.build(recipe)
    assert (
        isinstance(built, names["ClippedReplay"])
        and built.norm == 2
        and built.storage_policy.max_size == 8
    )
    channels, height, width = model.map_shape
    assert entry.memories_in_budget(model, 10 * 2 * channels * height * width, 4) == 10


def test_the_closed_form_learns_and_its_bytes_and_settings_follow_from_it(names):
    strategy, entry = names["scaled"], STRATEGIES["scaled_means"]
    accuracy = next(
        value
        for name, value in names["closed_form_results"].items()
        if name.startswith("Top1_Acc_Stream")
    )
    assert accuracy > 0.5 and strategy.statistics.settings["least"] == 0.01
    assert (
        entry.fixed_bytes(strategy.model, entry.settings(), 4)
        == strategy.statistics_bytes
    )
    with pytest.raises(ValueError, match=r"least is 0; give more than 0"):
        entry.method_settings({"least": 0})


ENTRY = re.compile(r"^    (\w[\w, ]*):", re.MULTILINE)
SEE = re.compile(r"[Ss]ee\s+`[^`]+`(?:,?\s+(?:and )?`[^`]+`)*")
SHAPE = re.compile(r"`\([^`]*\)|any shape|[Ss]calar|same shape|\d x \d")  # as `(B, C)`
HOOKS = re.compile(
    r"(before|after)_\w+|(load_)?state_dict|result|reset"
)  # Avalanche's and torch's; described there


def definitions():
    """Yield the full name and the syntax tree of each exported class and function."""
    for names in reference.exported().values():
        for target in names.values():
            module, _, name = target.rpartition(".")
            tree = ast.parse(reference.source(module).read_text(encoding="utf-8"))
            for node in tree.body:
                is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef)
                if is_definition and node.name == name:
                    yield target, node


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


def test_public_names_describe_parameters_errors_and_shapes():
    looked_at = dict(definitions())
    assert len(looked_at) > 50
    found = [
        problem
        for target, node in looked_at.items()
        for problem in problems(target, node)
    ]
    assert not found, "\n".join(found)


def test_what_is_not_described_is_found():
    code = (
        "def root(x: Tensor, y) -> Tensor:\n    if y:\n        raise NaNError\n    "
        "raise ValueError(f'x is {x}')"
    )
    node = ast.parse(code)
    assert missing("root", node.body[0], "Take it.") == [
        f"root: {name}" for name in ("x", "y", "NaNError", "ValueError", "Tensor")
    ]
    described = (
        "Take the root of `x`, `(n,)` float32.\n\nArgs:\n    y: flag.\n\nRaises:\n    "
        "ValueError: never.\n"
    )
    assert missing("root", node.body[0], described) == ["root: NaNError"]
    text = "Take it.\n\nSee `orders.StreamKeywords` and `Benchmark.stream`."
    node = ast.parse("def root(seed, dataset_root, where): pass")
    assert missing("root", node.body[0], text) == ["root: where"]
