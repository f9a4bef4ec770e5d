"""What a worker does of a lesson by many: it learns shards, merges what others learned, and is asked about clips."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from crumb_avalanche.learner.answer import Lesson
from crumb_avalanche.learner.clip import BadImage, Clip, ClipFiles
from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.confidence_records import rows_of_lesson
from crumb_avalanche.learner.knowledge import Knowledge
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.learner.pixels import AT_A_TIME, batches
from crumb_avalanche.learner.sources import opened
from crumb_avalanche.learner.teaching import Values, finite_values, learn_clips
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.models.runtimes import Runtime, RuntimeRefusedError, open_runtime

State = dict[str, Any]


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


class _Noting(Knowledge):
    """Keeps features of some clips, to be asked of others."""

    def note(self, clips: int, most: int) -> None:
        self.asked: list[tuple[str, Tensor]] = []
        self._step, self._seen = -(-clips // most), 0

    def predict_before_learning(self, features: Tensor, number: int) -> None:
        if self._seen % self._step == 0:
            self.asked.append((str(self.names[number]), features[rows_of_lesson(len(features))]))
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
