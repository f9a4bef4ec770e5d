"""The generators: what editors show of them, and their keywords against the host's.

And a data set that is one file.
"""

import inspect
import os
import pickle
import shutil
import sys

import jedi
import pytest
from avalanche.benchmarks.classic import ccifar100
from mypy import api
from page_commands import ROOT
from PIL import Image
from site_parts.result_tables import data_sets

import benchmarks_toybox_ilab as streams
from benchmarks_toybox_ilab import (
    FrameDataset,
    OnlineCIFAR100,
    StreamKeywords,
    pixel_transform,
)
from benchmarks_toybox_ilab.datasets.registry import BENCHMARKS
from benchmarks_toybox_ilab.prepare.core import take_inventory
from benchmarks_toybox_ilab.streams.orders import class_counts

# What each generator has of its own besides `dataset_root`.
OWN = {
    "Toybox": ["reference"],
    "ILab": ["reference"],
    "ICub": ["reference"],
    "ILabCORe50": ["reference"],
    "OnlineCIFAR100": ["reference"],
    "OnlineImageNet": ["reference"],
    "CORe50": ["scenario", "object_lvl", "mini", "reference", "download"],
    "CORe50Categories": ["reference", "download"],
    "ETH80": [],
    "TinyImageNet": ["download"],
    "Stream51": ["scenario", "eval_num", "bbox_crop", "ratio", "download"],
    "OpenLORIS": ["factor"],
    "CLEAR": ["data_name", "evaluation_protocol"],
    "ORBIT": ["user"],
    "ClipFolder": ["held_out", "fps"],
    "ToyShapes": [
        "classes",
        "objects_per_class",
        "sessions",
        "frames_per_clip",
        "size",
        "held_out_sessions",
        "dots",
    ],
}
SCRIPT = """
from benchmarks_toybox_ilab import CORe50, ToyShapes
from crumb_avalanche import CRUMBStrategy
ToyShapes(seed=1, n_experiences=5, shuffle=False, dots=True).train_stream
ToyShapes(seed='one')
CORe50(experiences=5)
CRUMBStrategy(mem_size=417)
"""
TOY = """
import re
from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import Benchmark, register

LAYOUT = Layout(
    "toy_tree",
    "the toy tree",
    tree="<root>/{train,test}/<class>/<image>.png",
    source="drawn by hand",
    pattern=re.compile(r"(?P<folder>train|test)/(?P<class_name>[a-z]+)/(?P<name>\\d+)\\.png"),
    folders=("train", "test"),
    counts={"classes": 3, "train": 6, "test": 3},
)

def ToyTreeFrames(root):
    return LAYOUT.image_table(root)

BENCHMARK = register(Benchmark(LAYOUT, ToyTreeFrames, 1, 2, 3, protocol="class_iid"))

def ToyTree(dataset_root=None, **host):
    return BENCHMARK.stream(dataset_root, **host)
"""


@pytest.mark.parametrize(("name", "own"), OWN.items())
def test_the_signature_of_a_generator(name, own):
    generator = getattr(streams, name)
    parameters = list(inspect.signature(generator).parameters)
    assert parameters == ["dataset_root", *own, *StreamKeywords.__annotations__]
    assert generator.__name__ == name
    assert pickle.loads(pickle.dumps(generator)) is generator


@pytest.mark.parametrize(("name", "own"), OWN.items())
def test_an_editor_shows_all_arguments(name, own):
    code = f"from benchmarks_toybox_ilab import {name}\n{name}("
    editor = jedi.Script(code, project=jedi.Project(ROOT))
    names = [completion.name for completion in editor.complete()]
    arguments = {name.removesuffix("=") for name in names if name.endswith("=")}
    assert arguments == {"dataset_root", *own, *StreamKeywords.__annotations__}


@pytest.mark.slow  # as that of all the code
def test_a_type_checker_knows_the_arguments(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = ["--config-file", str(ROOT / "setup.cfg"), "--cache-dir", os.devnull]
    out, _, _ = api.run([str(script), *options])
    lines = [line for line in out.splitlines() if "script.py" in line]
    errors = [line for line in lines if "error" in line]
    assert len(errors) == 4
    assert 'Argument "seed" to "ToyShapes" has incompatible type "str"' in errors[0]
    assert 'Unexpected keyword argument "experiences" for "CORe50"' in errors[1]
    missing = {line.partition("argument ")[2].split()[0] for line in errors[2:]}
    assert missing == {'"model"', '"optimizer"'}


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """The 100 classes of CIFAR-100, each image of one colour.

    Two training images and one test image of each class.
    """
    root = tmp_path_factory.mktemp("cifar")
    for label in range(100):
        for number, split in enumerate(("test", "train", "train")):
            path = root / split / f"class_{label:02d}" / f"{3 * label + number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (2, 2), (label, number, 0)).save(path)
    return root


def contents(stream):
    """Return what the experiences of a stream hold.

    Classes, those before and after, task labels, and items without order.
    """
    experiences = []
    for experience in stream:
        samples = []
        for image, label, task in experience.dataset:
            samples.append((*image[:2, 0, 0].tolist(), int(label), int(task)))
        experiences.append(
            {
                "present": set(experience.classes_in_this_experience),
                "previous": set(experience.previous_classes),
                "seen": set(experience.classes_seen_so_far),
                "future": set(experience.future_classes),
                "task": experience.task_label,
                "items": sorted(samples),
            }
        )
    return experiences


@pytest.mark.parametrize(
    "keywords",
    [
        dict(n_experiences=10, seed=1234),
        dict(n_experiences=11, seed=3, first_exp_with_half_classes=True),
        dict(n_experiences=20, shuffle=False, return_task_id=True),
        dict(n_experiences=2, fixed_class_order=[7, 3, 99, 42]),
        dict(n_experiences=5, seed=0, class_ids_from_zero_from_first_exp=True),
        dict(
            n_experiences=2,
            fixed_class_order=[7, 3, 99, 42],
            class_ids_from_zero_from_first_exp=True,
        ),
        dict(
            n_experiences=4,
            seed=5,
            class_ids_from_zero_in_each_exp=True,
            return_task_id=True,
        ),
    ],
)
def test_keywords_mean_what_they_mean_in_avalanche(cifar, monkeypatch, keywords):
    pixels = pixel_transform(2)
    ours = OnlineCIFAR100(
        cifar, train_transform=pixels, eval_transform=pixels, **keywords
    )
    table = streams.CIFAR100Frames(cifar)
    train = FrameDataset(table, table.rows("train"), pixels)
    test = FrameDataset(table, table.rows("test"), pixels)
    monkeypatch.setattr(ccifar100, "get_cifar100_dataset", lambda root: [train, test])
    theirs = ccifar100.SplitCIFAR100(
        train_transform=None, eval_transform=None, **keywords
    )
    assert ours.n_classes == theirs.n_classes
    assert ours.n_classes_per_exp == theirs.n_classes_per_exp
    assert ours.classes_order == theirs.classes_order
    assert ours.original_classes_in_exp == theirs.original_classes_in_exp
    assert contents(ours.train_stream) == contents(theirs.train_stream)
    assert contents(ours.test_stream) == contents(theirs.test_stream)


def test_class_names_stand_for_labels(cifar):
    named = OnlineCIFAR100(
        cifar,
        fixed_class_order=["class_07", "class_03"],
        classes_per_experience=1,
        run=4,
    )
    assert named.classes_order == [7, 3]
    assert named.n_classes == 2
    assert named.run == 4
    assert len(named.train_stream) == 2


def test_labels_in_the_order_of_the_classes(cifar):
    renamed = OnlineCIFAR100(cifar, seed=1, class_ids_from_zero_from_first_exp=True)
    order = OnlineCIFAR100(cifar, seed=1).classes_order
    assert renamed.classes_order == list(range(100))
    assert renamed.protocol == "class_iid"
    assert renamed.run == 1
    assert list(renamed.class_names) == [f"class_{label:02d}" for label in order]


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        (
            dict(n_experiences=5, classes_per_experience=2),
            "n_experiences and classes_per_experience both divide",
        ),
        (
            dict(n_experiences=3),
            "100 classes cannot be divided by 3; give another number, or classes_per_e",
        ),
        (
            dict(n_experiences=0),
            "n_experiences is 0, but must be a whole number of at least 1",
        ),
        (
            dict(seed=1, run=1),
            "seed=1 excludes run=1: seed draws the order of classes as Avalanche does, "
            "run as",
        ),
        (dict(seed=1, reference=True), "seed=1 excludes reference=True"),
        (
            dict(fixed_class_order=[1, 1]),
            "fixed_class_order is .1, 1., but must hold labels from 0 to 99 or names",
        ),
        (
            dict(protocol="offline", class_ids_from_zero_in_each_exp=True),
            "excludes class_ids_from_zero_from",
        ),
    ],
)
def test_keywords_that_do_not_fit_together(cifar, keywords, words):
    with pytest.raises(ValueError, match=words):
        OnlineCIFAR100(cifar, **keywords)


def counts(**keywords):
    """Numbers of classes of the experiences of ten classes."""
    arguments = {"total": 10, "size": 2, "n_experiences": None, "half_first": False}
    return class_counts(**{**arguments, **keywords})


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        (dict(n_experiences=4, per_exp_classes={0: 4}), [4, 2, 2, 2]),
        (dict(n_experiences=4, per_exp_classes={3: 1, 1: 5}), [2, 5, 2, 1]),
        (dict(n_experiences=2, per_exp_classes={0: 4, 1: 6}), [4, 6]),
        (dict(per_exp_classes={0: 5}), [5, 2, 2, 1]),
        (dict(per_exp_classes={2: 7}), [2, 1, 7]),
        (dict(size=3, half_first=True), [5, 3, 2]),
    ],
)
def test_classes_of_some_experiences(keywords, expected):
    assert counts(**keywords) == expected


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        (dict(per_exp_classes={0: 11}), "has 11 classes in all, but there are 10"),
        (dict(per_exp_classes={7: 2}), "names experience 7, but there are 5"),
        (dict(per_exp_classes={-1: 2}), "a key of per_exp_classes is -1"),
        (dict(per_exp_classes={0: 0}), "a value of per_exp_classes is 0"),
        (dict(half_first=True, per_exp_classes={0: 2}), "give one of them"),
        (dict(n_experiences=4, per_exp_classes={0: 5}), "5 classes cannot be divided"),
        (dict(n_experiences=3, per_exp_classes={0: 10}), "leaves no classes for 2"),
    ],
)
def test_classes_that_cannot_be_divided(keywords, words):
    with pytest.raises(ValueError, match=words):
        counts(**keywords)


def test_data_lie_where_avalanche_keeps_them(cifar, data_folder):
    (data_folder / "cifar100").symlink_to(cifar)
    assert OnlineCIFAR100().n_classes == 100


def test_data_that_are_not_there(data_folder):
    words = f"there is no folder {data_folder}/cifar100"
    with pytest.raises(streams.FrameTableError, match=words):
        OnlineCIFAR100()


def test_a_download_that_is_interrupted(cifar, tmp_path, monkeypatch):
    root = tmp_path / "root"
    interrupts = [True, False]

    def unpack(url, folder, unpacked=None, md5=""):
        interrupted = interrupts.pop(0)
        left_out = shutil.ignore_patterns("class_[1-9]*") if interrupted else None
        shutil.copytree(cifar, unpacked or folder, ignore=left_out, dirs_exist_ok=True)
        if interrupted:
            raise KeyboardInterrupt

    monkeypatch.setattr(
        "torchvision.datasets.utils.download_and_extract_archive", unpack
    )
    with pytest.raises(KeyboardInterrupt):
        BENCHMARKS["cifar100"].stream(root, {}, True)
    with pytest.warns(UserWarning, match="is not complete: 200 training images"):
        assert BENCHMARKS["cifar100"].stream(root, {}, True).n_classes == 100
    assert len(os.listdir(root)) == 2


def test_a_number_is_no_folder():
    words = "dataset_root is 20; for a number of experiences give n_experiences=20"
    with pytest.raises(TypeError, match=words):
        OnlineCIFAR100(20)


@pytest.mark.parametrize(
    ("generator", "keyword", "words"),
    [
        ("OnlineCIFAR100", "experiences", "; did you mean 'n_experiences'"),
        ("CLEAR", "evaluation_protcol", "; did you mean 'evaluation_protocol'"),
        ("CLEAR", "feature_type", ": images alone are read; the network"),
        ("OnlineImageNet", "meta_root", ": the folders of train and val name"),
        ("ETH80", "colour", ". Its keywords are protocol, n_experiences, classes_per_"),
    ],
)
def test_an_unknown_keyword(tmp_path, generator, keyword, words):
    with pytest.raises(TypeError, match=f"has no keyword '{keyword}'{words}"):
        getattr(streams, generator)(tmp_path, **{keyword: 5})


@pytest.fixture
def toy_tree(tmp_path, monkeypatch):
    """A data set of a user, which is one file: its module."""
    (tmp_path / "tree_of_a_user.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("tree_of_a_user")
    BENCHMARKS.pop("toy_tree")
    sys.modules.pop("tree_of_a_user")


@pytest.fixture
def tree(tmp_path):
    """The images of that data set."""
    root = tmp_path / "tree"
    for number, name in enumerate(("bee", "cat", "dog")):
        for image, split in enumerate(("train", "train", "test")):
            path = root / split / name / f"{image}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (80 * number, 40 * image, 90)).save(path)
    return root


@pytest.mark.usefixtures("toy_tree")
def test_a_data_set_of_one_file_is_known_by_name(tree):
    table = streams.get_benchmark("toy_tree").table(str(tree), 0)
    assert list(table.counts().values()) == 3 * [{"train": 2, "test": 1}]


@pytest.mark.usefixtures("toy_tree")
def test_a_data_set_of_one_file_is_in_the_docs():
    row = "| `toy_tree` | the toy tree | 3 | 6 | 3 | 1 | 3 | drawn by hand |"
    assert row in data_sets()


def test_a_data_set_of_one_file_has_a_stream(toy_tree, tree):
    stream = toy_tree.ToyTree(tree, run=1)
    assert stream.protocol == "class_iid"
    assert stream.n_classes_per_exp == [1, 1, 1]


@pytest.mark.usefixtures("toy_tree")
def test_a_run_on_a_data_set_of_one_file(tmp_path, tree, done, tiny):
    command = list(tiny)
    command[command.index("clip_folder")] = "toy_tree"
    command[command.index("--dataset-root") + 1] = str(tree)
    done(*command, "--output", tmp_path / "run")
    assert "benchmark: toy_tree" in (tmp_path / "run/config.yaml").read_text()


@pytest.mark.usefixtures("toy_tree")
def test_a_data_set_of_one_file_is_checked(tree, done):
    assert "complete" in done("prepare", "toy_tree", "--dataset-root", tree, "--check")
    (tree / "test/dog/2.png").unlink()
    inventory = take_inventory("toy_tree", tree)
    assert "class dog: 0 of 1 test images" in inventory.missing


@pytest.mark.usefixtures("toy_tree")
def test_an_image_that_does_not_fit_a_data_set_of_one_file(tree, refused):
    (tree / "test/dog/odd.png").touch()
    words = "image test/dog/odd.png does not fit the layout of the toy tree"
    refused(words, "prepare", "toy_tree", "--dataset-root", tree, "--check")
