"""A plugin that passes foreign images through the model, and a check that memories are of the stream."""

import torch
from avalanche.training.plugins import SupervisedPlugin

from crumb_avalanche.memory.buffers import StreamBatch


class ForeignPass(SupervisedPlugin):
    """Passes noise through the model in training mode, in batches of several sizes, at every event of an iteration."""

    def __init__(self):
        super().__init__()
        self.passes = 0
        self.noise = torch.randint(0, 256, (9, 3, 16, 16), generator=torch.Generator().manual_seed(9)).byte()

    def look(self, strategy, **kwargs):
        assert strategy.model.training
        with torch.no_grad():
            for size in (9, len(strategy.mb_y), 1):
                strategy.model(self.noise[:size])
                self.passes += 1

    before_forward = after_forward = after_backward = before_update = after_update = look


def images_by_label(experiences):
    """All training images of some experiences, by label."""
    found = {}
    for experience in experiences:
        for image, label, *_ in experience.dataset:
            found.setdefault(int(label), []).append(image)
    return {label: torch.stack(images) for label, images in found.items()}


def assert_memories_are_of_the_stream(buffer, model, experiences):
    """Every memory is that of an image of the stream with its label."""
    assert len(buffer) > 0
    images = images_by_label(experiences)
    for label, slots in buffer.slots.by_class.items():
        batch = StreamBatch(
            None, model.features(images[label]), None, lambda places, of=images[label]: of[places].byte()
        )
        expected = buffer.to_rows(batch, list(range(len(images[label]))), model)
        for slot in slots:
            assert int(buffer.labels[slot]) == label
            assert any(torch.allclose(buffer.rows[slot].float(), row.float(), atol=1e-5) for row in expected)
