"""How long the pictures of a video last, whatever its header states."""

import pytest
from fake_videos import write_video
from video_clips import whole_and_cut

from benchmarks_toybox_ilab.video.sampling import VideoError, sampled_frames, seconds_of

pytest.importorskip("av")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mkv", {"seconds": 3, "sound": 6}),
        ("a.mkv", {"seconds": 3, "sound": 6, "live": True}),
        ("a.mp4", {"seconds": 3, "sound": 6}),
        ("a.flv", {"seconds": 3, "sound": 6}),
        ("a.mts", {"seconds": 3, "sound": 6}),
        ("a.avi", {"seconds": 3, "sound": 6}),
        ("begins after the sound.mkv", {"stamps": range(6000, 9000, 100), "sound": 12}),
        ("begins after the sound.mp4", {"stamps": range(6000, 9000, 100), "sound": 12}),
        ("begins after the sound.mts", {"stamps": range(6000, 9000, 100), "sound": 12}),
        ("of any rate.mp4", {"stamps": [0, 40, 900, 1500, 2900]}),
        ("states no length.mkv", {"seconds": 3, "live": True}),
        ("states no length.mjpeg", {"seconds": 3, "rate": 25, "codec": "mjpeg"}),
        ("states no length.h264", {"seconds": 3, "rate": 25}),
    ],
)
def test_the_pictures_count(tmp_path, name, options):
    path = write_video(tmp_path / name, **options)
    assert seconds_of(path, most=20) == pytest.approx(3, abs=0.25)
    assert len(list(sampled_frames(path, 2))) == 6
    assert 1 <= seconds_of(path, most=1) < 2.9


def test_files_without_pictures(tmp_path):
    folder = whole_and_cut(tmp_path)
    assert 0 < seconds_of(folder / "cut.mp4", most=20) < 3
    (folder / "text.mp4").write_bytes(b"no video")
    with pytest.raises(VideoError, match="cannot be opened"):
        seconds_of(folder / "text.mp4", most=20)
