"""CRUMB on Avalanche's SplitCIFAR100: ten experiences of ten classes.

python examples/split_cifar100.py            # noise, to try the script
python examples/split_cifar100.py DATA       # CIFAR-100, downloaded to DATA if missing
python examples/split_cifar100.py DATA 200   # 200 images of each experience
"""

import sys

import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.benchmarks.classic import SplitCIFAR100
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin
from torch.utils.data import TensorDataset

from benchmarks_toybox_ilab import pixel_transform
from crumb_avalanche import CRUMBStrategy, split_backbone

SIZE = 64  # pixels a side


def noise(per_class: int) -> TensorDataset:
    """Draw uint8 images ``(N, 3, SIZE, SIZE)`` of 100 classes that mean nothing."""
    labels = torch.arange(100).repeat(per_class)
    pixels = torch.randint(0, 256, (len(labels), 3, SIZE, SIZE), dtype=torch.uint8)
    images = TensorDataset(pixels, labels)
    images.targets = labels.tolist()
    return images


def main(data: str | None = None, limit: str = "5000") -> None:
    """Learn the ten experiences, and test on all classes so far after each."""
    torch.manual_seed(0)
    if data is None:
        benchmark = nc_benchmark(noise(3), noise(1), 10, task_labels=False, seed=0)
    else:
        size = pixel_transform(SIZE)
        sizes = {"train_transform": size, "eval_transform": size}
        benchmark = SplitCIFAR100(10, seed=0, dataset_root=data, **sizes)
    model = split_backbone("efficientnet_lite0", n_classes=100, image_size=SIZE)
    strategy = CRUMBStrategy(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9),
        mem_size=2782,
        train_mb_size=128,
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
    )
    for number, experience in enumerate(benchmark.train_stream, 1):
        chosen = torch.randperm(len(experience.dataset))[: int(limit)]
        experience.dataset = experience.dataset.subset(chosen.tolist())
        strategy.train(experience, shuffle=True)  # photos, not clips
        (accuracy,) = strategy.eval(benchmark.test_stream[:number]).values()
        print(f"experience {number}: {accuracy:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
