"""A method trained on the small stream, and plugins that record what it does."""

import torch
from avalanche.training.plugins import SupervisedPlugin

from crumb_avalanche.training.feature_cache import FeatureCache


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


def unseen_in(logits):
    """Classes of a probability of 1e-6 in every row of ``(B, classes)`` logits, relative to the others."""
    ratios = logits.double().softmax(1) / (1 - logits.double().softmax(1))
    return set(((ratios / 1e-6 - 1).abs() < 1e-3).all(0).nonzero().flatten().tolist())


class Order(SupervisedPlugin):
    """The frames of the stream, as they come."""

    def __init__(self):
        super().__init__()
        self.frames = []

    def before_forward(self, strategy, **kwargs):
        self.frames += list(strategy.mb_x)


def learn_stream(build, model, stream, mem_size=7, experiences=None, plugins=(), method=None):
    """What ``build(model, mem_size, method)`` makes, after the first so many experiences, and the stream."""
    strategy = build(model, mem_size, method, plugins=list(plugins))
    for experience in stream.train_stream[:experiences]:
        strategy.train(experience)
    return strategy, stream


def without_and_with_cache(build, folder, make_model, make_stream):
    """Two of a method that learned the same, the second with F(x) from a cache."""
    strategies = []
    for cached in (False, True):
        torch.manual_seed(0)
        stream, model = make_stream(), make_model(codebook=False)
        plugins = [FeatureCache(folder, model, 400, "toy", progress=False)] if cached else []
        strategies.append(learn_stream(build, model, stream, plugins=plugins)[0])
    return strategies


def plugin_of(kind, strategy):
    """The strategy's plugin of a class."""
    return next(plugin for plugin in strategy.plugins if isinstance(plugin, kind))
