"""``examples/crumb_plain.py`` takes the steps of ``CRUMBStrategy``."""

import crumb_plain as plain
import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from small_models import make_model, make_stream
from torch import nn
from watched import BATCH, SGD, train

from crumb_avalanche.memory.buffers import CodeBuffer
from crumb_avalanche.memory.packing import bits_per_code, unpack
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.initialisers import init_matched_

EPOCHS = 7  # of the first task
CLOSE = dict(rtol=0, atol=1e-6)
CLOSE_LOSSES = dict(rtol=1e-6, atol=1e-6)  # some are above 5
# A full buffer evicts random memories; one with room for all evicts none.
CASES = {
    "paper": {"capacity": 7},
    "room for all": {"capacity": 40},
    "replay weight": {"capacity": 13, "replay_weight": 0.7},
    "both losses": {"capacity": 7, "alpha": 1.0, "beta": 0.5},
}


class StepLosses(SupervisedPlugin):
    """The loss of each step, of new images and of memories."""

    def __init__(self):
        super().__init__()
        self.values = []

    def after_backward(self, strategy, **kwargs):
        self.values.append(strategy.loss.item())


def tasks_of(stream):
    """Yield images, normalised as the model does it, and labels of each experience."""
    for experience in stream.train_stream:
        dataset = experience.dataset
        pixels = torch.stack([dataset[index][0] for index in range(len(dataset))])
        images = make_model().normalized(pixels)
        yield images, torch.tensor(list(dataset.targets))


def learned_plainly(capacity, **losses):
    """The small stream, one class a task, learned by the example."""
    model = make_model()
    blocks = nn.Parameter(model.codebook.blocks.detach().clone())
    optimizer = torch.optim.SGD([*model.plastic_layers.parameters(), blocks], **SGD)
    crumb = plain.Crumb(
        extractor=model.feature_extractor,
        plastic=model.plastic_layers,
        blocks=blocks,
        buffer=plain.ReplayBuffer(capacity),
        optimizer=optimizer,
        batch_size=BATCH,
        first_epochs=EPOCHS,
        **losses,
    )
    for images, labels in tasks_of(make_stream(1)):
        crumb.learn(images, labels)
    return crumb


def learned_by_library(capacity, alpha=0.0, beta=1.0, replay_weight=5.0):
    """The same by ``CRUMBStrategy``: the strategy, and the losses of its steps."""
    model = make_model()
    losses = StepLosses()
    strategy = train(
        model,
        make_stream(1),
        CodeBuffer(capacity),
        plugins=[losses],
        optimizer=torch.optim.SGD(
            [*model.plastic_layers.parameters(), model.codebook.blocks], **SGD
        ),
        first_epochs=EPOCHS,
        direct_weight=alpha,
        codebook_weight=beta,
        replay_weight=replay_weight,
    )
    return strategy, losses.values


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def both(request):
    """The example and the strategy after the same stream, and the strategy's losses."""
    strategy, losses = learned_by_library(**request.param)
    return learned_plainly(**request.param), strategy, losses


def codes_of(model, rows):
    """The codes, ``(n, G, H, W)``, of packed rows of a code buffer."""
    n_channels, height, width = model.map_shape
    n_groups = model.codebook.n_groups(n_channels)
    codes = unpack(
        rows, bits_per_code(model.codebook.codebook_size), n_groups * height * width
    )
    return codes.view(-1, height, width, n_groups).permute(0, 3, 1, 2)


def test_each_loss_is_equal(both):
    crumb, _, losses = both
    assert len(losses) > 20
    expected = torch.tensor(losses)
    torch.testing.assert_close(torch.tensor(crumb.losses), expected, **CLOSE_LOSSES)


def test_the_weights_are_equal(both):
    crumb, strategy, _ = both
    expected = strategy.model.plastic_layers.state_dict()
    torch.testing.assert_close(crumb.plastic.state_dict(), expected, **CLOSE)


def test_the_memory_blocks_are_equal(both):
    crumb, strategy, _ = both
    blocks = strategy.model.codebook.blocks
    torch.testing.assert_close(crumb.blocks, blocks, **CLOSE)


def test_the_memories_are_equal(both):
    crumb, strategy, _ = both
    buffer = strategy.storage_policy
    assert list(crumb.buffer.by_class) == buffer.slots.classes
    for label, memories in crumb.buffer.by_class.items():
        rows = buffer.rows[buffer.slots.by_class[label]]
        assert torch.equal(torch.stack(memories), codes_of(strategy.model, rows))


def test_the_answers_are_equal(both):
    crumb, strategy, _ = both
    images, _ = next(tasks_of(make_stream(4)))
    outputs = strategy.model.eval()(images)
    assert torch.equal(crumb.predict(images), outputs.argmax(dim=1))


def test_codes_of_sparse_maps_are_equal():
    codebook = Codebook(256, 16)
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(3, 64, 5, 5, generator=generator).relu()
    init_matched_(codebook, maps, generator)
    with torch.no_grad():
        codebook.blocks[0] = 0
        maps[0, :, 0, 0] = 0
    codes = plain.encode(maps, codebook.blocks)
    assert torch.equal(codes, codebook.encode(maps))
    assert torch.equal(
        plain.decode(codes, codebook.blocks), codebook.decode(codes).contiguous()
    )


@pytest.mark.parametrize("least", [0, -9])
def test_the_first_blocks_are_equal(least):
    drawn = torch.randn(4, 16, 3, 3, generator=torch.Generator().manual_seed(1))
    maps = drawn.clamp(min=least)
    codebook = Codebook(32, 8)
    init_matched_(codebook, maps, torch.Generator().manual_seed(2))
    blocks = plain.initial_blocks(32, 8, maps, torch.Generator().manual_seed(2))
    torch.testing.assert_close(blocks, codebook.blocks.data)
