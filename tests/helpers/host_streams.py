"""Our small stream and our learners, as Avalanche's own tests and examples use theirs."""

import zlib

import numpy as np
import torch
from avalanche.benchmarks.utils import AvalancheDataset, concat_datasets
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from host_benchmarks import N_CLASSES, sgd
from PIL import Image
from small_models import CLASSES, SIZE, DrawnOnce, make_model
from torch import nn

from benchmarks_toybox_ilab import Frame, FrameTable, ToyShapes, imagenet_transform, make_benchmark
from crumb_avalanche import CodeBuffer, CRUMBPlugin, CRUMBStrategy, SeenClassesPlugin

TRAINING, HELD_OUT = 20, 20  # frames in an experience of two classes
LEARNERS = ("CRUMBStrategy", "CRUMBPlugin", "Naive")


def our_stream(protocol: str = "class_instance", classes_per_experience: int = 2, run: int = 0, **arguments):
    """Two experiences of two classes: per class two objects, each in one training clip of five frames."""
    shapes = {"classes": CLASSES, "size": SIZE, "objects_per_class": 2, "sessions": 2, "frames_per_clip": 5}
    arguments = {**shapes, "held_out_sessions": 1, **arguments}
    benchmark = ToyShapes(None, protocol, run, classes_per_experience=classes_per_experience, **arguments)
    benchmark.frame_table.reader = DrawnOnce()
    return benchmark


class ColourReader:
    """Draws the frame of a path such as ``class2/object0/session1/frame3``: noise in the colour of its class."""

    def __call__(self, path: str) -> Image.Image:
        """Return the image."""
        random = np.random.default_rng(zlib.crc32(path.encode()))
        colour = 128 + 90 * np.cos(int(path[5]) * 2 * np.pi / N_CLASSES + np.array([0.0, 2.1, 4.2]))
        return Image.fromarray((colour + random.uniform(-30, 30, (SIZE, SIZE, 3))).astype(np.uint8))


def coloured_stream(protocol: str = "class_instance", run: int = 0):
    """A benchmark from a table of one's own: as ``host_benchmark``, experiences of two classes that colour tells apart.

    A class has two objects with one training clip of four frames each, and one test frame each.
    """
    frames = [
        Frame(f"class{label}/object{item}/{clip}/frame{frame}", f"class{label}", f"object{item}", clip, frame, split)
        for label in range(N_CLASSES)
        for item in range(2)
        for clip, split, count in (("session0", "train", 4), ("session1", "test", 1))
        for frame in range(count)
    ]
    table, transform = FrameTable(frames, reader=ColourReader(), name="colours"), imagenet_transform(SIZE)
    return make_benchmark(table, protocol, run, 2, transform, transform)


def rows(part) -> list[int]:
    """The table rows of a data set, an experience or a stream, in order."""
    if hasattr(part, "frame_row"):
        return [int(row) for row in part.frame_row]
    return rows(part.dataset) if hasattr(part, "dataset") else [row for one in part for row in rows(one)]


def same_items(one, other) -> bool:
    """Whether two data sets hold the same images, labels and task labels in the same order."""
    pairs = list(zip(one, other, strict=True))
    return all(torch.equal(a[0], b[0]) and [*a[1:]] == [*b[1:]] for a, b in pairs)


def joined(stream) -> AvalancheDataset:
    """The data of all experiences of a stream in one data set."""
    return concat_datasets([experience.dataset for experience in stream])


def flat_model(n_classes: int = 4) -> nn.Module:
    """A linear network, for Avalanche's own strategies."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, n_classes))


def learner(kind: str = "CRUMBStrategy", metrics=(), loggers=(), plugins=(), **arguments):
    """CRUMB as a strategy, CRUMB as a plugin of Avalanche's ``Naive``, or ``Naive`` alone."""
    model = flat_model() if kind == "Naive" else make_model()
    arguments = {
        "model": model,
        "optimizer": sgd(model, 0.002 if kind == "Naive" else 0.05),
        "criterion": nn.CrossEntropyLoss(),
        "train_mb_size": 5,
        "eval_mb_size": 10,
        "evaluator": EvaluationPlugin(*metrics, loggers=list(loggers)),
        **arguments,
    }
    if kind == "CRUMBStrategy":
        return CRUMBStrategy(**{"storage_policy": CodeBuffer(8), **arguments}, first_epochs=1, plugins=list(plugins))
    if kind == "CRUMBPlugin":
        seen = SeenClassesPlugin()
        plugins = [seen, CRUMBPlugin(CodeBuffer(8), seen=seen), *plugins]
    return Naive(plugins=list(plugins), **arguments)


def named(results: dict, *prefixes: str) -> dict:
    """The metrics whose names start with one of the prefixes."""
    return {name: value for name, value in results.items() if name.startswith(prefixes)}


def stream_accuracy(results: dict) -> float:
    """The accuracy on a whole stream, in the results of ``eval``."""
    (accuracy,) = named(results, "Top1_Acc_Stream/eval_phase").values()
    return accuracy


class Outputs(SupervisedPlugin):
    """Records labels and outputs: ``evaluations[call][experience]`` and ``batches``, a list of (outputs, labels)."""

    def __init__(self):
        super().__init__()
        self.evaluations: list[dict[int, list]] = []
        self.batches: list[tuple] = []

    def before_eval(self, strategy, **kwargs):
        self.evaluations.append({})

    def after_eval_iteration(self, strategy, **kwargs):
        number = strategy.experience.logging().current_experience
        batch = strategy.mb_output.detach().clone(), strategy.mb_y.clone()
        self.evaluations[-1].setdefault(number, []).append(batch)

    def after_training_iteration(self, strategy, **kwargs):
        self.batches.append((strategy.mb_output.detach().clone(), strategy.mb_y.clone()))
