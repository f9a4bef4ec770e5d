"""The signature and docstring that all Avalanche generators share."""

import inspect
import pickle
import re
import subprocess
import sys

import pytest
from fake_data import write_eth80

import benchmarks_toybox_ilab as streams

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
    frames = re.search(r"As `root` of `(\w+)`", arguments)
    assert "{" not in arguments and (name == "ToyShapes" or hasattr(streams, frames[1]))
    assert max(map(len, inspect.getdoc(generator).splitlines())) <= 120
    assert generator.__name__ == generator.__qualname__ == name
    assert pickle.loads(pickle.dumps(generator)) is generator


def test_wrong_arguments_name_the_generator(tmp_path):
    with pytest.raises(TypeError, match=r"^CORe50\(\) .*'dataset_root'"):
        streams.CORe50()
    with pytest.raises(TypeError, match=r"^ETH80\(\) .*'reference'"):
        streams.ETH80(tmp_path, reference=True)


def test_arguments_may_be_given_by_position(tmp_path):
    write_eth80(tmp_path)
    by_position = streams.ETH80(tmp_path, "offline", 1, str, repr, 1)
    by_name = streams.ETH80(
        classes_per_experience=1,
        eval_transform=repr,
        train_transform=str,
        run=1,
        protocol="offline",
        dataset_root=tmp_path,
    )
    for benchmark in (by_position, by_name):
        assert (benchmark.protocol, benchmark.run, len(benchmark.test_stream)) == ("offline", 1, 2)
        assert "image mode=RGB size=12x8" in benchmark.train_stream[0].dataset[0][0]  # str() of an image
    assert by_position.frame_table.content_hash() == by_name.frame_table.content_hash()


def test_generators_come_without_docstrings(tmp_path):
    code = "import benchmarks_toybox_ilab as s; assert s.CORe50.__doc__ is None; s.ToyShapes, s.OnlineImageNet"
    subprocess.run([sys.executable, "-OO", "-c", code], check=True)
