"""CRUMB on the small stream, with the paper's settings."""

import torch
from avalanche.training.plugins import EvaluationPlugin

from crumb_avalanche.training.crumb import CRUMBStrategy

BATCH, EPOCHS, MEM_SIZE = 6, 2, 7
SGD = dict(lr=0.05, momentum=0.9, weight_decay=1e-3)
PAPER = dict(direct_weight=0.0, codebook_weight=1.0, replay_weight=1.0, replay_steps=1, fused=False)
DIRECT = dict(direct_weight=1.0, codebook_weight=0.0)


def train(model, stream, buffer, plugins=(), shuffle=False, **arguments):
    """The small stream through ``CRUMBStrategy``; returns the strategy."""
    settings = dict(train_mb_size=BATCH, first_epochs=EPOCHS, evaluator=EvaluationPlugin(loggers=[])) | arguments
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    strategy = CRUMBStrategy(model=model, optimizer=optimizer, storage_policy=buffer, plugins=plugins, **settings)
    for experience in stream.train_stream:
        strategy.train(experience, shuffle=shuffle)
    return strategy


def same_weights(one, two, **tolerance):
    assert one.state_dict().keys() == two.state_dict().keys()
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, two.state_dict()[name], **tolerance, msg=name)
