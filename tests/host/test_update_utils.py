"""Facts of Avalanche's ``tests/training/test_update_utils.py``: its mean and Gaussian heads over a ``SplitModel``."""

import pytest
import torch
from avalanche.models import FeCAMClassifier, NCMClassifier, TrainEvalModel
from avalanche.training.plugins import (
    CurrentDataFeCAMUpdate,
    CurrentDataNCMUpdate,
    FeCAMOracle,
    MemoryFeCAMUpdate,
    MemoryNCMUpdate,
    NCMOracle,
)
from avalanche.training.supervised import Naive
from host_benchmarks import N_CLASSES, PER_CLASS, host_benchmark, host_model, quiet, sgd
from host_strategies import COMMON, without_head

from crumb_avalanche import ImageBuffer

pytestmark = pytest.mark.filterwarnings("ignore")

UPDATES = {
    "UpdateNCMTest.test_current_update": (NCMClassifier, CurrentDataNCMUpdate),
    "UpdateNCMTest.test_memory_update": (NCMClassifier, lambda: MemoryNCMUpdate(100)),
    "UpdateNCMTest.test_oracle_update": (NCMClassifier, NCMOracle),
    "UpdateFeCAMTest.test_current_update": (FeCAMClassifier, CurrentDataFeCAMUpdate),
    "UpdateFeCAMTest.test_memory_update": (FeCAMClassifier, lambda: MemoryFeCAMUpdate(100)),
    "UpdateFeCAMTest.test_oracle_update": (FeCAMClassifier, FeCAMOracle),
    "images of ours": (NCMClassifier, lambda: MemoryNCMUpdate(48, images_of_ours())),
}


def images_of_ours() -> ImageBuffer:
    """An ``ImageBuffer`` for a model that is no ``SplitModel``, which would know the normalisation of the images."""
    buffer = ImageBuffer(48)
    buffer.normalization = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return buffer


@pytest.mark.parametrize("name", UPDATES)
def test_heads_of_statistics_answer(name):
    """Ids are the host's tests; after training, the classes of the stream are recognised."""
    classifier, update = UPDATES[name]
    torch.manual_seed(0)
    split = host_model()
    head = without_head(split)
    model = TrainEvalModel(split, train_classifier=head, eval_classifier=classifier())
    strategy = Naive(model=model, optimizer=sgd(model), plugins=[update()], evaluator=quiet(), **COMMON)
    benchmark = host_benchmark("nc")
    for experience in benchmark.train_stream:
        strategy.train(experience)
    strategy.model.eval()
    right = total = 0
    for experience in benchmark.train_stream if "current" not in name else benchmark.train_stream[-1:]:
        images, labels = (torch.stack([torch.as_tensor(row[i]) for row in experience.dataset]) for i in (0, 1))
        logits = strategy.model(images)
        right, total = right + int((logits.argmax(1) == labels).sum()), total + len(labels)
    assert logits.shape == (2 * PER_CLASS, N_CLASSES) or logits.shape[1] >= N_CLASSES
    assert right / total > 1 / 3
