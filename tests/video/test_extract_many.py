"""Finished, interrupted and parallel extraction of clips."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_videos import write_video
from video_clips import extract, files, jobs, shown, whole_and_cut

from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.video import extract as video
from benchmarks_toybox_ilab.video.extract import Job, extract_many


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return whole_and_cut(tmp_path_factory.mktemp("clips"))


def count_saves(monkeypatch, fail_at=None, error=KeyboardInterrupt):
    """Count the frames that are written, and raise before one of them."""
    saved, save = [], video._save

    def counted(image, path):
        if len(saved) == fail_at:
            raise error
        save(image, path)
        saved.append(path)

    monkeypatch.setattr(video, "_save", counted)
    return saved


def test_a_finished_clip_is_not_touched_until_something_changes(clips, tmp_path, monkeypatch):
    saved = count_saves(monkeypatch)
    clip = shutil.copy(clips / "whole.mp4", tmp_path / "clip.mp4")

    def written(fps=1.0, size=None):
        before = len(saved)
        extract(clip, tmp_path / "out", "a_", fps, size)
        return len(saved) - before

    assert [written(), written()] == [3, 0]
    assert [written(fps=2), written(fps=2)] == [6, 0]
    assert [written(), written(size=24), written(size=(24, 24)), written(size=(24, 24))] == [3, 3, 3, 0]
    assert len(files(tmp_path / "out")) == 4  # none is left of the six
    os.utime(clip, ns=(0, 10**18))
    assert [written(), written()] == [3, 0]
    write_video(clip, seconds=2)
    os.utime(clip, ns=(0, 10**18))
    assert [written(), written()] == [2, 0]
    (tmp_path / "out" / "a_2.png").unlink()
    assert [written(), written()] == [2, 0]
    (tmp_path / "out" / ".a.json").write_text("[")
    assert [written(), written()] == [2, 0]
    assert json.loads((tmp_path / "out" / ".a.json").read_text())["frames"] == 2


def test_files_left_by_a_killed_process_are_removed(clips, tmp_path):
    other = [".b.1.part/b_1.png", ".a.b.1.part/a.b_1.png", "b_7.png", "a_b.png", "xa_1.png"]
    for name in (".a.1234.part/a_1.png", ".a.1234.part/marker", "a_9.png", "a_2.png", *other):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"left")
    names = extract(clips / "whole.mp4", tmp_path, "a_")
    assert files(tmp_path) == sorted([".a.json", *names, *other])
    assert shown(tmp_path, names) == [0, 10, 20]
    assert not (tmp_path / ".a.1234.part").exists()


def test_extraction_resumes_after_a_killed_process(clips, tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from benchmarks_toybox_ilab.video import extract as video
save = video._save
def kill(image, path):
    save(image, path)
    if path.name == "b_2.png":
        os.kill(os.getpid(), signal.SIGKILL)
video._save = kill
clip, out = Path({str(clips / "whole.mp4")!r}), Path({str(tmp_path)!r})
video.extract_many([video.Job(clip, out, f"{{name}}_") for name in "abc"])
"""
    killed = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    assert killed.returncode == -signal.SIGKILL
    a_frames = ["a_1.png", "a_2.png", "a_3.png"]
    assert [name for name in files(tmp_path) if "part/" not in name] == [".a.json", *a_frames]
    again = [Job(clips / "whole.mp4", tmp_path, f"{name}_") for name in "abc"]
    steps = []
    assert extract_many(again, progress=lambda *step: steps.append(step)) == []
    assert steps == [(1, 3, 3), (2, 3, 6), (3, 3, 9)]
    assert len(files(tmp_path)) == 12 and all(len(job.finished()) == 3 for job in again)


def test_frames_that_cannot_be_written(clips, tmp_path):
    (tmp_path / "out").write_bytes(b"a file")
    with pytest.raises(
        FrameTableError, match=r"whole.mp4 cannot be written to .*out: File exists. Make the folder wri"
    ):
        extract(clips / "whole.mp4", tmp_path / "out")


def test_a_bad_video_does_not_stop_the_others_and_parallel_equals_serial(clips, tmp_path):
    names = ["whole0", "cut1", "whole2", "whole3", "cut4"]
    steps, failures = {1: [], 2: []}, {}
    for workers in (1, 2):
        todo = jobs(clips, tmp_path / str(workers), names)
        todo.append(Job(tmp_path / "none.mp4", tmp_path / str(workers) / "frames", "none_"))
        failures[workers] = extract_many(todo, workers, lambda *step, at=steps[workers]: at.append(step))
        assert [path.name for path, _ in failures[workers]] == ["cut1.mp4", "cut4.mp4", "none.mp4"]
        assert all(str(path) in message for path, message in failures[workers])
        assert [step[:2] for step in steps[workers]] == [(n, 6) for n in range(1, 7)]
        assert steps[workers][-1][2] == 9
    serial, parallel = tmp_path / "1" / "frames", tmp_path / "2" / "frames"
    assert files(serial) == files(parallel) and len(files(serial)) == 3 * 4
    frames = [name for name in files(serial) if name.endswith(".png")]
    assert all((serial / name).read_bytes() == (parallel / name).read_bytes() for name in frames)


@pytest.mark.parametrize("workers", [2])
def test_an_interrupt_keeps_finished_clips(clips, tmp_path, workers):
    todo = jobs(clips, tmp_path, [f"whole{number}" for number in range(9)])

    def interrupt(done, total, frames):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_many(todo, workers, interrupt)
    finished = [job for job in todo if job.finished()]
    assert 1 <= len(finished) < 9
    assert len(files(tmp_path / "frames")) == 4 * len(finished)
    steps = []
    assert extract_many(todo, 1, lambda *step: steps.append(step)) == []
    assert steps[-1] == (9, 9, 27)
