import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from fake_data import video_frame_number, write_sound, write_video
from PIL import Image

from benchmarks_toybox_ilab import disk, video
from benchmarks_toybox_ilab._video_frames import Clock, _picture, upright
from benchmarks_toybox_ilab.frame_table import FrameTableError
from benchmarks_toybox_ilab.video import Job, VideoError, extract_frames, extract_many

# Display matrices: x' = ax + cy, y' = bx + dy as a, b, 0, c, d, 0, then where the origin goes; 1 is 65536.
ONE = 1 << 16
CLOCKWISE = (0, ONE, 0, -ONE, 0, 0, 0, 0, 1 << 30)
COUNTERCLOCKWISE = (0, -ONE, 0, ONE, 0, 0, 0, 0, 1 << 30)
UPSIDE_DOWN = (-ONE, 0, 0, 0, -ONE, 0, 0, 0, 1 << 30)
MIRRORED = (-ONE, 0, 0, 0, ONE, 0, 0, 0, 1 << 30)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """A whole clip of 3 s at 10 frames/s, and the same cut off at three quarters."""
    pytest.importorskip("av")
    folder = tmp_path_factory.mktemp("clips")
    whole = write_video(folder / "whole.mp4", faststart=True)
    (folder / "cut.mp4").write_bytes(whole.read_bytes()[: whole.stat().st_size * 3 // 4])
    return folder


def shown(folder, names):
    return [video_frame_number(folder / name) for name in names]


def files(folder):
    """Every file below a folder, hidden or not."""
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def jobs(clips, out, names):
    """One job for each name, on copies of the clips: whole0, cut1 ..."""
    for name in names:
        (out / "videos").mkdir(parents=True, exist_ok=True)
        shutil.copy(clips / f"{name.rstrip('0123456789')}.mp4", out / "videos" / f"{name}.mp4")
    return [Job(out / "videos" / f"{name}.mp4", out / "frames", f"{name}_%d.png") for name in names]


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("clip.mp4", None),
        ("CLIP.MP4", "mpeg4"),
        ("clip.mov", None),
        ("clip.mkv", None),
        ("clip.webm", None),
        ("clip.avi", None),
        ("clip.avi", "mpeg4"),
        ("a:b, %d.3gp", None),
    ],
)
def test_the_frames_of_whole_seconds(tmp_path, name, codec):
    pytest.importorskip("av")
    clip = write_video(tmp_path / name, seconds=3.2, codec=codec)
    names = extract_frames(clip, tmp_path / "out", "%d.png")
    assert names == ["1.png", "2.png", "3.png", "4.png"]
    assert shown(tmp_path / "out", names) == [0, 10, 20, 30]
    with Image.open(tmp_path / "out" / "1.png") as image:
        assert image.size == (64, 48) and image.format == "PNG" and image.mode == "RGB"


def test_a_container_whose_clock_does_not_begin_at_0(tmp_path):
    pytest.importorskip("av")
    clip = write_video(tmp_path / "clip.mpg", seconds=2, rate=25)
    assert shown(tmp_path, extract_frames(clip, tmp_path, "f%03d.png")) == [0, 25]


@pytest.mark.parametrize(
    ("fps", "expected"),
    [(2, [0, 5, 10, 15, 20, 25]), (0.5, [0, 20]), (1 / 3, [0]), (4, [0, 3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28])],
)
def test_other_rates(clips, tmp_path, fps, expected):
    assert shown(tmp_path, extract_frames(clips / "whole.mp4", tmp_path, "%06d.png", fps)) == expected


def test_a_rate_above_the_videos_repeats_frames(clips, tmp_path):
    numbers = shown(tmp_path, extract_frames(clips / "whole.mp4", tmp_path, "%d.png", 20))
    assert numbers[:6] == [0, 1, 1, 2, 2, 3] and len(numbers) == 59


def test_variable_rate_goes_by_time_stamps(tmp_path):
    pytest.importorskip("av")
    # Since the first: 0, 100, 900, 997, 1002, 1100, 3400 ms. 997 is near enough to 1 s; 2 and 3 s are not over before
    # 3400.
    clip = write_video(tmp_path / "clip.mp4", stamps=[500, 600, 1400, 1497, 1502, 1600, 3900])
    assert shown(tmp_path, extract_frames(clip, tmp_path, "%d.png")) == [0, 3, 6, 6]


@pytest.mark.parametrize(
    ("stamps", "times"),
    [
        ([7.0, 7.1, 7.3], [0, 0.1, 0.3]),
        ([None, None, None], [0, 0.5, 1.0]),
        ([7.0, None, 7.7, 8.0], [0, 0.5, 0.7, 1.0]),
        ([None, 7.0, 7.1], [0, 0.5, 0.6]),
        ([7.0, 7.2, 7.1, 7.3], [0, 0.2, 0.2, 0.3]),
        ([7.0, 7.2, 0.0, 0.1], [0, 0.2, 0.7, 0.8]),
        ([7.0, 95000.0, 95000.1], [0, 0.5, 0.6]),
    ],
)
def test_a_clock_for_stamps_that_are_missing_or_jump(stamps, times):
    clock = Clock(rate=2)
    assert [clock(stamp) for stamp in stamps] == pytest.approx(times)


@pytest.mark.parametrize(
    ("size", "expected"), [((224, 112), (224, 112)), (24, (32, 24)), (512, (64, 48)), (None, (64, 48))]
)
def test_sizes(clips, tmp_path, size, expected):
    names = extract_frames(clips / "whole.mp4", tmp_path, "%d.png", size=size)
    with Image.open(tmp_path / names[1]) as image:
        assert image.size == expected
    assert shown(tmp_path, names) == [0, 10, 20]


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (None, [[1, 2, 3], [4, 5, 6]]),
        (CLOCKWISE, [[4, 1], [5, 2], [6, 3]]),
        (COUNTERCLOCKWISE, [[3, 6], [2, 5], [1, 4]]),
        (UPSIDE_DOWN, [[6, 5, 4], [3, 2, 1]]),
        (MIRRORED, [[3, 2, 1], [6, 5, 4]]),
    ],
)
def test_a_display_matrix_turns_the_image(matrix, expected):
    image = Image.fromarray(np.array([[1, 2, 3], [4, 5, 6]], np.uint8))
    matrix = matrix and struct.pack("=9i", *matrix)
    assert np.asarray(upright(image, matrix)).tolist() == expected


@pytest.mark.parametrize(
    ("matrix", "corner"),
    [(CLOCKWISE, (0, -1)), (COUNTERCLOCKWISE, (-1, 0)), (UPSIDE_DOWN, (-1, -1)), (MIRRORED, (0, -1))],
)
@pytest.mark.parametrize("size", [None, 24, (30, 20)])
def test_a_clip_of_a_turned_phone_is_upright(tmp_path, matrix, corner, size):
    av = pytest.importorskip("av")
    if not hasattr(av.video.stream.VideoStream, "set_display_matrix"):
        pytest.skip("this PyAV cannot write display matrices")
    clip = write_video(tmp_path / "clip.mp4", seconds=0.1, matrix=matrix)
    (name,) = extract_frames(clip, tmp_path, "%d.png", size=size)
    with Image.open(tmp_path / name) as image:
        turned = matrix[0] == 0
        expected = {None: (48, 64) if turned else (64, 48), 24: (24, 32) if turned else (32, 24)}
        assert image.size == expected.get(size, size)
        bright = np.asarray(image.convert("L"))
    corners = {(y, x): int(bright[y, x]) for y in (0, -1) for x in (0, -1)}
    assert corners.pop(corner) > 240 and max(corners.values()) < 50


@pytest.mark.parametrize(
    ("colorspace", "expected"),
    # Luma 100, Cb -38, Cr +72: 255/219 * 84 = 97.8, then R by 1.793 or 1.596 x 72, B by 2.112 or 2.017 x -38.
    [(1, (226.9, 66.7, 17.5)), (5, (212.7, 53.9, 21.2))],
)
def test_colours_by_the_standard_that_the_video_says(colorspace, expected):
    av = pytest.importorskip("av")
    planes = np.full((72, 64), 100, np.uint8)
    planes[48:60], planes[60:] = 90, 200
    frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
    frame.colorspace = colorspace
    assert np.asarray(_picture(frame, None))[20, 20] == pytest.approx(expected, abs=2)


def test_a_pattern_counts_from_1_and_zeros_are_as_asked(clips, tmp_path):
    names = extract_frames(clips / "whole.mp4", tmp_path, "100%_a_%02d.png")
    assert names == ["100%_a_01.png", "100%_a_02.png", "100%_a_03.png"]
    assert files(tmp_path) == [".100%_a.json", *names]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pattern": "frame.png"}, "pattern is 'frame.png', but must be a file name such as"),
        ({"pattern": "a/%d.png"}, "pattern is 'a/%d.png'"),
        ({"pattern": "%d.jpg"}, "pattern is '%d.jpg'"),
        ({"fps": 0}, "fps is 0, but must be a number above 0"),
        ({"fps": float("nan")}, "fps is nan"),
        ({"fps": True}, "fps is True"),
        ({"size": 0}, "size is 0, but must be a whole number of at least 1"),
        ({"size": (224, 0)}, "size is 0"),
        ({"size": (1, 2, 3)}, r"size is \(1, 2, 3\), but must be width and height"),
    ],
)
def test_arguments_out_of_range(tmp_path, arguments, words):
    with pytest.raises(ValueError, match=words):
        extract_frames(tmp_path / "clip.mp4", **{"folder": tmp_path, "pattern": "%d.png", **arguments})


def bad_file(folder, kind):
    path = folder / f"{kind}.mp4"
    if kind == "random":
        path.write_bytes(np.random.default_rng(0).bytes(5000))
    elif kind == "empty":
        path.touch()
    elif kind == "sound":
        write_sound(path)
    elif kind == "header":
        whole = write_video(path, faststart=True).read_bytes()
        path.write_bytes(whole[: whole.index(b"mdat") + 8])
    elif kind == "webm":
        path = path.with_suffix(".webm")
        whole = write_video(path).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    return path


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("random", "random.mp4 cannot be opened: Invalid data"),
        ("empty", r"empty.mp4 is empty \(0 bytes\). Copy it again"),
        ("sound", "sound.mp4 has no video stream, but only audio"),
        ("header", "header.mp4 has no frame that can be decoded|header.mp4 cannot be decoded"),
        ("webm", r"webm.webm is cut off: it should last 3.0 s, but ends after [012]\.\d s"),
        ("missing", "there is no video file .*missing.mp4"),
    ],
)
def test_a_bad_file_is_named_and_leaves_nothing(tmp_path, kind, words):
    pytest.importorskip("av")
    clip = bad_file(tmp_path, kind)
    with pytest.raises(VideoError, match=words):
        extract_frames(clip, tmp_path / "out", "%d.png")
    assert files(tmp_path / "out") == []


def test_a_cut_off_file_leaves_nothing(clips, tmp_path):
    with pytest.raises(
        VideoError, match=r"cut.mp4 (is damaged or cut off|cannot be decoded).*`ffmpeg -i cut.mp4 mended"
    ):
        extract_frames(clips / "cut.mp4", tmp_path / "out", "%d.png")
    assert files(tmp_path / "out") == []


def test_a_video_error_is_a_table_error():
    assert issubclass(VideoError, FrameTableError)


def test_without_pyav(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "clip.mp4").write_bytes(b"x")
    with pytest.raises(ImportError, match=r'with PyAV: pip install "crumb-avalanche\[video\]"'):
        extract_frames(tmp_path / "clip.mp4", tmp_path, "%d.png")
    with pytest.raises(ImportError, match=r'pip install "crumb-avalanche\[video\]"'):
        extract_many([Job(tmp_path / "clip.mp4", tmp_path, "%d.png")])


def test_finished_clips_are_read_without_pyav(clips, tmp_path, monkeypatch):
    job = jobs(clips, tmp_path, ["whole"])[0]
    names = extract_frames(job.video, job.folder, job.pattern)
    monkeypatch.setitem(sys.modules, "av", None)
    assert extract_frames(job.video, job.folder, job.pattern) == names
    assert extract_many([job]) == []


def count_saves(monkeypatch, fail_at=None, error=KeyboardInterrupt):
    """Counts the frames that are written, and stops in front of one of them."""
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
        extract_frames(clip, tmp_path / "out", "a_%d.png", fps, size)
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


def test_a_clip_that_was_stopped_in_the_middle_is_done_again(clips, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        count_saves(patch, fail_at=2)
        with pytest.raises(KeyboardInterrupt):
            extract_frames(clips / "whole.mp4", tmp_path, "%d.png")
    assert files(tmp_path) == []
    assert shown(tmp_path, extract_frames(clips / "whole.mp4", tmp_path, "%d.png")) == [0, 10, 20]


def test_what_a_killed_process_left_is_cleared_away(clips, tmp_path):
    other = [".b.1.part/b_1.png", ".a.b.1.part/a.b_1.png", "b_7.png", "a_b.png", "xa_1.png"]
    for name in (".a.1234.part/a_1.png", ".a.1234.part/marker", "a_9.png", "a_2.png", *other):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"left")
    names = extract_frames(clips / "whole.mp4", tmp_path, "a_%d.png")
    assert files(tmp_path) == sorted([".a.json", *names, *other])
    assert shown(tmp_path, names) == [0, 10, 20]
    assert not (tmp_path / ".a.1234.part").exists()


def test_a_killed_process_is_gone_on_with(clips, tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from benchmarks_toybox_ilab import video
save = video._save
def kill(image, path):
    save(image, path)
    if path.name == "b_2.png":
        os.kill(os.getpid(), signal.SIGKILL)
video._save = kill
clip, out = Path({str(clips / "whole.mp4")!r}), Path({str(tmp_path)!r})
video.extract_many([video.Job(clip, out, f"{{name}}_%d.png") for name in "abc"])
"""
    killed = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    assert killed.returncode == -signal.SIGKILL
    a_frames = ["a_1.png", "a_2.png", "a_3.png"]
    assert [name for name in files(tmp_path) if "part/" not in name] == [".a.json", *a_frames]
    again = [Job(clips / "whole.mp4", tmp_path, f"{name}_%d.png") for name in "abc"]
    steps = []
    assert extract_many(again, progress=lambda *step: steps.append(step)) == []
    assert steps == [(1, 3, 3), (2, 3, 6), (3, 3, 9)]
    assert len(files(tmp_path)) == 12 and all(len(job.finished()) == 3 for job in again)


def test_another_process_was_faster(clips, tmp_path, monkeypatch):
    clip, save = clips / "whole.mp4", video._save

    def overtaken(image, path):
        monkeypatch.setattr(video, "_save", save)
        extract_frames(clip, tmp_path, "%d.png")
        save(image, path)  # the other one has cleared our folder away

    monkeypatch.setattr(video, "_save", overtaken)
    assert extract_frames(clip, tmp_path, "%d.png") == ["1.png", "2.png", "3.png"]
    assert files(tmp_path) == [".frames.json", "1.png", "2.png", "3.png"]


def test_frames_that_cannot_be_written(clips, tmp_path):
    (tmp_path / "out").write_bytes(b"a file")
    with pytest.raises(
        FrameTableError, match=r"whole.mp4 cannot be written to .*out: File exists. Make the folder wri"
    ):
        extract_frames(clips / "whole.mp4", tmp_path / "out", "%d.png")


def test_a_bad_video_stops_no_other_and_parallel_equals_serial(clips, tmp_path):
    names = ["whole0", "cut1", "whole2", "whole3", "cut4"]
    steps, failures = {1: [], 2: []}, {}
    for workers in (1, 2):
        todo = jobs(clips, tmp_path / str(workers), names)
        todo.append(Job(tmp_path / "none.mp4", tmp_path / str(workers) / "frames", "none_%d.png"))
        failures[workers] = extract_many(todo, workers, lambda *step, at=steps[workers]: at.append(step))
        assert [path.name for path, _ in failures[workers]] == ["cut1.mp4", "cut4.mp4", "none.mp4"]
        assert all(str(path) in message for path, message in failures[workers])
        assert [step[:2] for step in steps[workers]] == [(n, 6) for n in range(1, 7)]
        assert steps[workers][-1][2] == 9
    serial, parallel = tmp_path / "1" / "frames", tmp_path / "2" / "frames"
    assert files(serial) == files(parallel) and len(files(serial)) == 3 * 4
    frames = [name for name in files(serial) if name.endswith(".png")]
    assert all((serial / name).read_bytes() == (parallel / name).read_bytes() for name in frames)


def crash_on_cut(job):
    if "cut" in job.video.name:
        os._exit(1)
    return len(extract_frames(job.video, job.folder, job.pattern)), None


def test_a_video_that_kills_its_process_stops_no_other(clips, tmp_path, monkeypatch):
    monkeypatch.setattr(video, "_attempt", crash_on_cut)
    todo = jobs(clips, tmp_path, ["whole0", "cut1", "whole2", "whole3"])
    ((path, message),) = extract_many(todo, 2)
    assert path.name == "cut1.mp4" and "cut1.mp4 makes its decoder crash, or take too much memory" in message
    assert [job.finished() is not None for job in todo] == [True, False, True, True]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_keeps_finished_clips(clips, tmp_path, workers):
    todo = jobs(clips, tmp_path, [f"whole{number}" for number in range(9)])

    def interrupt(done, total, frames):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_many(todo, workers, interrupt)
    finished = [job for job in todo if job.finished()]
    assert len(finished) == 1 if workers == 1 else 1 <= len(finished) < 9
    assert len(files(tmp_path / "frames")) == 4 * len(finished)
    steps = []
    assert extract_many(todo, 1, lambda *step: steps.append(step)) == []
    assert steps[0] == (len(finished), 9, 3 * len(finished)) and steps[-1] == (9, 9, 27)


def test_a_script_without_a_main_guard_is_told_so(clips, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from benchmarks_toybox_ilab.video import Job, extract_many\n"
        f"clip, out = Path({str(clips / 'whole.mp4')!r}), Path({str(tmp_path / 'out')!r})\n"
        "extract_many([Job(clip, out, 'a_%d.png'), Job(clip, out, 'b_%d.png')], workers=2)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and 'call this below `if __name__ == "__main__":`, or stay in' in run.stderr


def test_too_little_room(clips, tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    asked = []

    def disk_usage(place):
        asked.append(place)
        return usage(free)

    monkeypatch.setattr(disk.shutil, "disk_usage", disk_usage)
    todo = jobs(clips, tmp_path, ["whole0", "whole1"])
    # By the file 3 s, so 4 frames at the most, of each: 2 * 4 * 64 * 48 * 3 * 0.6 = 44,236 bytes.
    free = 44_000
    with pytest.raises(FrameTableError, match=r"out of 2 videos needs 44.2 kB more, but only 44.0 kB are free at"):
        extract_many(todo)
    assert not (tmp_path / "frames").exists() and asked == [tmp_path]
    free = 45_000
    assert extract_many(todo[:1]) == []
    free = 22_000  # the first is finished, so half is needed
    with pytest.raises(FrameTableError, match=r"out of video .*whole1.mp4 needs 22.1 kB more"):
        extract_many(todo)
    free = 0
    assert extract_many(todo[:1]) == []


def test_numbers_of_workers(tmp_path):
    with pytest.raises(ValueError, match="workers is 0, but must be a whole number of at least 1"):
        extract_many([], 0)
    assert extract_many([], 3) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.mp4", True), ("a.MP4", True), ("a.MoV", True), ("a.mpeg", True), ("a.jpg", False), ("mp4", False)],
)
def test_names_of_videos(name, expected):
    assert video.is_video(Path(name)) is expected
