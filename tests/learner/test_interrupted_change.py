"""A change that is interrupted at any line is not made, or made; never between."""

import ast
import copy
import functools
import os
import sys
from pathlib import Path

import pytest
from small_lessons import images, same, taught

import benchmarks_toybox_ilab
import crumb_avalanche
from crumb_avalanche.learner import learner as learner_module
from crumb_avalanche.learner.file import write_learner
from crumb_avalanche.learner.known_files import ReplacedError
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.run_header import LearnerError

PACKAGES = tuple(
    os.path.dirname(package.__file__) + os.sep
    for package in (crumb_avalanche, benchmarks_toybox_ilab)
)
QUICK = 6  # lines of each change at which the quick test interrupts it
# Each change, as a function of a learner of the classes c0 to c2 and of another one.
CHANGES = {
    "teach a new class": lambda learner, other: learner.teach(images(4), "c4"),
    "teach a known class": lambda learner, other: learner.teach(images(0), "c0"),
    "teach nothing": lambda learner, other: learner.teach_nothing(images(5)),
    "rename": lambda learner, other: learner.rename("c0", "cup"),
    "move to a new name": lambda learner, other: learner.move("c0", "cup"),
    "move to a known name": lambda learner, other: learner.move("c0", "c1"),
    "move a lesson": lambda learner, other: learner.move("c1", "c2", lesson=2),
    "forget": lambda learner, other: learner.forget("c1"),
    "undo the last lesson": lambda learner, other: learner.undo(),
    "undo a lesson": lambda learner, other: learner.undo(1),
    "merge": lambda learner, other: learner.merge(other),
}


class Interrupt(BaseException):
    """What comes at any line, as KeyboardInterrupt does."""


class Lines:
    """Calls a function, notes the lines of the packages, and may raise before one."""

    def __init__(self, raise_at: int = sys.maxsize):
        self.raise_at = raise_at
        self.run: list[tuple[str, int]] = []

    def call(self, function, *arguments):
        """Return whether the function ended, and was not interrupted."""
        sys.settrace(self._trace)
        try:
            function(*arguments)
        except Interrupt:
            return False
        finally:
            sys.settrace(None)
        return True

    def _trace(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(PACKAGES):
            return None
        if event == "line":
            if len(self.run) == self.raise_at:
                raise Interrupt
            self.run.append((frame.f_code.co_filename, frame.f_lineno))
        return self._trace

    def first_and_last(self):
        """Return the number of the first and of the last visit of each line.

        Of ``with`` statements only the first: an error that a trace function raises as
        the block ends skips what ends the context, which no signal does.
        """
        first = {}
        last = {}
        for number, line in enumerate(self.run):
            first.setdefault(line, number)
            if line[1] not in lines_of_with(line[0]):
                last[line] = number
        return sorted({*first.values(), *last.values()})


@functools.cache
def lines_of_with(path):
    """Return the lines of the heads of ``with`` statements in a source file."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.With)]
    return {
        line
        for statement in statements
        for line in range(statement.lineno, statement.body[0].lineno)
    }


@pytest.fixture(scope="module")
def learners(network):
    """A learner of three classes with pictures, and another one, taught apart."""
    pair = []
    for _ in range(2):
        learner = Learner.__new__(Learner)
        learner._set_up("rda", network, 400_000)
        learner.keep_pictures = True
        pair.append(learner)
    taught(pair[0], 3)
    pair[1].teach(images(7), "c7")
    pair[1].teach(images(0, seed=3), "c0")
    return pair


def known(learner):
    """What a person sees of a learner, without random numbers and times."""
    lessons = [{**vars(lesson), "id": 0, "when": ""} for lesson in learner.lessons]
    return learner.classes, lessons, learner.undoable, learner.nothing


def is_like(learner, other):
    return known(learner) == known(other) and same(learner, other)


def check_interrupted(change, learners, number, path):
    """Interrupt a change before the line of a number; the learner has to be whole."""
    before, second = learners
    learner = copy.deepcopy(before)
    after = copy.deepcopy(before)
    CHANGES[change](after, second)
    Lines(number).call(CHANGES[change], learner, second)
    assert is_like(learner, before) or is_like(learner, after)
    learner.save(path, pictures=True, overwrite=True)
    assert is_like(Learner.load(path), learner)


def lines_of(change, learners):
    """Return the numbers of lines at which a change is interrupted."""
    learner = copy.deepcopy(learners[0])
    lines = Lines()
    assert lines.call(CHANGES[change], learner, learners[1])
    return lines.first_and_last()


@pytest.mark.parametrize("change", CHANGES)
def test_interrupted_change(change, learners, tmp_path):
    numbers = lines_of(change, learners)
    for number in numbers[:: max(1, len(numbers) // QUICK)]:
        check_interrupted(change, learners, number, tmp_path / "a.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_change_interrupted_at_each_line(change, learners, tmp_path):
    for number in lines_of(change, learners):
        check_interrupted(change, learners, number, tmp_path / "a.safetensors")


def check_interrupted_save(learner, number, path):
    """Interrupt a save of a changed learner; the file has to be the old or new one."""
    before = copy.deepcopy(learner)
    before.save(path, pictures=True)
    after = copy.deepcopy(before)
    after.rename("c0", "cup")
    Lines(number).call(after.save, path, True, True)
    in_file = Learner.load(path)
    assert is_like(in_file, before) or is_like(in_file, after)
    after.save(path, pictures=True)
    assert is_like(Learner.load(path), after)


def lines_of_save(learner, path):
    """Return the numbers of lines at which a save is interrupted."""
    before = copy.deepcopy(learner)
    before.save(path, pictures=True)
    lines = Lines()
    assert lines.call(before.save, path, True, True)
    return lines.first_and_last()


def test_interrupted_save(learners, tmp_path):
    numbers = lines_of_save(learners[1], tmp_path / "first")
    for number in numbers[:: len(numbers) // QUICK]:
        check_interrupted_save(learners[1], number, tmp_path / f"{number}")


@pytest.mark.slow
def test_save_interrupted_at_each_line(learners, tmp_path):
    for number in lines_of_save(learners[1], tmp_path / "first"):
        check_interrupted_save(learners[1], number, tmp_path / f"{number}")


@pytest.fixture
def interrupted(learners, tmp_path, monkeypatch):
    """A learner whose save was interrupted just after its file was replaced."""
    path = tmp_path / "a.safetensors"
    learner = copy.deepcopy(learners[1])
    learner.save(path)
    learner.rename("c0", "cup")

    def write_and_interrupt(*arguments):
        write_learner(*arguments)
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(learner_module, "write_learner", write_and_interrupt)
        with pytest.raises(Interrupt):
            learner.save(path)
    return learner, path


def test_save_after_an_interrupted_one(interrupted):
    learner, path = interrupted
    learner.save(path)
    assert known(Learner.load(path))[0] == learner.classes


def test_save_of_another_after_an_interrupted_one(interrupted):
    """The work of others is not replaced."""
    learner, path = interrupted
    second = Learner.load(path)
    second.forget("cup")
    second.save(path)
    with pytest.raises(ReplacedError):
        learner.save(path)
    assert Learner.load(path).classes == second.classes


def test_first_save_after_one_that_failed(learners, tmp_path, monkeypatch):
    """A file that was never loaded may still be replaced on request."""
    path = tmp_path / "a.safetensors"
    learners[0].save(path)
    learner = copy.deepcopy(learners[1])

    def no_room(path, network, state, weights, expect):
        expect("a checksum")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(learner_module, "write_learner", no_room)
        with pytest.raises(OSError, match="No space left"):
            learner.save(path, overwrite=True)
    learner.save(path)
    assert Learner.load(path).classes == learner.classes


def test_change_within_a_lesson(learners):
    learner = copy.deepcopy(learners[0])

    def progress(count):
        learner.forget("c0")

    with pytest.raises(LearnerError, match=r"changed by what a lesson called.*dropped"):
        learner.teach(images(4), "c4", progress=progress)
    assert [info.name for info in learner.classes] == ["c1", "c2"]
