import re
import shutil
import zipfile
from collections import Counter

import pytest
from fake_data import core50_clip, core50_names, odd_core50_names, write_files
from real_data import TEST_DATA

from benchmarks_toybox_ilab.datasets import core50
from benchmarks_toybox_ilab.datasets.core50 import CORe50, CORe50Frames, missing, parse_path
from benchmarks_toybox_ilab.tables.frame import FrameTableError

DATA = TEST_DATA / "core50_samples"
USED = [10, 30, 50, 70, 90, 110, 130, 150, 170, 190, 210, 230, 250, 270, 290]


def clips(table):
    """Frames of each (object, session), in table order."""
    found = {}
    for row in table:
        found.setdefault((row.object_name, row.session), []).append(row.frame)
    return found


def needs(name):
    return pytest.mark.skipif(not (DATA / name).is_file(), reason=f"needs core50_samples/{name} in CRUMB_TEST_DATA")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Three objects of three classes; o6 has two clips of other sessions."""
    names = [*core50_names((2, 3, 4), (1, 50), (9, 10, 30)), *core50_clip(11, 6, (10, 290)), *core50_clip(7, 6, (50,))]
    return write_files(tmp_path_factory.mktemp("core50"), [*names, "README.md", "s2/.DS_Store"])


def test_the_whole_data_set_gives_the_totals_of_the_paper():
    names = core50_names()
    assert len(names) == 165_000
    table = CORe50Frames("nowhere", reversed(names))
    assert core50.COUNTS == {"classes": 10, "train": 6000, "test": 2250}
    assert all(count == {"train": 600, "test": 225} for count in table.counts().values())
    assert {row.session for row in table if row.split == "test"} == {"s3", "s7", "s10"}
    assert all(frames == USED for frames in clips(table).values()) and len(clips(table)) == 550
    assert missing(names) == []


@pytest.mark.parametrize(
    ("class_name", "objects"),
    [
        ("plug_adapter", ["o1", "o2", "o3", "o4", "o5"]),
        ("mobile_phone", ["o6", "o7", "o8", "o9", "o10"]),
        ("scissor", ["o11", "o12", "o13", "o14", "o15"]),
        ("light_bulb", ["o16", "o17", "o18", "o19", "o20"]),
        ("can", ["o21", "o22", "o23", "o24", "o25"]),
        ("glass", ["o26", "o27", "o28", "o29", "o30"]),
        ("ball", ["o31", "o32", "o33", "o34", "o35"]),
        ("marker", ["o36", "o37", "o38", "o39", "o40"]),
        ("cup", ["o41", "o42", "o43", "o44", "o45"]),
        ("remote_control", ["o46", "o47", "o48", "o49", "o50"]),
    ],
)
def test_five_objects_in_a_row_are_a_class(class_name, objects):
    table = CORe50Frames("nowhere", core50_names((1, 3), frames=(10,)))
    assert list(dict.fromkeys(table.object_name[row] for row in table.rows(class_name=class_name))) == objects


def test_rows_are_sorted_naturally():
    names = core50_names((10, 2, 1), (10, 9, 1), (30, 10))
    rows = [(row.class_name, row.object_name, row.session, row.frame) for row in CORe50Frames("nowhere", names)]
    assert rows == [
        (class_name, number, session, frame)
        for class_name, number in (("mobile_phone", "o9"), ("mobile_phone", "o10"), ("plug_adapter", "o1"))
        for session in ("s1", "s2", "s10")
        for frame in (10, 30)
    ]


def test_gaps_and_other_files_are_accepted():
    table = CORe50Frames("nowhere", odd_core50_names())
    assert table.counts() == {
        "plug_adapter": {"train": 33, "test": 75},
        "remote_control": {"train": 15, "test": 30},
        "scissor": {"train": 15, "test": 30},
    }
    assert clips(table)["o4", "s1"] == [10, 50, 290]
    assert "s1/o2/C_01_02_010.PNG" in table.path and ("o12", "s1") not in clips(table)


def test_what_is_missing():
    assert missing(odd_core50_names()) == [
        *(f"session s{session}: all 50 clips are missing" for session in (2, 4, 5, 6, 7, 8, 9, 11)),
        "class plug_adapter: 2 of 5 objects are missing: o3, o5",
        "o2: no clip s3",
        "o4: clip s1 has 3 of 15 frames",
        "class mobile_phone: all 5 objects are missing",
        "class scissor: 3 of 5 objects are missing: o13, o14, o15",
        "o11: no clip s3, s10",
        "o12: clip s1 has 0 of 15 frames",
        *(f"class {name}: all 5 objects are missing" for name in core50.CLASSES[3:9]),
        "class remote_control: 4 of 5 objects are missing: o46, o47, o48, o49",
    ]
    assert missing(["README.md"]) == ["all 10 classes are missing"]
    lost = {*core50_clip(3, 7, (10, 290)), *core50_clip(4, 7, (50, 51)), *core50_clip(9, 7, range(300))}
    assert missing(name for name in core50_names() if name not in lost) == [
        "o7: no clip s9; clip s3 has 13 of 15 frames; clip s4 has 14 of 15 frames"
    ]


def test_names_may_begin_with_the_folder():
    names = core50_names((1, 3), frames=(10,))
    below = [f"core50_128x128/{name}" for name in names]
    table = CORe50Frames("nowhere", below)
    assert table.path[0] == "core50_128x128/s1/o31/C_01_31_010.png" and len(table) == 100
    assert missing(below) == missing(names) != []


def test_reference_changes_no_frames():
    names = odd_core50_names()
    plain, reference = CORe50Frames("nowhere", names), CORe50Frames("nowhere", names, reference=True)
    assert plain.content_hash() == reference.content_hash()
    assert core50.class_groups(plain) is None
    assert core50.class_groups(reference, True) == [["plug_adapter", "scissor", "remote_control"]]


@pytest.mark.parametrize(
    ("path", "parsed"),
    [
        ("s1/o3/C_01_03_004.png", (1, 3, 4)),
        ("core50_128x128/s11/o50/C_11_50_299.PNG", (11, 50, 299)),
        ("s1/o3/labels.txt", None),
        ("s1/o3", None),
        ("s1/o3/.C_01_03_004.png", None),
        (".trash/s1/o3/C_01_03_004.png", None),
        ("__MACOSX/s1/o3/C_01_03_004.png", None),
    ],
)
def test_parsing_a_path(path, parsed):
    assert parse_path(path) == parsed


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("s12/o3/C_12_03_010.png", "belongs to session s12, but CORe50 has sessions s1 to s11. Move it away."),
        ("s1/o51/C_01_51_010.png", "belongs to object o51, but CORe50 has objects o1 to o50. Move it away."),
        ("s1/o3/C_01_04_010.png", "does not match its folders: names in s1/o3 begin with C_01_03_. Move it"),
        ("s1/o3/C_02_03_010.png", "does not match its folders: names in s1/o3 begin with C_01_03_. Move it"),
        ("s1/o3/D_01_03_010.png", "is not named like a frame of CORe50: s<session>/o<object>/C_SS_OO_FFF.png"),
        ("s1/o3/C_01_03_10.png", "is not named like a frame of CORe50"),
        ("s1/o3/C_01_03_300.png", "and a frame from 000 to 299. Rename it or move it away."),
        ("s01/o3/C_01_03_010.png", "is not named like a frame of CORe50"),
        ("s0/o3/C_00_03_010.png", "is not named like a frame of CORe50"),
        ("s1/C_01_03_010.png", "is not named like a frame of CORe50"),
        ("s1/o3/more/C_01_03_010.png", "is not named like a frame of CORe50"),
        ("plot.PNG", "is not named like a frame of CORe50"),
    ],
)
def test_an_image_outside_the_grammar_is_named(path, words):
    names = [*core50_names((1, 3), (1,), (10,)), path]
    for function in (lambda: CORe50Frames("nowhere", names), lambda: missing(names)):
        with pytest.raises(FrameTableError, match=f"image {re.escape(path)} .*{re.escape(words)}"):
            function()


def test_a_repeated_frame_is_named():
    names = [*core50_clip(1, 3, (10,)), *core50_clip(1, 3, (10,), ".PNG")]
    with pytest.raises(FrameTableError, match=r"C_01_03_010\.PNG and s1/o3/C_01_03_010\.png are the same frame; keep"):
        CORe50Frames("nowhere", names)


def test_a_table_needs_used_frames_and_training_frames():
    with pytest.raises(FrameTableError, match=r"nowhere holds none of the frames of CORe50 that are used \(10, 30, "):
        CORe50Frames("nowhere", core50_names((1,), frames=(9, 11)))
    with pytest.raises(FrameTableError, match=r"class 'cup' of frame table 'core50' has 1 test frames and no training"):
        CORe50Frames("nowhere", [*core50_names((1, 3), (1,), (10,)), *core50_clip(7, 41, (10,))])


@pytest.mark.parametrize("inside", ["core50_128x128", "core50", "core50/core50_128x128"])
def test_the_folder_may_lie_deeper(root, tmp_path, inside):
    shutil.copytree(root, tmp_path / inside)
    table = CORe50Frames(tmp_path)
    assert table.content_hash() == CORe50Frames(root).content_hash() and table.read(0).size == (12, 8)
    assert [(*clip, frames) for clip, frames in clips(table).items()] == [
        *[("o6", "s7", [50]), ("o6", "s11", [10, 290])],
        *[("o1", session, [10, 30]) for session in ("s2", "s3", "s4")],
        *[("o50", session, [10, 30]) for session in ("s2", "s3", "s4")],
    ]


def test_folders_with_another_layout(tmp_path):
    layout = r"core50 is laid out as <root>/core50_128x128/s\{1..11\}/o\{1..50\}/C_SS_OO_FFF.png"
    with pytest.raises(FrameTableError, match=f"there is no folder .*nowhere. {layout}"):
        CORe50Frames(tmp_path / "nowhere")
    with pytest.raises(FrameTableError, match=f"has no folder s1, but holds nothing. {layout}"):
        CORe50Frames(tmp_path)
    (tmp_path / "core50_128x128" / "session1").mkdir(parents=True)
    with pytest.raises(FrameTableError, match=f"core50_128x128 has no folder s1, but holds session1. {layout}"):
        CORe50Frames(tmp_path)


def test_a_class_too_many_on_disk_is_named(tmp_path):
    write_files(tmp_path, [*core50_names((1, 3), (1,), (10,)), *core50_clip(3, 51, (4,))])
    with pytest.raises(FrameTableError, match=r"image s3/o51/C_03_51_004\.png belongs to object o51"):
        CORe50Frames(tmp_path)


def test_the_generator_passes_on_its_arguments(root):
    benchmark = CORe50(root, "class_iid", 3, lambda image: "train", lambda image: "eval", classes_per_experience=1)
    assert benchmark.protocol == "class_iid" and benchmark.run == 3 and benchmark.n_classes_per_exp == [1, 1, 1]
    assert benchmark.class_names == ("mobile_phone", "plug_adapter", "remote_control")
    assert benchmark.frame_table.content_hash() == CORe50Frames(root).content_hash()
    assert benchmark.train_stream[0].dataset[0][0] == "train" and benchmark.test_stream[0].dataset[0][0] == "eval"


@pytest.mark.parametrize(
    ("run", "order"),
    [
        # np.random.RandomState(run).shuffle of [0, 1, 2] gives [2, 1, 0] for run 0 and [0, 2, 1] for run 1, of the
        # classes by number: plug_adapter, mobile_phone, remote_control.
        (0, ("remote_control", "mobile_phone", "plug_adapter")),
        (1, ("plug_adapter", "remote_control", "mobile_phone")),
    ],
)
def test_reference_shuffles_the_classes_by_their_numbers(root, run, order):
    assert CORe50(root, run=run, classes_per_experience=1, reference=True).class_names == order


@needs("core50_samples.zip")
def test_the_names_of_real_frames():
    with zipfile.ZipFile(DATA / "core50_samples.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith("core50_128x128/")]
    parsed = [parse_path(name) for name in names]
    assert len(names) == 90 and len(set(parsed)) == 90
    spelled = {f"core50_128x128/{core50_clip(session, number, (frame,))[0]}" for session, number, frame in parsed}
    assert spelled == set(names)


@needs("core50_bbox.zip")
def test_the_frames_of_the_real_data():
    """Each line of a file is the box of a frame; boxes of frames that the data set lacks begin at -1, -1."""
    with zipfile.ZipFile(DATA / "core50_bbox.zip") as archive:
        names, lines = [], 0
        for name in archive.namelist():
            if found := re.fullmatch(r"bbox/s(\d+)/CropC_o(\d+)\.txt", name):
                boxes = re.findall(r"Color(\d+): (\S+)", archive.read(name).decode())
                lines += len(boxes)
                names += core50_clip(*map(int, found.groups()), (int(frame) for frame, left in boxes if left != "-1"))
    assert (lines, len(names)) == (165_000, 164_866)
    totals = Counter(parse_path(name)[0] for name in names)
    assert (min(totals.values()), max(totals.values()), len(totals)) == (14_966, 14_995, 11)
    lacking = {parse_path(name) for name in core50_names()}.difference(map(parse_path, names))
    assert max(frame for _, _, frame in lacking) == 6
    table = CORe50Frames("nowhere", names)
    assert (table.split.count("train"), table.split.count("test")) == (6000, 2250) and missing(names) == []
