"""A method of one's own in one class, run beside CRUMB's rivals by its name.

    python examples/own_method.py

Settings, bytes and the strategy of a closed form follow from its class. Methods with
gradients and buffers are in docs/extend.md.
"""

import torch
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin

from benchmarks_toybox_ilab import ToyShapes, pixel_transform
from crumb_avalanche import build_strategy, split_backbone
from crumb_avalanche.methods.class_tensors import add_counts, add_rows
from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.registry import register
from crumb_avalanche.system.setting_ranges import Positive


@register(
    "nearest_mean",
    summary="the class mean at the smallest distance",
    source="examples/own_method.py",
    stores="a sum of features for each class",
)
class NearestMean(ClosedForm):
    """Nearest class mean, with distances to an exponent.

    Attributes:
        exponent: of the distances.
    """

    exponent: Positive = 1.0
    by_class = ("sums", "counts")  # the tensors with a row for each class

    def _allocate(self, n_classes: int, length: int) -> None:
        self.sums = torch.zeros(n_classes, length)
        self.counts = torch.zeros(n_classes, dtype=torch.int32)

    def _update(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        self.sums.index_add_(0, labels, features)
        add_counts(self.counts, labels)

    def _solve(self, seen: list[int]) -> torch.Tensor:
        return self.sums[seen].double() / self.counts[seen].unsqueeze(1)

    def _answers(self, features: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
        return -(torch.cdist(features, means) ** self.exponent)

    def _merge(self, other: "NearestMean", labels: dict[int, int]) -> None:
        for name in self.by_class:
            add_rows(getattr(self, name), getattr(other, name), labels)


def main() -> None:
    """Compare the method with two of the package on twenty shapes."""
    size = pixel_transform(64)
    model = split_backbone("efficientnet_lite0", n_classes=20, image_size=64)
    for name in ("nearest_mean", "ncm", "slda"):
        benchmark = ToyShapes(
            objects_per_class=2,
            sessions=2,
            held_out_sessions=1,
            frames_per_clip=3,
            train_transform=size,
            eval_transform=size,
        )
        evaluator = EvaluationPlugin(accuracy_metrics(stream=True), loggers=[])
        strategy = build_strategy(name, model, evaluator=evaluator)
        for experience in benchmark.train_stream:
            strategy.train(experience)
        (accuracy,) = strategy.eval(benchmark.test_stream).values()
        print(f"{name:13} {accuracy:.1%}  {strategy.statistics_bytes:>9,} bytes")


if __name__ == "__main__":
    main()
