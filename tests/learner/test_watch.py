"""Answers for frames as they come: smoothed, with the moments that matter, and without frames that come too fast."""

import gc
import multiprocessing
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_videos import write_video
from PIL import Image
from small_lessons import images, taught

from crumb_avalanche.images.camera import CameraError
from crumb_avalanche.learner import watch
from crumb_avalanche.learner.predictor import NothingTaughtError


@pytest.fixture
def learner(make):
    return taught(make(), 3)


@pytest.fixture
def thirty_a_second(monkeypatch):
    """A clock that goes on by a thirtieth of a second with each frame."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(
        watch, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 30)
    )


def shown(*parts):
    """Frames of classes: pairs of a class and a number of frames."""
    return [
        frame
        for seed, (number, count) in enumerate(parts)
        for frame in images(number, count, seed=5 + seed)
    ]


def test_one_change_of_object_is_one_change_and_a_stray_frame_is_none(
    learner, thirty_a_second
):
    frames = shown((0, 40), (2, 1), (0, 30), (1, 60))
    answers = list(learner.watch(iter(frames)))
    assert [answer.label for answer in answers if answer.changed] == ["c0", "c1"]
    first, second = (place for place, answer in enumerate(answers) if answer.changed)
    assert (
        first == 15 and 71 + 15 < second < 71 + 60
    )  # half a window after the answer has become another one
    assert {answer.label for answer in answers[:71]} == {"c0"} and answers[
        -1
    ].label == "c1"
    alone = [answer.label for answer in learner.watch(iter(frames), window=0)]
    assert alone[40] == "c2" and alone == [
        learner.predict(frame).label for frame in frames
    ]
    assert answers[0].as_dict().keys() >= {
        "label",
        "confidence",
        "known",
        "time",
        "changed",
        "dropped",
    }


def test_the_frames_of_a_window_are_answered_as_a_clip(learner, thirty_a_second):
    frames = shown((1, 40))
    answer, clip = list(learner.watch(frames))[-1], learner.predict(frames[-31:])
    assert answer.label == clip.label and answer.known == clip.known
    assert answer.confidence == pytest.approx(clip.confidence, abs=1e-6)


def test_frames_together_have_the_evidence_of_a_clip_also_against_nothing(learner):
    learner.teach_nothing(images(3, 4, seed=9))
    known, frames = learner._classifier, images(1, 5, seed=8)
    values = torch.cat(
        [
            learner._compute(learner._transform(Image.fromarray(one))[None])
            for one in frames
        ]
    )
    joined = watch.together([known.evidence(values[place, None]) for place in range(5)])
    whole = known.evidence(values)
    assert joined.apart is not None and len(joined.apart) == 5
    for one, other in zip(joined, whole, strict=True):
        torch.testing.assert_close(one, other)


def test_functions_iterators_pil_images_and_bgr_are_the_same(learner):
    frames = shown((0, 2), (1, 2))
    expected = [learner.predict(frame).label for frame in frames]
    several = iter([*frames, None])
    for source, options in (
        (frames, {}),
        (lambda: next(several), {}),
        ([Image.fromarray(frame) for frame in frames], {}),
        ((frame[..., ::-1] for frame in frames), {"bgr": True}),
    ):
        assert [
            answer.label for answer in learner.watch(source, window=0, **options)
        ] == expected
    assert [
        answer.label for answer in learner.watch(frames, window=0, bgr=True)
    ] != expected


def test_a_live_source_drops_what_comes_too_fast_and_holds_no_frames(learner):
    frames, most = [], []

    class Frame(np.ndarray):
        """An array whose life can be watched."""

    def camera():
        for frame in shown((0, 300)):
            frame = frame.view(Frame)
            frames.append(weakref.ref(frame))
            yield frame
            del frame

    answers = []
    for answer in learner.watch(camera(), live=True):
        answers.append(answer)
        gc.collect()
        most.append(sum(frame() is not None for frame in frames))
    assert len(answers) + sum(answer.dropped for answer in answers) == 300
    assert sum(answer.dropped for answer in answers) > 0 and max(most) <= 4


def test_a_video_is_answered_frame_by_frame_and_closed_when_it_is_left(
    learner, tmp_path
):
    pytest.importorskip("av")
    path = write_video(tmp_path / "clip.mp4")  # 3 seconds at 10 frames per second
    assert (
        len(list(learner.watch(path))) == 30
        and len(list(learner.watch(str(path), fps=5))) == 15
    )
    threads = threading.active_count()
    played = learner.watch(path, live=True)
    next(played)
    assert threading.active_count() > threads
    played.close()
    assert threading.active_count() == threads


def test_frames_of_a_video_are_freed_without_the_garbage_collector_and_in_a_forked_process(
    learner, tmp_path
):
    av = pytest.importorskip("av")
    path = write_video(
        tmp_path / "clip.mp4", size=(640, 480)
    )  # that FFmpeg converts in threads, which a fork lacks
    gc.collect()
    gc.disable()
    try:
        assert len(list(learner.watch(path))) == 30 and learner.predict(path).frames
        held = sum(type(one) is av.VideoFrame for one in gc.get_objects())
        forked = multiprocessing.get_context("fork").Process(
            target=gc.collect, daemon=True
        )
        forked.start()
        forked.join(60)
    finally:
        gc.enable()
    assert held < 15  # of 30; a thread that decodes ahead holds some
    assert forked.exitcode == 0


def test_the_learner_may_be_taught_meanwhile(learner):
    answers = []
    for answer in learner.watch(shown((4, 6)), window=100):
        answers.append(answer.label)
        if len(answers) == 3:
            learner.teach(images(4, 6), "c4")
    assert "c4" not in answers[:3] and set(answers[3:]) == {"c4"}


@pytest.mark.parametrize(
    ("source", "options", "kind", "fact"),
    [
        (np.zeros((4, 4, 3), np.uint8), {}, TypeError, "give predict a single image"),
        (3.5, {}, TypeError, "float; give a camera's number"),
        ([b"x"], {}, TypeError, "frame 0 is bytes"),
        ([np.zeros((4, 4), np.uint8)], {}, TypeError, "frame 0"),
        (
            [np.zeros((4, 4, 2), np.uint8)],
            {},
            ValueError,
            r"frame 0 is an array of shape \(4, 4, 2\)",
        ),
        ([], {"window": -1}, ValueError, "window is -1"),
        ([], {"fps": 0}, ValueError, "fps 0"),
        ("/no/camera", {}, CameraError, "camera /no/camera cannot be opened"),
    ],
)
def test_what_cannot_be_watched(learner, source, options, kind, fact):
    with pytest.raises(kind, match=fact):
        list(learner.watch(source, **options))


def test_an_address_is_named_without_its_password(make):
    with pytest.raises(NothingTaughtError):
        next(make().watch([]))
    with pytest.raises(
        CameraError, match=r"camera rtsp://127\.0\.0\.1:9/x cannot be opened"
    ) as error:
        next(taught(make(), 2).watch("rtsp://me:secret@127.0.0.1:9/x"))
    assert "secret" not in str(error.value)
