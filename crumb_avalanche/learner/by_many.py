"""Teach a learner in closed form by many workers: each learns shards of the clips, and the shards are merged in a tree.

Shards depend on the clips alone, and the tree on the number of shards. The result is therefore the same for any number
of workers, and for workers that are lost, whose shards are taught again.

Confidence is calibrated as in a lesson without workers, on clips that are asked before they are learned. There are
eight groups of shards, and some clips of each group are asked of what the learner knew before and all other groups.
"""

import heapq
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from crumb_avalanche.closed_form.feature_moments import FeatureMoments
from crumb_avalanche.learner.answer import Lesson
from crumb_avalanche.learner.confidence import PER_LESSON, Confidence
from crumb_avalanche.learner.kinds import KINDS
from crumb_avalanche.learner.knowledge import Knowledge
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.learner.pixels import AT_A_TIME, batches
from crumb_avalanche.learner.sources import BadImage, Clip, ClipFiles, opened
from crumb_avalanche.learner.teaching import (
    Progress,
    Values,
    check_not_empty,
    finite_values,
    label_of,
    learn_clips,
    now,
)
from crumb_avalanche.models.runtimes import Runtime, RuntimeRefusedError, open_runtime

IMAGES = 512  # of a shard, about: a lost worker costs seconds, and a shard longer than merging it
GROUPS = 8  # a clip is asked of what 7/8 of the images teach
ASKED = 200  # clips; more than the records of a learner hold

State = dict[str, Any]
Handle = Any


class Engine(Protocol):
    """Calls functions in workers; results stay there, and are named by handles."""

    def call(self, function: Callable, *arguments: Any, results: int = 1) -> Any:
        """Call a function of a module; arguments may be handles. Returns a handle, or as many as it has results."""

    def share(self, value: Any) -> Handle:
        """Send a value to all workers that need it."""

    def fetch(self, handles: Sequence[Handle], done: Callable[[Any], object] = lambda result: None) -> list[Any]:
        """Return the results of handles; ``done`` is called with each as soon as it is there."""


class Here:
    """Engine without workers: each call is made at once, in this process."""

    def call(self, function, *arguments, results=1):
        """Call a function; return its result."""
        return function(*arguments)

    def share(self, value):
        """Return a value."""
        return value

    def fetch(self, handles, done=lambda result: None):
        """Return a list of results."""
        for result in handles:
            done(result)
        return list(handles)


@dataclass(frozen=True)
class Task:
    """What is the same for all shards.

    Attributes:
        method: one of ``KINDS``.
        features: arguments of ``FeatureMoments``.
        budget_bytes: of the learner.
        kept: number of the last features, which are never dropped.
        runtime: what runs the network, without its function.
        skip: whether files that cannot be read are left out.
        asked: most clips of a shard that are asked.
    """

    method: str
    features: dict[str, Any]
    budget_bytes: int
    kept: int
    runtime: Runtime
    skip: bool
    asked: int = 1

    def knowledge(self, state: State) -> Knowledge:
        """Return the knowledge of a state."""
        known = Knowledge(self.method, state["statistics"]["settings"]["length"], self.budget_bytes, self.kept)
        known.load_state_dict(state)
        return known


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


# What workers do


class _Noting(Knowledge):
    """Keeps features of some clips, to be asked of others."""

    def note(self, clips: int, most: int) -> None:
        self.asked: list[tuple[str, Tensor]] = []
        self._step, self._seen = -(-clips // most), 0

    def predict_before_learning(self, features: Tensor, number: int) -> None:
        if self._seen % self._step == 0:
            rows = torch.linspace(0, len(features) - 1, min(len(features), PER_LESSON)).round().long()
            self.asked.append((str(self.names[number]), features[rows]))
        self._seen += 1


def teach_shard(
    task: Task, sent: tuple[dict[str, Any], dict[str, Tensor]], shard: Sequence[ClipFiles]
) -> tuple[State, list[tuple[str, Tensor]], Lesson]:
    """Learn the clips of a shard.

    Returns:
        State of what was learned, class names with features of clips to be asked, and the lesson.
    """
    network = _network(task, sent)
    features = FeatureMoments(**task.features)
    knowledge = _Noting(task.method, features.length(network.model), task.budget_bytes, task.kept)
    knowledge.note(len(shard), task.asked)

    def values_of(clip: Clip) -> Values:
        for paths, pixels in batches(clip.frames, AT_A_TIME, network.image_size, network.interpolation):
            yield from finite_values(lambda some: features(network.model, some), paths, pixels, report)

    unread: list[BadImage] = []
    report = unread.append if task.skip else None
    clips = opened(shard, "skip" if task.skip else "raise", unread.append)
    lesson = learn_clips(knowledge, clips, values_of, unread, None)
    return knowledge.state_dict(), knowledge.asked, lesson


def merge_states(task: Task, one: State, other: State) -> State:
    """Merge what two learned."""
    knowledge = task.knowledge(one)
    knowledge.merge(task.knowledge(other))
    return knowledge.state_dict()


def ask(task: Task, known: State, *asked: list[tuple[str, Tensor]]) -> tuple[list[str | None], int, State, int, int]:
    """Ask what others learned about clips.

    Returns:
        Class names by number, number of features, state of the ``Confidence`` with these clips alone, and how many
        clips were answered and how many rightly.
    """
    knowledge = task.knowledge(known)
    knowledge.confidence = Confidence()
    answers = [
        knowledge.predict_before_learning(features, knowledge.names.index(name))
        for some in asked
        for name, features in some
        if name in knowledge.names
    ]
    answered = [answer for answer in answers if answer is not None]
    return knowledge.names, knowledge.length, knowledge.confidence.state_dict(), len(answered), sum(answered)


_networks: dict[tuple, FrozenNetwork] = {}  # of this process: the latest one


def _network(task: Task, sent: tuple[dict[str, Any], dict[str, Tensor]]) -> FrozenNetwork:
    header, state = sent
    key = header["weights_sha256"], str(header["arguments"]), task.runtime
    if key not in _networks:
        network = FrozenNetwork.of_state(header, state)
        found = open_runtime(network.model, task.runtime.name, task.runtime.calibration)
        if str(found) != str(task.runtime):
            raise RuntimeRefusedError(
                f"a worker has runtime {found}, but the lesson began with {task.runtime}: install the same version on "
                "all nodes, or give --runtime torch"
            )
        network.model.runtime = replace(found, images_at_a_time=task.runtime.images_at_a_time)
        _networks.clear()
        _networks[key] = network
    return _networks[key]
