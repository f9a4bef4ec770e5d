"""A small strategy for the tests of this room."""

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin

from crumb_avalanche.training.stream_strategy import StreamStrategy


@pytest.fixture
def build(make_model):
    """A function that builds a small ``StreamStrategy``; keyword arguments are the strategy's."""

    def build_strategy(model=None, lr=0.05, **arguments):
        model = make_model() if model is None else model
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        settings = dict(train_mb_size=6, evaluator=EvaluationPlugin(loggers=[])) | arguments
        return StreamStrategy(model=model, optimizer=optimizer, **settings)

    return build_strategy
