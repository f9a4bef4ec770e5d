"""Defects of Avalanche and their work-arounds."""

import pickle

import pytest
import torch
from avalanche.checkpointing import save_checkpoint
from avalanche.training.plugins import EWCPlugin, MASPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive
from small_crumb import make
from torch import nn

from crumb_avalanche import patched_dill
from crumb_avalanche.models.map_store import MapStore
from crumb_avalanche.training.avalanche_fixes import learning_view
from crumb_avalanche.training.feature_cache import FeatureCache
from crumb_avalanche.training.stream_strategy import StreamStrategy

pytestmark = pytest.mark.filterwarnings("ignore")


def learning(model):
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("kind", [EWCPlugin, MASPlugin])
def test_through_the_view_importances_are_those_of_the_paper(kind, tmp_path, make_model, make_stream):
    model, stream, plugin = make_model(codebook=False), make_stream(), kind(1.0)
    cache, passes = FeatureCache(MapStore(tmp_path, model, 200, "toy", progress=False)), []
    strategy = make(StreamStrategy, model, cache)
    images = len(stream.train_stream[0].dataset)

    def outputs(logits):
        passes.append((model.training, len(logits)))
        return strategy.seen_classes.mask(logits)

    class Measured(SupervisedPlugin):
        def after_training_exp(self, strategy, **kwargs):
            with learning_view(strategy, outputs) as view:
                plugin.after_training_exp(view, **kwargs)

    strategy.plugins.insert(1, Measured())  # before the clock
    strategy.train(stream.train_stream[0])
    found = plugin.importances[0] if kind is EWCPlugin else plugin.importance
    assert passes == [(False, 1)] * images and cache.store.filled == images
    assert model.training and not model.feature_extractor.training
    assert found.keys() == learning(model).keys()
    assert all(weight.grad is None for weight in learning(model).values())
    unseen = [label for label in range(4) if label not in stream.train_stream[0].classes_in_this_experience]
    bias = found["plastic_layers.head.bias"].data
    assert bias[unseen].max() == 0 < bias.max()


@pytest.mark.skipif(torch.__version__ < "2.14", reason="earlier versions of torch.optim can be pickled by value")
def test_the_defect_of_checkpoints(tmp_path):
    """If this fails, Avalanche, dill or torch was fixed and the patch can be removed."""
    with pytest.raises(pickle.PicklingError, match="sentinel"):
        save_checkpoint(make(Naive, nn.Linear(2, 2)), tmp_path / "checkpoint.pkl")


def test_the_patch_ends_with_its_block():
    before = dict(vars(torch.optim))
    with pytest.raises(RuntimeError, match="stop"), patched_dill():
        assert torch.optim.sgd.SGD is torch.optim.SGD
        raise RuntimeError("stop")
    assert vars(torch.optim) == before
