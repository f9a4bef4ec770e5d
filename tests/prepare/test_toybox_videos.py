"""Toybox: from its videos, or archives of them, to the frames that its table reads."""

import re
import shutil
from contextlib import contextmanager

import pytest
from fake_data import TOYBOX_CLIPS, write_files, write_toybox_videos
from fake_videos import video_frame_number
from made_downloads import files, pack
from PIL import Image

from benchmarks_toybox_ilab.datasets.toybox import ToyboxFrames
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

CLIPS = [("cup", 1, clip) for clip in TOYBOX_CLIPS]


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    pytest.importorskip("av")
    return write_toybox_videos(tmp_path_factory.mktemp("videos"), CLIPS, seconds=1.2)


def toybox_frames(videos):
    """Names of the frames of these videos: two of each of ten clips."""
    stems = [path.relative_to(videos).with_suffix("").as_posix() for path in videos.rglob("*.mp4")]
    used = [stem for stem in stems if not stem.endswith(("present", "absent"))]
    return sorted(f"images/{stem}_{number}.png" for stem in used for number in (1, 2))


def shown(root):
    return [name for name in files(root) if name.startswith("images/") and "/." not in name]


def test_toybox_from_a_folder_of_videos(videos, tmp_path, run, said):
    steps = []

    @contextmanager
    def progress(title, unit):
        yield lambda *step: steps.append((title, unit, *step))

    before = files(videos)
    assert run("toybox", tmp_path, videos, progress=progress) == []
    assert files(videos) == before and shown(tmp_path) == toybox_frames(videos)
    cup = tmp_path / "images/households/cup_01_pivothead"
    assert [video_frame_number(cup / f"cup_01_pivothead_rxplus_{number}.png") for number in (1, 2)] == [0, 5]
    with Image.open(cup / "cup_01_pivothead_rxplus_1.png") as image:
        assert image.size == (224, 224)
    listed = FrameTable.from_csv(tmp_path / "toybox.csv", tmp_path)
    assert listed.content_hash() == ToyboxFrames(tmp_path).content_hash()
    assert steps[-1][:4] == ("extracting frames", " videos", 10, 10)
    assert "1 class, 14 training and 6 test images" in said[0]


@pytest.mark.parametrize("wrapped", ["toybox/households/", "households/", ""])
def test_toybox_from_archives(videos, tmp_path, run, said, wrapped):
    source = tmp_path / "source"
    source.mkdir()
    archive = pack(source / "households.zip", videos / "households", wrapped)
    assert run("toybox", tmp_path / "root", archive) == []
    assert shown(tmp_path / "root") == toybox_frames(videos)
    assert files(tmp_path / "root/videos") == files(videos) and said[0] == f"{archive}: 12 files unpacked"
    said.clear()
    assert run("toybox", tmp_path / "root", source) == []  # a folder of archives; nothing left to do
    assert said[0] == f"{archive}: 0 files unpacked"


def test_a_bad_video_does_not_stop_the_others(videos, tmp_path, run):
    source = tmp_path / "source"
    shutil.copytree(videos, source)
    bad = source / "households/cup_01_pivothead/cup_01_pivothead_tz.mp4"
    bad.write_bytes(b"no video")
    for root in (tmp_path / "root", tmp_path / "again"):
        failures = run("toybox", root, source)
        assert failures[0].startswith(f"{bad}: ") and len(shown(root)) == 18
        assert "none with all 10 clips" in failures[1] and len(failures) == 2  # then no object is left for a table
    shutil.copy(videos / bad.relative_to(source), bad)
    assert run("toybox", tmp_path / "root", source) == []
    assert shown(tmp_path / "root") == toybox_frames(videos)


def test_a_video_that_does_not_fit_or_is_repeated_is_named(tmp_path, run):
    cup = "cup_01_pivothead"
    for name in (f"households/{cup}/cup_02_pivothead_tx", f"households/{cup}/{cup}_spin", f"animals/{cup}/{cup}_tx"):
        write_files(tmp_path, [f"{name}.mp4"])
        words = rf"{name}.mp4 does not fit .*: <source>.* in households cup, mug, .*rxpl"
        with pytest.raises(FrameTableError, match=words):
            run("toybox", tmp_path / "root", tmp_path)
        (tmp_path / f"{name}.mp4").unlink()
    name = f"households/{cup}/{cup}_rxplus.mp4"
    write_files(tmp_path, [name, f"copy/{name}"])
    words = f"{tmp_path / 'copy' / name} and {tmp_path / name} are the same clip of Toybox; keep one of them"
    with pytest.raises(FrameTableError, match=re.escape(words)):
        run("toybox", tmp_path / "root", tmp_path)
