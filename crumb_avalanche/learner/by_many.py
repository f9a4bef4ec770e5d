"""Teach a learner in closed form by many workers: each learns shards of the clips, and the shards are merged in a tree.

Shards depend on the clips alone, and the tree on the number of shards. The result is therefore the same for any number
of workers, and for workers that are lost, whose shards are taught again.

Confidence is calibrated as in a lesson without workers, on clips that are asked before they are learned. There are
eight groups of shards, and some clips of each group are asked of what the learner knew before and all other groups.
"""

import heapq
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from crumb_avalanche.learner.answer import Lesson
from crumb_avalanche.learner.clip import BadImage, ClipFiles
from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.engine import Engine, Handle
from crumb_avalanche.learner.kinds import KINDS
from crumb_avalanche.learner.knowledge import Knowledge
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.learner.shard import State, Task, ask, merge_states, teach_shard
from crumb_avalanche.learner.teaching import Progress, check_not_empty, label_of, now

IMAGES = 512  # of a shard, about: a lost worker costs seconds, and a shard longer than merging it
GROUPS = 8  # a clip is asked of what 7/8 of the images teach
ASKED = 200  # clips; more than the records of a learner hold


def check_for_workers(method: str, source: Any, thumbnails: bool) -> None:
    """Raise ValueError for a lesson that workers cannot learn; the arguments are those of ``Learner.teach``."""
    if method not in KINDS:
        raise ValueError(
            f"method {method} trains layers, which cannot be merged: teach it without an engine, or make a "
            f"learner of method {', '.join(KINDS)}"
        )
    if thumbnails or not isinstance(source, str | os.PathLike):
        what = "thumbnails are" if thumbnails else f"{type(source).__name__} is"
        raise ValueError(f"{what} not for workers: give a path or pattern that all of them can read, no thumbnails")


def teach_by_many(
    task: Task,
    network: FrozenNetwork,
    knowledge: Knowledge,
    clips: Iterable[ClipFiles],
    engine: Engine,
    unread: Sequence[BadImage] = (),
    progress: Progress | None = None,
) -> Lesson:
    """Learn clips as one lesson.

    Args:
        task: see there.
        network: of the learner.
        knowledge: changed in place, after the last shard.
        clips: the files, which all workers can read.
        engine: its workers.
        unread: files that were left out of ``clips``; becomes part of the lesson.
        progress: called with the number of images after each shard.

    Raises:
        ValueError: a clip has no label, a feature is not finite, there is no image, or the classes do not fit into the
            budget.
    """
    shards = shards_of(clips)
    if not shards:
        check_not_empty(Lesson({}, 0, 0, 0, "", tuple(unread)))
    task = replace(task, asked=-(-ASKED // len(shards)))
    before = knowledge.state_dict() if knowledge.taught else None
    lessons, whole, answers = _called(task, network, before, shards, engine)

    def report(lesson: Lesson) -> None:
        if progress is not None:
            progress(sum(lesson.images.values()))

    lesson = _joined(engine.fetch(lessons, report), unread)
    check_not_empty(lesson)
    (learned,) = engine.fetch([whole])
    notes = knowledge.merge(task.knowledge(learned))
    answered = right = 0
    for names, length, state, count, good in engine.fetch(answers):
        answered, right = answered + count, right + good
        if length != knowledge.length:  # more features than all shards together kept
            continue
        confidence = Confidence()
        confidence.load_state_dict(state)
        numbers = {number: knowledge.names.index(name) for number, name in enumerate(names) if name is not None}
        knowledge.confidence.merge(confidence, numbers)
    return replace(lesson, answered=answered, right=right, notes=tuple(notes))


def _called(
    task: Task, network: FrozenNetwork, before: State | None, shards: list[list[ClipFiles]], engine: Engine
) -> tuple[Sequence[Handle], Handle, list[Handle]]:
    """Call all that workers do; return handles of lessons, of the state of all shards, and of answers."""
    sent = engine.share((network.header(), network.state()))

    def merge(one: Handle | None, other: Handle) -> Handle:
        return other if one is None else engine.call(merge_states, task, one, other)

    # Handles of states are not kept: an engine frees a state that no call waits for.
    states, asked, lessons = zip(*(engine.call(teach_shard, task, sent, shard, results=3) for shard in shards))
    groups = [_tree(states[place::GROUPS], merge) for place in range(min(GROUPS, len(states)))]
    others = _others(groups, None if before is None else engine.share(before), merge)
    answers = [
        engine.call(ask, task, known, *asked[place::GROUPS]) for place, known in enumerate(others) if known is not None
    ]
    return lessons, _tree(groups, merge), answers


def shards_of(clips: Iterable[ClipFiles]) -> list[list[ClipFiles]]:
    """Deal clips to shards of about 512 images, at least eight if there are as many clips.

    Each clip goes to the shard with the fewest images so far: a class whose clips follow each other is in many shards.
    """
    listed = list(clips)
    for clip in listed:
        label_of(clip)
    total = sum(clip.images for clip in listed)
    shards: list[list[ClipFiles]] = [[] for _ in range(min(len(listed), max(GROUPS, -(-total // IMAGES))))]
    sizes = [(0, place) for place in range(len(shards))]
    for clip in listed:
        size, place = heapq.heappop(sizes)
        shards[place].append(clip)
        heapq.heappush(sizes, (size + clip.images, place))
    return shards


def _tree(items: Sequence[Handle], merge: Callable[[Handle, Handle], Handle]) -> Handle:
    """Merge neighbours until one is left."""
    while len(items) > 1:
        pairs = [items[place : place + 2] for place in range(0, len(items), 2)]
        items = [merge(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return items[0]


def _others(groups: Sequence[Handle], outside: Handle | None, merge: Callable) -> list[Handle | None]:
    """Return for each group the merge of ``outside`` and all other groups; ``None`` for nothing."""
    if len(groups) == 1:
        return [outside]
    first, second = groups[: len(groups) // 2], groups[len(groups) // 2 :]
    return [
        known
        for mine, other in ((first, second), (second, first))
        for known in _others(mine, merge(outside, _tree(other, merge)), merge)
    ]


def _joined(lessons: Iterable[Lesson], unread: Sequence[BadImage]) -> Lesson:
    images: dict[str, int] = {}
    clips, left_out = 0, list(unread)
    for lesson in lessons:
        clips += lesson.clips
        left_out += lesson.unread
        for name, count in lesson.images.items():
            images[name] = images.get(name, 0) + count
    return Lesson(images, clips, 0, 0, now(), tuple(left_out))
