"""Streams that others publish figures of: official lists and counts, splits, wrong trees, equality with Avalanche."""

import hashlib
import json
import shutil
from types import SimpleNamespace

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
from benchmarks_toybox_ilab.datasets.openloris import OpenLORIS, OpenLORISFrames
from benchmarks_toybox_ilab.datasets.orbit import ORBITFrames
from benchmarks_toybox_ilab.datasets.registry import BENCHMARKS
from benchmarks_toybox_ilab.datasets.stream51 import Stream51Frames, Stream51Novel
from benchmarks_toybox_ilab.prepare.core import check
from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError


def sha256(names):
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


# Official lists, and names of whole trees: one image where the numbers of images vary.
WHOLE = {
    "openloris_sequence": openloris_names(openloris.CLASSES, openloris.FACTORS),
    "clear10": clear_names(clear.CLEAR10_CLASSES),
    "clear100": clear_names([f"class{number}" for number in range(100)]),
}


def test_official_lists():
    # data.py of lifelong-robotic-vision/OpenLORIS-Object,
    # orbit_test_object_cluster_labels.json of microsoft/ORBIT-Dataset (as "user
    # objects"), clear_10_config.json of linzhiqiu/continual-learning
    assert len(openloris.CLASSES) == 121 and len(openloris.CATEGORIES) == 40
    assert sha256(openloris.CLASSES) == "bb5fc03d5658c141"
    assert len(orbit.USERS) == 17 and sum(orbit.USERS.values()) == 158
    assert (
        sha256(f"{user} {count}" for user, count in orbit.USERS.items())
        == "2955ede2aa8a53d6"
    )
    assert sha256(clear.CLEAR10_CLASSES) == "cd0ce524617ab913"
    # the last line of classes in
    # logs/stream51_slda_experiment_class_instance_seed20.log, and the counts of
    # orderings/class_instance_seed10 of tyler-hayes/Stream-51: train_150736,
    # test_150736 and test_out_150736
    assert (
        stream51.class_order(20)[:8] == [31, 19, 24, 14, 11, 17, 5, 35]
        and len(set(stream51.class_order(20))) == 51
    )
    assert stream51.LAYOUT.counts == {"classes": 51, "train": 150_736, "test": 2_550}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_tree_lacks_nothing_and_a_gap_is_named(name):
    data, names = BENCHMARKS[name], WHOLE[name]
    assert data.files.missing(data.frames("nowhere", names)) == []
    folder, gap = {
        "openloris_sequence": (
            "test/pixel/segment3/u_disk_02/",
            "class u_disk_02: 35 of 36 test sessions of a class",
        ),
        "clear10": (
            "test/labeled_images/10/bus/",
            "class bus: 9 of 10 test sessions of a class",
        ),
        "clear100": (
            "train/labeled_images/1/class7/",
            "class class7: 9 of 10 training sessions of a class",
        ),
    }[name]
    _, line = data.files.missing(
        data.frames("nowhere", [path for path in names if not path.startswith(folder)])
    )
    assert line == gap


def test_segments_of_a_factor_and_of_all(tmp_path):
    names = openloris_names(factors=("clutter", "pixel"), segments=(1, 9))
    table = OpenLORISFrames("x", names)
    assert table.classes == ("bottle_01", "cup_10") and table.counts()["cup_10"] == {
        "train": 4,
        "test": 4,
    }
    assert table[1] == Frame(
        "train/clutter/segment1/bottle_01/10.jpg",
        "bottle_01",
        "bottle_01",
        "task1",
        1,
        "train",
    )
    assert set(table.session) == {"task1", "task9"}
    assert set(OpenLORISFrames("x", names, "sequence").session) == {
        "task19",
        "task27",
        "task28",
        "task36",
    }
    with pytest.raises(
        ValueError, match="unknown factor 'noise'; known are sequence, illumination"
    ):
        OpenLORISFrames("x", names, "noise")
    with pytest.raises(FrameTableError, match="holds no images of OpenLORIS-Object"):
        OpenLORISFrames("x", names, "occlusion")


def test_the_mixture_of_factors_is_that_of_avalanche(tmp_path, monkeypatch):
    objects = ("bottle_01", "cup_10", "key_02")
    lists = {
        f"train_batch_{number:02d}": [
            (f"train/task{number}", label) for label in (2, 0, 1)
        ]
        for number in range(12)
    }
    lists["test"] = [("test", label) for label in (1, 0, 2)]
    folder = tmp_path / "batches_filelists/domain/iros"
    folder.mkdir(parents=True)
    for number, (name, rows) in enumerate(lists.items()):
        rows = [
            (f"{place}/{objects[label]}/{number}.png", label) for place, label in rows
        ]
        (folder / f"{name}.txt").write_text(
            "".join(f"{path} {label}\n" for path, label in rows)
        )
        for path, label in rows:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (number, label, 0)).save(tmp_path / path)
    monkeypatch.setattr(
        host_openloris,
        "OpenLORISDataset",
        lambda root, download: SimpleNamespace(root=root),
    )
    pixels = PixelTransform(8)
    same = dict(
        factor="mixture-iros",
        dataset_root=tmp_path,
        train_transform=pixels,
        eval_transform=pixels,
    )
    ours, theirs = OpenLORIS(**same), host_openloris.OpenLORIS(**same)
    assert ours.n_classes == 3
    for mine, other in (
        (ours.train_stream, theirs.train_stream),
        (ours.test_stream, theirs.test_stream),
    ):
        for one, two in zip(mine, other, strict=True):
            seen = [
                [(image[:, 0, 0].tolist(), label) for image, label, _ in part.dataset]
                for part in (one, two)
            ]
            assert seen[0] == seen[1] and len(seen[0]) == 3
    with pytest.raises(
        ValueError,
        match="seed cannot be given with factor 'mixture-iros': its lists fix the order",
    ):
        OpenLORIS(tmp_path, factor="mixture-iros", seed=1)
    file = folder / "test.txt"
    for text, words in (
        ("../x.jpg 0", "line 1 of .*test.txt is '../x.jpg 0', but"),
        ("test/a/1.jpg 7", "are not 0 to 3"),
        (None, "test.txt, one of the official lists, is missing"),
    ):
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(FrameTableError, match=words):
            OpenLORIS(tmp_path, factor="mixture-iros")


def test_buckets_are_those_of_avalanche(tmp_path):
    classes, root = ("BACKGROUND", "bus", "camera"), tmp_path / "clear10"
    names = clear_names(classes, range(1, 11))
    write_files(root, names)
    for split in ("train", "test"):
        (root / split / "class_names.txt").write_text("\n".join(classes))
        meta = {str(bucket): {} for bucket in range(1, 11)}
        for bucket, name in ((bucket, name) for bucket in meta for name in classes):
            meta[bucket][name] = f"labeled_metadata/{bucket}/{name}.json"
            file = root / split / meta[bucket][name]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(
                json.dumps({"0": {"IMG_PATH": f"labeled_images/{bucket}/{name}/0.jpg"}})
            )
        (root / split / "labeled_metadata.json").write_text(json.dumps(meta))
    ours = clear.CLEAR(root)
    table = ours.frame_table
    for split in ("train", "test"):
        # Each list of Avalanche 0.6 holds the images of all buckets, so only all
        # together can be compared.
        host = HostCLEAR(
            root, data_name="clear10", split=split, seed=0
        ).get_paths_and_targets(root_appended=False)
        assert (
            dict(host[0])
            == {table.path[row]: table.labels[row] for row in table.rows(split)}
            and len(host) == 10
        )
    for number, (train, test) in enumerate(
        zip(ours.train_stream, ours.test_stream, strict=True), 1
    ):
        assert {
            table.session[row]
            for row in (*train.dataset.frame_row, *test.dataset.frame_row)
        } == {str(number)}
        assert (
            sorted(train.dataset.targets) == sorted(test.dataset.targets) == [0, 1, 2]
        )
    with pytest.raises(ValueError, match="unknown data_name 'clear50'"):
        CLEARFrames(root, data_name="clear50")


def test_images_of_stream51_are_cut_as_in_avalanche(tmp_path):
    root = write_stream51(tmp_path / "Stream-51")
    file = root / "Stream-51_meta_train.json"
    boxes = [
        [9, 3, 6, 2],
        [12, 0, 8, 0],
        [13, 9, 5, 1],
    ]  # within, the whole image, beyond the right side
    entries = [
        [*entry[:5], boxes[number % 3], entry[6]]
        for number, entry in enumerate(json.loads(file.read_text()))
    ]
    file.write_text(json.dumps(entries))
    for number, entry in enumerate(entries):
        Image.effect_noise((12, 8), 90 + number).convert("RGB").save(root / entry[-1])
    table, host = (
        Stream51Frames(tmp_path),
        HostStream51(root, train=True, download=False),
    )
    assert (
        table.classes == ("airplane", "bear")
        and len(table.clips(table.rows("train"))) == 4
    )
    for row in range(12):
        image, label = host[row]
        assert (
            table.read(row).tobytes() == image.tobytes() and table.labels[row] == label
        )
    novel = Stream51Novel(tmp_path)
    assert novel.classes == ("novel",) and novel.path == (
        "test/000900.jpg",
        "test/000901.jpg",
    )
    assert not set(novel.path) & set(table.path) and table.counts()["bear"] == {
        "train": 6,
        "test": 2,
    }
    lines, complete = check("stream51", tmp_path)
    assert "2 classes; the data set has 51" in lines and not complete


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


def test_a_user_of_orbit(tmp_path):
    write_orbit(tmp_path, frames=(1100, 5), absent=0, users=["P177"], things=["bag"])
    write_orbit(
        tmp_path,
        frames=(40, 260),
        absent=20,
        users=["P177"],
        things=["front door", "mug"],
    )
    table = ORBITFrames(tmp_path)
    assert table.classes == (
        "front door",
        "mug",
    )  # too few frames of the bag are in a clutter video
    assert table.counts()["mug"] == {"train": 2, "test": 200}
    assert [table.frame[row] for row in table.rows("train", "mug")] == [1, 31]
    assert max(table.frame[row] for row in table.rows("test")) <= 240
    assert (
        ORBITFrames(tmp_path, 17).content_hash()
        == ORBITFrames(tmp_path, user="P177").content_hash()
    )
    write_orbit(tmp_path, frames=(1100, 50), absent=0, users=["P177"], things=["bag"])
    assert ORBITFrames(tmp_path).counts()["bag"] == {"train": 34, "test": 50}
    lines, _ = check("orbit", tmp_path)
    assert (
        lines[1:3] == ["user P177: 3 of 7 objects", "user P198: 0 of 10 objects"]
        and len(lines) == 18
    )


def test_wrong_trees_of_orbit(tmp_path):
    root = write_orbit(tmp_path, users=["P177"])
    with pytest.raises(
        FrameTableError, match="has no folder test/P999, but holds annotations, test"
    ):
        ORBITFrames(root, 16)
    with pytest.raises(
        ValueError, match="unknown user 'P744'; the test users are P177"
    ):
        ORBITFrames(root, user="P744")
    file = next((root / "annotations/test").iterdir())
    notes = json.loads(file.read_text())
    for text in (json.dumps({name: {} for name in notes}), "[" * 100_000):
        file.write_text(text)
        with pytest.raises(
            FrameTableError, match="does not say of every frame of its video whether"
        ):
            ORBITFrames(root)
    file.unlink()
    with pytest.raises(
        FrameTableError,
        match=r"says where the object is visible\. Unpack orbit_extra_annotations",
    ):
        ORBITFrames(root)


def images(per_class, seed):
    """Six classes of uint8 images of 8 x 8 pixels, in random order."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(6).repeat(per_class)[
        torch.randperm(6 * per_class, generator=random)
    ]
    data = TensorDataset(
        torch.randint(
            0, 256, (len(labels), 3, 8, 8), dtype=torch.uint8, generator=random
        ),
        labels,
    )
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


def test_a_benchmark_of_avalanche_as_a_table_and_back():
    theirs = Digits(3, seed=1)
    table = frames_of(theirs)
    ours = make_benchmark(table, "table", 0, None, PixelTransform(8), PixelTransform(8))
    assert ours.n_classes == 6 and ours.n_classes_per_exp == [2, 2, 2]
    assert ours.original_classes_in_exp == theirs.original_classes_in_exp
    for mine, other in (
        (ours.train_stream, theirs.train_stream),
        (ours.test_stream, theirs.test_stream),
    ):
        for one, two in zip(mine, other, strict=True):
            assert list(one.dataset.targets) == list(two.dataset.targets)
            assert all(
                torch.equal(a[0], b[0])
                for a, b in zip(one.dataset, two.dataset, strict=True)
            )
    assert frames_of(
        Digits(3, seed=1, train_transform=Normalize([9.0] * 3, [1.0] * 3))
    ).read(0).size == (8, 8)


def test_tensors_that_are_no_images():
    data = TensorDataset(torch.full((6, 3, 8, 8), -1.0), torch.arange(6))
    data.targets = [*range(6)]
    with pytest.raises(
        BadFrameError,
        match="not within 0 and 1; make the stream avalanche without Normalize",
    ):
        frames_of(nc_benchmark(data, data, 3, False)).read(0)


@pytest.mark.parametrize("shape", [(768,), (3, 8, 8)], ids=["features", "images"])
def test_a_scenario_of_capymoa(shape):
    labels = torch.arange(6).repeat(4)
    data = TensorDataset(torch.rand(24, *shape), labels)
    order = [
        [2, 5],
        [0, 1],
        [3, 4],
    ]  # as its partition_by_schedule makes tasks: subsets, or tensors when preloaded
    rows = [
        [row for row in range(24) if int(labels[row]) in classes] for classes in order
    ]
    tests = [TensorDataset(*data[task[:4]]) for task in rows]
    theirs = SimpleNamespace(
        train_tasks=[Subset(data, task) for task in rows], test_tasks=tests
    )
    benchmark = from_capymoa(theirs)
    assert [
        set(one.classes_in_this_experience) for one in benchmark.train_stream
    ] == list(map(set, order))
    for stream, tasks in (
        (benchmark.train_stream, theirs.train_tasks),
        (benchmark.test_stream, tests),
    ):
        for experience, task in zip(stream, tasks, strict=True):
            items = [(item, label) for item, label, _ in experience.dataset]
            assert all(
                torch.equal(x, item) and y == label
                for (x, y), (item, label) in zip(task, items, strict=True)
            )
    if shape != (768,):
        assert frames_of(benchmark).counts()["5"] == {"train": 4, "test": 2}


def test_a_run_on_a_stream_of_avalanche(monkeypatch, crumb, tiny, tmp_path):
    monkeypatch.setattr(classic, "Digits", Digits, raising=False)
    values = {"clip_folder": "avalanche:Digits:n_experiences=3"}
    words = [values.get(word, word) for word in tiny]
    at = words.index("--dataset-root")
    code, _, err = crumb(
        *words[:at],
        *words[at + 2 :],
        "--protocol",
        "table",
        "--output",
        tmp_path / "run",
    )
    assert code == 0, err
    assert (
        "benchmark: avalanche:Digits:n_experiences=3"
        in (tmp_path / "run/config.yaml").read_text()
    )
    for name, words in {
        "avalanche:Didgits": "Avalanche has no generator 'Didgits'; it has CLEAR",
        "avalanche:Digits": "avalanche:Digits takes n_experiences, seed.*; n_experiences is unknown, or is missing",
        "avalanche:Digits:seed": "is not avalanche:GENERATOR or avalanche:GENERATOR:KEY=VALUE",
        "avalanche:Digits:n_experiences=[": "cannot make avalanche:Digits:n_.* .ParserError: while parsing a flow node",
        "avalanche:CORe50:scenario=x": "cannot make avalanche:CORe50:scenario=x .AssertionError: The selected",
    }.items():
        with pytest.raises(ValueError, match=words):
            get_benchmark(name).table(None, 0)
