"""Experience replay: raw images, trained on in the step of the new batch.

Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019.
"""

from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import ImageMemoryPlugin, RingBuffer, draw
from crumb_avalanche.system.setting_ranges import Number


@register(
    "er",
    summary=(
        "raw images from rings or a reservoir, trained on in one step with each new "
        "batch"
    ),
    source=("Chaudhry et al., On Tiny Episodic Memories in Continual Learning, 2019"),
    stores="raw images",
)
class ExperienceReplayPlugin(ImageMemoryPlugin):
    """Trains on the union of the new batch and as many memories, in one step.

    See algorithm 1 of the paper. The two halves pass the plastic layers one after the
    other: a batch norm takes its statistics from each of them.

    Args:
        recipe: what the strategy is built from.
        ring_below: with fewer memories than this for each class of the stream, each
            class has a ring buffer of its latest images, else all share a reservoir, in
            which a rare class may have none. The authors advise rings for tiny
            memories, and compare 1 to 13 memories a class. With fewer memories than
            classes, and with 0, it is always the reservoir.
    """

    def __init__(self, recipe: Recipe, *, ring_below: Number = 5):
        rule = None
        if recipe.n_classes <= recipe.mem_size < ring_below * recipe.n_classes:
            rule = RingBuffer()
        super().__init__(recipe, rule)

    def before_backward(self, strategy, **kwargs):
        """Make the loss the mean over new images and as many memories."""
        add_replay_loss(self, strategy)


def add_replay_loss(plugin: ImageMemoryPlugin, strategy) -> None:
    """Make the loss the mean over the new batch and as many memories, if any.

    Args:
        plugin: draws the memories.
        strategy: its ``loss`` is that of the new batch, and changes.
    """
    slots = draw(plugin.storage_policy, len(strategy.mb_y))
    if len(slots) == 0:
        return
    with strategy.model.stopwatch.measure("replay"):
        logits, labels = plugin.memory_logits(strategy, slots)
        replay_loss = strategy._criterion(logits, labels)
    strategy.loss = (strategy.loss + replay_loss) / 2
