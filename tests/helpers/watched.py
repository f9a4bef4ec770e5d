"""Methods and CRUMB with the paper's settings trained on the small stream, and plugins
that record what they do.
"""

import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from small_models import CLASSES, make_model, make_stream

from crumb_avalanche.methods.registry import (
    STRATEGIES,
    Entry,
    LearningSettings,
    build_strategy,
)
from crumb_avalanche.training.crumb import CRUMBStrategy

SIX = ("fish", "house", "key", "leaf", "ring", "star")  # three experiences of two
SETTINGS = dict(learning_rate=0.02, batch_size=5, eval_batch_size=8, first_epochs=2)
# Strategies with settings that make another learner of them.
READOUTS = ("closed_form", "closed_form_stock")
VARIANTS = {f"crumb {readout}": ("crumb", {"readout": readout}) for readout in READOUTS}
VARIANTS["er reservoir"] = ("er", {"ring_below": 0})


def entry_of(name: str) -> tuple[Entry, dict]:
    """Registry entry of a strategy or variant, and the settings of its method that are
    not the defaults.
    """
    strategy, method = VARIANTS.get(name, (name, {}))
    return STRATEGIES[strategy], method


class Answers(SupervisedPlugin):
    """The classes that a strategy answers in evaluation."""

    def __init__(self):
        super().__init__()
        self.given = []

    def after_eval_iteration(self, strategy, **kwargs):
        self.given += strategy.mb_output.argmax(1).tolist()

    def state_dict(self):
        return {"given": list(self.given)}

    def load_state_dict(self, state):
        self.given = list(state["given"])


class Outputs(SupervisedPlugin):
    """Outputs and images of evaluations."""

    def __init__(self):
        super().__init__()
        self.outputs = []
        self.images = []

    def after_eval_iteration(self, strategy, **kwargs):
        self.outputs.append(strategy.mb_output.clone())
        self.images.append(strategy.mb_x.clone())


def outputs_of(strategy, stream):
    """``(N, classes)`` outputs on the images of a stream, and these."""
    watch = Outputs()
    strategy.plugins.append(watch)
    strategy.eval(stream)
    strategy.plugins.remove(watch)
    return torch.cat(watch.outputs), torch.cat(watch.images)


class Losses(SupervisedPlugin):
    """The loss of every step, and what ``expect(strategy)`` returns before it, when
    nothing is drawn yet.
    """

    def __init__(self, expect):
        super().__init__()
        self.losses = []
        self.expected = []
        self.expect = expect

    def before_backward(self, strategy, **kwargs):
        self.expected.append(float(self.expect(strategy)))

    def before_update(self, strategy, **kwargs):
        self.losses.append(float(strategy.loss.detach()))


def unseen_in(logits):
    """Classes of a probability of 1e-6 in every row of ``(B, classes)`` logits,
    relative to the others.
    """
    probabilities = logits.double().softmax(1)
    ratios = probabilities / (1 - probabilities)
    is_unseen = ((ratios / 1e-6 - 1).abs() < 1e-3).all(0)
    return set(is_unseen.nonzero().flatten().tolist())


def built(name, model, mem_size=7, settings=None, seed=0, method=None, **host):
    """A method by name with small settings, some of them changed; prints nothing."""
    learning = LearningSettings(**{**SETTINGS, **(settings or {})})
    host = {"evaluator": EvaluationPlugin(loggers=[]), **host}
    return build_strategy(name, model, learning, mem_size, seed, "cpu", method, **host)


def taught(
    name,
    experiences=None,
    classes=CLASSES,
    per_experience=2,
    mem_size=7,
    plugins=(),
    **arguments,
):
    """What ``learned`` returns of the small model without a codebook, and the small
    stream of some classes.
    """
    model = make_model(n_classes=len(classes), codebook=False)
    stream = make_stream(per_experience, classes=classes)
    strategy = learned(
        name, model, stream, mem_size, experiences, plugins=list(plugins), **arguments
    )
    return strategy, stream


def learned(name, model, stream, mem_size=7, experiences=None, **arguments):
    """What ``built`` makes, after the first so many experiences of a stream."""
    strategy = built(name, model, mem_size, **arguments)
    for experience in stream.train_stream[:experiences]:
        strategy.train(experience)
    return strategy


BATCH = 6
EPOCHS = 2
MEM_SIZE = 7
SGD = dict(lr=0.05, momentum=0.9, weight_decay=1e-3)
PAPER = dict(
    direct_weight=0.0,
    codebook_weight=1.0,
    replay_weight=1.0,
    replay_steps=1,
    fused=False,
)
DIRECT = dict(direct_weight=1.0, codebook_weight=0.0)


def make(kind, model, *plugins, **arguments):
    """A strategy of any class that prints nothing, with batches of six and SGD over all
    weights.
    """
    settings = dict(
        train_mb_size=BATCH,
        evaluator=EvaluationPlugin(loggers=[]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    )
    settings |= arguments
    return kind(model=model, plugins=list(plugins), **settings)


def train(model, stream, buffer, plugins=(), shuffle=False, **arguments):
    """The small stream through ``CRUMBStrategy``; returns the strategy."""
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    settings = dict(first_epochs=EPOCHS, optimizer=optimizer) | arguments
    strategy = make(CRUMBStrategy, model, *plugins, storage_policy=buffer, **settings)
    for experience in stream.train_stream:
        strategy.train(experience, shuffle=shuffle)
    return strategy


def same_weights(first, second, **tolerance):
    """Fail unless two models have the same weights, by name."""
    weights = second.state_dict()
    assert first.state_dict().keys() == weights.keys()
    for name, value in first.state_dict().items():
        torch.testing.assert_close(value, weights[name], **tolerance, msg=name)
