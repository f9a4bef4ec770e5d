"""A lesson in shards makes the learner that one pass makes, bit by bit."""

import os
import shutil
import signal
from functools import partial

import pytest
import torch

from crumb_avalanche.cli import main
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.nothing import NOTHING
from crumb_avalanche.learner.shards import (
    LessonSource,
    Shard,
    ShardedLesson,
    _lesson_key,
)
from crumb_avalanche.runs.engines import do_all
from crumb_avalanche.runs.local_engines import Processes
from crumb_avalanche.runs.work import WorkUnit
from crumb_avalanche.system.tensor_file import TensorFileError


@pytest.fixture
def make():
    """Makes equal learners."""
    return partial(Learner, backbone="small_cnn", weights=None, image_size=32)


@pytest.fixture(scope="module")
def clips(clips, tmp_path_factory):
    """Two classes of two objects each, with two clips of five frames."""
    folder = tmp_path_factory.mktemp("few")
    for path in sorted(clips.glob("[ac]*/object[01]")):
        shutil.copytree(path, folder / path.relative_to(clips))
    return folder


def computed(plan):
    """Compute all shards in this process."""
    for shard in plan.shards:
        shard.folder.mkdir()
        shard.compute()
    return plan


def in_shards(learner, source, count, folder):
    """Teach a lesson in so many shards, and return it."""
    plan = computed(ShardedLesson.plan(learner, source, count, folder))
    return plan.teach(learner)


def state_of(learner):
    """All that was learned, without times and random numbers."""
    state = learner.state_dict()
    for lesson in state["lessons"]:
        del lesson["when"], lesson["id"]
    return state


def equal(first, second):
    """Whether two nested states are equal to the bit."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return False
        return all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return first == second


def answers(learner, source):
    """The answers for all images of a source, as text."""
    return [str(answer) for answer in learner.predict_all(source)]


@pytest.fixture(scope="module")
def whole(clips):
    """A learner that was taught the clips in one pass."""
    learner = Learner(backbone="small_cnn", weights=None, image_size=32)
    learner.teach(clips)
    return learner


@pytest.mark.parametrize("count", [1, 2, 4, 1000])
def test_shards_teach_what_one_pass_does(make, clips, whole, tmp_path, count):
    # Given a learner without classes
    learner = make()
    # When it is taught in shards
    lesson = in_shards(learner, LessonSource.of(clips, None), count, tmp_path)
    # Then it is the learner that one pass makes
    assert lesson.images == whole.lessons[0].images
    assert equal(state_of(learner), state_of(whole))
    # And its file answers alike
    path = tmp_path / "shards.safetensors"
    learner.save(path)
    assert answers(Learner.load(path), clips) == answers(whole, clips)


def test_a_second_lesson_in_shards(make, clips, tmp_path):
    # Given two equal learners of a class
    first, second = sorted(path for path in clips.iterdir() if path.is_dir())
    one_pass = make()
    shards = make()
    one_pass.teach(first, "first")
    shards.teach(first, "first")
    # When one is taught a second class in shards, the other in one pass
    one_pass.teach(second, "second")
    in_shards(shards, LessonSource.of(second, "second"), 2, tmp_path)
    # Then they are equal
    assert equal(state_of(shards), state_of(one_pass))


def test_nothing_is_shown_in_shards(make, clips, tmp_path):
    # Given two equal learners
    one_pass = make()
    shards = make()
    one_pass.teach(clips)
    shards.teach(clips)
    # When one is shown an empty scene in shards, the other in one pass
    one_pass.teach_nothing(clips)
    in_shards(shards, LessonSource.of(clips, NOTHING), 2, tmp_path)
    # Then they are equal
    assert equal(state_of(shards), state_of(one_pass))


@pytest.fixture
def damaged(clips, tmp_path):
    """Clips of which one image cannot be read."""
    folder = tmp_path / "damaged"
    shutil.copytree(clips, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files[0].write_bytes(b"no image")
    return folder


def test_unread_images_are_listed(make, damaged, tmp_path):
    unread = make().teach(damaged, on_bad="skip").unread
    lesson = in_shards(make(), LessonSource.of(damaged, None), 2, tmp_path)
    assert len(unread) == 1
    assert lesson.unread == unread


def test_other_clips_have_other_shards(make, clips, damaged, tmp_path):
    # Given two folders of clips, of which an image differs
    # When each is planned in two shards
    plan = ShardedLesson.plan(make(), LessonSource.of(clips, None), 2, tmp_path)
    other = ShardedLesson.plan(make(), LessonSource.of(damaged, None), 2, tmp_path)
    # Then no shard is used by both
    folders = {shard.folder for shard in [*plan.shards, *other.shards]}
    assert len(folders) == 4


@pytest.fixture
def arguments(make, clips):
    """The arguments of ``_lesson_key``."""
    source = LessonSource.of(clips, None, "raise")
    return {
        "learner": make(),
        "clips": source.clips([]),
        "source": source,
        "runtime": "torch 2.4",
    }


def test_what_decides_features_names_their_shards(make, clips, arguments):
    # Given changes of which each leads to other features, labels or errors
    changes = [
        {},
        {"learner": make(image_size=64)},
        {"clips": arguments["clips"][1:]},
        {"source": LessonSource.of(clips, "cup", "raise")},
        {"source": LessonSource.of(clips, None, "skip")},
        {"runtime": "onnxruntime 1.20"},
    ]
    # When shards are named after them
    keys = {_lesson_key(**{**arguments, **change}) for change in changes}
    # Then no two have the same name
    assert len(keys) == len(changes)


def test_equal_lessons_share_their_shards(make, clips, arguments):
    source = LessonSource.of(clips, None, "raise")
    equal = {**arguments, "learner": make(), "source": source}
    equal["clips"] = source.clips([])
    assert _lesson_key(**arguments) == _lesson_key(**equal)


def test_a_damaged_shard_is_named(make, clips, tmp_path):
    # Given shards of which one has a changed bit
    learner = make()
    source = LessonSource.of(clips, None)
    plan = computed(ShardedLesson.plan(learner, source, 2, tmp_path))
    path = plan.shards[1].path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    # When they are taught
    # Then the error says what to do, and nothing is learned
    with pytest.raises(TensorFileError, match=r"remove .* and give the same command"):
        plan.teach(learner)
    assert not learner.classes


def test_a_worker_with_another_runtime(make, clips, tmp_path):
    plan = ShardedLesson.plan(make(), LessonSource.of(clips, None), 1, tmp_path)
    (shard,) = plan.shards
    values = {**vars(shard), "runtime": "torch 0.1"}
    with pytest.raises(ValueError, match=r"runs in torch 0\.1 where the command"):
        Shard(**values).compute()


def killed_once(shard):
    """Compute a shard; the first worker is killed."""
    attempt = shard.folder / "attempt"
    if not attempt.exists():
        attempt.write_text("begun")
        os.kill(os.getpid(), signal.SIGKILL)
    shard.compute()


def test_a_killed_worker_changes_nothing(make, clips, whole, tmp_path):
    # Given shards whose first workers are killed
    learner = make()
    plan = ShardedLesson.plan(learner, LessonSource.of(clips, None), 2, tmp_path)
    units = []
    for shard in plan.shards:
        work = partial(killed_once, shard)
        units.append(WorkUnit(shard.folder, work, shard.is_done))
    # When they are computed in two processes
    assert not do_all(units, Processes(2, "fork"), progress=False)
    # Then the lesson is that of one pass
    plan.teach(learner)
    assert equal(state_of(learner), state_of(whole))


# The command


def crumb(*words):
    return main([str(word) for word in words])


NEW = ("--backbone", "small_cnn", "--weights", "none", "--image-size", 32)


def test_the_command_in_processes(clips, tmp_path, capsys):
    # Given a learner that the command taught in one pass, and what it printed
    path = tmp_path / "a.safetensors"
    assert crumb("teach", path, clips, *NEW) == 0
    printed = capsys.readouterr().out
    # When another is taught in processes
    path_of_shards = tmp_path / "b.safetensors"
    options = ("--processes", 2, "--shards", 3)
    assert crumb("teach", path_of_shards, clips, *NEW, *options) == 0
    # Then it is the same learner, and the same is printed
    expected = printed.replace("a.safetensors", "b.safetensors")
    assert capsys.readouterr().out == expected
    learner = Learner.load(path)
    learner_of_shards = Learner.load(path_of_shards)
    assert equal(state_of(learner), state_of(learner_of_shards))
    # And the shards are removed
    assert not (tmp_path / "b.safetensors.shards").exists()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="taught here"),
        pytest.param(("--processes", 2), id="taught in shards"),
    ],
)
def test_shards_of_an_unfinished_lesson_stay(clips, tmp_path, options):
    # Given features of a lesson that was not finished
    path = tmp_path / "a.safetensors"
    features = tmp_path / "a.safetensors.shards" / "key" / "features.safetensors"
    features.parent.mkdir(parents=True)
    features.write_bytes(b"features")
    # When another lesson is taught to the same file
    assert crumb("teach", path, clips, *NEW, *options) == 0
    # Then they are there, and nothing else is
    assert list(features.parents[1].rglob("*")) == [features.parent, features]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            ["--camera", "0", "--label", "mug"],
            "a camera is watched by this process",
            id="camera",
        ),
        pytest.param(
            ["IMAGES", "--keep-pictures"],
            "pictures are kept by this process",
            id="pictures",
        ),
    ],
)
def test_what_workers_do_not_do(tmp_path, clips, capsys, arguments, words):
    arguments = [clips if word == "IMAGES" else word for word in arguments]
    path = tmp_path / "mine.safetensors"
    assert crumb("teach", path, *arguments, "--processes", 2) == 1
    assert words in capsys.readouterr().err
