import zipfile

import numpy as np
import pytest
from fake_data import TOYBOX_CLIPS, TOYBOX_FOLDERS, odd_toybox_names, toybox_clip, toybox_names, write_files
from real_data import TEST_DATA

from benchmarks_toybox_ilab.datasets.toybox import COUNTS, Toybox, ToyboxFrames, missing, parse_file_name
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError

DATA = TEST_DATA
CUP = "images/households/cup_01_pivothead/cup_01_pivothead"


def rows_of(table, object_name, session):
    """The rows of a clip, in table order."""
    return [row for row in table if (row.object_name, row.session) == (object_name, session)]


def short_clip(numbers, reference):
    """File number and frame number of the rows of a clip that has files of these numbers."""
    names = [name for name in toybox_names(["cup"], [7], 1) if "_tx_" not in name]
    table = ToyboxFrames("nowhere", names + toybox_clip("cup", 7, "tx", numbers), reference)
    rows = rows_of(table, "cup_07", "tx")
    return [parse_file_name(row.path.rpartition("/")[2])[3] for row in rows], [row.frame for row in rows]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("toybox"), odd_toybox_names())


def test_a_tree_with_unusual_names_and_files(root):
    table = ToyboxFrames(root)
    assert table.classes == ("cup", "duck") and table.name == "toybox" and not table.padded
    assert set(table.object_name) == {"cup_01", "duck_12"}  # cup_02 has no tz
    # Of the cup seven clips of 2 frames, 15 of 17 of rzplus, 3 of tz, 2 loud ones; of the duck nine of 2, one of 9.
    assert len(table) == 7 * 2 + 15 + 3 + 2 + 9 * 2 + 9
    assert rows_of(table, "cup_01", "tz") == [
        Frame(f"{CUP}_tz_{frame:03d}.jpeg", "cup", "cup_01", "tz", frame, "test") for frame in (1, 2, 4)
    ]
    assert [row.path for row in rows_of(table, "cup_01", "hodgepodge")] == [
        f"{CUP}_hodgepodge_001.PNG",
        f"{CUP}_hodgepodge_002.PNG",
    ]
    # By number, not as text.
    assert [row.path for row in rows_of(table, "cup_01", "rzplus")] == [f"{CUP}_rzplus_{f}.png" for f in range(1, 16)]
    assert table.path[-1].startswith("images/animals/duck_12_pivothead/duck_12_pivothead_hodgepodge_2")
    assert all(table.read(row).size == (12, 8) for row in range(len(table)))


def test_sessions_in_order_and_split(root):
    table = ToyboxFrames(root)
    cup = [(row.session, row.split) for row in table if row.object_name == "cup_01"]
    train, test = "train", "test"
    assert list(dict.fromkeys(cup)) == [
        *(("rxplus", train), ("ryplus", train), ("rzplus", test), ("rxminus", train), ("ryminus", train)),
        *(("rzminus", test), ("tx", train), ("ty", train), ("tz", test), ("hodgepodge", train)),
    ]


def test_the_parent_folder_and_a_list_of_names_are_accepted(root, tmp_path):
    (tmp_path / "toybox").symlink_to(root)
    parent, own = ToyboxFrames(tmp_path), ToyboxFrames(root)
    assert parent.content_hash() == own.content_hash() == ToyboxFrames("x", odd_toybox_names()).content_hash()
    assert parent.read(0).size == (12, 8)


def test_the_first_15_frames_with_gaps():
    numbers = [1, 2, *range(4, 19)]
    for reference in (False, True):
        assert short_clip(numbers, reference) == ([1, 2, *range(4, 17)], [1, 2, *range(4, 17)])


@pytest.mark.parametrize(
    ("files", "paths", "frames"),
    [
        (range(1, 10), [1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3], range(1, 16)),
        (range(1, 9), [1, 2, 3, 4, 5, 6, 7, 8, 7, 6, 5, 4, 3, 2, 1], range(1, 16)),
        (range(1, 15), [*range(1, 15), 13], range(1, 16)),
        (range(1, 16), range(1, 16), range(1, 16)),
        (range(1, 4), [1, 2, 3, 2, 1], range(1, 6)),  # only once back
        ([2, 3, 7], [2, 3, 7, 3, 2], [2, 3, 7, 8, 9]),
        ([4], [4], [4]),
    ],
)
def test_short_clips_run_backwards_by_reference_only(files, paths, frames):
    assert short_clip(files, True) == (list(paths), list(frames))
    assert short_clip(files, False) == (list(files), list(files))


def test_a_table_by_reference_is_padded():
    table = ToyboxFrames("nowhere", toybox_names(["cup"], [7], 9), True)
    assert table.padded and len(table) == 150 and len(set(table.path)) == 90
    assert {len(clip) for clip in table.clips(table.rows())} == {15}


def objects_of(names):
    """Numbers of the objects in the table of these names, which has one class."""
    return [int(name[-2:]) for name in dict.fromkeys(ToyboxFrames("nowhere", names).object_name)]


def test_which_objects_are_used():
    names = toybox_names(["cup"], frames=1)
    assert objects_of(names) == list(range(1, 30))
    # Where one of the thirty is incomplete, 29 are left, and the thirtieth is one of them.
    assert objects_of([name for name in names if "cup_04_pivothead_ty" not in name]) == [1, 2, 3, *range(5, 31)]
    assert objects_of([name for name in names if "cup_30" in name or "cup_02" in name]) == [2, 30]


def test_the_paper_s_counts():
    names = toybox_names()
    assert len(names) == 86_400
    for reference in (False, True):
        table = ToyboxFrames("nowhere", names, reference)
        assert len(table.classes) == COUNTS["classes"] == 12
        assert len(table.rows("train")) == COUNTS["train"] == 36_540
        assert len(table.rows("test")) == COUNTS["test"] == 15_660
        assert table.counts()["mug"] == {"train": 3_045, "test": 1_305}
    clips = table.clips(table.rows())
    assert len(clips) == 348 * 10 and {len(clip) for clip in clips} == {15}
    assert missing(names) == []


@pytest.mark.parametrize(
    "name",
    [
        "images/households/cup_01_pivothead/cup_01_pivothead_tx.png",
        "images/households/cup_01_pivothead/cup_01_pivothead_tx_0.png",
        "images/households/cup_01_pivothead/cup_01_pivothead_tx.mp4_001.jpeg",
        "images/households/cup_01_pivothead/cup_01_pivothead_rw_1.png",
        "images/households/cup_01_pivothead/cup_01_tx_1.png",
        "images/households/fork_01_pivothead/fork_01_pivothead_tx_1.png",
        "images/cover.JPG",
    ],
)
def test_a_name_outside_the_grammar_is_named(name):
    words = rf"{name} is not named like a frame of Toybox: <class>_<number>_pivothead_<transform>_<frame>.png, with one"
    with pytest.raises(FrameTableError, match=words):
        ToyboxFrames("nowhere", [*odd_toybox_names(), name])
    with pytest.raises(FrameTableError, match=words):
        missing([name])


@pytest.mark.parametrize(
    "folder", ["images/animals/cup_01_pivothead", "images/households/cup_02_pivothead", "images/cup_01_pivothead", "x"]
)
def test_a_frame_in_another_folder_is_named(folder):
    name = f"{folder}/cup_01_pivothead_tx_1.png"
    with pytest.raises(
        FrameTableError, match=f"{name} lies in the wrong .* it belongs in images/households/cup_01_piv"
    ):
        ToyboxFrames("nowhere", [name])


@pytest.mark.parametrize("other", [f"{CUP}_tx_01.png", f"{CUP}_tx_1.jpg", f"{CUP}_tx_1.PNG"])
def test_a_repeated_frame_is_named(other):
    with pytest.raises(FrameTableError, match=rf"{other} and {CUP}_tx_1.png are the same frame of the same clip"):
        ToyboxFrames("nowhere", [*odd_toybox_names(), other])


def test_a_class_without_a_complete_object_is_named():
    names = [name for name in toybox_names(["cup", "car"], range(1, 4), 1) if "car" not in name or "_tz_" not in name]
    words = r"class 'car' in nowhere has 3 objects, none with all 10 clips \(at most 9\).*Complete the class"
    with pytest.raises(FrameTableError, match=words):
        ToyboxFrames("nowhere", names)


def test_folders_with_another_layout(tmp_path):
    with pytest.raises(FrameTableError, match=r"no folder .*nowhere.*toybox is laid out as <root>/images/<supercat"):
        ToyboxFrames(tmp_path / "nowhere")
    (tmp_path / "pictures").mkdir()
    with pytest.raises(FrameTableError, match=r"has no folder images, but holds pictures\."):
        ToyboxFrames(tmp_path)
    (tmp_path / "images").mkdir()
    words = f"images holds no frames of Toybox; extract them .* `crumb prepare toybox --dataset-root {tmp_path}`"
    with pytest.raises(FrameTableError, match=words):
        ToyboxFrames(tmp_path)


@pytest.mark.parametrize("inner", ["", "toybox"])
def test_videos_without_frames_say_what_to_run(tmp_path, inner):
    folder = tmp_path / inner
    write_files(folder, ["vehicles/car_01_pivothead/car_01_pivothead_tx.MP4", "households/readme.txt"])
    words = f"{folder} holds the videos of Toybox, but no .* `crumb prepare toybox --dataset-root {folder}`"
    with pytest.raises(FrameTableError, match=words):
        ToyboxFrames(tmp_path)
    # Once they are there, the videos do not matter.
    write_files(folder, toybox_names(["car"], [1], 1))
    assert len(ToyboxFrames(tmp_path)) == 10


def test_what_is_missing():
    names = toybox_names([name for name in TOYBOX_FOLDERS if name != "spoon"], frames=15)
    gone = ("cup_07_pivothead_tz_", "cup_30_", "duck_03_pivothead_rxplus", "truck_29_", "truck_30_")
    names = [name for name in names if not any(part in name for part in gone)]
    names = [name for name in names if "cup_07_pivothead_rzplus_" not in name]
    names += toybox_clip("cup", 7, "rzplus", range(1, 10))
    # The duck has 29 without the third, so it is complete.
    assert missing(names) == [
        "cup_07: no clip tz; clip rzplus has 9 of 15 frames",
        "class spoon: all 29 objects are missing",
        "class truck: 1 of 29 objects missing; there is no number 29, 30",
    ]


def test_many_incomplete_objects_are_summed_up():
    names = [name for name in toybox_names(["cup"], range(1, 12), 15) if "_tx_" not in name and "_ty_" not in name]
    lines = [line for line in missing(names) if "cup" in line]
    assert lines == [
        *(f"cup_{number:02d}: no clip tx, ty" for number in range(1, 9)),
        "class cup: 3 more objects are incomplete",
        "class cup: 18 of 29 objects missing; there is no number " + ", ".join(map(str, range(12, 31))),
    ]
    assert len(missing([])) == 12 and missing([])[0] == "class airplane: all 29 objects are missing"


def test_the_generator_passes_on_its_arguments(tmp_path):
    write_files(tmp_path, toybox_names(["cup", "duck", "car"], [1], 2))
    benchmark = Toybox(tmp_path, "class_iid", 3, lambda image: "train", lambda image: "eval", classes_per_experience=1)
    assert benchmark.protocol == "class_iid" and benchmark.run == 3 and benchmark.n_classes_per_exp == [1, 1, 1]
    assert benchmark.frame_table.content_hash() == ToyboxFrames(tmp_path).content_hash()
    assert benchmark.train_stream[0].dataset[0][0] == "train" and benchmark.test_stream[0].dataset[0][0] == "eval"
    reference = Toybox(tmp_path, run=3, classes_per_experience=1, reference=True)
    assert reference.protocol == "class_instance" and reference.frame_table.padded
    assert len(reference.frame_table) == 3 * 10 * 3  # 1, 2, 1
    order = np.arange(3)
    np.random.RandomState(3).shuffle(order)
    assert reference.class_names == tuple(("cup", "duck", "car")[number] for number in order)
    assert [len(experience.dataset) for experience in reference.train_stream] == [7 * 3] * 3


@pytest.mark.skipif(not (DATA / "core50_samples").is_dir(), reason="needs core50_samples in CRUMB_TEST_DATA")
def test_names_of_the_real_data():
    with zipfile.ZipFile(DATA / "core50_samples/core50_samples.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith("toybox_128x128/") and name.endswith(".png")]
    parsed = [parse_file_name(name.partition("/")[2]) for name in names]
    assert sorted(parsed) == [(class_name, 1, "rzplus", 1) for class_name in sorted(TOYBOX_FOLDERS)]


def test_file_names():
    assert parse_file_name("cup_07_pivothead_rzplus_001.png") == ("cup", 7, "rzplus", 1)
    assert parse_file_name("giraffe_30_pivothead_absent_20.JPEG") == ("giraffe", 30, "absent", 20)
    assert all(parse_file_name(f"car_1_pivothead_{clip}_15.jpg") == ("car", 1, clip, 15) for clip in TOYBOX_CLIPS)
    assert parse_file_name("cup_07_pivothead_rzplus_001.gif") is None
