"""CRUMB on Avalanche's SplitCIFAR100: ten experiences of ten classes.

python examples/split_cifar100.py                      # noise, to try the script
python examples/split_cifar100.py --data-root DATA     # CIFAR-100; downloads it
python examples/split_cifar100.py --data-root DATA --images 200
"""

import argparse

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
    shape = (len(labels), 3, SIZE, SIZE)
    images = TensorDataset(torch.randint(0, 256, shape, dtype=torch.uint8), labels)
    images.targets = labels.tolist()
    return images


def main() -> None:
    """Learn the ten experiences, and test on all classes so far after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", help="folder of CIFAR-100")
    parser.add_argument("--images", type=int, help="of each experience; default all")
    options = parser.parse_args()

    torch.manual_seed(0)
    if options.data_root is None:
        benchmark = nc_benchmark(noise(3), noise(1), 10, task_labels=False, seed=0)
    else:
        size = pixel_transform(SIZE)
        transforms = {"train_transform": size, "eval_transform": size}
        benchmark = SplitCIFAR100(
            10, seed=0, dataset_root=options.data_root, **transforms
        )
    model = split_backbone("efficientnet_lite0", n_classes=100, image_size=SIZE)
    strategy = CRUMBStrategy(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9),
        mem_size=2782,
        train_mb_size=128,
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
    )
    for number, experience in enumerate(benchmark.train_stream, 1):
        if options.images is not None:
            few = torch.randperm(len(experience.dataset))[: options.images]
            experience.dataset = experience.dataset.subset(few.tolist())
        strategy.train(experience, shuffle=True)  # photos, not clips
        (accuracy,) = strategy.eval(benchmark.test_stream[:number]).values()
        print(f"experience {number}: {accuracy:.1%}")


if __name__ == "__main__":
    main()
