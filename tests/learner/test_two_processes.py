"""A learner's file that two processes change, and a learner that is forked."""

import copy
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import savers
from forked import CONTEXT, start
from savers import save_in_rounds
from small_lessons import images, taught

from crumb_avalanche.learner.known_files import ReplacedError
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.system.folder_lock import FolderInUseError, locked_file

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
SECONDS = 20  # after which a child counts as hanging


def check_rounds(learner, path, rounds):
    """Let two processes change a file; one save of each round is made, one refused."""
    learner.save(path)
    barrier = CONTEXT.Barrier(2)
    saved = CONTEXT.Value("i", 0)
    processes = [
        start(save_in_rounds, path, number, rounds, barrier, saved)
        for number in range(2)
    ]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert saved.value == rounds
    assert len(Learner.load(path).lessons) == len(learner.lessons) + rounds
    assert os.listdir(path.parent) == [path.name]


def test_saves_of_two_processes(make, tmp_path):
    check_rounds(taught(make("ncm"), 1), tmp_path / "a.safetensors", rounds=8)


@pytest.mark.slow
def test_many_saves_of_two_processes(make, tmp_path):
    check_rounds(taught(make("ncm"), 1), tmp_path / "a.safetensors", rounds=200)


# Two processes of the same number, as in two containers.
NAMESPACE = ["unshare", "--pid", "--fork"]


def has_namespaces():
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not has_namespaces(), reason="no PID namespaces here")
def test_saves_in_two_pid_namespaces(make, tmp_path):
    path = tmp_path / "a.safetensors"
    learner = taught(make("ncm"), 1)
    learner.save(path)
    command = [*NAMESPACE, sys.executable, savers.__file__, str(path)]
    processes = [
        subprocess.Popen([*command, str(number), "100"], stdout=subprocess.PIPE)
        for number in range(2)
    ]
    saved = [int(process.communicate()[0]) for process in processes]
    assert min(saved) > 0
    assert len(Learner.load(path).lessons) == len(learner.lessons) + sum(saved)


def test_save_while_the_file_is_locked(make, tmp_path):
    learner = taught(make("ncm"), 1)
    path = tmp_path / "a.safetensors"
    with locked_file(path):
        with pytest.raises(FolderInUseError, match="is being changed by another"):
            learner.save(path)
        learner.save(path, locked=True)
    learner.save(path)


def test_save_over_a_copy(make, tmp_path):
    learner = taught(make("ncm"), 1)
    path = tmp_path / "a.safetensors"
    learner.save(path)
    backup = path.read_bytes()
    learner.rename("c0", "cup")
    learner.save(path)
    path.write_bytes(backup)
    with pytest.raises(ReplacedError, match="was replaced by another program"):
        learner.save(path)
    assert path.read_bytes() == backup


class SlowLesson:
    """Images of which the second comes when it is let go on."""

    def __init__(self):
        self.begun = threading.Event()
        self.goes_on = threading.Event()

    def __iter__(self):
        first, second = images(3, 2)
        yield first
        self.begun.set()
        assert self.goes_on.wait(SECONDS)
        yield second


def exit_code_of_child(function):
    """Fork, call a function in the child, and return its exit code; -14 if it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@forks
def test_fork_while_a_thread_teaches(make):
    learner = taught(make(), 3)
    lesson = SlowLesson()
    thread = threading.Thread(target=learner.teach, args=(iter(lesson), "c3"))
    thread.start()
    assert lesson.begun.wait(SECONDS)

    def ask_and_teach():
        assert learner.predict(images(1, 1, seed=9)).label == "c1"
        assert [info.name for info in learner.classes] == ["c0", "c1", "c2"]
        learner.teach(images(4), "c4")

    code = exit_code_of_child(ask_and_teach)
    lesson.goes_on.set()
    thread.join()
    assert code == 0
    assert [info.name for info in learner.classes] == ["c0", "c1", "c2", "c3"]


@forks
def test_fork_of_a_copy(make):
    """Copies and learners that were loaded have locks of their own."""
    learner = copy.deepcopy(taught(make(), 2))
    holder = threading.Thread(target=learner._lock.acquire)
    holder.start()
    holder.join()
    assert exit_code_of_child(lambda: learner.predict(images(1, 1))) == 0
