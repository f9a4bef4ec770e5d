"""Outputs of a strategy on each object before its first image is learned, and on the test images at the end."""

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

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


def read_outputs(path: Path) -> SimpleNamespace:
    """Read what `record` wrote.

    `before` is `(n, C)`, of images of the training objects before any image of the object was learned, with their
    `labels` and `objects`; `test`, `(m, C)`, of the test images at the end; `head_before` and `head_test` the same of
    the head where a readout answers; `split` and `plan` are hashes of the table of frames and of the settings.
    """
    with np.load(path, allow_pickle=False) as file:
        return SimpleNamespace(**{name: file[name] if file[name].ndim else file[name].item() for name in file})


class BeforeLearning(SupervisedPlugin):
    """Records outputs on the images of each object, from the second experience on, before any of them is learned.

    The frames have to come in the order of the stream.
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
        head = CRUMBStrategy.forward if isinstance(strategy, ReadoutStrategy) else type(strategy).forward
        for name, forward in ((ANSWER, type(strategy).forward), (HEAD, head)):
            outputs[name].append(strategy.seen_classes.mask_answers(forward(strategy)).double().cpu())

    def before_eval(self, strategy, **kwargs):
        self.test, self.test_labels = {ANSWER: [], HEAD: []}, []

    def after_eval_iteration(self, strategy, **kwargs):
        self._add(strategy, self.test)
        self.test_labels += strategy.mb_y.tolist()


def record(settings: RunSettings) -> None:
    """Do a run and write `outputs.npz` to its folder; does nothing if it is there."""
    plan, path = RunPlan.of(settings), Path(settings.output) / OUTPUTS
    if path.exists():
        if read_outputs(path).plan != plan.sha256:
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
        memory_bytes = recorder.ledger.result()["memory_bytes"]
    some = {"before": plugin.first[ANSWER], "test": plugin.test[ANSWER]}
    some |= {"head_before": plugin.first[HEAD], "head_test": plugin.test[HEAD]}
    found = {name: torch.cat(parts).numpy() for name, parts in some.items()}
    found |= {"labels": plugin.labels, "objects": plugin.seen, "test_labels": plugin.test_labels}
    data = io.BytesIO()
    np.savez_compressed(data, **found, memory_bytes=memory_bytes, split=table.content_hash(), plan=plan.sha256)
    with atomic_write(path) as unfinished:
        Path(unfinished).write_bytes(data.getvalue())
