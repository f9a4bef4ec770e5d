"""Every keyword of Avalanche's generators is ours, or is in a list with the reason.

And what the keywords of a single generator do, beside the host's on the same files.
"""

import inspect

import pytest
from avalanche.benchmarks import classic
from avalanche.benchmarks.classic import cimagenet
from avalanche.benchmarks.classic.stream51 import CLStream51
from avalanche.benchmarks.datasets import Stream51 as HostStream51
from fake_data import clear_names, write_files, write_stream51
from PIL import Image

import benchmarks_toybox_ilab as streams
from benchmarks_toybox_ilab import FrameDataset, make_benchmark, pixel_transform
from benchmarks_toybox_ilab.datasets import openloris
from benchmarks_toybox_ilab.datasets.registry import NOT_HERE
from benchmarks_toybox_ilab.datasets.stream51 import class_order
from benchmarks_toybox_ilab.streams.orders import KEYWORD_DEFAULTS

# Avalanche's generators, and ours.
GENERATORS = {
    "CORe50": "CORe50",
    "OpenLORIS": "OpenLORIS",
    "CLEAR": "CLEAR",
    "CLStream51": "Stream51",
    "SplitImageNet": "OnlineImageNet",
    "SplitTinyImageNet": "TinyImageNet",
}
OF_ALL = {
    "seed": "None: run=0 draws the paper's orders",
    "train_transform": "None: the ImageNet transform, in all generators",
    "eval_transform": "None: the ImageNet transform, in all generators",
}
# Keywords with another default, and why.
OTHER_DEFAULTS = {
    "CORe50": {
        "scenario": "the paper's stream, of ten categories",
        "object_lvl": "None: as the host in the official protocols; not in the paper",
        "run": "None is 0, unless a seed is given",
    },
    "CLEAR": {
        "evaluation_protocol": "test images are not trained on, as in the command line",
    },
    "CLStream51": {
        "download": "some gigabytes are downloaded only when asked for",
    },
    "SplitImageNet": {
        "dataset_root": "None: where Avalanche keeps data",
        "n_experiences": "None: 100 classes each, which are ten experiences",
    },
    "SplitTinyImageNet": {
        "n_experiences": "None: as many as Online-CIFAR100 has",
    },
}


def keywords_of_host():
    """The generators of the host, each with its keywords and their defaults."""
    for name in GENERATORS:
        for parameter in inspect.signature(getattr(classic, name)).parameters.values():
            yield pytest.param(name, parameter, id=f"{name}-{parameter.name}")


@pytest.mark.parametrize(("name", "parameter"), keywords_of_host())
def test_a_keyword_of_the_host_is_here(name, parameter):
    ours = inspect.signature(getattr(streams, GENERATORS[name])).parameters
    if parameter.name in NOT_HERE:
        assert parameter.name not in ours
        return
    if ours[parameter.name].default != parameter.default:
        assert parameter.name in OF_ALL | OTHER_DEFAULTS.get(name, {})


@pytest.mark.parametrize("name", OTHER_DEFAULTS)
def test_the_list_of_other_defaults_is_true(name):
    theirs = inspect.signature(getattr(classic, name)).parameters
    ours = inspect.signature(getattr(streams, GENERATORS[name])).parameters
    for keyword in OTHER_DEFAULTS[name]:
        assert ours[keyword].default != theirs[keyword].default


def test_defaults_of_keywords():
    parameters = inspect.signature(make_benchmark).parameters
    shown = {name: parameters[name].default for name in KEYWORD_DEFAULTS}
    assert shown == KEYWORD_DEFAULTS


@pytest.mark.parametrize("factor", [*openloris.STREAMS, openloris.MIXTURE])
def test_openloris_is_looked_for_where_the_host_has_it(data_folder, factor):
    with pytest.raises(streams.FrameTableError, match=f"{data_folder}/openloris[ /.]"):
        streams.OpenLORIS(factor=factor)


PIXELS = {
    "train_transform": pixel_transform(4),
    "eval_transform": pixel_transform(4),
}


def labels_of(stream):
    """The classes of each experience."""
    return [set(experience.classes_in_this_experience) for experience in stream]


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """Ten classes of ImageNet, an image of each in both splits."""
    root = tmp_path_factory.mktemp("imagenet")
    names = []
    for split in ("train", "val"):
        for number in range(10):
            names.append(f"{split}/n0000000{number}/image.JPEG")
    return write_files(root, names)


@pytest.mark.parametrize(
    "keywords",
    [
        dict(n_experiences=6, per_exp_classes={0: 5}),
        dict(n_experiences=4, per_exp_classes={1: 3, 3: 1}, seed=7),
        dict(n_experiences=5, seed=2),
    ],
)
def test_imagenet_is_divided_as_by_the_host(imagenet, monkeypatch, keywords):
    table = streams.ImageNetFrames(imagenet)
    splits = [FrameDataset(table, table.rows(split)) for split in ("train", "test")]
    monkeypatch.setattr(
        cimagenet, "_get_imagenet_dataset", lambda root, meta_root: splits
    )
    keywords = {"seed": 0, **keywords}
    ours = streams.OnlineImageNet(imagenet, **keywords)
    theirs = classic.SplitImageNet(imagenet, **keywords)
    assert ours.n_classes_per_exp == theirs.n_classes_per_exp
    assert ours.classes_order == theirs.classes_order


@pytest.fixture(scope="module")
def tiny_imagenet(tmp_path_factory):
    """The official layout, whose list of classes is not in the order of their names."""
    root = tmp_path_factory.mktemp("tiny")
    folder = root / "tiny-imagenet-200"
    wnids = [f"n{7 * number % 200:08d}" for number in range(200)]
    names = [f"train/{wnid}/images/{wnid}_0.JPEG" for wnid in wnids]
    names += [f"val/images/val_{number}.JPEG" for number in range(200)]
    write_files(folder, names)
    (folder / "wnids.txt").write_text("\n".join(wnids))
    lines = [f"val_{number}.JPEG\t{wnid}\t0\t0" for number, wnid in enumerate(wnids)]
    (folder / "val/val_annotations.txt").write_text("\n".join(lines))
    return root


def test_a_seed_of_tiny_imagenet_draws_the_classes_of_the_host(tiny_imagenet):
    ours = streams.TinyImageNet(tiny_imagenet, seed=3, n_experiences=10, **PIXELS)
    theirs = classic.SplitTinyImageNet(dataset_root=tiny_imagenet, seed=3)
    wnids = (tiny_imagenet / "tiny-imagenet-200/wnids.txt").read_text().split()
    named = [wnids[label] for label in theirs.classes_order]
    assert [ours.class_names[label] for label in ours.classes_order] == named


def test_the_published_order_of_stream51():
    assert class_order(10)[:3] == [22, 37, 40]


@pytest.fixture(scope="module")
def stream51(tmp_path_factory):
    """Twelve classes of Stream-51 with images of noise and boxes within them."""
    root = tmp_path_factory.mktemp("stream51")
    write_stream51(root, [f"class{number:02d}" for number in range(12)])
    for number, path in enumerate(sorted(root.glob("*/**/*.jpg"))):
        Image.effect_noise((12, 8), 60 + number).convert("RGB").save(path)
    for split in ("train", "test"):
        file = root / f"Stream-51_meta_{split}.json"
        file.write_text(file.read_text().replace("[12, 0, 8, 0]", "[9, 3, 6, 2]"))
    return root


def paths_of(ours):
    """The files of each training experience, in the order of training."""
    table = ours.frame_table
    experiences = []
    for experience in ours.train_stream:
        experiences.append([table.path[row] for row in experience.dataset.frame_row])
    return experiences


@pytest.mark.parametrize("seed", [10, 20, 3])
def test_a_seed_of_stream51_draws_the_classes_of_the_host(stream51, seed):
    host = HostStream51(stream51, download=False)
    ordered = HostStream51.make_dataset(host.samples, "class_instance", seed)
    order = list(dict.fromkeys(sample[0] for sample in ordered))
    assert streams.Stream51(stream51, seed=seed).classes_order == order


def test_classes_of_an_experience_of_stream51(stream51):
    ours = streams.Stream51(stream51, seed=10, eval_num=5)
    theirs = CLStream51(dataset_root=stream51, seed=10, eval_num=5, download=False)
    assert ours.n_classes_per_exp == [5, 5, 2]
    # The host ends the third experience as if there were 51 classes.
    assert labels_of(ours.train_stream)[:2] == labels_of(theirs.train_stream)[:2]


def contents(stream):
    """Pixels and label of each item of each experience."""
    experiences = []
    for experience in stream:
        items = []
        for image, label, *_ in experience.dataset:
            items.append((image.tolist(), int(label)))
        experiences.append(items)
    return experiences


@pytest.mark.parametrize(
    "keywords",
    [
        dict(eval_num=25),
        dict(eval_num=1000, seed=20),
        dict(eval_num=30, bbox_crop=False),
        dict(eval_num=30, ratio=1.5),
    ],
)
def test_instances_of_stream51_are_those_of_the_host(stream51, keywords):
    arguments = {"scenario": "instance", "seed": 10, **PIXELS, **keywords}
    ours = streams.Stream51(stream51, **arguments)
    theirs = CLStream51(dataset_root=stream51, download=False, **arguments)
    trained = contents(theirs.train_stream)
    assert contents(ours.train_stream) == trained
    (tested,) = contents(ours.test_stream)
    listed = HostStream51(stream51, train=False, download=False)
    novel = listed.targets.count(51)  # which Avalanche tests with the others
    assert tested == contents(theirs.test_stream)[0][: len(listed) - novel]


def test_protocols_of_stream51(stream51):
    ours = streams.Stream51(stream51, scenario="class_iid")
    assert ours.protocol == "class_iid"
    assert len(ours.train_stream) == 12


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        (dict(scenario="iid"), 'unknown scenario .iid.*are protocol="offline"'),
        (dict(ratio=0.5), "ratio is 0.5, but must be at least 1"),
        (
            dict(eval_num=2, classes_per_experience=3),
            "classes_per_experience cannot be given with eval_num",
        ),
        (
            dict(scenario="instance", shuffle=False),
            'shuffle cannot be given with scenario="instance"',
        ),
        (dict(scenario="instance", eval_num=0), "eval_num is 0"),
    ],
)
def test_keywords_that_stream51_does_not_take(stream51, keywords, words):
    with pytest.raises(ValueError, match=words):
        streams.Stream51(stream51, **keywords)


@pytest.fixture(scope="module")
def clear(tmp_path_factory):
    """A photo of two classes in each bucket of both folders."""
    root = tmp_path_factory.mktemp("clear")
    return write_files(root, clear_names(("bus", "camera"), range(1, 11)))


def test_streaming_of_clear_has_all_images_of_a_bucket(clear):
    ours = streams.CLEAR(clear, evaluation_protocol="streaming")
    first = sorted(paths_of(ours)[0])
    assert first == sorted(clear_names(("bus", "camera"), [1]))


def test_streaming_of_clear_tests_on_what_it_trains_on(clear):
    ours = streams.CLEAR(clear, evaluation_protocol="streaming")
    for trained, tested in zip(ours.train_stream, ours.test_stream):
        rows = set(trained.dataset.frame_row)
        assert rows == set(tested.dataset.frame_row)
        assert len(rows) == 4


def test_the_official_split_of_clear_is_the_default(clear):
    first = paths_of(streams.CLEAR(clear))[0]
    assert {path.split("/")[0] for path in first} == {"train"}


def test_an_unknown_evaluation_of_clear(clear):
    with pytest.raises(ValueError, match="unknown evaluation_protocol 'next'"):
        streams.CLEAR(clear, evaluation_protocol="next")
