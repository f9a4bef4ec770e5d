"""After a stop, every strategy stores what it promises to store."""

from collections import Counter

import numpy as np
import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from watched import built

from crumb_avalanche.methods.registry import STRATEGIES

SETTINGS = dict(batch_size=6, epochs=2)
BATCHES = 4  # of an epoch of 20 images
# Epochs and batches of the last of them that are trained on.
PLACES = {
    "at once": (0, 0),
    "within": (1, 2),
    "between": (1, BATCHES),
    "within the last": (2, 2),
    "never": (2, BATCHES),
}
OFFERING = ["crumb", "image_replay", "map_replay", "der", "bic", "gss", "cope", "gem", "memory_recall"]


class Stop(SupervisedPlugin):
    """Stops every experience at a place; counts the images trained on in each experience."""

    def __init__(self, place):
        super().__init__()
        self.epochs, self.batches = PLACES[place]
        self.images = []

    def before_training_exp(self, strategy, **kwargs):
        self.images.append(0)
        if self.epochs == 0:
            strategy.stop_training()

    def before_training_iteration(self, strategy, **kwargs):
        clock = strategy.clock
        self.images[-1] += len(strategy.mb_y)
        if (clock.train_exp_epochs + 1, clock.train_epoch_iterations + 1) == (self.epochs, self.batches):
            strategy.stop_training()


class Offers:
    """Keeps the maps and labels of the images offered in each experience."""

    def __init__(self, strategy):
        self.experiences, self.offer = [[]], strategy.memory.offer
        strategy.memory.offer = self

    def __call__(self, strategy, batch):
        self.experiences[-1] += list(zip(batch.feature_map, batch.labels.tolist()))
        self.offer(strategy, batch)


def build(name, make_model, *plugins, mem_size=8):
    torch.manual_seed(0)
    np.random.seed(0)
    return built(name, make_model(codebook=STRATEGIES[name].codebook), mem_size, SETTINGS, plugins=plugins)


def assert_in_order(offered, experience, model):
    """Each image of the experience was offered once, in the order of the data set."""
    maps = model.features(torch.stack([image for image, *_ in experience.dataset]))
    assert [label for _, label in offered] == list(experience.dataset.targets)
    torch.testing.assert_close(torch.stack([one for one, _ in offered]), maps)


@pytest.mark.parametrize(
    ("name", "place"), [*(("er", place) for place in PLACES), *((name, "within the last") for name in OFFERING)]
)
def test_each_image_is_offered_once(name, place, make_model, make_stream):
    stop, stream = Stop(place), make_stream()
    strategy = build(name, make_model, stop)
    offers = Offers(strategy)
    for experience in stream.train_stream:
        offers.experiences.append([])
        strategy.train(experience)
        assert_in_order(offers.experiences[-1], experience, strategy.model)
    epochs, batches = PLACES[place]
    trained = max(0, epochs - 1) * 20 + min(20, 6 * batches) * (epochs > 0)
    assert stop.images == [trained, trained]
    assert set(strategy.storage_policy.classes) == {0, 1} if name == "gem" else {0, 1, 2, 3}
    strategy.eval(stream.test_stream)


@pytest.mark.parametrize("place", ["at once", "within the last"])
@pytest.mark.parametrize("name", ["icarl", "aanets", "rainbow_memory"])
def test_methods_that_choose_from_all_images_do_so(name, place, make_model, make_stream):
    stream, strategy = make_stream(), build(name, make_model, Stop(place))
    for experience in stream.train_stream:
        strategy.train(experience)
    assert set(strategy.storage_policy.classes) == {0, 1, 2, 3} and len(strategy.storage_policy) == 8


@pytest.mark.parametrize("place", ["at once", "within the last"])
def test_remind_fits_and_stores_all_images(place, make_model, make_stream):
    stream, strategy = make_stream(), build("remind", make_model, Stop(place), mem_size=40)
    offers, buffer = Offers(strategy), strategy.storage_policy
    for stored, experience in zip((20, 40), stream.train_stream):
        offers.experiences.append([])
        strategy.train(experience)
        assert_in_order(offers.experiences[-1][:20], experience, strategy.model)
        assert buffer.quantizer.fitted and len(buffer) == stored
    # Every epoch that is begun stores its images.
    assert len(offers.experiences[-1]) == (20 if place == "at once" else 20 + 2 * 6)


def test_after_a_shuffled_epoch_as_many_of_each_class_are_offered(make_model, make_stream):
    experience, strategy = make_stream().train_stream[0], build("er", make_model, Stop("within the last"))
    offers, targets = Offers(strategy), list(experience.dataset.targets)
    strategy.train(experience, shuffle=True)
    labels = [label for _, label in offers.experiences[0]]
    assert Counter(labels) == Counter(targets) and labels[:12] != targets[:12]
    # The rest are the last ones of each class, in the order of the data set.
    left = Counter(targets) - Counter(labels[:12])
    places = {label: [place for place, other in enumerate(targets) if other == label] for label in left}
    last = sorted(place for label, count in left.items() for place in places[label][-count:])
    maps = strategy.model.features(torch.stack([experience.dataset[place][0] for place in last]))
    torch.testing.assert_close(torch.stack([one for one, _ in offers.experiences[0][12:]]), maps)
