import shutil
from contextlib import contextmanager

import pytest
from fake_data import (
    TOYBOX_CLIPS,
    write_toybox_videos,
)
from prepare_runs import Runner, files, pack, read_csv

from benchmarks_toybox_ilab.datasets.toybox import ToyboxFrames


@pytest.fixture
def run():
    return Runner()


@pytest.fixture
def said(run):
    return run.said


CLIPS = [("cup", 1, clip) for clip in TOYBOX_CLIPS]


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
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
    assert read_csv(tmp_path, "toybox").content_hash() == ToyboxFrames(tmp_path).content_hash()
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


def test_toybox_archives_that_were_unpacked_in_place(videos, tmp_path, run, said):
    source = tmp_path / "source"
    shutil.copytree(videos, source)
    pack(source / "households.zip", videos)
    assert run("toybox", tmp_path / "root", source) == []
    assert said[0].endswith("households.zip: 0 files unpacked") and not (tmp_path / "root/videos").exists()
    assert shown(tmp_path / "root") == toybox_frames(videos)


def test_toybox_without_a_source_uses_the_files_in_the_root(videos, tmp_path, run):
    pack(tmp_path / "households.zip", videos)
    for _ in range(2):
        assert run("toybox", tmp_path) == []
        assert shown(tmp_path) == toybox_frames(videos)
    shutil.rmtree(tmp_path / "videos")
    (tmp_path / "households.zip").unlink()
    assert run("toybox", tmp_path) == []  # the frames will do


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
