import numpy as np
import pytest
from fake_videos import write_sound, write_video
from PIL import Image
from video_clips import extract, files, shown, whole_and_cut

from benchmarks_toybox_ilab.video import sampling
from benchmarks_toybox_ilab.video.sampling import Clock, VideoError, sampled_frames, seconds_of

# Display matrices: x' = ax + cy, y' = bx + dy as a, b, 0, c, d, 0, then where the origin goes; 1 is 65536.
ONE = 1 << 16
CLOCKWISE = (0, ONE, 0, -ONE, 0, 0, 0, 0, 1 << 30)
COUNTERCLOCKWISE = (0, -ONE, 0, ONE, 0, 0, 0, 0, 1 << 30)
UPSIDE_DOWN = (-ONE, 0, 0, 0, -ONE, 0, 0, 0, 1 << 30)
MIRRORED = (-ONE, 0, 0, 0, ONE, 0, 0, 0, 1 << 30)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return whole_and_cut(tmp_path_factory.mktemp("clips"))


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
    clip = write_video(tmp_path / name, seconds=3.2, rate=25 if name.endswith("mpg") else 10, codec=codec)
    names = extract(clip, tmp_path / "out")
    assert names == ["1.png", "2.png", "3.png", "4.png"]
    assert shown(tmp_path / "out", names) == ([0, 25, 50, 75] if name.endswith("mpg") else [0, 10, 20, 30])
    with Image.open(tmp_path / "out" / "1.png") as image:
        assert image.size == (64, 48) and image.format == "PNG" and image.mode == "RGB"


@pytest.mark.parametrize(
    ("fps", "expected"),
    [(2, [0, 5, 10, 15, 20, 25]), (0.5, [0, 20]), (1 / 3, [0]), (4, [0, 3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28])],
)
def test_other_rates(clips, tmp_path, fps, expected):
    assert shown(tmp_path, extract(clips / "whole.mp4", tmp_path, "", fps, digits=6)) == expected


def test_a_variable_rate_follows_the_time_stamps(tmp_path):
    pytest.importorskip("av")
    # Since the first: 0, 100, 900, 997, 1002, 1100, 3400 ms. 997 is near enough to 1 s; 2 and 3 s are not over before
    # 3400.
    clip = write_video(tmp_path / "clip.mp4", stamps=[500, 600, 1400, 1497, 1502, 1600, 3900])
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
    assert [clock(stamp) for stamp in stamps] == pytest.approx(times)


@pytest.mark.parametrize(
    ("size", "expected"), [((224, 112), (224, 112)), (24, (32, 24)), (512, (64, 48)), (None, (64, 48))]
)
def test_sizes(clips, tmp_path, size, expected):
    names = extract(clips / "whole.mp4", tmp_path, "", size=size)
    with Image.open(tmp_path / names[1]) as image:
        assert image.size == expected
    assert shown(tmp_path, names) == [0, 10, 20]


@pytest.mark.parametrize(
    ("matrix", "corner"),
    [(CLOCKWISE, (0, -1)), (COUNTERCLOCKWISE, (-1, 0)), (UPSIDE_DOWN, (-1, -1)), (MIRRORED, (0, -1))],
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
        expected = {None: (48, 64) if turned else (64, 48), 24: (24, 32) if turned else (32, 24)}
        assert image.size == expected.get(size, size)
        bright = np.asarray(image.convert("L"))
    corners = {(y, x): int(bright[y, x]) for y in (0, -1) for x in (0, -1)}
    assert corners.pop(corner) > 240 and max(corners.values()) < 50


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
    elif kind == "cut":
        whole = write_video(path, faststart=True).read_bytes()
        path.write_bytes(whole[: len(whole) * 3 // 4])
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
        ("webm", r"webm.webm is truncated: it should last 3.0 s, but ends after [012]\.\d s"),
        ("missing", "there is no video file .*missing.mp4"),
        ("cut", r"cut.mp4 (is damaged or truncated|cannot be decoded).*`ffmpeg -i cut.mp4 repaired"),
    ],
)
def test_a_bad_file_is_named_and_leaves_nothing(tmp_path, kind, words):
    pytest.importorskip("av")
    clip = bad_file(tmp_path, kind)
    with pytest.raises(VideoError, match=words):
        extract(clip, tmp_path / "out")
    assert files(tmp_path / "out") == []


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
    """Write a video of eight frames of moving noise."""
    av = pytest.importorskip("av")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg2video", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 64, 64, "yuv420p", 2_000_000
        for frame in range(8):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.roll(noise, 3 * frame, 1), "rgb24")))
        container.mux(stream.encode())
    return path.read_bytes()


def decoded(path):
    """The frames of a video; none if it is refused."""
    try:
        return [np.asarray(image) for image in sampled_frames(path, 10)]
    except VideoError:
        return []


def test_errors_that_the_decoder_would_hide_are_raised(tmp_path, monkeypatch):
    whole, path, hidden = write_noise(tmp_path / "whole.mpg"), tmp_path / "damaged.mpg", 0
    good = decoded(tmp_path / "whole.mpg")
    for seed in range(30):
        random = np.random.default_rng(seed)
        place = random.integers(600, len(whole) - 1200)
        path.write_bytes(whole[:place] + random.bytes(4) + whole[place + 4 :])
        with monkeypatch.context() as usual:
            usual.setattr(sampling, "DECODING", {})
            found = decoded(path)
        if found and not np.array_equal(found, good):
            hidden += 1
            assert not decoded(path)
    assert hidden
