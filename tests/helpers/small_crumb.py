"""Strategies on the small stream, CRUMB with the paper's settings."""

import torch
from avalanche.training.plugins import EvaluationPlugin

from crumb_avalanche.training.crumb import CRUMBStrategy

BATCH, EPOCHS, MEM_SIZE = 6, 2, 7
SGD = dict(lr=0.05, momentum=0.9, weight_decay=1e-3)
PAPER = dict(direct_weight=0.0, codebook_weight=1.0, replay_weight=1.0, replay_steps=1, fused=False)
DIRECT = dict(direct_weight=1.0, codebook_weight=0.0)


def make(kind, model, *plugins, **arguments):
    """A strategy of any class that prints nothing, with batches of six and SGD over all weights."""
    settings = dict(train_mb_size=BATCH, evaluator=EvaluationPlugin(loggers=[])) | arguments
    settings.setdefault("optimizer", torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    return kind(model=model, plugins=list(plugins), **settings)


def train(model, stream, buffer, plugins=(), shuffle=False, **arguments):
    """The small stream through ``CRUMBStrategy``; returns the strategy."""
    settings = dict(first_epochs=EPOCHS, optimizer=torch.optim.SGD(model.parameters(), **SGD)) | arguments
    strategy = make(CRUMBStrategy, model, *plugins, storage_policy=buffer, **settings)
    for experience in stream.train_stream:
        strategy.train(experience, shuffle=shuffle)
    return strategy


def same_weights(one, two, **tolerance):
    assert one.state_dict().keys() == two.state_dict().keys()
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, two.state_dict()[name], **tolerance, msg=name)
