"""Streams that others publish figures of.

Official lists and counts, splits, wrong trees, and equality with Avalanche.
"""

import hashlib
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from avalanche.benchmarks import classic, nc_benchmark
from avalanche.benchmarks.classic import openloris as host_openloris
from avalanche.benchmarks.datasets import Stream51 as HostStream51
from avalanche.benchmarks.datasets.clear import _CLEARImage as HostCLEAR
from fake_data import (
    clear_names,
    openloris_names,
    write_files,
    write_orbit,
    write_stream51,
)
from PIL import Image
from torch.utils.data import Subset, TensorDataset
from torchvision.transforms import Normalize

from benchmarks_toybox_ilab import (
    BadFrameError,
    frames_of,
    from_capymoa,
    get_benchmark,
    make_benchmark,
)
from benchmarks_toybox_ilab.datasets import clear, openloris, orbit, stream51
from benchmarks_toybox_ilab.datasets.clear import CLEARFrames
from benchmarks_toybox_ilab.datasets.openloris import (
    LISTS,
    OpenLORIS,
    OpenLORISFrames,
)
from benchmarks_toybox_ilab.datasets.orbit import ORBITFrames
from benchmarks_toybox_ilab.datasets.registry import BENCHMARKS
from benchmarks_toybox_ilab.datasets.stream51 import Stream51Frames, Stream51Novel
from benchmarks_toybox_ilab.prepare.core import prepare, take_inventory
from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable


def sha256(names):
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


# Official lists, and names of whole trees: one image where the numbers of images vary.
WHOLE = {
    "openloris_sequence": openloris_names(openloris.CLASSES, openloris.FACTORS),
    "clear10": clear_names(clear.CLEAR10_CLASSES),
    "clear100": clear_names([f"class{number}" for number in range(100)]),
}


def test_objects_of_openloris():
    """As in `data.py` of lifelong-robotic-vision/OpenLORIS-Object."""
    assert len(openloris.CLASSES) == 121
    assert len(openloris.CATEGORIES) == 40
    assert sha256(openloris.CLASSES) == "bb5fc03d5658c141"


def test_users_of_orbit():
    """As in `orbit_test_object_cluster_labels.json` of microsoft/ORBIT-Dataset."""
    lines = [f"{user} {count}" for user, count in orbit.USERS.items()]
    assert len(orbit.USERS) == 17
    assert sum(orbit.USERS.values()) == 158
    assert sha256(lines) == "2955ede2aa8a53d6"


def test_classes_of_clear():
    """As in `clear_10_config.json` of linzhiqiu/continual-learning."""
    assert sha256(clear.CLEAR10_CLASSES) == "cd0ce524617ab913"


def test_the_order_of_stream51():
    """As in tyler-hayes/Stream-51.

    The last line of classes in the log stream51_slda_experiment_class_instance_seed20.
    """
    order = stream51.class_order(20)
    assert order[:8] == [31, 19, 24, 14, 11, 17, 5, 35]
    assert len(set(order)) == 51


def test_the_counts_of_stream51():
    """As in orderings/class_instance_seed10 of tyler-hayes/Stream-51.

    train_150736, test_150736 and test_out_150736.
    """
    assert stream51.LAYOUT.counts == {"classes": 51, "train": 150_736, "test": 2_550}


def test_buckets_of_clear_are_in_their_order():
    table = CLEARFrames("nowhere", WHOLE["clear10"])
    buckets = [str(bucket) for bucket in range(1, 11)]
    for split in ("train", "test"):
        rows = table.rows(split).tolist()
        assert list(dict.fromkeys(table.session[row] for row in rows)) == buckets


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_tree_lacks_nothing(name):
    data = BENCHMARKS[name]
    assert data.files.missing(data.frames("nowhere", WHOLE[name])) == []


def test_check_says_what_was_counted(tmp_path):
    inventory = take_inventory("clear10", write_files(tmp_path, WHOLE["clear10"]))
    assert inventory.missing == []
    assert inventory.present[-1] == (
        "complete as far as is counted: 11 classes, 110 training sessions of a class, "
        "110 test sessions of a class; the number of images is not known"
    )


@pytest.mark.parametrize(
    ("name", "folder", "gap"),
    [
        (
            "openloris_sequence",
            "test/pixel/segment3/u_disk_02/",
            "class u_disk_02: 35 of 36 test sessions of a class",
        ),
        (
            "clear10",
            "test/labeled_images/10/bus/",
            "class bus: 9 of 10 test sessions of a class",
        ),
        (
            "clear100",
            "train/labeled_images/1/class7/",
            "class class7: 9 of 10 training sessions of a class",
        ),
    ],
)
def test_a_gap_is_named(name, folder, gap):
    data = BENCHMARKS[name]
    names = [path for path in WHOLE[name] if not path.startswith(folder)]
    _, line = data.files.missing(data.frames("nowhere", names))
    assert line == gap


LORIS = openloris_names(factors=("clutter", "pixel"), segments=(1, 9))


def test_segments_of_a_factor():
    table = OpenLORISFrames("x", LORIS)
    assert table.classes == ("bottle_01", "cup_10")
    assert table.counts()["cup_10"] == {"train": 4, "test": 4}
    assert set(table.session) == {"task1", "task9"}
    assert table[1] == Frame(
        path="train/clutter/segment1/bottle_01/10.jpg",
        class_name="bottle_01",
        object_name="bottle_01",
        session="task1",
        frame=1,
        split="train",
    )


def test_segments_of_all_factors():
    table = OpenLORISFrames("x", LORIS, "sequence")
    assert set(table.session) == {"task19", "task27", "task28", "task36"}


def test_an_unknown_factor():
    words = "unknown factor 'noise'; known are sequence, illumination"
    with pytest.raises(ValueError, match=words):
        OpenLORISFrames("x", LORIS, "noise")


def test_a_factor_without_images():
    with pytest.raises(FrameTableError, match="holds no images of OpenLORIS-Object"):
        OpenLORISFrames("x", LORIS, "occlusion")


def contents(stream):
    """Return the pixel in the corner and the label of each item, by experience."""
    experiences = []
    for experience in stream:
        samples = []
        for image, label, *_ in experience.dataset:
            samples.append((image[:, 0, 0].tolist(), int(label)))
        experiences.append(samples)
    return experiences


OBJECTS = ("bottle_01", "cup_10", "key_02")


def write_list(root, number, name, folder, labels):
    """Write a list of images, and the images."""
    lines = []
    for label in labels:
        path = f"{folder}/{OBJECTS[label]}/{number}.png"
        lines.append(f"{path} {label}\n")
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, label, 0)).save(root / path)
    (root / LISTS / f"{name}.txt").write_text("".join(lines))


@pytest.fixture
def mixture(tmp_path):
    """The lists of the batches that mix all factors, with three images each."""
    (tmp_path / LISTS).mkdir(parents=True)
    for number in range(12):
        name = f"train_batch_{number:02d}"
        write_list(tmp_path, number, name, f"train/task{number}", (2, 0, 1))
    write_list(tmp_path, 12, "test", "test", (1, 0, 2))
    return tmp_path


def test_the_mixture_of_factors_is_that_of_avalanche(mixture, monkeypatch):
    monkeypatch.setattr(
        host_openloris,
        "OpenLORISDataset",
        lambda root, download: SimpleNamespace(root=root),
    )
    pixels = PixelTransform(8)
    arguments = {
        "factor": "mixture-iros",
        "dataset_root": mixture,
        "train_transform": pixels,
        "eval_transform": pixels,
    }
    ours = OpenLORIS(**arguments)
    theirs = host_openloris.OpenLORIS(**arguments)
    train = contents(ours.train_stream)
    assert ours.n_classes == 3
    assert set(map(len, train)) == {3}
    assert train == contents(theirs.train_stream)
    assert contents(ours.test_stream) == contents(theirs.test_stream)


def test_the_mixture_of_factors_takes_no_seed(tmp_path):
    words = "seed cannot be given with factor 'mixture-iros': its lists fix the order"
    with pytest.raises(ValueError, match=words):
        OpenLORIS(tmp_path, factor="mixture-iros", seed=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("../x.jpg 0", "line 1 of .*test.txt is '../x.jpg 0', but"),
        ("test/a/1.jpg 7", "are not 0 to 3"),
        ("", "test.txt, one of the official lists, is missing"),
    ],
)
def test_a_damaged_list_of_the_mixture(mixture, text, words):
    (mixture / LISTS / "test.txt").write_text(text)
    with pytest.raises(FrameTableError, match=words):
        OpenLORIS(mixture, factor="mixture-iros")


def test_a_missing_list_of_the_mixture(mixture):
    (mixture / LISTS / "test.txt").unlink()
    words = r"test.txt, one of the official lists, is missing"
    with pytest.raises(FrameTableError, match=words):
        OpenLORIS(mixture, factor="mixture-iros")


PHOTOS = ("BACKGROUND", "bus", "camera")


@pytest.fixture
def photos(tmp_path):
    """A photo of three classes in each bucket, with what Avalanche reads of CLEAR."""
    root = tmp_path / "clear10"
    write_files(root, clear_names(PHOTOS, range(1, 11)))
    for split in ("train", "test"):
        (root / split / "class_names.txt").write_text("\n".join(PHOTOS))
        write_metadata(root / split)
    return root


def write_metadata(folder):
    """Write the lists that Avalanche reads of a split."""
    index = {}
    for bucket in map(str, range(1, 11)):
        index[bucket] = {}
        for name in PHOTOS:
            file = f"labeled_metadata/{bucket}/{name}.json"
            index[bucket][name] = file
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            path = f"labeled_images/{bucket}/{name}/0.jpg"
            (folder / file).write_text(json.dumps({"0": {"IMG_PATH": path}}))
    (folder / "labeled_metadata.json").write_text(json.dumps(index))


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_photos_of_clear_are_those_of_avalanche(photos, split):
    table = CLEARFrames(photos)
    host = HostCLEAR(photos, data_name="clear10", split=split, seed=0)
    # Each list of Avalanche 0.6 holds the images of all buckets, so only all together
    # can be compared.
    lists = host.get_paths_and_targets(root_appended=False)
    rows = table.rows(split)
    assert len(lists) == 10
    assert dict(lists[0]) == {table.path[row]: table.labels[row] for row in rows}


def test_an_experience_of_clear_is_a_bucket(photos):
    ours = clear.CLEAR(photos)
    sessions = np.array(ours.frame_table.session)
    for stream in (ours.train_stream, ours.test_stream):
        data = [experience.dataset for experience in stream]
        buckets = [set(sessions[list(dataset.frame_row)]) for dataset in data]
        assert buckets == [{str(number)} for number in range(1, 11)]
        assert {tuple(sorted(dataset.targets)) for dataset in data} == {(0, 1, 2)}


def test_an_unknown_clear(photos):
    with pytest.raises(ValueError, match="unknown data_name 'clear50'"):
        CLEARFrames(photos, data_name="clear50")


# Within an image of 12 x 8 pixels, the whole image, and beyond its right side.
BOXES = ([9, 3, 6, 2], [12, 0, 8, 0], [13, 9, 5, 1])


@pytest.fixture
def stream51_root(tmp_path):
    """Stream-51 with twelve training images of noise, and boxes of several kinds."""
    root = write_stream51(tmp_path / "Stream-51")
    file = root / "Stream-51_meta_train.json"
    entries = json.loads(file.read_text())
    for number, entry in enumerate(entries):
        entry[5] = BOXES[number % 3]
        Image.effect_noise((12, 8), 90 + number).convert("RGB").save(root / entry[-1])
    file.write_text(json.dumps(entries))
    return root


@pytest.mark.parametrize("row", range(12))
def test_images_of_stream51_are_cut_as_in_avalanche(stream51_root, row):
    table = Stream51Frames(stream51_root)
    image, label = HostStream51(stream51_root, train=True, download=False)[row]
    assert table.read(row).tobytes() == image.tobytes()
    assert table.labels[row] == label


def test_the_table_of_stream51(stream51_root):
    table = Stream51Frames(stream51_root.parent)
    assert table.classes == ("airplane", "bear")
    assert len(table.clips(table.rows("train"))) == 4
    assert table.counts()["bear"] == {"train": 6, "test": 2}


def test_novel_images_of_stream51(stream51_root):
    novel = Stream51Novel(stream51_root)
    assert novel.classes == ("novel",)
    assert novel.path == ("test/000900.jpg", "test/000901.jpg")
    assert not set(novel.path) & set(Stream51Frames(stream51_root).path)


def test_what_stream51_lacks(stream51_root):
    inventory = take_inventory("stream51", stream51_root)
    assert "2 classes; the data set has 51" in inventory.missing


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda root: (root / "Stream-51_meta_test.json").unlink(),
            "Stream-51_meta_test.json cannot be read",
        ),
        (
            lambda root: (root / "Stream-51_meta_test.json").write_text("[" * 100_000),
            "test.json cannot be read",
        ),
        (
            lambda root: (root / "Stream-51_meta_test.json").write_text("[[0, 1]]"),
            "entry 0 of .* must be .class, size",
        ),
        (
            lambda root: (root / "test/000001.jpg").unlink(),
            "lists 'test/000001.jpg', which is no image below",
        ),
        (
            lambda root: shutil.copytree(
                root / "train/1-airplane", root / "train/1-airplane/deep"
            ),
            "image train/1-airplane/deep/.* does not fit the layout of Stream-51",
        ),
    ],
)
def test_wrong_trees_of_stream51(tmp_path, change, words):
    root = write_stream51(tmp_path)
    change(root)
    with pytest.raises(FrameTableError, match=words):
        Stream51Frames(root)


@pytest.fixture
def orbit_root(tmp_path):
    """Three objects of a user of ORBIT; the bag has few frames in a clutter video."""
    write_orbit(tmp_path, frames=(1100, 5), absent=0, users=["P177"], things=["bag"])
    taught = ["front door", "mug"]
    write_orbit(tmp_path, frames=(40, 260), absent=20, users=["P177"], things=taught)
    return tmp_path


def test_a_user_of_orbit(orbit_root):
    table = ORBITFrames(orbit_root)
    assert table.classes == ("front door", "mug")
    assert table.counts()["mug"] == {"train": 2, "test": 200}
    assert [table.frame[row] for row in table.rows("train", "mug")] == [1, 31]
    assert max(table.frame[row] for row in table.rows("test")) <= 240


def test_runs_go_round_the_users_of_orbit(orbit_root):
    content = ORBITFrames(orbit_root, user="P177").content_hash()
    assert ORBITFrames(orbit_root, 17).content_hash() == content


def test_enough_frames_of_a_clutter_video(orbit_root):
    write_orbit(orbit_root, frames=(1100, 50), absent=0, users=["P177"], things=["bag"])
    assert ORBITFrames(orbit_root).counts()["bag"] == {"train": 34, "test": 50}


def test_what_orbit_lacks(orbit_root):
    lines = take_inventory("orbit", orbit_root).missing
    assert lines[0] == "user P177: 3 of 7 objects"
    assert lines[1] == "user P198: 0 of 10 objects"
    assert len(lines) == 17


def test_users_of_orbit_that_are_there_are_prepared(tmp_path):
    for user in ("P198", "P999"):
        write_orbit(tmp_path, frames=(40, 260), absent=20, users=[user], things=["bag"])
    inventory = take_inventory("orbit", tmp_path)
    assert inventory.present == [
        f"orbit in {tmp_path}: 2 classes, 4 training and 400 test images"
    ]
    assert inventory.missing[0] == "user P177: 0 of 7 objects"
    prepare("orbit", tmp_path, say=list)
    table = FrameTable.from_csv(tmp_path / "orbit.csv", tmp_path)
    assert table.classes == ("P198 bag", "P999 bag")


def test_a_user_who_is_not_there(orbit_root):
    words = "has no folder test/P999, but holds annotations, test"
    with pytest.raises(FrameTableError, match=words):
        ORBITFrames(orbit_root, 16)


def test_an_unknown_user(orbit_root):
    words = "unknown user 'P744'; the test users are P177"
    with pytest.raises(ValueError, match=words):
        ORBITFrames(orbit_root, user="P744")


@pytest.fixture
def annotations(tmp_path):
    """The annotations of a video of ORBIT."""
    write_orbit(tmp_path, users=["P177"])
    return next((tmp_path / "annotations/test").iterdir())


def without_contents(text):
    return json.dumps({name: {} for name in json.loads(text)})


def too_deep(text):
    return "[" * 100_000


@pytest.mark.parametrize("damage", [without_contents, too_deep])
def test_damaged_annotations(tmp_path, annotations, damage):
    annotations.write_text(damage(annotations.read_text()))
    words = "does not say of every frame of its video whether"
    with pytest.raises(FrameTableError, match=words):
        ORBITFrames(tmp_path)


def test_missing_annotations(tmp_path, annotations):
    annotations.unlink()
    words = r"says where the object is visible\. Unpack orbit_extra_annotations"
    with pytest.raises(FrameTableError, match=words):
        ORBITFrames(tmp_path)


def images(per_class, seed):
    """Six classes of uint8 images of 8 x 8 pixels, in random order."""
    random = torch.Generator().manual_seed(seed)
    number = 6 * per_class
    order = torch.randperm(number, generator=random)
    labels = torch.arange(6).repeat(per_class)[order]
    shape = (number, 3, 8, 8)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)
    data = TensorDataset(pixels, labels)
    data.targets = labels.tolist()
    return data


def Digits(
    n_experiences,
    *,
    seed=None,
    train_transform=None,
    eval_transform=None,
    dataset_root=None,
):
    return nc_benchmark(
        images(4, 0),
        images(2, 1),
        n_experiences,
        False,
        seed=seed,
        train_transform=train_transform,
    )


def items_of(stream):
    """Return pixels and labels of all items of a stream, by experience."""
    return [items_of_data(experience.dataset) for experience in stream]


def items_of_data(dataset):
    return [(pixels.tolist(), int(label)) for pixels, label, *_ in dataset]


def test_a_benchmark_of_avalanche_as_a_table_and_back():
    theirs = Digits(3, seed=1)
    table = frames_of(theirs)
    ours = make_benchmark(table, "table", 0, None, PixelTransform(8), PixelTransform(8))
    assert ours.n_classes == 6
    assert ours.n_classes_per_exp == [2, 2, 2]
    assert ours.original_classes_in_exp == theirs.original_classes_in_exp
    assert items_of(ours.train_stream) == items_of(theirs.train_stream)
    assert items_of(ours.test_stream) == items_of(theirs.test_stream)


def test_transforms_of_a_stream_are_left_out():
    normalize = Normalize([9.0] * 3, [1.0] * 3)
    table = frames_of(Digits(3, seed=1, train_transform=normalize))
    assert table.read(0).size == (8, 8)


def test_tensors_that_are_no_images():
    data = TensorDataset(torch.full((6, 3, 8, 8), -1.0), torch.arange(6))
    data.targets = list(range(6))
    table = frames_of(nc_benchmark(data, data, 3, False))
    words = "not within 0 and 1; make the stream avalanche without Normalize"
    with pytest.raises(BadFrameError, match=words):
        table.read(0)


# Of the tasks of a scenario of CapyMOA.
TASKS = ([2, 5], [0, 1], [3, 4])


def capymoa_scenario(shape):
    """Return tasks as `partition_by_schedule` of CapyMOA makes them.

    Subsets, or tensors when preloaded.
    """
    labels = torch.arange(6).repeat(4)
    data = TensorDataset(torch.rand(24, *shape), labels)
    train = []
    test = []
    for classes in TASKS:
        rows = torch.isin(labels, torch.tensor(classes)).nonzero()[:, 0].tolist()
        train.append(Subset(data, rows))
        test.append(TensorDataset(*data[rows[:4]]))
    return SimpleNamespace(train_tasks=train, test_tasks=test)


@pytest.mark.parametrize("shape", [(768,), (3, 8, 8)], ids=["features", "images"])
def test_a_scenario_of_capymoa(shape):
    theirs = capymoa_scenario(shape)
    ours = from_capymoa(theirs)
    classes = [exp.classes_in_this_experience for exp in ours.train_stream]
    train = list(map(items_of_data, theirs.train_tasks))
    test = list(map(items_of_data, theirs.test_tasks))
    assert list(map(set, classes)) == list(map(set, TASKS))
    assert items_of(ours.train_stream) == train
    assert items_of(ours.test_stream) == test


def test_a_scenario_of_capymoa_as_a_table():
    table = frames_of(from_capymoa(capymoa_scenario((3, 8, 8))))
    assert table.counts()["5"] == {"train": 4, "test": 2}


@pytest.fixture
def digits(monkeypatch):
    """A generator of Avalanche."""
    monkeypatch.setattr(classic, "Digits", Digits, raising=False)


@pytest.mark.usefixtures("digits")
def test_a_run_on_a_stream_of_avalanche(done, tiny, tmp_path):
    name = "avalanche:Digits:n_experiences=3"
    command = list(tiny)
    command[command.index("clip_folder")] = name
    root = command.index("--dataset-root")
    del command[root : root + 2]
    done(*command, "--protocol", "table", "--output", tmp_path / "run")
    assert f"benchmark: {name}" in (tmp_path / "run/config.yaml").read_text()


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "avalanche:Didgits",
            "Avalanche has no generator 'Didgits'; it has CLEAR",
        ),
        (
            "avalanche:Digits",
            "avalanche:Digits takes n_experiences, seed.*; n_experiences is unknown, "
            "or "
            "is missing",
        ),
        (
            "avalanche:Digits:seed",
            "is not avalanche:GENERATOR or avalanche:GENERATOR:KEY=VALUE",
        ),
        (
            "avalanche:Digits:n_experiences=[",
            "cannot make avalanche:Digits:n_.* .ParserError: while parsing a flow node",
        ),
        (
            "avalanche:CORe50:scenario=x",
            "cannot make avalanche:CORe50:scenario=x .AssertionError: The selected",
        ),
    ],
)
def test_names_of_generators_that_are_wrong(name, words):
    with pytest.raises(ValueError, match=words):
        get_benchmark(name).table(None, 0)
