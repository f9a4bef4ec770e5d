"""A forked process leaves the learners and videos of its parent alone."""

import gc
import threading

import pytest
import torch
from fake_videos import write_video
from forked import exit_code_of_fork
from small_lessons import copied, images, taught

pytestmark = pytest.mark.usefixtures("no_collector")


@pytest.fixture
def learner(make):
    return taught(make("ncm"), 2)


@pytest.fixture
def of_onnxruntime(learner):
    """A list of a learner whose features ONNX Runtime computes in two threads."""
    pytest.importorskip("onnxruntime")
    torch.set_num_threads(2)
    learner.use_runtime("onnxruntime")
    yield [learner]
    learner.use_runtime("torch")


def test_child_drops_a_learner(of_onnxruntime):
    def drop():
        of_onnxruntime.pop().use_runtime("torch")

    assert exit_code_of_fork(drop) == 0


def test_child_collects_a_learner(of_onnxruntime):
    of_onnxruntime.append(of_onnxruntime)

    def drop():
        of_onnxruntime[0].use_runtime("torch")
        gc.collect()

    assert exit_code_of_fork(drop) == 0


def test_child_asks_a_learner(of_onnxruntime):
    (learner,) = of_onnxruntime

    def ask():
        assert learner.predict(images(1)).label == "c1"

    assert exit_code_of_fork(ask) == 0


@pytest.mark.parametrize("copy", [lambda learner: learner, copied])
def test_child_asks_while_the_parent_is_asked(learner, copy):
    learner = copy(learner)
    is_held = threading.Event()
    is_over = threading.Event()

    def hold():
        with learner._lock:
            is_held.set()
            is_over.wait(120)

    def ask():
        assert learner.predict(images(1)).label == "c1"

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(120)
    code = exit_code_of_fork(ask)
    is_over.set()
    thread.join(120)
    assert code == 0


@pytest.mark.parametrize("live", [False, True])
def test_watching_left_early(learner, tmp_path, live):
    pytest.importorskip("av")
    video = write_video(tmp_path / "clip.mp4", size=(640, 480))
    answers = learner.watch(video, live=live)
    next(answers)
    holder = [answers]
    holder.append(holder)
    del holder, answers
    assert exit_code_of_fork(gc.collect) == 0
