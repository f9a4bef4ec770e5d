"""Progress bars of a run."""

from crumb_avalanche.system.progress import progress_bar
from crumb_avalanche.training.stateful import StatefulPlugin


class ProgressPlugin(StatefulPlugin):
    """Show a progress bar with images/s for each training experience, over all its epochs.

    Args:
        total: number of experiences, for the title.
        show: whether to print anything.
    """

    def __init__(self, total: int, show: bool = True):
        super().__init__()
        self.total = total
        self.show = show
        self._bar = None

    def before_training_epoch(self, strategy, **kwargs):
        if self._bar is None:
            number = strategy.clock.train_exp_counter + 1
            images = len(strategy.adapted_dataset) * strategy.train_epochs
            self._bar = progress_bar(images, f"experience {number}/{self.total}", show=self.show)

    def after_training_iteration(self, strategy, **kwargs):
        self._bar.update(len(strategy.mb_y))

    def after_training_exp(self, strategy, **kwargs):
        self.close()

    def close(self) -> None:
        """Close the bar if one is open."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
