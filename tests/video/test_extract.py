"""Frames of videos: times, sizes, rotation and damage, and finished, interrupted and
parallel extraction.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from fake_videos import (
    video_frame_number,
    write_frames,
    write_sound,
    write_video,
)
from noted_bar import NotedBar
from PIL import Image

from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.video import extract as video
from benchmarks_toybox_ilab.video import sampling
from benchmarks_toybox_ilab.video.extract import Job, extract_many
from benchmarks_toybox_ilab.video.sampling import (
    Clock,
    VideoError,
    sampled_frames,
    seconds_of,
)

# Display matrices: x' = ax + cy, y' = bx + dy as a, b, 0, c, d, 0, then where the
# origin goes; 1 is 65536.
ONE = 1 << 16
CLOCKWISE = (0, ONE, 0, -ONE, 0, 0, 0, 0, 1 << 30)
COUNTERCLOCKWISE = (0, -ONE, 0, ONE, 0, 0, 0, 0, 1 << 30)
UPSIDE_DOWN = (-ONE, 0, 0, 0, -ONE, 0, 0, 0, 1 << 30)
MIRRORED = (-ONE, 0, 0, 0, ONE, 0, 0, 0, 1 << 30)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """A complete clip of 3 s at 10 frames/s, and the same cut to three quarters."""
    pytest.importorskip("av")
    folder = tmp_path_factory.mktemp("clips")
    path = write_video(folder / "whole.mp4", faststart=True)
    (folder / "cut.mp4").write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    return folder


def extract(video, folder, prefix="", fps=1.0, size=None, digits=1):
    """Extract the frames of a video; return their names."""
    return Job(Path(video), Path(folder), prefix, digits, fps, size).extract()


def shown(folder, names):
    return [video_frame_number(folder / name) for name in names]


def files(folder):
    """Every file below a folder, hidden or not."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in Path(folder).rglob("*")
        if path.is_file()
    )


def jobs(clips, out, names):
    """One job for each name, on copies of the clips: whole0, cut1 ..."""
    (out / "videos").mkdir(parents=True, exist_ok=True)
    jobs = []
    for name in names:
        video = out / "videos" / f"{name}.mp4"
        shutil.copy(clips / f"{name.rstrip('0123456789')}.mp4", video)
        jobs.append(Job(video, out / "frames", f"{name}_"))
    return jobs


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("clip.mp4", None),
        ("clip.mkv", None),
        ("clip.webm", None),
        ("CLIP.AVI", "mpeg4"),
        ("a:b, %d.3gp", None),
        ("begins later.mpg", None),
    ],
)
def test_one_frame_per_second(tmp_path, name, codec):
    pytest.importorskip("av")
    rate = 25 if name.endswith("mpg") else 10
    clip = write_video(tmp_path / name, seconds=3.2, rate=rate, codec=codec)
    names = extract(clip, tmp_path / "out")
    assert names == ["1.png", "2.png", "3.png", "4.png"]
    assert shown(tmp_path / "out", names) == [0, rate, 2 * rate, 3 * rate]
    with Image.open(tmp_path / "out" / "1.png") as image:
        assert image.size == (64, 48) and image.format == "PNG" and image.mode == "RGB"


@pytest.mark.parametrize(
    ("fps", "expected"),
    [
        (2, [0, 5, 10, 15, 20, 25]),
        (0.5, [0, 20]),
        (1 / 3, [0]),
        (4, [0, 3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28]),
    ],
)
def test_other_rates(clips, tmp_path, fps, expected):
    assert (
        shown(tmp_path, extract(clips / "whole.mp4", tmp_path, "", fps, digits=6))
        == expected
    )


def test_a_rate_far_above_that_of_the_video(clips):
    """The last frame begins at 2.9 s; none is repeated before its time."""
    images = list(sampled_frames(clips / "whole.mp4", 250))
    assert len(images) == 1 + 2.9 * 250


def test_a_variable_rate_follows_the_time_stamps(tmp_path):
    pytest.importorskip("av")
    # Since the first: 0, 100, 900, 997, 1002, 1100, 3400 ms. 997 is near enough to 1 s;
    # 2 and 3 s are not over before 3400.
    clip = write_video(
        tmp_path / "clip.mp4", stamps=[500, 600, 1400, 1497, 1502, 1600, 3900]
    )
    assert shown(tmp_path, extract(clip, tmp_path)) == [0, 3, 6, 6]


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
def test_time_stamps_that_are_missing_or_jump(stamps, times):
    clock = Clock(rate=2)
    assert list(map(clock, stamps)) == pytest.approx(times)


@pytest.mark.parametrize(
    ("size", "expected"),
    [((224, 112), (224, 112)), (24, (32, 24)), (512, (64, 48)), (None, (64, 48))],
)
def test_sizes(clips, tmp_path, size, expected):
    names = extract(clips / "whole.mp4", tmp_path, "", size=size)
    with Image.open(tmp_path / names[1]) as image:
        assert image.size == expected
    assert shown(tmp_path, names) == [0, 10, 20]


@pytest.mark.parametrize(
    ("matrix", "corner"),
    [
        (CLOCKWISE, (0, -1)),
        (COUNTERCLOCKWISE, (-1, 0)),
        (UPSIDE_DOWN, (-1, -1)),
        (MIRRORED, (0, -1)),
    ],
)
@pytest.mark.parametrize("size", [None, 24])
def test_a_clip_of_a_rotated_phone_is_upright(tmp_path, matrix, corner, size):
    av = pytest.importorskip("av")
    if not hasattr(av.video.stream.VideoStream, "set_display_matrix"):
        pytest.skip("this PyAV cannot write display matrices")
    clip = write_video(tmp_path / "clip.mp4", seconds=0.1, matrix=matrix)
    (name,) = extract(clip, tmp_path, "100%_a_", size=size, digits=2)
    assert name == "100%_a_01.png"
    with Image.open(tmp_path / name) as image:
        turned = matrix[0] == 0
        expected = {
            None: (48, 64) if turned else (64, 48),
            24: (24, 32) if turned else (32, 24),
        }
        assert image.size == expected.get(size, size)
        bright = np.asarray(image.convert("L"))
    corners = {(y, x): int(bright[y, x]) for y in (0, -1) for x in (0, -1)}
    assert corners.pop(corner) > 240 and max(corners.values()) < 50


def test_a_video_that_does_not_exist(tmp_path):
    with pytest.raises(VideoError, match=r"there is no video file .*missing.mp4"):
        extract(tmp_path / "missing.mp4", tmp_path / "out")


def test_a_video_without_pictures(tmp_path):
    write_sound(tmp_path / "sound.mp4")
    with pytest.raises(VideoError, match=r"sound.mp4 has no video stream, but only a"):
        extract(tmp_path / "sound.mp4", tmp_path / "out")
    assert files(tmp_path / "out") == []


def up_to_the_pictures(content):
    """Return the header of an MP4 file."""
    return content[: content.index(b"mdat") + 8]


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        (
            "random.mp4",
            lambda content: np.random.default_rng(0).bytes(5000),
            "random.mp4 cannot be opened: Invalid data",
        ),
        (
            "empty.mp4",
            lambda content: b"",
            r"empty.mp4 is empty \(0 bytes\). Copy it again",
        ),
        (
            "header.mp4",
            up_to_the_pictures,
            "header.mp4 (has no frame that can|cannot) be decoded",
        ),
        (
            "cut.mp4",
            lambda content: content[: len(content) * 3 // 4],
            r"cut.mp4 (is damaged or|cannot be decoded).*`ffmpeg -i cut.mp4 repair",
        ),
    ],
)
def test_a_bad_file_is_named_and_leaves_nothing(clips, tmp_path, name, damage, words):
    content = (clips / "whole.mp4").read_bytes()
    (tmp_path / name).write_bytes(damage(content))
    with pytest.raises(VideoError, match=words):
        extract(tmp_path / name, tmp_path / "out")
    assert files(tmp_path / "out") == []


def test_a_cut_file_that_states_its_length(tmp_path):
    pytest.importorskip("av")
    path = write_video(tmp_path / "a.webm")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    words = r"webm is truncated: it should last 3.0 s, but ends after [012]\.\d s"
    with pytest.raises(VideoError, match=words):
        extract(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mkv", {"seconds": 3, "sound": 6, "live": True}),
        ("a.mp4", {"seconds": 3, "sound": 6}),
        ("a.mts", {"seconds": 3, "sound": 6}),
        ("begins after the sound.mp4", {"stamps": range(6000, 9000, 100), "sound": 12}),
        ("of any rate.mp4", {"stamps": [0, 40, 900, 1500, 2900]}),
        ("states no length.mjpeg", {"seconds": 3, "rate": 25, "codec": "mjpeg"}),
        ("states no length.h264", {"seconds": 3, "rate": 25}),
    ],
)
def test_the_pictures_alone_say_how_long_a_video_lasts(tmp_path, name, options):
    pytest.importorskip("av")
    path = write_video(tmp_path / name, **options)
    assert seconds_of(path, most=20) == pytest.approx(3, abs=0.25)
    assert len(list(sampled_frames(path, 2))) == 6
    assert 1 <= seconds_of(path, most=1) < 2.9


def write_noise(path):
    """Write a video of eight frames of moving noise; return its bytes."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    pictures = [np.roll(noise, 3 * number, 1) for number in range(8)]
    write_frames(path, pictures, codec="mpeg2video")
    return path.read_bytes()


def decoded(path):
    """Return the frames of a video; none if it is refused."""
    try:
        return list(map(np.asarray, sampled_frames(path, 10)))
    except VideoError:
        return []


def damaged_noise(whole, seed):
    """Return the bytes of a video with four others at a random place."""
    random = np.random.default_rng(seed)
    index = random.integers(600, len(whole) - 1200)
    return whole[:index] + random.bytes(4) + whole[index + 4 :]


def test_errors_that_the_decoder_would_hide_are_raised(tmp_path, monkeypatch):
    pytest.importorskip("av")
    content = write_noise(tmp_path / "whole.mpg")
    good = decoded(tmp_path / "whole.mpg")
    path = tmp_path / "damaged.mpg"
    hidden = 0
    for seed in range(30):
        path.write_bytes(damaged_noise(content, seed))
        with monkeypatch.context() as usual:
            usual.setattr(sampling, "DECODING", {})
            wrong = decoded(path)
        if wrong and not np.array_equal(wrong, good):
            hidden += 1
            assert not decoded(path)
    assert hidden


@pytest.fixture
def written(clips, tmp_path, monkeypatch):
    """Extract a copy of a clip to `out`; return how many frames were written."""
    shutil.copy(clips / "whole.mp4", tmp_path / "clip.mp4")
    saved = []
    save = video._save_frame

    def counted_save(image, path):
        saved.append(path)
        save(image, path)

    monkeypatch.setattr(video, "_save_frame", counted_save)

    def call(fps=1.0, size=None):
        before = len(saved)
        extract(tmp_path / "clip.mp4", tmp_path / "out", "a_", fps, size)
        return len(saved) - before

    return call


def test_a_finished_clip_is_not_touched(written):
    assert written() == 3
    assert written() == 0


def test_another_rate_replaces_the_frames(written, tmp_path):
    written()
    assert [written(fps=2), written(fps=2)] == [6, 0]
    assert [written(fps=1), written(fps=1)] == [3, 0]
    assert len(files(tmp_path / "out")) == 4  # none is left of the six


def test_another_size_replaces_the_frames(written):
    written()
    assert [written(size=24), written(size=24)] == [3, 0]
    assert [written(size=(24, 24)), written(size=(24, 24))] == [3, 0]
    assert [written(), written()] == [3, 0]


def test_another_date_of_the_video(written, tmp_path):
    written()
    os.utime(tmp_path / "clip.mp4", ns=(0, 10**18))
    assert [written(), written()] == [3, 0]


def test_another_video_of_the_same_date(written, tmp_path):
    os.utime(tmp_path / "clip.mp4", ns=(0, 10**18))
    written()
    write_video(tmp_path / "clip.mp4", seconds=2)
    os.utime(tmp_path / "clip.mp4", ns=(0, 10**18))
    assert [written(), written()] == [2, 0]


def remove(out):
    (out / "a_2.png").unlink()


def damage(out):
    content = (out / "a_1.png").read_bytes()
    (out / "a_1.png").write_bytes(content[:-1] + b"?")


def damage_marker(out):
    (out / ".a.json").write_text("[")


@pytest.mark.parametrize("change", [remove, damage, damage_marker])
def test_a_changed_frame_is_written_again(written, tmp_path, change):
    written()
    change(tmp_path / "out")
    assert [written(), written()] == [3, 0]
    assert json.loads((tmp_path / "out" / ".a.json").read_text())["frames"] == 3


LEFT = (".a.1234.part/a_1.png", ".a.1234.part/marker", "a_9.png", "a_2.png")
OF_OTHERS = (
    ".b.1.part/b_1.png",
    ".a.b.1.part/a.b_1.png",
    "b_7.png",
    "a_b.png",
    "xa_1.png",
)


def test_files_left_by_a_killed_process_are_removed(clips, tmp_path):
    for name in (*LEFT, *OF_OTHERS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"left")
    names = extract(clips / "whole.mp4", tmp_path, "a_")
    assert files(tmp_path) == sorted([".a.json", *names, *OF_OTHERS])
    assert shown(tmp_path, names) == [0, 10, 20]
    assert not (tmp_path / ".a.1234.part").exists()


def test_frames_that_cannot_be_written(clips, tmp_path):
    (tmp_path / "out").write_bytes(b"a file")
    with pytest.raises(
        FrameTableError,
        match=r"whole.mp4 cannot be written to .*out: File exists. Make the folder",
    ):
        extract(clips / "whole.mp4", tmp_path / "out")


MIXED = ["whole0", "cut1", "whole2", "whole3", "cut4"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_video_does_not_stop_the_others(clips, tmp_path, workers):
    todo = jobs(clips, tmp_path, MIXED)
    todo.append(Job(tmp_path / "none.mp4", tmp_path / "frames", "none_"))
    bar = NotedBar()
    failures = extract_many(todo, workers, bar)
    assert [path.name for path in failures] == ["cut1.mp4", "cut4.mp4", "none.mp4"]
    assert all(str(path) in message for path, message in failures.items())
    assert bar.numbers == [(number, 6) for number in range(7)]
    assert bar.text == "9 images"


def test_parallel_equals_serial(clips, tmp_path):
    extract_many(jobs(clips, tmp_path / "serial", MIXED), workers=1)
    extract_many(jobs(clips, tmp_path / "parallel", MIXED), workers=2)
    serial = tmp_path / "serial" / "frames"
    parallel = tmp_path / "parallel" / "frames"
    names = files(serial)
    assert files(parallel) == names and len(names) == 3 * 4
    frames = [name for name in names if name.endswith(".png")]
    contents = [(serial / name).read_bytes() for name in frames]
    assert [(parallel / name).read_bytes() for name in frames] == contents


def test_an_interrupt_keeps_finished_clips(clips, tmp_path):
    todo = jobs(clips, tmp_path, [f"whole{number}" for number in range(9)])
    with pytest.raises(KeyboardInterrupt):
        extract_many(todo, 2, NotedBar(stop=(1, 9)))
    finished = [job for job in todo if job.is_finished]
    assert 1 <= len(finished) < 9
    assert len(files(tmp_path / "frames")) == 4 * len(finished)
    bar = NotedBar()
    assert extract_many(todo, 1, bar) == {}
    assert (bar.numbers[-1], bar.text) == ((9, 9), "27 images")
