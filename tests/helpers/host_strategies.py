"""Our strategies and Avalanche's own, each built for the tiny images of ``host_benchmarks``."""

from collections.abc import Callable

import torch
from avalanche.training import supervised
from avalanche.training.plugins import RWalkPlugin
from avalanche.training.templates import SupervisedTemplate
from host_benchmarks import N_CLASSES, host_model, quiet, sgd
from torch import nn

from crumb_avalanche import CodeBuffer, CRUMBPlugin, CRUMBStrategy, SeenClassesPlugin, StreamStrategy
from crumb_avalanche.methods.registry import STRATEGIES, LearningSettings, build_strategy
from crumb_avalanche.models.split_model import SplitModel

COMMON = dict(train_mb_size=8, eval_mb_size=8, train_epochs=2)
MEM_SIZE = 12
OURS = ("CRUMBStrategy", "StreamStrategy", "Naive+CRUMBPlugin")
STORING = ("CRUMBStrategy", "Naive+CRUMBPlugin")


def our_strategy(name: str, model: SplitModel | None = None, buffer=None, plugins=(), **arguments):
    """CRUMB as a strategy or as a plugin of Avalanche's ``Naive``, or fine-tuning; plugins run before CRUMB's."""
    torch.manual_seed(0)
    model = host_model() if model is None else model
    arguments = {"model": model, "optimizer": sgd(model), "evaluator": quiet(), **COMMON, **arguments}
    if name == "StreamStrategy":
        return StreamStrategy(plugins=list(plugins), **arguments)
    buffer = CodeBuffer(MEM_SIZE) if buffer is None else buffer
    if name == "CRUMBStrategy":
        return CRUMBStrategy(storage_policy=buffer, plugins=list(plugins), **arguments)
    seen = SeenClassesPlugin()
    return supervised.Naive(plugins=[seen, *plugins, CRUMBPlugin(buffer, seen=seen)], **arguments)


def buffer_of(strategy):
    """The buffer of the strategy's ``CRUMBPlugin``, or ``None``."""
    return next((one.storage_policy for one in strategy.plugins if isinstance(one, CRUMBPlugin)), None)


def registered(name: str, model: SplitModel | None = None, mem_size: int = MEM_SIZE, train_epochs: int = 2, **host):
    """A strategy of our registry, with the same number of epochs in every experience."""
    torch.manual_seed(0)
    model = host_model(codebook=STRATEGIES[name].codebook) if model is None else model
    rates = {"learning_rate": 0.02, "batch_size": 8, "eval_batch_size": 8}
    settings = LearningSettings(first_epochs=train_epochs, epochs=train_epochs, **rates)
    return build_strategy(name, model, settings, mem_size, **({"evaluator": quiet()} | host))


def without_head(model: SplitModel) -> nn.Module:
    """Take the head off: the model then returns features; return the head."""
    head, model.plastic_layers.head = model.plastic_layers.head, nn.Identity()
    return head


def _icarl(model, optimizer, **arguments):
    del arguments["criterion"]  # iCaRL has its own
    head = without_head(model)
    memory = dict(memory_size=MEM_SIZE, buffer_transform=None, fixed_memory=True)
    return supervised.ICaRL(feature_extractor=model, classifier=head, optimizer=optimizer, **memory, **arguments)


def _slda(model, criterion, evaluator, train_mb_size, eval_mb_size, **_):
    own = dict(criterion=criterion, evaluator=evaluator, train_mb_size=train_mb_size, eval_mb_size=eval_mb_size)
    own |= dict(input_size=8, num_classes=N_CLASSES, output_layer_name="plastic_layers.flatten")
    return supervised.StreamingLDA(slda_model=model, **own)


def _rwalk(**arguments):
    return supervised.Naive(plugins=[RWalkPlugin(ewc_lambda=0.1, ewc_alpha=0.9, delta_t=3)], **arguments)


def _with(kind: type[SupervisedTemplate], **settings) -> Callable:
    return lambda **arguments: kind(**arguments, **settings)


# Strategies of the host that look into a model, copy it or put it back, and train a SplitModel as it is.
HOST: dict[str, Callable] = {
    "test_cwrstar": _with(supervised.CWRStar, cwr_layer_name="plastic_layers.head"),
    "test_gdumb": _with(supervised.GDumb, mem_size=MEM_SIZE),
    "test_slda": _slda,
    "test_lwf": _with(supervised.LwF, alpha=[0, 1 / 2, 2 * (2 / 3)], temperature=2),
    "test_gem": _with(supervised.GEM, patterns_per_exp=8),
    "test_ewc": _with(supervised.EWC, ewc_lambda=0.4, mode="separate"),
    "test_rwalk": _rwalk,
    "test_icarl": _icarl,
    "test_mas": _with(supervised.MAS, lambda_reg=1.0, alpha=0.5),
    "test_der": _with(supervised.DER, mem_size=MEM_SIZE, batch_size_mem=4),
}


def host_strategy(name: str, model: SplitModel):
    """A strategy of Avalanche, by the test of its own that runs it."""
    torch.manual_seed(0)
    arguments = {"optimizer": sgd(model), "criterion": nn.CrossEntropyLoss(), "evaluator": quiet()}
    return HOST[name](model=model, **COMMON, **arguments)
