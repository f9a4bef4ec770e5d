"""The signature and docstring that all Avalanche generators share, and a data set that is one file."""

import inspect
import pickle
import re
import subprocess
import sys

import pytest
from PIL import Image

import benchmarks_toybox_ilab as streams
from benchmarks_toybox_ilab.datasets.registry import BENCHMARKS
from benchmarks_toybox_ilab.prepare.core import check

SHARED = {
    "dataset_root": inspect.Parameter.empty,
    "protocol": "class_instance",
    "run": 0,
    "train_transform": None,
    "eval_transform": None,
    "classes_per_experience": 2,
}
# What each generator has besides these parameters, or in their place.
OWN = {
    **{name: {"reference": False} for name in ("CORe50", "Toybox", "ILab", "ICub", "ILabCORe50")},
    "OnlineCIFAR100": {"protocol": "class_iid", "classes_per_experience": 5, "reference": False},
    "OnlineImageNet": {"protocol": "class_iid", "classes_per_experience": 100, "reference": False},
    "ETH80": {},
    "TinyImageNet": {"protocol": "class_iid", "classes_per_experience": 10},
    "ClipFolder": {"held_out": None, "fps": 1.0},
    "ToyShapes": {"dataset_root": None, "table": inspect.Parameter.empty},
}
TOY = """
import re
from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import Benchmark, generator

LAYOUT = Layout(
    "toy_tree",
    "the toy tree",
    tree="<root>/{train,test}/<class>/<image>.png",
    source="drawn by hand",
    pattern=re.compile(r"(?P<folder>train|test)/(?P<class_name>[a-z]+)/(?P<name>\\d+)\\.png"),
    folders=("train", "test"),
    counts={"classes": 3, "train": 6, "test": 3},
    per_class={"train": 2, "test": 1},
)

def ToyTreeFrames(root):
    return LAYOUT.image_table(root)

@generator(Benchmark(LAYOUT, ToyTreeFrames, 1, 2, 3), "class_iid")
def ToyTree(dataset_root):
    \"\"\"The toy tree as an Avalanche benchmark.\"\"\"
    return ToyTreeFrames(dataset_root)
"""


@pytest.mark.parametrize("name", OWN)
def test_parameters_documentation_and_home(name):
    generator = getattr(streams, name)
    parameters = inspect.signature(generator).parameters
    expected = {**SHARED, **OWN[name]}
    assert {key: parameter.default for key, parameter in parameters.items()} == expected
    assert list(parameters) == list(expected)
    kinds = {key: parameter.kind for key, parameter in parameters.items()}
    assert kinds.pop("table", inspect.Parameter.VAR_KEYWORD) is inspect.Parameter.VAR_KEYWORD
    assert set(kinds.values()) == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters.values())
    summary, arguments, returns = re.split(r"\n\n(?:Args|Returns):\n", inspect.getdoc(generator))
    assert summary.partition("\n")[0].endswith(".") and "FrameBenchmark" in returns
    assert re.findall(r"^    \*{0,2}(\w+): [\"\w]", arguments, re.MULTILINE) == list(expected)
    assert hasattr(streams, re.search(r"as `root` of `(\w+)`", arguments)[1]) and "{" not in arguments
    assert max(map(len, inspect.getdoc(generator).splitlines())) <= 120
    assert generator.__name__ == generator.__qualname__ == name
    assert pickle.loads(pickle.dumps(generator)) is generator


def test_generators_come_without_docstrings(tmp_path):
    code = "import benchmarks_toybox_ilab as s; assert s.CORe50.__doc__ is None; s.ToyShapes, s.OnlineImageNet"
    subprocess.run([sys.executable, "-OO", "-c", code], check=True)


def test_a_data_set_of_one_file_is_known_by_name(tmp_path, monkeypatch, crumb, tiny):
    (tmp_path / "tree_of_a_user.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    module, root = __import__("tree_of_a_user"), tmp_path / "tree"
    try:
        for number, name in enumerate(("bee", "cat", "dog")):
            for image, split in enumerate(("train", "train", "test")):
                path = root / split / name / f"{image}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (32, 32), (80 * number, 40 * image, 90)).save(path)
        table = streams.get_benchmark("toy_tree").table(str(root), 0)
        assert list(table.counts().values()) == 3 * [{"train": 2, "test": 1}]
        stream = module.ToyTree(root, run=1)
        assert stream.protocol == "class_iid" and stream.n_classes_per_exp == [1, 1, 1]
        assert "as `root` of `ToyTreeFrames`" in module.ToyTree.__doc__
        code, out, _ = crumb("prepare", "toy_tree", "--dataset-root", root, "--check")
        assert code == 0 and "complete" in out
        values = {"clip_folder": "toy_tree", tiny[tiny.index("--dataset-root") + 1]: str(root)}
        code, _, err = crumb(*(values.get(word, word) for word in tiny), "--output", tmp_path / "run")
        assert code == 0, err
        assert "benchmark: toy_tree" in (tmp_path / "run/config.yaml").read_text()
        (root / "test/dog/2.png").unlink()
        assert "class dog: 2 of 2 images in train, 0 of 1 images in test" not in check("toy_tree", root).lines
        assert "class dog: 0 of 1 images in test" in check("toy_tree", root).lines
        (root / "test/dog/odd.png").touch()
        code, _, err = crumb("prepare", "toy_tree", "--dataset-root", root, "--check")
        assert code == 1 and "image test/dog/odd.png does not fit the layout of the toy tree" in err
    finally:
        BENCHMARKS.pop("toy_tree")
        sys.modules.pop("tree_of_a_user")
