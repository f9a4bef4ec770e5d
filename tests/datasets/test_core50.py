import pickle
import random
import re
import shutil
import zipfile
from collections import Counter
from itertools import product

import pytest
from avalanche.benchmarks.classic import core50 as host
from fake_data import (
    core50_clip,
    core50_names,
    frames_by_clip,
    odd_core50_names,
    write_files,
)
from PIL import Image
from real_data import TEST_DATA

from benchmarks_toybox_ilab import CORe50Categories, FrameTableError, pixel_transform
from benchmarks_toybox_ilab.datasets import core50
from benchmarks_toybox_ilab.datasets.core50 import LAYOUT, CORe50, CORe50Frames

DATA = TEST_DATA / "core50_samples"


def needs(name):
    return pytest.mark.skipif(
        not (DATA / name).is_file(),
        reason=f"needs core50_samples/{name} in CRUMB_TEST_DATA",
    )


@pytest.mark.parametrize("reference", [False, True])
def test_gaps_and_other_files_are_accepted(reference):
    table = CORe50Frames("nowhere", reversed(odd_core50_names()), reference)
    assert table.counts() == {
        "plug_adapter": {"train": 33, "test": 75},
        "remote_control": {"train": 15, "test": 30},
        "scissor": {"train": 15, "test": 30},
    }
    assert frames_by_clip(table)["o4", "s1"] == [10, 50, 290]
    assert ("o12", "s1") not in frames_by_clip(table)
    assert "s1/o2/C_01_02_010.PNG" in table.path
    clips = [f"{name} {session}" for name, session in frames_by_clip(table)]
    assert clips[:6] == ["o1 s1", "o1 s3", "o1 s10", "o2 s1", "o2 s10", "o4 s1"]


def missing_of(names):
    return LAYOUT.missing(CORe50Frames("nowhere", names))


def test_what_is_missing():
    lost = {
        *core50_clip(3, 7, (10, 290)),
        *core50_clip(4, 7, (50, 51)),
        *core50_clip(9, 7, range(300)),
    }
    names = [name for name in core50_names() if "/o46/" not in name]
    assert missing_of(name for name in names if name not in lost) == [
        "5864 training images; the paper has 6000",
        "2203 test images; the paper has 2250",
        "class mobile_phone: 584 of 600 training images, 223 of 225 test images",
        "class remote_control: 480 of 600 training images, 180 of 225 test images",
    ]


def test_missing_classes():
    lines = missing_of(core50_names((1,), (1,)))
    assert lines[0] == "1 classes; the paper has 10"
    assert "class can: 0 of 600 training images, 0 of 225 test images" in lines


def real_boxes():
    """Yield session, object, and the number and left side of the boxes of each clip.

    Each line of a file is the box of a frame; boxes of frames that the data set lacks
    begin at -1, -1.
    """
    with zipfile.ZipFile(DATA / "core50_bbox.zip") as archive:
        for name in archive.namelist():
            match = re.fullmatch(r"bbox/s(\d+)/CropC_o(\d+)\.txt", name)
            if match:
                boxes = re.findall(r"Color(\d+): (\S+)", archive.read(name).decode())
                yield int(match[1]), int(match[2]), boxes


@pytest.fixture(scope="module")
def real_names():
    """Names of all images of CORe50."""
    names = []
    for session, number, boxes in real_boxes():
        frames = [int(frame) for frame, left in boxes if left != "-1"]
        names += core50_clip(session, number, frames)
    return names


@needs("core50_bbox.zip")
def test_the_number_of_frames_of_the_real_data(real_names):
    assert sum(len(boxes) for _, _, boxes in real_boxes()) == 165_000
    assert len(real_names) == 164_866
    assert len(list(core50.LAYOUT.images(real_names))) == 164_866


@needs("core50_bbox.zip")
def test_the_sessions_of_the_real_data(real_names):
    totals = Counter(name.partition("/")[0] for name in real_names)
    assert len(totals) == 11
    assert min(totals.values()) == 14_966
    assert max(totals.values()) == 14_995


@needs("core50_bbox.zip")
def test_what_the_real_data_lack_is_not_used(real_names):
    absent = set(core50_names()).difference(real_names)
    assert all(name[-7:-4] < "007" for name in absent)
    table = CORe50Frames("nowhere", real_names)
    assert table.split.count("train") == 6000
    assert table.split.count("test") == 2250
    assert LAYOUT.missing(table) == []


SESSIONS = range(1, 12)
OBJECTS = range(1, 51)
ALL_CLIPS = list(product(SESSIONS, OBJECTS))  # session and object
TESTED = [clip for clip in ALL_CLIPS if f"s{clip[0]}" in core50.TEST_SESSIONS]
TRAINED = [clip for clip in ALL_CLIPS if clip not in TESTED]


def path_of(clip):
    session, number = clip
    return f"s{session}/o{number}/C_{session:02d}_{number:02d}_010.png"


def batches_of(scenario, count, label_of, draw):
    """Return the training clips of each experience.

    Sessions, new objects, or parts of all clips in random order.
    """
    order = draw.sample(TRAINED, len(TRAINED))
    batches = [[] for _ in range(count)]
    if scenario == "nc":
        for clip in order:
            batches[max(0, label_of[clip[1]] // 5 - 1)].append(clip)
    elif scenario == "ni":
        sessions = draw.sample(sorted({session for session, _ in TRAINED}), count)
        for clip in order:
            batches[sessions.index(clip[0])].append(clip)
    else:
        for position, clip in enumerate(order):
            batches[position % count].append(clip)
    return batches


def write_lists(folder, batches, label_of):
    """Write the lists of a run."""
    folder.mkdir(parents=True)
    lists = {f"train_batch_{number:02d}": clips for number, clips in enumerate(batches)}
    lists["test"] = TESTED
    for name, clips in lists.items():
        lines = [f"{path_of(clip)} {label_of[clip[1]]}\n" for clip in clips]
        (folder / f"{name}_filelist.txt").write_text("".join(lines))


def official_name(number):
    """Return the name of the class of an object in the official protocols."""
    return f"{core50.CLASSES[(number - 1) // 5]}{(number - 1) % 5 + 1}"


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """One image of every clip, and lists of the six protocols for two runs.

    With the pickles that Avalanche reads.
    """
    root = tmp_path_factory.mktemp("official")
    draw = random.Random(0)
    for session, number in ALL_CLIPS:
        path = root / "core50_128x128" / path_of((session, number))
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2), (session, number, 0)).save(path)
    (root / "core50_32x32").symlink_to(root / "core50_128x128")
    names = {}
    for (scenario, (folder, count)), run in product(core50.LISTS.items(), (0, 1)):
        numbers = list(OBJECTS)
        if scenario == "nc":
            numbers = draw.sample(OBJECTS, 50)
            names[run] = list(map(official_name, numbers))
        label_of = {number: label for label, number in enumerate(numbers)}
        batches = batches_of(scenario, count, label_of, draw)
        write_lists(root / folder / f"run{run}", batches, label_of)
    empty = {"ni": [[[]] * 9]}
    pickles = {
        "paths": [],
        "labels": empty,
        "LUP": empty,
        "labels2names": {"nc": names},
    }
    for name, value in pickles.items():
        (root / f"{name}.pkl").write_bytes(pickle.dumps(value))
    return root


def labels_of(stream):
    """Return labels and task label of each experience."""
    return [(list(exp.dataset.targets), exp.task_label) for exp in stream]


def pixels_of(stream):
    """Return the pixels in the corner of the images of the first experiences."""
    experiences = stream if len(stream) < 9 else list(stream)[:3]
    pixels = []
    for experience in experiences:
        pixels += [image[:, 0, 0].tolist() for image, *_ in experience.dataset]
    return pixels


@pytest.mark.parametrize(
    ("scenario", "keywords"),
    [
        ("ni", {"run": 1}),
        ("ni", {"object_lvl": False}),
        ("nc", {"run": 1}),
        ("nc", {"run": 1, "object_lvl": False}),
        ("nic", {"run": 1}),
        ("nicv2_79", {"object_lvl": False, "mini": True}),
        ("nicv2_196", {}),
        pytest.param("nicv2_391", {}, marks=pytest.mark.slow),
    ],
)
def test_official_protocols_are_those_of_avalanche(official, scenario, keywords):
    arguments = {
        "scenario": scenario,
        "train_transform": pixel_transform(2),
        "eval_transform": pixel_transform(2),
        "dataset_root": official,
        **keywords,
    }
    ours = CORe50(**arguments)
    theirs = host.CORe50(**arguments)
    assert ours.n_classes == theirs.n_classes
    assert labels_of(ours.train_stream) == labels_of(theirs.train_stream)
    assert labels_of(ours.test_stream) == labels_of(theirs.test_stream)
    assert pixels_of(ours.train_stream) == pixels_of(theirs.train_stream)
    assert pixels_of(ours.test_stream) == pixels_of(theirs.test_stream)
    if scenario == "nc":  # by categories, Avalanche repeats those of later experiences
        assert ours.n_classes_per_exp == theirs.n_classes_per_exp
        assert ours.classes_order == list(dict.fromkeys(theirs.classes_order))


@pytest.mark.parametrize(
    ("mini", "folder"), [(True, core50.MINI), (False, core50.IMAGES)]
)
def test_the_size_of_the_images_of_a_protocol(official, mini, folder):
    ours = CORe50(official, scenario="nicv2_79", mini=mini)
    assert ours.frame_table.root.name == folder


@pytest.fixture
def small(tmp_path):
    """Three objects of three classes; o6 has two clips of other sessions."""
    names = [
        *core50_names((2, 3, 4), (1, 50), (9, 10, 30)),
        *core50_clip(11, 6, (10, 290)),
        *core50_clip(7, 6, (50,)),
    ]
    return write_files(tmp_path, [*names, "README.md", "s2/.DS_Store"])


@pytest.mark.parametrize("arguments", [{}, {"scenario": "paper"}])
def test_the_ten_categories_are_the_default(small, arguments):
    ours = CORe50(small, run=1, **arguments)
    rows = [list(exp.dataset.frame_row) for exp in ours.train_stream]
    categories = CORe50Categories(small, run=1)
    expected = [list(exp.dataset.frame_row) for exp in categories.train_stream]
    assert rows == expected
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        (
            {"scenario": "nicv3"},
            "unknown scenario 'nicv3'; known are paper, ni, nc, nic, nicv2_79, "
            "nicv2_196, nicv2_391",
        ),
        (
            {"scenario": "ni", "seed": 3},
            "seed cannot be given with scenario 'ni'.* choose one of these by run",
        ),
        (
            {"scenario": "ni", "run": 10},
            "run is 10, but CORe50 publishes the runs 0 to 9",
        ),
        (
            {"scenario": "ni", "run": 2},
            "NI_inc/run2/train_batch_00_filelist.txt, .* official lists, is missing",
        ),
        ({"mini": True}, "mini=True is for the official protocols"),
        (
            {"object_lvl": True},
            "object_lvl=True is for the official protocols.*categories",
        ),
    ],
)
def test_what_the_official_protocols_do_not_take(official, keywords, words):
    with pytest.raises(ValueError, match=words):
        CORe50(official, **keywords)


@pytest.fixture
def copied(official, tmp_path):
    """A copy of the lists of a run, without images."""
    folder = "batches_filelists/NI_inc/run0"
    shutil.copytree(official / folder, tmp_path / folder)
    (tmp_path / "core50_128x128").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "s1/o3/C_01_04_010.png 2",
            "line 1 of .*train_batch_00_filelist.txt is 's1/o3/C_01_04",
        ),
        ("s1/o3/C_01_03_010.png two", "must be the path of an image and a label"),
        ("s1/o3/C_01_03_010.png 7", "gives plug_adapter3 a second label"),
    ],
)
def test_damaged_official_lists(copied, line, words):
    file = copied / "batches_filelists/NI_inc/run0/train_batch_00_filelist.txt"
    file.write_text(f"{line}\n{file.read_text()}")
    with pytest.raises(FrameTableError, match=words):
        CORe50(copied, scenario="ni")


def test_an_empty_official_list(copied):
    file = copied / "batches_filelists/NI_inc/run0/train_batch_00_filelist.txt"
    file.write_text("")
    words = (
        "train_batch_00_filelist.txt, one of the official lists, is missing or empty"
    )
    with pytest.raises(FrameTableError, match=words):
        CORe50(copied, scenario="ni")


def test_missing_official_lists(copied):
    words = r"there is no folder .*NC_inc. Scenario 'nc' needs"
    with pytest.raises(FrameTableError, match=words):
        CORe50(copied, scenario="nc")


@pytest.mark.parametrize("keep", ["core50_128x128", "batches_filelists"])
def test_what_is_there_is_not_downloaded_again(copied, monkeypatch, keep):
    """The folder of Avalanche's data holds the images or the lists below `core50`."""
    (copied / "core50").mkdir()
    (copied / keep).rename(copied / "core50" / keep)
    root = copied / "core50"
    for name in ("core50_128x128", "batches_filelists"):
        if name != keep:
            (copied / name).rename(copied / f"elsewhere-{name}")
    downloads = []

    def download(url, md5, folder):
        downloads.append(url.rpartition("/")[2])
        name = "batches_filelists"
        if url.endswith("core50_128x128.zip"):
            name = "core50_128x128"
        (copied / f"elsewhere-{name}").rename(folder / name)

    monkeypatch.setattr(core50.registry, "download_whole", download)
    CORe50(copied, scenario="ni", download=True)
    assert len(downloads) == 1
    assert (root / "core50_128x128").is_dir()
    assert (root / "batches_filelists").is_dir()
