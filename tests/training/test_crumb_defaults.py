"""What CRUMB does by itself: calibration, buffer, number of epochs."""

import inspect

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from small_crumb import DIRECT, MEM_SIZE, train
from torch import nn

from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.training.crumb import CRUMBPlugin, CRUMBStrategy
from crumb_avalanche.training.storage_policies import CodeBuffer, ImageBuffer

pytestmark = [
    pytest.mark.filterwarnings("ignore:No loggers specified"),
    pytest.mark.filterwarnings("ignore:Plugin .* implements incompatible callbacks"),  # CRUMB's own events
]


def small(codebook=True):
    """A network of known weights whose codebook is empty."""
    torch.manual_seed(0)
    return split_backbone("small_cnn", None, n_classes=4, image_size=16, codebook=codebook)


def test_a_model_an_optimiser_and_a_size_are_enough(make_stream):
    results = []
    for by_hand in (False, True):
        model, stream = small(), make_stream()
        assert not model.is_calibrated and model.codebook.codebook_size == 256
        memory = dict(mem_size=MEM_SIZE)
        if by_hand:
            calibrate(model, stream.train_stream[0].dataset)
            memory = dict(storage_policy=CodeBuffer(MEM_SIZE))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        strategy = CRUMBStrategy(model=model, optimizer=optimizer, evaluator=EvaluationPlugin(loggers=[]), **memory)
        torch.manual_seed(1)
        for experience in stream.train_stream:
            strategy.train(experience)
        assert strategy.model.is_calibrated and float(model.feature_scale) != 1
        results.append((weights_hash(model), strategy.storage_policy.rows))
    (one, rows), (two, others) = results
    assert one == two and torch.equal(rows, others) and len(rows) == MEM_SIZE


def test_naive_calibrates_too_and_only_once(make_stream):
    stream, model = make_stream(), small()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        criterion=nn.CrossEntropyLoss(),
        plugins=[CRUMBPlugin(CodeBuffer(MEM_SIZE))],
        evaluator=EvaluationPlugin(loggers=[]),
    )
    strategy.train(stream.train_stream[0])
    scale = float(model.feature_scale)
    assert scale != 1 and model.calibrated
    strategy.train(stream.train_stream[1])
    assert float(model.feature_scale) == scale


def test_a_calibrated_or_directly_trained_model_is_left_alone(make_model, make_stream):
    by_hand = make_model()
    train(by_hand, make_stream(), CodeBuffer(MEM_SIZE))
    assert float(by_hand.feature_scale) == 1 and not by_hand.calibrated
    direct = small(codebook=None)
    train(direct, make_stream(), ImageBuffer(MEM_SIZE), **DIRECT)
    assert float(direct.feature_scale) == 1


@pytest.mark.parametrize("given", [{}, {"mem_size": 5, "storage_policy": CodeBuffer(5)}])
def test_a_buffer_comes_from_one_place(make_model, given):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"mem_size or storage_policy.*" + ("both.*5" if given else "neither")):
        CRUMBStrategy(model=model, optimizer=optimizer, **given)


def test_the_signature_says_how_many_epochs():
    parameters = inspect.signature(CRUMBStrategy).parameters
    assert [parameters[name].default for name in ("first_epochs", "train_epochs", "train_mb_size")] == [None, 1, 21]
