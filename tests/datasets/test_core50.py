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
    assert "s1/o2/C_01_02_010.PNG" in table.path and (
        "o12",
        "s1",
    ) not in frames_by_clip(table)
    clips = [f"{thing} {session}" for thing, session in frames_by_clip(table)]
    assert clips[:6] == ["o1 s1", "o1 s3", "o1 s10", "o2 s1", "o2 s10", "o4 s1"]


def test_what_is_missing():
    lost = {
        *core50_clip(3, 7, (10, 290)),
        *core50_clip(4, 7, (50, 51)),
        *core50_clip(9, 7, range(300)),
    }
    names = [
        name for name in core50_names() if name not in lost and "/o46/" not in name
    ]
    assert LAYOUT.missing(CORe50Frames("nowhere", names)) == [
        "5864 training images; the paper has 6000",
        "2203 test images; the paper has 2250",
        "class mobile_phone: 584 of 600 training images, 223 of 225 test images",
        "class remote_control: 480 of 600 training images, 180 of 225 test images",
    ]
    alone = LAYOUT.missing(CORe50Frames("nowhere", core50_names((1,), (1,))))
    assert (
        alone[0] == "1 classes; the paper has 10"
        and "class can: 0 of 600 training images, 0 of 225 test images" in alone
    )


@needs("core50_bbox.zip")
def test_the_frames_of_the_real_data():
    """Each line of a file is the box of a frame; boxes of frames that the data set lacks begin at -1, -1."""
    with zipfile.ZipFile(DATA / "core50_bbox.zip") as archive:
        names, lines = [], 0
        for name in archive.namelist():
            if found := re.fullmatch(r"bbox/s(\d+)/CropC_o(\d+)\.txt", name):
                boxes = re.findall(r"Color(\d+): (\S+)", archive.read(name).decode())
                lines += len(boxes)
                names += core50_clip(
                    *map(int, found.groups()),
                    (int(frame) for frame, left in boxes if left != "-1"),
                )
    assert (lines, len(names)) == (165_000, 164_866) and len(
        list(core50.LAYOUT.images(names))
    ) == 164_866
    totals = Counter(name.partition("/")[0] for name in names)
    assert (min(totals.values()), max(totals.values()), len(totals)) == (
        14_966,
        14_995,
        11,
    )
    assert all(name[-7:-4] < "007" for name in set(core50_names()).difference(names))
    table = CORe50Frames("nowhere", names)
    assert (table.split.count("train"), table.split.count("test")) == (
        6000,
        2250,
    ) and LAYOUT.missing(table) == []


def batches_of(scenario, number, label, training, draw):
    """The training clips of each experience: sessions, new objects, or parts of all clips in random order."""
    order = draw.sample(training, len(training))
    if scenario == "nc":
        return [
            [clip for clip in order if max(0, label[clip[1]] // 5 - 1) == place]
            for place in range(number)
        ]
    if scenario == "ni":
        sessions = draw.sample(sorted({session for session, _ in training}), number)
        return [[clip for clip in order if clip[0] == session] for session in sessions]
    return [order[start::number] for start in range(number)]


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """One image of every clip, lists of the five protocols for two runs, and the pickles that Avalanche reads."""
    root, draw = tmp_path_factory.mktemp("official"), random.Random(0)
    clips = {
        (s, o): f"s{s}/o{o}/C_{s:02d}_{o:02d}_010.png"
        for s in range(1, 12)
        for o in range(1, 51)
    }
    for (session, thing), path in clips.items():
        (root / "core50_128x128" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2), (session, thing, 0)).save(
            root / "core50_128x128" / path
        )
    (root / "core50_32x32").symlink_to(root / "core50_128x128")
    tested = [clip for clip in clips if f"s{clip[0]}" in core50.TEST_SESSIONS]
    training = [clip for clip in clips if clip not in tested]
    names = {}
    for (scenario, (folder, number)), run in product(core50.LISTS.items(), (0, 1)):
        things = draw.sample(range(1, 51), 50) if scenario == "nc" else [*range(1, 51)]
        label = {thing: place for place, thing in enumerate(things)}
        if scenario == "nc":
            names[run] = [
                f"{core50.CLASSES[(o - 1) // 5]}{(o - 1) % 5 + 1}" for o in things
            ]
        batches = enumerate(batches_of(scenario, number, label, training, draw))
        lists = root / folder / f"run{run}"
        lists.mkdir(parents=True)
        for name, batch in (
            {f"train_batch_{place:02d}": batch for place, batch in batches}
            | {"test": tested}
        ).items():
            (lists / f"{name}_filelist.txt").write_text(
                "".join(f"{clips[one]} {label[one[1]]}\n" for one in batch)
            )
    empty = {"ni": [[[]] * 9]}
    for name, value in {
        "paths": [],
        "labels": empty,
        "LUP": empty,
        "labels2names": {"nc": names},
    }.items():
        (root / f"{name}.pkl").write_bytes(pickle.dumps(value))
    return root


@pytest.mark.parametrize(
    ("scenario", "keywords"),
    [
        ("ni", {"run": 1}),
        ("ni", {"object_lvl": False}),
        ("nc", {"run": 1}),
        ("nc", {"run": 1, "object_lvl": False}),
        ("nicv2_79", {"object_lvl": False, "mini": True}),
        ("nicv2_196", {}),
        pytest.param("nicv2_391", {}, marks=pytest.mark.slow),
    ],
)
def test_official_protocols_are_those_of_avalanche(official, scenario, keywords):
    pixels = pixel_transform(2)
    same = dict(
        scenario=scenario,
        train_transform=pixels,
        eval_transform=pixels,
        dataset_root=official,
        **keywords,
    )
    ours, theirs = CORe50(**same), host.CORe50(**same)
    assert ours.n_classes == theirs.n_classes and ("mini" in keywords) == (
        ours.frame_table.root.name == core50.MINI
    )
    if scenario == "nc":  # by categories, Avalanche repeats those of later experiences
        assert ours.n_classes_per_exp == theirs.n_classes_per_exp
        assert ours.classes_order == list(dict.fromkeys(theirs.classes_order))
    for mine, other in (
        (ours.train_stream, theirs.train_stream),
        (ours.test_stream, theirs.test_stream),
    ):
        assert len(mine) == len(other)
        for one, two in zip(mine, other):
            assert (
                list(one.dataset.targets) == list(two.dataset.targets)
                and one.task_label == two.task_label
            )
            if len(mine) < 9 or one.current_experience < 3:
                seen = [
                    [image[:, 0, 0].tolist() for image, *_ in part.dataset]
                    for part in (one, two)
                ]
                assert seen[0] == seen[1]


def test_the_name_alone_and_the_scenario_paper_are_the_ten_categories(tmp_path):
    """Three objects of three classes; o6 has two clips of other sessions."""
    names = [
        *core50_names((2, 3, 4), (1, 50), (9, 10, 30)),
        *core50_clip(11, 6, (10, 290)),
        *core50_clip(7, 6, (50,)),
    ]
    root = write_files(tmp_path, [*names, "README.md", "s2/.DS_Store"])
    streams = [
        CORe50(root, run=1),
        CORe50(root, scenario="paper", run=1),
        CORe50Categories(root, run=1),
    ]
    rows = [
        [list(one.dataset.frame_row) for one in stream.train_stream]
        for stream in streams
    ]
    assert rows[0] == rows[1] == rows[2] and len(rows[0]) == 2


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        (
            {"scenario": "nic"},
            "unknown scenario 'nic'; known are paper, ni, nc, nicv2_79, nicv2_196, nicv2_391",
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
    ],
)
def test_what_the_official_protocols_do_not_take(official, keywords, words):
    with pytest.raises(ValueError, match=words):
        CORe50(official, **keywords)


def test_damaged_official_lists(official, tmp_path):
    shutil.copytree(
        official / "batches_filelists/NI_inc/run0",
        tmp_path / "batches_filelists/NI_inc/run0",
    )
    (tmp_path / "core50_128x128").mkdir()
    file = tmp_path / "batches_filelists/NI_inc/run0/train_batch_00_filelist.txt"
    lines = file.read_text()
    for line, words in (
        (
            "s1/o3/C_01_04_010.png 2",
            "line 1 of .*train_batch_00_filelist.txt is 's1/o3/C_01_04",
        ),
        ("s1/o3/C_01_03_010.png two", "must be the path of an image and a label"),
        ("s1/o3/C_01_03_010.png 7", "gives plug_adapter3 a second label"),
        (
            "",
            "train_batch_00_filelist.txt, one of the official lists, is missing or empty",
        ),
    ):
        file.write_text(f"{line}\n{lines}" * bool(line))
        with pytest.raises(FrameTableError, match=words):
            CORe50(tmp_path, scenario="ni")
    with pytest.raises(
        FrameTableError, match=r"there is no folder .*NC_inc. Scenario 'nc' needs"
    ):
        CORe50(tmp_path, scenario="nc")
