"""Facts of Avalanche's ``test_regularization.py``, ``test_losses.py`` and ``test_training_utils.py`` for our models."""

from types import SimpleNamespace

import pytest
import torch
from avalanche.training.losses import ICaRLLossPlugin, MaskedCrossEntropy
from avalanche.training.regularization import LearningWithoutForgetting
from avalanche.training.utils import (
    copy_params_dict,
    freeze_everything,
    freeze_up_to,
    get_last_fc_layer,
    get_layer_by_name,
    unfreeze_everything,
    zerolike_params_dict,
)
from host_benchmarks import N_CLASSES, Trace, host_benchmark, host_model
from host_strategies import OURS, our_strategy
from torch.utils.data import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", ["nc", "nc_tasks", "class_incremental"])
def test_distillation_from_a_split_model(kind):
    """TestLwF.test_lwf: no loss in the first experience; later one with a gradient to the weights that are trained."""
    penalty, teacher, model = LearningWithoutForgetting(), host_model(1), host_model(2)
    for number, experience in enumerate(host_benchmark(kind).train_stream):
        images = next(iter(DataLoader(experience.dataset, batch_size=4)))[0]
        loss = penalty(images, model(images), model)
        assert penalty.expcount == number and (loss > 0) == (number > 0)
        if number:
            model.zero_grad()
            loss.backward()
            assert float(model.plastic_layers.head.weight.grad.norm()) > 0
            assert all(weight.grad is None for weight in model.feature_extractor.parameters())
        penalty.post_adapt(SimpleNamespace(model=teacher), experience)


@pytest.mark.parametrize("name", OURS)
def test_a_criterion_over_the_classes_seen(name):
    """test_losses.py, its criteria that are plugins: over the classes seen, as our mask, whichever comes first."""
    losses = []
    for criterion in (None, MaskedCrossEntropy()):
        trace = Trace()
        arguments = {} if criterion is None else {"criterion": criterion}
        strategy = our_strategy(name, plugins=[trace], train_epochs=1, **arguments)
        torch.manual_seed(1)
        strategy.train(host_benchmark("nc").train_stream)
        losses.append(trace.losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_icarls_criterion_with_fine_tuning():
    """TestICaRLLossPlugin.test_loss: a binary loss for each class that distils from the network before."""
    criterion, trace = ICaRLLossPlugin(), Trace()
    strategy = our_strategy("StreamStrategy", plugins=[trace], criterion=criterion, train_epochs=1)
    for experience in host_benchmark("nc").train_stream:
        strategy.train(experience)
    assert sorted(criterion.old_classes) == list(range(N_CLASSES)) and all(loss > 0 for loss in trace.losses)
    assert torch.isfinite(torch.tensor(trace.losses)).all()


def test_dictionaries_of_parameters():
    """TestParamData.test_init: copies and zeros of every weight by name."""
    model = host_model()
    copies, zeros = copy_params_dict(model), zerolike_params_dict(model)
    named = dict(model.named_parameters())
    assert copies.keys() == zeros.keys() == named.keys()
    for name, weight in named.items():
        assert torch.equal(copies[name].data, weight) and copies[name].data.data_ptr() != weight.data_ptr()
        assert zeros[name].data.shape == weight.shape and not zeros[name].data.any()


def test_layers_by_name():
    """``get_last_fc_layer`` and ``get_layer_by_name``, which CWR*, LFL and others use."""
    model = host_model()
    assert get_last_fc_layer(model) == ("plastic_layers.head", model.plastic_layers.head)
    assert get_layer_by_name(model, "plastic_layers.conv") is model.plastic_layers.conv


def test_freezing():
    """``freeze_everything`` and ``freeze_up_to``, which CWR* and AR1 use."""
    model = host_model()
    freeze_everything(model)
    assert not any(weight.requires_grad for weight in model.parameters()) and not model.training
    unfreeze_everything(model)
    freeze_up_to(model, "plastic_layers.head")
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert trained[:2] == ["plastic_layers.head.weight", "plastic_layers.head.bias"]
