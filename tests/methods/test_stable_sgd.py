"""Stable SGD: a plain loop with the same rates and frames, and dropout where there is any."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from watched import built

from crumb_avalanche.models.split_model import SplitModel


def build(model, **method):
    return built("stable_sgd", model, 0, dict(weight_decay=1e-3, batch_size=7), method=method)


@pytest.mark.filterwarnings("ignore:the plastic layers have no dropout")
def test_two_experiences_equal_a_plain_loop(make_model, make_stream):
    model, plain, seen = make_model(codebook=False), make_model(codebook=False), []
    strategy = build(model, gamma=0.5, momentum=0.6, batch_size=8)
    for number, experience in enumerate(make_stream().train_stream):
        strategy.train(experience)
        seen += sorted(set(experience.dataset.targets))
        optimizer = torch.optim.SGD(
            plain.plastic_layers.parameters(), lr=0.02 * 0.5**number, momentum=0.6, weight_decay=1e-3
        )
        images = torch.stack([item[0] for item in experience.dataset]).float()
        labels = torch.tensor([seen.index(label) for label in experience.dataset.targets])
        for start in [*range(0, 20, 8)] * (2 if number == 0 else 1):  # in order, in batches of its own size
            batch = (images[start : start + 8] / 255 - plain.pixel_mean) / plain.pixel_std
            logits = plain.plastic_layers(plain.feature_extractor(batch))[:, seen]
            optimizer.zero_grad()
            cross_entropy(logits, labels[start : start + 8]).backward()
            optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)


def test_dropout_layers_get_the_probability_and_none_is_put_in(make_model, recwarn):
    layers = OrderedDict(first=nn.Dropout(), flat=nn.Flatten(), second=nn.Dropout(0.3), head=nn.Linear(36, 4))
    model = SplitModel(nn.Conv2d(3, 4, 3, stride=6), nn.Sequential(layers), "head", image_size=16)
    build(model, dropout=0.25)
    build(make_model(codebook=False), dropout=0.0)
    assert [model.plastic_layers.first.p, model.plastic_layers.second.p] == [0.25, 0.25]
    assert not [warning for warning in recwarn if "dropout" in str(warning.message)]
    model = make_model(codebook=False)
    with pytest.warns(UserWarning, match=r"the plastic layers have no dropout, so dropout=0\.1 of stable_sgd"):
        build(model)
    assert not [module for module in model.modules() if isinstance(module, nn.Dropout)]
