"""Outputs of a strategy on each object before its first image is learned, and on the test images at the end."""

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from crumb_avalanche.methods.crumb import ReadoutStrategy
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.recorder import Recorder
from crumb_avalanche.runs.session import Session
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.stream import open_stream
from crumb_avalanche.system.atomic_file import atomic_write
from crumb_avalanche.system.process import set_up_process
from crumb_avalanche.system.rng_state import preserve_rng_state
from crumb_avalanche.training.crumb import CRUMBStrategy

OUTPUTS = "outputs.npz"
ANSWER, HEAD = "answer", "head"  # of the strategy; of the head beside a readout in closed form


@dataclass(frozen=True)
class Outputs:
    """Outputs of a finished run.

    Attributes:
        before: `(n, C)` of images of the training objects, before any image of the object was learned.
        labels, objects: `(n,)` int64, the class and the number of the object of each.
        test: `(m, C)` of the test images at the end.
        test_labels: `(m,)` int64.
        head_before, head_test: the same of the head, where a readout answers; else equal.
        memory_bytes: bytes kept at the end.
        split: hash of the table of frames.
        plan: hash of the settings.
    """

    before: np.ndarray
    labels: np.ndarray
    objects: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    head_before: np.ndarray
    head_test: np.ndarray
    memory_bytes: int
    split: str
    plan: str

    @classmethod
    def read(cls, path: Path) -> "Outputs":
        """Read what `record` wrote."""
        with np.load(path, allow_pickle=False) as file:
            return cls(**{name: file[name] if file[name].ndim else file[name].item() for name in file})


class BeforeLearning(SupervisedPlugin):
    """Records outputs on the images of each object, from the second experience on, before any of them is learned.

    The frames have to come in the order of the stream.

    Args:
        objects: number of the object of each row of the frame table.

    Attributes:
        first, test: outputs by way to answer, lists of `(B, C)`.
        labels, seen: labels and objects of `first`; `test_labels`: those of `test`.
    """

    def __init__(self, objects: Sequence[int]):
        super().__init__()
        self.objects = np.asarray(objects)
        self.first: dict[str, list[Tensor]] = {ANSWER: [], HEAD: []}
        self.test: dict[str, list[Tensor]] = {ANSWER: [], HEAD: []}
        self.labels: list[int] = []
        self.seen: list[int] = []
        self.test_labels: list[int] = []
        self._here = np.zeros(0, int)  # objects of the images of the experience
        self._place = 0

    def before_training_exp(self, strategy, **kwargs):
        self._here, self._place = self.objects[list(strategy.experience.dataset.frame_row)], 0

    def before_training_iteration(self, strategy, **kwargs):
        if strategy.clock.train_exp_counter == 0 or strategy.clock.train_exp_epochs > 0:
            return
        new = dict.fromkeys(self._here[self._place : self._place + len(strategy.mb_y)].tolist())
        self._place += len(strategy.mb_y)
        for number in new:
            if number not in self.seen:
                self._record(strategy, np.flatnonzero(self._here == number).tolist(), number)

    def _record(self, strategy, places: list[int], number: int) -> None:
        batch, model = strategy.mbatch, strategy.model
        with torch.no_grad(), preserve_rng_state():
            strategy.is_training = False
            model.eval()
            for one in DataLoader(Subset(strategy.adapted_dataset, places), batch_size=strategy.eval_mb_size):
                strategy.mbatch = [part.to(strategy.device) for part in one]
                self._add(strategy, self.first)
                self.labels += one[1].tolist()
                self.seen += [number] * len(one[1])
            model.train()
            strategy.is_training, strategy.mbatch = True, batch

    def _add(self, strategy, outputs: dict[str, list[Tensor]]) -> None:
        for name, forward in ways(strategy).items():
            outputs[name].append(strategy.seen_classes.mask_answers(forward()).double().cpu())

    def before_eval(self, strategy, **kwargs):
        self.test, self.test_labels = {ANSWER: [], HEAD: []}, []

    def after_eval_iteration(self, strategy, **kwargs):
        self._add(strategy, self.test)
        self.test_labels += strategy.mb_y.tolist()


def ways(strategy) -> dict[str, Callable[[], Tensor]]:
    """Return the functions that compute outputs of the batch of a strategy: its own, and its head's."""
    head = partial(CRUMBStrategy.forward, strategy) if isinstance(strategy, ReadoutStrategy) else strategy.forward
    return {ANSWER: strategy.forward, HEAD: head}


def record(settings: RunSettings) -> None:
    """Do a run and write `outputs.npz` to its folder; does nothing if it is there.

    Raises:
        ValueError: the file is of other settings.
    """
    plan, path = RunPlan.of(settings), Path(settings.output) / OUTPUTS
    if path.exists():
        if Outputs.read(path).plan != plan.sha256:
            raise ValueError(f"{path} was made with other settings; use another --output, or remove it")
        return
    set_up_process(plan.threads, plan.run)
    stream = open_stream(plan)
    table, tests = stream.table, stream.benchmark.test_stream
    names = dict.fromkeys(zip(table.class_name, table.object_name))
    numbers = {name: number for number, name in enumerate(names)}
    plugin = BeforeLearning([numbers[name] for name in zip(table.class_name, table.object_name)])
    recorder = Recorder(len(stream.benchmark.train_stream), False)
    with Session.build(plan, stream, plugins=[plugin], evaluator=recorder.evaluator) as session:
        strategy = session.strategy
        recorder.ledger.storage_policy = getattr(strategy, "storage_policy", None)
        for experience in stream.benchmark.train_stream:
            strategy.train(experience, eval_streams=[], shuffle=False)
        strategy.eval(tests)
        found = Outputs(
            *(torch.cat(plugin.first[ANSWER]).numpy(), np.array(plugin.labels), np.array(plugin.seen)),
            *(torch.cat(plugin.test[ANSWER]).numpy(), np.array(plugin.test_labels)),
            *(torch.cat(some[HEAD]).numpy() for some in (plugin.first, plugin.test)),
            *(recorder.ledger.result()["memory_bytes"], table.content_hash(), plan.sha256),
        )
    data = io.BytesIO()
    np.savez_compressed(data, **asdict(found))
    with atomic_write(path) as unfinished:
        Path(unfinished).write_bytes(data.getvalue())
    right = found.test.argmax(1) == found.test_labels
    print(f"final accuracy {100 * right.mean():.2f} %")
