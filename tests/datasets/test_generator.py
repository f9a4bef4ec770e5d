"""The generators: what editors show of them, their keywords against the host's, and a data set that is one file."""

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
from benchmarks_toybox_ilab.prepare.core import check

# What each generator has of its own besides `dataset_root`.
OWN = {
    **{
        name: ["reference"]
        for name in (
            "Toybox",
            "ILab",
            "ICub",
            "ILabCORe50",
            "OnlineCIFAR100",
            "OnlineImageNet",
        )
    },
    "CORe50": ["scenario", "object_lvl", "mini", "reference", "download"],
    "CORe50Categories": ["reference", "download"],
    "ETH80": [],
    **{name: ["download"] for name in ("TinyImageNet", "Stream51")},
    "OpenLORIS": ["factor"],
    "CLEAR": ["data_name"],
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


def test_a_generator_shows_all_its_arguments():
    for name, own in OWN.items():
        generator = getattr(streams, name)
        assert [*inspect.signature(generator).parameters] == [
            "dataset_root",
            *own,
            "host",
        ]
        assert not hasattr(generator, "__signature__") and generator.__name__ == name
        assert pickle.loads(pickle.dumps(generator)) is generator
        editor = jedi.Script(
            f"from benchmarks_toybox_ilab import {name}\n{name}(",
            project=jedi.Project(ROOT),
        )
        completed = {
            one.name[:-1] for one in editor.complete() if one.name.endswith("=")
        }
        assert completed == {"dataset_root", *own, *StreamKeywords.__annotations__}


@pytest.mark.slow  # as that of all the code
def test_a_type_checker_knows_the_arguments(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out, _, _ = api.run(
        [
            str(script),
            "--config-file",
            str(ROOT / "setup.cfg"),
            "--cache-dir",
            os.devnull,
        ]
    )
    found = [
        line for line in out.splitlines() if "script.py" in line and "error" in line
    ]
    assert (
        len(found) == 4
        and 'Argument "seed" to "ToyShapes" has incompatible type "str"' in found[0]
    )
    assert 'Unexpected keyword argument "experiences" for "CORe50"' in found[1]
    assert {line.partition("argument ")[2].split()[0] for line in found[2:]} == {
        '"model"',
        '"optimizer"',
    }


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """The 100 classes of CIFAR-100 with two training images and one test image each, of one colour."""
    root = tmp_path_factory.mktemp("cifar")
    for number in range(300):
        path = (
            root
            / ("train" if number % 3 else "test")
            / f"class_{number // 3:02d}"
            / f"{number}.png"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2), (number // 3, number % 3, 0)).save(path)
    return root


def contents(stream):
    """What the experiences of a stream hold: classes, those before and after, task labels, items without order."""
    found = []
    for one in stream:
        items = sorted(
            (*image[:2, 0, 0].tolist(), int(label), int(task))
            for image, label, task in one.dataset
        )
        timeline = (
            one.classes_in_this_experience,
            one.previous_classes,
            one.classes_seen_so_far,
            one.future_classes,
        )
        found.append(([set(classes) for classes in timeline], one.task_label, items))
    return found


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
    both = [
        FrameDataset(table, table.rows(split), pixels) for split in ("train", "test")
    ]
    monkeypatch.setattr(ccifar100, "get_cifar100_dataset", lambda root: both)
    theirs = ccifar100.SplitCIFAR100(
        train_transform=None, eval_transform=None, **keywords
    )
    for name in (
        "n_classes",
        "n_classes_per_exp",
        "classes_order",
        "original_classes_in_exp",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert contents(ours.train_stream) == contents(theirs.train_stream)
    assert contents(ours.test_stream) == contents(theirs.test_stream)


def test_class_names_stand_for_labels_and_groups_keep_their_order(cifar):
    named = OnlineCIFAR100(
        cifar,
        fixed_class_order=["class_07", "class_03"],
        classes_per_experience=1,
        run=4,
    )
    assert (
        named.classes_order,
        named.n_classes,
        named.run,
        len(named.train_stream),
    ) == ([7, 3], 2, 4, 2)
    renamed = OnlineCIFAR100(cifar, seed=1, class_ids_from_zero_from_first_exp=True)
    assert (
        renamed.classes_order == [*range(100)]
        and renamed.protocol == "class_iid"
        and renamed.run == 1
    )
    assert [*renamed.class_names] == [
        f"class_{label:02d}" for label in OnlineCIFAR100(cifar, seed=1).classes_order
    ]


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
            "seed=1 excludes run=1: seed draws the order of classes as Avalanche does, run as",
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


def test_where_the_data_are_and_what_is_no_keyword(cifar, tmp_path, monkeypatch):
    from avalanche.benchmarks.datasets import dataset_utils

    monkeypatch.setitem(
        dataset_utils.AVALANCHE_CONFIG, "dataset_location", str(tmp_path)
    )
    with pytest.raises(
        streams.FrameTableError, match=f"there is no folder {tmp_path}/cifar100"
    ):
        OnlineCIFAR100()
    (tmp_path / "cifar100").symlink_to(cifar)
    assert OnlineCIFAR100().n_classes == 100
    left, new = (
        [[], ["class_[1-9]*"]],
        tmp_path / "new",
    )  # what is left out of the archive by an interrupt

    def unpack(url, root, unpacked=None, md5=""):
        shutil.copytree(
            cifar,
            unpacked or root,
            ignore=shutil.ignore_patterns(*left.pop()),
            dirs_exist_ok=True,
        )
        if left:
            raise KeyboardInterrupt

    monkeypatch.setattr(
        "torchvision.datasets.utils.download_and_extract_archive", unpack
    )
    with pytest.raises(KeyboardInterrupt):
        BENCHMARKS["cifar100"].stream(new, {}, True)
    assert (
        BENCHMARKS["cifar100"].stream(new, {}, True).n_classes == 100
        and len(os.listdir(new)) == 2
    )
    with pytest.raises(
        TypeError,
        match="dataset_root is 20; for a number of experiences give n_experiences=20",
    ):
        OnlineCIFAR100(20)
    with pytest.raises(
        TypeError,
        match="cifar100 has no keyword 'experiences'; did you mean 'n_experiences'",
    ):
        OnlineCIFAR100(cifar, experiences=5)


def test_a_data_set_of_one_file_is_known_by_name(
    tmp_path, monkeypatch, done, refused, tiny
):
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
        assert (
            "| `toy_tree` | the toy tree | 3 | 6 | 3 | 1 | 3 | drawn by hand |"
            in data_sets()
        )
        stream = module.ToyTree(root, run=1)
        assert stream.protocol == "class_iid" and stream.n_classes_per_exp == [1, 1, 1]
        assert "complete" in done(
            "prepare", "toy_tree", "--dataset-root", root, "--check"
        )
        values = {
            "clip_folder": "toy_tree",
            tiny[tiny.index("--dataset-root") + 1]: str(root),
        }
        done(*(values.get(word, word) for word in tiny), "--output", tmp_path / "run")
        assert "benchmark: toy_tree" in (tmp_path / "run/config.yaml").read_text()
        (root / "test/dog/2.png").unlink()
        assert "class dog: 0 of 1 test images" in check("toy_tree", root)[0]
        (root / "test/dog/odd.png").touch()
        words = "image test/dog/odd.png does not fit the layout of the toy tree"
        refused(words, "prepare", "toy_tree", "--dataset-root", root, "--check")
    finally:
        BENCHMARKS.pop("toy_tree")
        sys.modules.pop("tree_of_a_user")
