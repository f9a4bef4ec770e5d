"""Teach a learner in closed form by many workers: each learns shards of the clips, and the shards are merged in a tree.

Shards depend on the clips alone, and the tree on the number of shards: the result is the same for any number of
workers, and for workers that are lost, whose shards are taught again.

Confidence is calibrated on clips that are asked before they are learned: some clips of each of eight groups of shards
are asked of what the learner knew before and all other groups.
"""

import copy
import heapq
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from crumb_avalanche.learner.calibration import Confidence, rows_of_lesson
from crumb_avalanche.learner.classifier import CLOSED_FORMS, Classifier
from crumb_avalanche.learner.clips import BadImage, ClipFiles, OnBad, label_of, path_of
from crumb_avalanche.learner.lesson import Lesson, Progress, check_not_empty, learn, now, values_of
from crumb_avalanche.learner.looks import Looks, LookWeights
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.learner.sources import files_of, opened
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.models.runtimes import Runtime, RuntimeRefusedError, open_runtime
from crumb_avalanche.system.ray_cluster import Engine, Handle

IMAGES = 512  # of a shard, about: a lost worker costs seconds, and a shard longer than merging it
GROUPS = 8  # a clip is asked of what 7/8 of the images teach
ASKED = 200  # clips; more than the records of a learner hold

State = dict[str, Any]
Kind = TypeVar("Kind", bound=Classifier)


@dataclass(frozen=True)
class Task:
    """What is the same for all shards."""

    method: str
    features: dict[str, Any]  # arguments of FeatureMoments
    budget_bytes: int
    kept: int  # number of the last features, which are never dropped
    looks: Looks
    runtime: Runtime  # without its function
    skip: bool  # leave out files that cannot be read
    asked: int = 1  # most clips of a shard that are asked

    def classifier(self, state: State) -> Classifier:
        """Return the classifier of a state."""
        known = self.empty(Classifier, state["statistics"]["settings"]["length"])
        known.load_state_dict(state)
        return known

    def empty(self, kind: "type[Kind]", length: int) -> "Kind":
        """Return a classifier without classes, for a number of features."""
        return kind(self.method, FeatureMoments(**self.features), length, self.budget_bytes, self.kept, self.looks)


def teach_distributed(
    network: FrozenNetwork,
    classifier: Classifier,
    source: Any,
    label: str | None,
    engine: Engine,
    *,
    on_bad: OnBad = "raise",
    progress: Progress | None = None,
) -> Lesson:
    """Learn the clips of a path or pattern, which all workers can read, as one lesson; see ``Learner.teach``.

    The classifier is changed after the last shard. ``progress`` is called with the number of images after each shard.

    Raises:
        ValueError: the method trains layers, the source is no path, a clip has no label, a feature is not finite, there
            is no image, or the classes do not fit into the budget.
    """
    if type(classifier) is not Classifier:
        raise ValueError(
            f"method {classifier.method} trains layers, which cannot be merged: teach it without an engine, or make a "
            f"learner of method {', '.join(CLOSED_FORMS)}"
        )
    if not isinstance(source, str | os.PathLike):
        raise ValueError(f"{type(source).__name__} is not for workers: give a path or pattern that all can read")
    unread: list[BadImage] = []
    path = os.path.abspath(path_of(source))  # workers have other current folders
    shards = shards_of(files_of(path, label, on_bad=on_bad, report=unread.append))
    if not shards:
        check_not_empty(Lesson({}, 0, 0, 0, "", tuple(unread)))
    runtime, asked_each = replace(network.model.runtime, run=None), -(-ASKED // len(shards))
    made = classifier.method, vars(classifier.features), classifier.budget_bytes, classifier.kept, classifier.looks
    task = Task(*made, runtime, on_bad == "skip", asked_each)
    lessons, whole, answers = _called(task, network, classifier, shards, engine)

    images: dict[str, int] = {}
    lesson = Lesson(images, 0, 0, 0, now(), tuple(unread))
    for one in engine.fetch(lessons, lambda one: progress and progress(sum(one.images.values()))):
        for name, count in one.images.items():
            images[name] = images.get(name, 0) + count
        lesson = replace(lesson, clips=lesson.clips + one.clips, unread=(*lesson.unread, *one.unread))
    check_not_empty(lesson)
    (learned,) = engine.fetch([whole])
    notes = classifier.merge(task.classifier(learned))
    for names, length, state, losses, count, good in engine.fetch(answers):
        lesson = replace(lesson, answered=lesson.answered + count, right=lesson.right + good)
        if length != classifier.length:  # more features than all shards together kept
            continue
        confidence = Confidence()
        confidence.load_state_dict(state)
        numbers = {number: classifier.names.index(name) for number, name in enumerate(names) if name is not None}
        classifier.confidence.merge(confidence, numbers)
        classifier.look_weights.add(losses)
    return replace(lesson, notes=tuple(notes))


def _called(
    task: Task, network: FrozenNetwork, classifier: Classifier, shards: list[list[ClipFiles]], engine: Engine
) -> tuple[Sequence[Handle], Handle, list[Handle]]:
    """Call all that workers do; return handles of lessons, of the state of all shards, and of answers."""
    sent = engine.share((network.header(), network.state()))
    # A copy: an engine may read it when what was learned is merged already.
    before = engine.share(copy.deepcopy(classifier.state_dict())) if classifier.taught else None

    def merge(one: Handle | None, other: Handle) -> Handle:
        return other if one is None else engine.call(merge_states, task, one, other)

    # Handles of states are not kept: an engine frees a state that no call waits for.
    states, asked, lessons = zip(*(engine.call(teach_shard, task, sent, shard, results=3) for shard in shards))
    groups = [_tree(states[place::GROUPS], merge) for place in range(min(GROUPS, len(states)))]
    answers = [
        engine.call(ask, task, known, *asked[place::GROUPS])
        for place, known in enumerate(_others(groups, before, merge))
        if known is not None
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


# What workers do


class _Noting(Classifier):
    """Keeps features of every few clips, to be asked of others."""

    asked: list[tuple[str, Tensor]]
    step: int
    seen: int = 0

    def predict_before_learning(self, features: Tensor, number: int) -> None:
        if self.seen % self.step == 0:
            self.asked.append((str(self.names[number]), features[rows_of_lesson(len(features))]))
        self.seen += 1


def teach_shard(
    task: Task, sent: tuple[dict[str, Any], dict[str, Tensor]], shard: Sequence[ClipFiles]
) -> tuple[State, list[tuple[str, Tensor]], Lesson]:
    """Learn a shard; return what was learned, class names with features of clips to be asked, and the lesson."""
    network = _network(task, sent)
    classifier = task.empty(_Noting, FeatureMoments(**task.features).length(network.model))
    classifier.asked, classifier.step = [], -(-len(shard) // task.asked)
    unread: list[BadImage] = []
    report = unread.append if task.skip else None
    clips = opened(shard, "skip" if task.skip else "raise", unread.append)
    transform = task.looks.transform(network.image_size, network.interpolation)
    compute = partial(classifier.compute, network.model)
    lesson = learn(
        classifier, ((label_of(clip), values_of(clip, transform, compute, report)) for clip in clips), unread
    )
    return classifier.state_dict(), classifier.asked, lesson


def merge_states(task: Task, one: State, other: State) -> State:
    """Merge what two learned."""
    classifier = task.classifier(one)
    classifier.merge(task.classifier(other))
    return classifier.state_dict()


def ask(task: Task, known: State, *asked: list[tuple[str, Tensor]]) -> tuple[Any, ...]:
    """Ask what others learned about clips.

    Returns:
        Class names by number, number of features, state of the ``Confidence`` and losses of ``LookWeights`` with these
        clips alone, and how many clips were answered and how many rightly.
    """
    classifier = task.classifier(known)
    classifier.confidence, classifier.look_weights = Confidence(), LookWeights(task.looks.views)
    answers = [
        (classifier.names.index(name), classifier.predict_before_learning(features, classifier.names.index(name)))
        for some in asked
        for name, features in some
        if name in classifier.names
    ]
    right = [found.best == number for number, found in answers if found is not None]
    confidence, losses = classifier.confidence.state_dict(), classifier.look_weights.losses
    return classifier.names, classifier.length, confidence, losses, len(right), sum(right)


_networks: dict[tuple, FrozenNetwork] = {}  # of this process: the latest one


def _network(task: Task, sent: tuple[dict[str, Any], dict[str, Tensor]]) -> FrozenNetwork:
    header, state = sent
    key = header["weights_sha256"], str(header["arguments"]), task.runtime
    if key not in _networks:
        network = FrozenNetwork.of_state(header, state)
        found = open_runtime(network.model, task.runtime.name)
        if str(found) != str(task.runtime):
            raise RuntimeRefusedError(
                f"a worker has runtime {found}, but the lesson began with {task.runtime}: install the same version on "
                "all nodes, or give --runtime torch"
            )
        network.model.runtime = found
        _networks.clear()
        _networks[key] = network
    return _networks[key]
