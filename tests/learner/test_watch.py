"""Answers for frames as they come."""

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
from small_lessons import copied, images, taught

from crumb_avalanche.images.camera import CameraError
from crumb_avalanche.learner import watch
from crumb_avalanche.learner.predictor import NothingTaughtError


@pytest.fixture(scope="module")
def taught_once(make):
    return taught(make(), 3)


@pytest.fixture
def learner(taught_once):
    return copied(taught_once)


@pytest.fixture
def thirty_a_second(monkeypatch):
    """A clock that goes on by a thirtieth of a second with each frame."""
    ticks = iter(range(10**6))
    clock = SimpleNamespace(monotonic=lambda: next(ticks) / 30)
    monkeypatch.setattr(watch, "time", clock)


def frames_of(*shots):
    """Frames of shots: pairs of a class and a number of frames."""
    frames = []
    for seed, (number, count) in enumerate(shots, start=5):
        frames += list(images(number, count, seed=seed))
    return frames


def labels_of(answers):
    return [answer.label for answer in answers]


def predicted(learner, frames):
    """The label of each frame alone."""
    return labels_of(map(learner.predict, frames))


# Smoothing

# An object, a stray frame of another one, and a third object from frame 71 on.
SHOTS = ((0, 40), (2, 1), (0, 30), (1, 60))
CHANGE = 71


@pytest.fixture
def answers(learner, thirty_a_second):
    """Those of SHOTS, over windows of a second."""
    return list(learner.watch(iter(frames_of(*SHOTS))))


def test_a_change_of_object_is_one_change(answers):
    assert labels_of(answer for answer in answers if answer.changed) == ["c0", "c1"]


def test_a_change_is_reported_after_half_a_window(answers):
    first, second = (i for i, answer in enumerate(answers) if answer.changed)
    assert first == 15
    assert CHANGE + 15 < second < CHANGE + 60


def test_a_stray_frame_changes_nothing(answers):
    assert set(labels_of(answers[:CHANGE])) == {"c0"}


def test_the_last_object_is_answered_in_the_end(answers):
    assert answers[-1].label == "c1"


def test_without_a_window_each_frame_is_answered(learner, thirty_a_second):
    frames = frames_of(*SHOTS)
    labels = labels_of(learner.watch(iter(frames), window=0))
    assert labels == predicted(learner, frames)
    assert labels[40] == "c2"


def test_an_answer_as_a_dictionary(answers):
    names = {"label", "confidence", "known", "time", "changed", "dropped"}
    assert answers[0].as_dict().keys() >= names


def test_a_window_is_answered_as_a_clip(learner, thirty_a_second):
    frames = frames_of((1, 40))
    *_, answer = learner.watch(frames)
    clip = learner.predict(frames[-31:])
    assert (answer.label, answer.known) == (clip.label, clip.known)
    assert answer.confidence == pytest.approx(clip.confidence, abs=1e-6)


def test_a_window_has_the_evidence_of_a_clip(learner):
    learner.teach_nothing(images(3, 4, seed=9))  # the evidence has that, too
    classifier = learner._classifier
    pixels = [learner._transform(Image.fromarray(image)) for image in images(1, 5)]
    features = learner._compute(torch.stack(pixels), learner.looks_used)
    of_each = [classifier.evidence(row[None]) for row in features]
    joined = watch.together(of_each)
    assert joined.apart is not None
    expected = classifier.evidence(features)
    for values, expected_values in zip(joined, expected, strict=True):
        torch.testing.assert_close(values, expected_values)


# Sources


def as_list(frames):
    return frames


def as_function(frames):
    """A function that gives a frame at each call, and None at the end."""
    remaining = iter([*frames, None])
    return lambda: next(remaining)


def as_pil_images(frames):
    return [Image.fromarray(frame) for frame in frames]


@pytest.mark.parametrize("source", [as_list, iter, as_function, as_pil_images])
def test_sources_are_answered_alike(learner, source):
    frames = frames_of((0, 2), (1, 2))
    labels = labels_of(learner.watch(source(frames), window=0))
    assert labels == predicted(learner, frames)


def with_alpha():
    """A transparent image, white to who looks at it, on black."""
    return Image.new("RGBA", (32, 32), (0, 0, 0, 0))


def grey_of_16_bits():
    """A grey ramp of 16 bits."""
    ramp = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    return Image.fromarray(ramp)


def rotated():
    """A half black, half white image with an EXIF orientation."""
    image = Image.new("RGB", (32, 32))
    image.paste("white", (0, 0, 32, 16))
    image.getexif()[0x0112] = 6
    return image


@pytest.mark.parametrize("make_image", [with_alpha, grey_of_16_bits, rotated])
def test_pil_images_are_converted_as_predict_does(learner, make_image):
    # Given a PIL image that is not plain RGB
    image = make_image()
    # When it is watched
    (answer,) = learner.watch([image], window=0)
    # Then the answer is that of predict
    expected = learner.predict(image)
    assert (answer.label, answer.confidence) == (expected.label, expected.confidence)


def test_frames_of_opencv(learner):
    frames = frames_of((0, 2), (1, 2))
    swapped = (frame[..., ::-1] for frame in frames)
    labels = labels_of(learner.watch(swapped, window=0, bgr=True))
    assert labels == predicted(learner, frames)


def test_colours_are_not_swapped_unasked(learner):
    frames = frames_of((0, 2), (1, 2))
    labels = labels_of(learner.watch(frames, window=0, bgr=True))
    assert labels != predicted(learner, frames)


class WatchedFrame(np.ndarray):
    """An array whose life can be watched."""


class Camera:
    """300 frames that come at once; counts those that are alive."""

    def __init__(self):
        self.references = []

    def __iter__(self):
        for frame in frames_of((0, 300)):
            watched = frame.view(WatchedFrame)
            self.references.append(weakref.ref(watched))
            yield watched
            del watched

    def alive(self):
        gc.collect()
        return sum(reference() is not None for reference in self.references)


def test_a_live_source_drops_frames(learner):
    answers = list(learner.watch(iter(Camera()), live=True))
    dropped = sum(answer.dropped for answer in answers)
    assert dropped > 0
    assert len(answers) + dropped == 300


def test_a_live_source_holds_few_frames(learner):
    camera = Camera()
    alive = [camera.alive() for _ in learner.watch(iter(camera), live=True)]
    assert max(alive) <= 4


def test_the_classes_may_be_forgotten_meanwhile(learner):
    # Given a learner that is watching
    answers = learner.watch(frames_of((0, 2)))
    next(answers)
    # When all of its classes are forgotten
    for info in learner.classes:
        learner.forget(info.name)
    # Then the next frame has no answer
    with pytest.raises(NothingTaughtError):
        next(answers)


def test_the_learner_may_be_taught_meanwhile(learner):
    labels = []
    for answer in learner.watch(frames_of((4, 6)), window=100):
        labels.append(answer.label)
        if len(labels) == 3:
            learner.teach(images(4, 6), "c4")
    assert "c4" not in labels[:3]
    assert set(labels[3:]) == {"c4"}


# Videos


@pytest.mark.parametrize(
    ("path_type", "options", "answers"),
    [(lambda path: path, {}, 30), (str, {"fps": 5}, 15)],
    ids=["path", "fps"],
)
def test_a_video_is_answered_frame_by_frame(
    learner, tmp_path, path_type, options, answers
):
    pytest.importorskip("av")
    path = write_video(tmp_path / "clip.mp4")  # 3 seconds at 10 frames per second
    assert len(list(learner.watch(path_type(path), **options))) == answers


@pytest.mark.parametrize(
    ("stamps", "fps", "answered", "dropped"),
    [
        ([0, 0.125, 0.25, 0.375, 0.5], 4, [0, 0.25, 0.5], [0, 1, 1]),
        ([0, 0.125, 0.25], None, [0, 0.125, 0.25], [0, 0, 0]),
        ([0, 10, 10.125, 10.25], 4, [0, 10, 10.25], [0, 0, 1]),  # after a gap
        ([3, 3.125, 3.25], 4, [3, 3.25], [0, 1]),  # a clock that begins late
    ],
    ids=["twice as many", "all", "gap", "late"],
)
def test_frames_are_answered_at_a_rate(stamps, fps, answered, dropped):
    frames = ((stamp, lambda: None, 0) for stamp in stamps)
    sampled = list(watch._sampled(frames, fps))
    assert [stamp for stamp, _, _ in sampled] == answered
    assert [count for _, _, count in sampled] == dropped


def test_a_video_that_is_left_is_closed(learner, tmp_path):
    pytest.importorskip("av")
    path = write_video(tmp_path / "clip.mp4")
    threads = threading.active_count()
    played = learner.watch(path, live=True)
    next(played)
    assert threading.active_count() > threads
    played.close()
    assert threading.active_count() == threads


@pytest.fixture
def large_video(tmp_path):
    """A video that FFmpeg converts in threads, without garbage collection meanwhile."""
    pytest.importorskip("av")
    path = write_video(tmp_path / "clip.mp4", size=(640, 480))
    gc.collect()
    gc.disable()
    yield path
    gc.enable()


def frames_alive():
    import av

    return sum(type(entry) is av.VideoFrame for entry in gc.get_objects())


def test_frames_are_freed_without_the_collector(learner, large_video):
    assert len(list(learner.watch(large_video))) == 30
    assert frames_alive() < 15  # a thread that decodes ahead holds some


def test_frames_are_freed_in_a_forked_process(learner, large_video):
    list(learner.watch(large_video))
    learner.predict(large_video)
    # A fork lacks the threads of FFmpeg.
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=gc.collect, daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == 0


# What cannot be watched


@pytest.mark.parametrize(
    ("source", "options", "error", "words"),
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
        ("absent.mp4", {}, FileNotFoundError, "no file or folder absent.mp4"),
    ],
)
def test_what_cannot_be_watched(learner, source, options, error, words):
    with pytest.raises(error, match=words):
        list(learner.watch(source, **options))


def test_before_anything_is_taught(make):
    with pytest.raises(NothingTaughtError):
        next(make().watch([]))


def test_an_address_is_named_without_its_password(learner):
    words = r"camera rtsp://127\.0\.0\.1:9/x cannot be opened"
    with pytest.raises(CameraError, match=words) as error:
        next(learner.watch("rtsp://me:secret@127.0.0.1:9/x"))
    assert "secret" not in str(error.value)
