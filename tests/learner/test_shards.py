"""A lesson in shards makes the learner that one pass makes, bit by bit."""

import os
import shutil
import signal
from functools import partial
from pathlib import Path

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


def in_shards(learner, shown, count, folder):
    plan = computed(ShardedLesson.plan(learner, shown, count, folder))
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
        return first.keys() == second.keys() and all(
            equal(first[key], second[key]) for key in first
        )
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return first == second


@pytest.mark.parametrize("count", [1, 2, 4, 1000])
def test_shards_teach_what_one_pass_does(make, clips, tmp_path, count):
    whole = make()
    whole.teach(clips)
    shards = make()
    lesson = in_shards(shards, LessonSource.of(clips, None), count, tmp_path)
    assert lesson.images == whole.lessons[0].images
    assert equal(state_of(shards), state_of(whole))
    shards.save(tmp_path / "shards.safetensors")
    again = Learner.load(tmp_path / "shards.safetensors")
    assert list(map(str, again.predict_all(clips))) == list(
        map(str, whole.predict_all(clips))
    )


def test_a_second_lesson_in_shards(make, clips, tmp_path):
    first, second = sorted(path for path in Path(clips).iterdir() if path.is_dir())[:2]
    whole, shards = make(), make()
    for learner in (whole, shards):
        learner.teach(first, "first")
    whole.teach(second, "second")
    in_shards(shards, LessonSource.of(second, "second"), 2, tmp_path)
    assert equal(state_of(shards), state_of(whole))


def test_nothing_is_shown_in_shards(make, clips, tmp_path):
    whole, shards = make(), make()
    for learner in (whole, shards):
        learner.teach(clips)
    whole.teach_nothing(clips)
    in_shards(shards, LessonSource.of(clips, NOTHING), 2, tmp_path)
    assert equal(state_of(shards), state_of(whole))


@pytest.fixture
def damaged(clips, tmp_path):
    """Clips of which one image cannot be read."""
    folder = tmp_path / "damaged"
    shutil.copytree(clips, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files[0].write_bytes(b"no image")
    return folder


def test_unread_images_are_listed(make, damaged, tmp_path):
    whole, shards = make(), make()
    unread = whole.teach(damaged, on_bad="skip").unread
    lesson = in_shards(shards, LessonSource.of(damaged, None), 2, tmp_path)
    assert lesson.unread == unread and len(unread) == 1


def test_other_clips_have_other_shards(make, clips, damaged, tmp_path):
    plans = [
        ShardedLesson.plan(make(), LessonSource.of(folder, None), 2, tmp_path)
        for folder in (clips, damaged)
    ]
    folders = {shard.folder for plan in plans for shard in plan.shards}
    assert len(folders) == 4


def test_what_decides_features_names_their_shards(make, clips):
    source = LessonSource.of(clips, None, "raise")
    arguments = {
        "learner": make(),
        "clips": source.clips([]),
        "source": source,
        "runtime": "torch 2.4",
    }
    changes = [
        {},
        {"learner": make(image_size=64)},
        {"clips": arguments["clips"][1:]},
        {"source": LessonSource.of(clips, "cup", "raise")},
        {"source": LessonSource.of(clips, None, "skip")},
        {"runtime": "onnxruntime 1.20"},
    ]
    names = [_lesson_key(**{**arguments, **change}) for change in changes]
    assert len(set(names)) == len(changes)
    assert _lesson_key(**arguments) == names[0]


def test_a_damaged_shard_is_named(make, clips, tmp_path):
    learner = make()
    plan = computed(
        ShardedLesson.plan(learner, LessonSource.of(clips, None), 2, tmp_path)
    )
    path = plan.shards[1].path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
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
    mark = shard.folder / "attempt"
    if not mark.exists():
        mark.write_text("begun")
        os.kill(os.getpid(), signal.SIGKILL)
    shard.compute()


def test_a_killed_worker_changes_nothing(make, clips, tmp_path):
    whole, learner = make(), make()
    whole.teach(clips)
    plan = ShardedLesson.plan(learner, LessonSource.of(clips, None), 2, tmp_path)
    units = [
        WorkUnit(shard.folder, partial(killed_once, shard), shard.is_done)
        for shard in plan.shards
    ]
    assert not do_all(units, Processes(2, "fork"), progress=False)
    plan.teach(learner)
    assert equal(state_of(learner), state_of(whole))


# The command


def crumb(*words):
    return main([str(word) for word in words])


NEW = ("--backbone", "small_cnn", "--weights", "none", "--image-size", 32)


def test_the_command_in_processes(clips, tmp_path, capsys):
    assert crumb("teach", tmp_path / "a.safetensors", clips, *NEW) == 0
    one_pass = capsys.readouterr().out.replace("a.safetensors", "b.safetensors")
    words = ("--processes", 2, "--shards", 3)
    assert crumb("teach", tmp_path / "b.safetensors", clips, *NEW, *words) == 0
    assert capsys.readouterr().out == one_pass
    first, second = (
        Learner.load(tmp_path / name) for name in ("a.safetensors", "b.safetensors")
    )
    assert equal(state_of(first), state_of(second))
    assert not (tmp_path / "b.safetensors.shards").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--camera", "0", "--label", "mug"], "a camera is watched by this process"),
        (["IMAGES", "--keep-pictures"], "pictures are kept by this process"),
    ],
)
def test_what_workers_do_not_do(tmp_path, clips, capsys, words, said):
    words = [str(clips) if word == "IMAGES" else word for word in words]
    model = tmp_path / "mine.safetensors"
    assert crumb("teach", model, *words, "--processes", 2) == 1
    assert said in capsys.readouterr().err
