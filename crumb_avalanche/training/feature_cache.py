"""Plugin that replaces images by cached feature maps.

Exact in float32, since F is frozen and images are not augmented.
"""

import math

import numpy as np
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute

from crumb_avalanche.models.look_store import LookStore
from crumb_avalanche.models.map_store import USUAL_CAPACITY, FeatureMemo, MapStore
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.named_values import attributes
from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.stateful import StatefulPlugin

MEMO_BYTES = 2 * 2**30
STATE_OF_STORE = ("filled", "damaged", "seconds")  # over all processes of a run


class FeatureCache(StatefulPlugin):
    """Train and evaluate on cached feature maps (see ``MapStore``) in place of images.

    Data sets need an attribute ``frame_row``, each item's number below ``count``;
    benchmarks made by ``benchmarks_toybox_ilab`` have it. Call ``close`` after the last
    use, or use the cache as a context manager.

    Args:
        store: holds the maps, a ``LookStore`` those of several looks; its ``seconds``,
            ``filled`` and ``damaged`` are those of all processes of a resumed run.
        stored_images: capacity of the replay buffer in images. The cache keeps this
            number of their maps in memory, at least 512 and at most 2 GiB.

    Raises:
        FeatureCacheError: in training or evaluation, the disk has too little room for
            the missing maps, or a map does not fit into float16.
        ValueError: in training or evaluation, a data set has no ``frame_row``.
    """

    def __init__(self, store: MapStore | LookStore, stored_images: int = 0):
        super().__init__()
        self.store = store
        # Images of a replay buffer have no row in the store: their maps are looked up
        # by content.
        room = MEMO_BYTES // (4 * math.prod(store.shape))
        self.memo = FeatureMemo(max(USUAL_CAPACITY, min(stored_images, room)))
        self.model: SplitModel | None = None

    def __enter__(self) -> "FeatureCache":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and release the maps in memory."""
        self.store.close()
        self.memo.clear()
        self._set_memo_of(None)

    def _set_memo_of(self, model: SplitModel | None) -> None:
        """Give a model the memo of maps, and take it from the one that had it."""
        if self.model is not None:
            self.model.feature_memo = None
        if model is not None:
            model.feature_memo = self.memo
        self.model = model

    def before_training(self, strategy, **kwargs):
        """Give the model of the strategy the memo of maps."""
        model = strategy.model
        self._set_memo_of(model if isinstance(model, SplitModel) else None)

    def after_train_dataset_adaptation(self, strategy, **kwargs):
        """Put cached maps in the place of the images of the data set."""
        strategy.adapted_dataset = self._with_cached_maps(strategy.adapted_dataset)

    after_eval_dataset_adaptation = after_train_dataset_adaptation

    def _with_cached_maps(self, images: AvalancheDataset) -> AvalancheDataset:
        """Return a data set of the cached maps of some images, with their attributes.

        Maps that are not in the cache are computed.

        Args:
            images: of an experience, with a ``frame_row`` for each image, its number
                in the cache.

        Returns:
            Items ``(feature map, label, ...)``, maps of ``(C, H, W)``.

        Raises:
            ValueError: the images have no ``frame_row``, by which maps are stored.
        """
        if not hasattr(images, "frame_row"):
            raise ValueError(
                "the feature cache identifies images by their number: give the data "
                "sets a DataAttribute 'frame_row' with the number of each image "
                "(benchmarks_toybox_ilab does), or train without the cache"
            )
        labels = labels_of(images)
        rows = np.asarray(list(images.frame_row))  # numbers of the maps in the store
        maps = self.store.dataset(images, rows, labels)
        attributes = [DataAttribute(labels, "targets")]
        if hasattr(images, "clip"):
            attributes.append(DataAttribute(list(images.clip), "clip"))
        if hasattr(images, "targets_task_labels"):
            tasks = list(map(int, images.targets_task_labels))
            attributes.append(
                DataAttribute(tasks, "targets_task_labels", use_in_getitem=True)
            )
        return AvalancheDataset([maps], data_attributes=attributes)

    def state_dict(self):
        """Return the counts and seconds of the store so far."""
        return attributes(self.store, STATE_OF_STORE)

    def load_state_dict(self, state):
        """Load what ``state_dict`` returned."""
        for name in STATE_OF_STORE:
            setattr(self.store, name, state[name])
