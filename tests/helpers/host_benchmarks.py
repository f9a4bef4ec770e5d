"""Benchmarks of Avalanche on tiny images, and its strategies and ours on them."""

from collections.abc import Callable
from functools import partial

import torch
from avalanche.benchmarks import (
    benchmark_from_datasets,
    class_incremental_benchmark,
    nc_benchmark,
    task_incremental_benchmark,
)
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training import supervised
from avalanche.training.plugins import EvaluationPlugin, RWalkPlugin, SupervisedPlugin
from avalanche.training.templates import SupervisedTemplate
from small_models import SIZE, make_model
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from crumb_avalanche import (
    CodeBuffer,
    CRUMBPlugin,
    CRUMBStrategy,
    SeenClassesPlugin,
    StreamStrategy,
)
from crumb_avalanche.methods.registry import (
    STRATEGIES,
    LearningSettings,
    build_strategy,
)
from crumb_avalanche.models.layers import trainable
from crumb_avalanche.models.split_model import SplitModel

N_CLASSES, PER_EXPERIENCE = 6, 2
PER_CLASS = 8  # training images
# Batches are (x, y, task label), but (x, y) of "from_datasets".
KINDS = ("nc", "nc_tasks", "class_incremental", "task_incremental", "from_datasets")


class LabelledImages(TensorDataset):
    """``(N, 3, 16, 16)`` normalised float images and their labels, with the ``targets``
    that Avalanche reads.
    """

    def __init__(self, images: Tensor, labels: Tensor):
        super().__init__(images, labels)
        self.targets = labels.tolist()


def coloured_images(
    per_class: int = PER_CLASS, seed: int = 0, n_classes: int = N_CLASSES
) -> LabelledImages:
    """Noisy images of one colour a class, in random order."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(per_class * n_classes) % n_classes
    labels = labels[torch.randperm(len(labels), generator=random)]
    angles = labels[:, None] * 2 * torch.pi / n_classes + torch.tensor([0.0, 2.1, 4.2])
    noise = torch.randn(len(labels), 3, SIZE, SIZE, generator=random)
    # No pixel below 0 or above 255 once the normalisation is undone.
    return LabelledImages(
        (1.5 * angles.cos()[:, :, None, None] + 0.5 * noise).clamp(-1.7, 2.2), labels
    )


def of_classes(data: LabelledImages, first: int, count: int = PER_EXPERIENCE):
    """The images of some consecutive classes as an Avalanche data set, which gives (x,
    y).
    """
    rows = [
        row for row, label in enumerate(data.targets) if first <= label < first + count
    ]
    subset = Subset(data, rows)
    subset.targets = [data.targets[row] for row in rows]
    return as_classification_dataset(subset)


def host_benchmark(
    kind: str = "nc", per_class: int = PER_CLASS, n_classes: int = N_CLASSES
):
    """Experiences of two classes each, in the order of the labels.

    Two test images a class.
    """
    train, test = (
        coloured_images(per_class, 0, n_classes),
        coloured_images(2, 1, n_classes),
    )
    experiences = n_classes // PER_EXPERIENCE
    if kind.startswith("nc"):
        order = dict(shuffle=False, fixed_class_order=list(range(n_classes)))
        return nc_benchmark(
            train,
            test,
            n_experiences=experiences,
            task_labels=kind == "nc_tasks",
            **order,
        )
    if kind == "class_incremental":
        datasets = {"train": train, "test": test}
        return class_incremental_benchmark(
            datasets, class_order=list(range(n_classes)), num_experiences=experiences
        )
    train_experiences = []
    test_experiences = []
    for first_class in range(0, experiences * PER_EXPERIENCE, PER_EXPERIENCE):
        train_experiences.append(of_classes(train, first_class))
        test_experiences.append(of_classes(test, first_class))
    benchmark = benchmark_from_datasets(train=train_experiences, test=test_experiences)
    return (
        task_incremental_benchmark(benchmark)
        if kind == "task_incremental"
        else benchmark
    )


def sgd(model: nn.Module, lr: float = 0.02, momentum: float = 0.9) -> torch.optim.SGD:
    """SGD over the weights that are trained."""
    return torch.optim.SGD(trainable(model).values(), lr=lr, momentum=momentum)


def quiet() -> EvaluationPlugin:
    """An evaluator without metrics and loggers."""
    return EvaluationPlugin(loggers=[])


def host_model(seed: int = 0, n_classes: int = N_CLASSES, codebook: bool = True):
    """The small ``SplitModel`` with an output for each class.

    See ``small_models.make_model``.
    """
    return make_model(seed, n_classes, codebook)


class Callbacks(SupervisedPlugin):
    """Records every callback of the host's in the order of the calls."""

    def __init__(self):
        super().__init__()
        self.calls: list[str] = []
        for event in dir(SupervisedPlugin):
            if event.startswith(("before_", "after_")):
                setattr(self, event, partial(self._record, event))

    def _record(self, event: str, strategy, **kwargs) -> None:
        self.calls.append(event)


class Trace(SupervisedPlugin):
    """Records the epochs and the labels of the batches of each experience."""

    def __init__(self):
        super().__init__()
        self.epochs: list[int] = []
        self.labels: list[list[int]] = []

    def before_training_exp(self, strategy, **kwargs):
        self.epochs.append(0)
        self.labels.append([])

    def after_training_epoch(self, strategy, **kwargs):
        self.epochs[-1] += 1

    def after_training_iteration(self, strategy, **kwargs):
        self.labels[-1] += strategy.mb_y.tolist()


COMMON = dict(train_mb_size=8, eval_mb_size=8, train_epochs=2)
MEM_SIZE = 12
OURS = ("CRUMBStrategy", "StreamStrategy", "Naive+CRUMBPlugin")
STORING = ("CRUMBStrategy", "Naive+CRUMBPlugin")


def our_strategy(
    name: str, model: SplitModel | None = None, buffer=None, plugins=(), **arguments
):
    """CRUMB as a strategy or as a plugin of Avalanche's ``Naive``, or fine-tuning.

    Plugins run before CRUMB's.
    """
    torch.manual_seed(0)
    model = host_model() if model is None else model
    arguments = {
        "model": model,
        "optimizer": sgd(model),
        "evaluator": quiet(),
        **COMMON,
        **arguments,
    }
    if name == "StreamStrategy":
        return StreamStrategy(plugins=list(plugins), **arguments)
    buffer = CodeBuffer(MEM_SIZE) if buffer is None else buffer
    if name == "CRUMBStrategy":
        return CRUMBStrategy(storage_policy=buffer, plugins=list(plugins), **arguments)
    seen = SeenClassesPlugin()
    return supervised.Naive(
        plugins=[seen, *plugins, CRUMBPlugin(buffer, seen=seen)], **arguments
    )


def buffer_of(strategy):
    """The buffer of the strategy's ``CRUMBPlugin``, or ``None``."""
    for plugin in strategy.plugins:
        if isinstance(plugin, CRUMBPlugin):
            return plugin.storage_policy
    return None


def registered(
    name: str,
    model: SplitModel | None = None,
    mem_size: int = MEM_SIZE,
    train_epochs: int = 2,
    **host,
):
    """A strategy of our registry, with the same number of epochs each experience."""
    torch.manual_seed(0)
    model = host_model(codebook=STRATEGIES[name].codebook) if model is None else model
    rates = {"learning_rate": 0.02, "batch_size": 8, "eval_batch_size": 8}
    settings = LearningSettings(first_epochs=train_epochs, epochs=train_epochs, **rates)
    return build_strategy(
        name, model, settings, mem_size, **({"evaluator": quiet()} | host)
    )


def without_head(model: SplitModel) -> nn.Module:
    """Take the head off: the model then returns features; return the head."""
    head, model.plastic_layers.head = model.plastic_layers.head, nn.Identity()
    return head


def _icarl(model, optimizer, **arguments):
    del arguments["criterion"]  # iCaRL has its own
    head = without_head(model)
    memory = dict(memory_size=MEM_SIZE, buffer_transform=None, fixed_memory=True)
    return supervised.ICaRL(
        feature_extractor=model,
        classifier=head,
        optimizer=optimizer,
        **memory,
        **arguments,
    )


def _slda(model, criterion, evaluator, train_mb_size, eval_mb_size, **_):
    arguments = dict(
        criterion=criterion,
        evaluator=evaluator,
        train_mb_size=train_mb_size,
        eval_mb_size=eval_mb_size,
    )
    arguments |= dict(
        input_size=8, num_classes=N_CLASSES, output_layer_name="plastic_layers.flatten"
    )
    return supervised.StreamingLDA(slda_model=model, **arguments)


def _rwalk(**arguments):
    return supervised.Naive(
        plugins=[RWalkPlugin(ewc_lambda=0.1, ewc_alpha=0.9, delta_t=3)], **arguments
    )


def _with(kind: type[SupervisedTemplate], **settings) -> Callable:
    return lambda **arguments: kind(**arguments, **settings)


# The host's strategies that train a SplitModel as it is.
HOST: dict[str, Callable] = {
    "test_naive": _with(supervised.Naive),
    "test_joint": _with(supervised.JointTraining),
    "test_cwrstar": _with(supervised.CWRStar, cwr_layer_name="plastic_layers.head"),
    "test_replay": _with(supervised.Replay, mem_size=MEM_SIZE),
    "test_gdumb": _with(supervised.GDumb, mem_size=MEM_SIZE),
    "test_cumulative": _with(supervised.Cumulative),
    "from_scratch": _with(supervised.FromScratchTraining),
    "test_slda": _slda,
    "test_lwf": _with(supervised.LwF, alpha=[0, 1 / 2, 2 * (2 / 3)], temperature=2),
    "test_gem": _with(supervised.GEM, patterns_per_exp=8),
    "test_ewc": _with(supervised.EWC, ewc_lambda=0.4, mode="separate"),
    "test_ewc_online": _with(
        supervised.EWC, ewc_lambda=0.4, mode="online", decay_factor=0.1
    ),
    "test_rwalk": _rwalk,
    "test_synaptic_intelligence": _with(
        supervised.SynapticIntelligence, si_lambda=0.0001
    ),
    "test_icarl": _icarl,
    "test_mas": _with(supervised.MAS, lambda_reg=1.0, alpha=0.5),
    "test_erace": _with(supervised.ER_ACE, mem_size=MEM_SIZE, batch_size_mem=4),
    "test_der": _with(supervised.DER, mem_size=MEM_SIZE, batch_size_mem=4),
}


def host_strategy(name: str, model: SplitModel | None = None, **arguments):
    """A strategy of Avalanche, by the test of its own that runs it."""
    torch.manual_seed(0)
    model = host_model() if model is None else model
    usual = {
        "optimizer": sgd(model),
        "criterion": nn.CrossEntropyLoss(),
        "evaluator": quiet(),
    }
    return HOST[name](model=model, **{**COMMON, **usual, **arguments})
