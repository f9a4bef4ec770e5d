"""A method of one's own in one class, run beside CRUMB's rivals by its name.

    python examples/own_method.py

Its bytes and its strategy follow from the class. docs/extend.md has other methods.
"""

import torch
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin
from torch import Tensor

from benchmarks_toybox_ilab import ToyShapes, pixel_transform
from crumb_avalanche import build_strategy, split_backbone
from crumb_avalanche.methods.class_tensors import add_counts, add_rows
from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.registry import register


@register("nearest_mean", summary="nearest mean", source="mine", stores="sums")
class NearestMean(ClosedForm):
    """Nearest class mean by Euclidean distance."""

    by_class = ("sums", "counts")  # the tensors with a row for each class

    def _allocate(self, n_classes: int, length: int) -> None:
        self.sums = torch.zeros(n_classes, length)
        self.counts = torch.zeros(n_classes, dtype=torch.int32)

    def _update(self, features: Tensor, labels: Tensor) -> None:
        self.sums.index_add_(0, labels, features)
        add_counts(self.counts, labels)

    def _solve(self, seen: Tensor) -> Tensor:
        return self.sums[seen].double() / self.counts[seen].unsqueeze(1)

    def _answers(self, features: Tensor, means: Tensor) -> Tensor:
        return -torch.cdist(features, means)

    def _merge(self, other: "NearestMean", labels: dict[int, int]) -> None:
        add_rows(self.sums, other.sums, labels)
        add_rows(self.counts, other.counts, labels)


def main() -> None:
    """Compare the method with two of the package on twenty shapes."""
    size = pixel_transform(64)
    benchmark = ToyShapes(frames_per_clip=1, train_transform=size, eval_transform=size)
    model = split_backbone("efficientnet_lite0", n_classes=20, image_size=64)
    for name in ("nearest_mean", "ncm", "slda"):
        evaluator = EvaluationPlugin(accuracy_metrics(stream=True), loggers=[])
        strategy = build_strategy(name, model, evaluator=evaluator)
        for experience in benchmark.train_stream:
            strategy.train(experience)
        (accuracy,) = strategy.eval(benchmark.test_stream).values()
        print(f"{name:13} {accuracy:.1%}  {strategy.statistics_bytes:>9,} bytes")


if __name__ == "__main__":
    main()
