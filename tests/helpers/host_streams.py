"""Our small stream and our learners, as Avalanche's own tests and examples use theirs."""

from avalanche.benchmarks.utils import AvalancheDataset, concat_datasets
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from host_benchmarks import sgd
from small_models import CLASSES, SIZE, DrawnOnce, make_model
from torch import nn

from benchmarks_toybox_ilab import ToyShapes
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


def rows(part) -> list[int]:
    """The table rows of a data set, an experience or a stream, in order."""
    if hasattr(part, "frame_row"):
        return [int(row) for row in part.frame_row]
    return rows(part.dataset) if hasattr(part, "dataset") else [row for one in part for row in rows(one)]


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
