import re
import shutil

import pytest
from fake_data import TOYBOX_CLIPS, TOYBOX_FOLDERS, write_toybox_videos
from fake_videos import video_frame_number
from PIL import Image

from benchmarks_toybox_ilab.datasets import toybox
from benchmarks_toybox_ilab.prepare import toybox_videos
from benchmarks_toybox_ilab.prepare.toybox_videos import extract_toybox
from benchmarks_toybox_ilab.tables.frame import FrameTableError

FOUR = [("cup", 1, "rxplus"), ("cup", 1, "absent"), ("duck", 30, "present"), ("truck", 12, "hodgepodge")]


def files(folder):
    """Every file below a folder, hidden or not."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def taken(monkeypatch):
    """Replace the decoding and record the video and frame of each extraction, relative to source and root."""
    asked = []

    def extract_many(jobs, workers, progress):
        asked.extend((job.video, job.folder / job.name(7), job.size, job.fps) for job in jobs)
        return workers

    monkeypatch.setattr(toybox_videos, "extract_many", extract_many)
    return asked


def touch_videos(source, clips, top=lambda supercategory: supercategory, ending=".mp4"):
    for class_name, number, clip in clips:
        thing = f"{class_name}_{number:02d}_pivothead"
        path = source / top(TOYBOX_FOLDERS[class_name]) / thing / f"{thing}_{clip}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_frames_of_the_clips_that_are_used(tmp_path):
    pytest.importorskip("av")
    write_toybox_videos(tmp_path / "videos", FOUR)
    root, steps = tmp_path / "root", []
    assert extract_toybox(tmp_path / "videos", root, workers=1, progress=lambda *step: steps.append(step)) == []
    cup, truck = "images/households/cup_01_pivothead", "images/vehicles/truck_12_pivothead"
    assert files(root) == [
        f"{cup}/.cup_01_pivothead_rxplus.json",
        f"{cup}/cup_01_pivothead_rxplus_1.png",
        f"{cup}/cup_01_pivothead_rxplus_2.png",
        f"{truck}/.truck_12_pivothead_hodgepodge.json",
        f"{truck}/truck_12_pivothead_hodgepodge_1.png",
        f"{truck}/truck_12_pivothead_hodgepodge_2.png",
    ]
    assert [video_frame_number(root / f"{cup}/cup_01_pivothead_rxplus_{k}.png") for k in (1, 2)] == [0, 5]
    with Image.open(root / cup / "cup_01_pivothead_rxplus_1.png") as image:
        assert image.size == (224, 224)
    assert steps == [(1, 2, 2), (2, 2, 4)]


def test_the_loader_reads_what_was_extracted(tmp_path):
    pytest.importorskip("av")
    clips = [("cup", 1, clip) for clip in TOYBOX_CLIPS]
    write_toybox_videos(tmp_path, clips, seconds=1)
    assert extract_toybox(tmp_path, tmp_path, fps=2, workers=1) == []
    table = toybox.ToyboxFrames(tmp_path)
    assert table.counts() == {"cup": {"train": 14, "test": 6}} and table.read(0).size == (224, 224)


def test_an_interrupted_run_resumes(tmp_path):
    pytest.importorskip("av")
    write_toybox_videos(tmp_path, [("cup", 1, "tx"), ("cup", 1, "ty"), ("cup", 1, "tz")], seconds=1)

    def interrupt(done, total, frames):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_toybox(tmp_path, tmp_path, workers=1, progress=interrupt)
    steps = []
    assert extract_toybox(tmp_path, tmp_path, workers=1, progress=lambda *step: steps.append(step)) == []
    assert steps == [(1, 3, 1), (2, 3, 2), (3, 3, 3)]


def test_bad_videos_are_listed(tmp_path):
    pytest.importorskip("av")
    write_toybox_videos(tmp_path, FOUR)
    bad = tmp_path / "animals" / "cat_03_pivothead" / "cat_03_pivothead_tx.mp4"
    bad.parent.mkdir()
    bad.write_bytes(b"no video")
    ((path, message),) = extract_toybox(tmp_path, tmp_path / "root", workers=2)
    assert path == bad and f"video {bad} cannot be opened" in message
    assert sum(name.endswith(".png") for name in files(tmp_path / "root")) == 4


@pytest.mark.parametrize(
    "top",
    [
        lambda supercategory: supercategory,
        lambda supercategory: f"toybox/{supercategory}",
        lambda supercategory: f"{supercategory}/{supercategory}",
        lambda supercategory: f"toybox_{supercategory}/{supercategory}",
    ],
)
def test_archives_may_be_unpacked_one_folder_deeper(tmp_path, taken, top):
    clips = [*FOUR, ("cup", 2, "tz"), ("cup", 10, "tz")]
    touch_videos(tmp_path / "source", clips, top)
    extract_toybox(tmp_path / "source", tmp_path / "root")
    names = ["cup_01_pivothead_rxplus", "cup_02_pivothead_tz", "cup_10_pivothead_tz", "truck_12_pivothead_hodgepodge"]
    assert sorted(video.stem for video, *_ in taken) == names
    images = {path.relative_to(tmp_path / "root").as_posix() for _, path, *_ in taken}
    assert "images/households/cup_10_pivothead/cup_10_pivothead_tz_7.png" in images
    assert "images/vehicles/truck_12_pivothead/truck_12_pivothead_hodgepodge_7.png" in images
    assert {(size, fps) for *_, size, fps in taken} == {((224, 224), 1.0)}
    assert all(toybox.parse_file_name(path.name) for _, path, *_ in taken)


def test_all_clips_of_a_full_size_tree(tmp_path, taken):
    objects = [(name, number) for name in TOYBOX_FOLDERS for number in (1, 9, 30)]
    touch_videos(tmp_path, [(*thing, clip) for thing in objects for clip in TOYBOX_CLIPS])
    extract_toybox(tmp_path, tmp_path, fps=6, workers=3)
    assert len(taken) == 12 * 3 * 10 and {fps for *_, fps in taken} == {6}


def test_other_files_are_ignored_and_extensions_may_be_upper_case(tmp_path, taken):
    touch_videos(tmp_path, [("cup", 1, "tx")], ending=".MP4")
    for name in (
        "README.md",
        "households/Thumbs.db",
        "households/._cup_01_pivothead",
        "households/cup_01_pivothead/._cup_01_pivothead_ty.mp4",
        "households/cup_01_pivothead/notes.txt",
        "households/boxes/any.mp4",
        "images/households/cup_01_pivothead/cup_01_pivothead_ty_1.png",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    extract_toybox(tmp_path, tmp_path)
    assert [video.name for video, *_ in taken] == ["cup_01_pivothead_tx.MP4"]


def test_number_of_workers(tmp_path, taken, monkeypatch):
    touch_videos(tmp_path, FOUR)
    monkeypatch.setattr(toybox_videos.os, "cpu_count", lambda: 5)
    assert [extract_toybox(tmp_path, tmp_path, workers=workers) for workers in (None, 2, 0)] == [5, 2, 0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "households/cup_01_pivothead/cup_02_pivothead_tx.mp4",
            "cup_02_pivothead_tx.mp4 is not named like a video of cup_01",
        ),
        ("households/cup_01_pivothead/cup_01_pivothead_spin.mp4", "with one of the transforms rxplus, ryplus"),
        (
            "animals/cup_01_pivothead/cup_01_pivothead_tx.mp4",
            "cup_01_pivothead lies in the wrong folder; it belongs in hou",
        ),
    ],
)
def test_names_outside_the_grammar(tmp_path, taken, name, words):
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).touch()
    with pytest.raises(FrameTableError, match=words):
        extract_toybox(tmp_path, tmp_path)


def test_a_repeated_clip(tmp_path, taken):
    touch_videos(tmp_path, FOUR[:1])
    shutil.copytree(tmp_path / "households", tmp_path / "copy" / "households")
    name = "households/cup_01_pivothead/cup_01_pivothead_rxplus.mp4"
    words = f"{tmp_path / name} and {tmp_path / 'copy' / name} are the same clip of Toybox; keep one of them"
    with pytest.raises(FrameTableError, match=re.escape(words)):
        extract_toybox(tmp_path, tmp_path)


def test_a_wrong_source(tmp_path, taken):
    with pytest.raises(FrameTableError, match=r"there is no folder .*nowhere. Give the folder of Toybox's videos"):
        extract_toybox(tmp_path / "nowhere", tmp_path)
    with pytest.raises(FrameTableError, match=r"expected <source>/<supercategory>/<object>.*, found nothing"):
        extract_toybox(tmp_path, tmp_path)
    for number in range(10):
        (tmp_path / f"cup_{number:02d}_pivothead").mkdir()
    words = r"found cup_00_pivothead, .*cup_07_pivothead and 2 more. Give the folder into which .* households, animals"
    with pytest.raises(FrameTableError, match=words):
        extract_toybox(tmp_path, tmp_path)
    assert taken == []
