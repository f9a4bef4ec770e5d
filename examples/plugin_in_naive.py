"""CRUMB's replay in a strategy of Avalanche: its Naive, with two plugins.

    python examples/plugin_in_naive.py

Any strategy takes them, also with other plugins beside. ``SeenClassesPlugin`` comes
first, since all losses are over the classes seen so far.
"""

import torch
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive

from benchmarks_toybox_ilab import ToyShapes, pixel_transform
from crumb_avalanche import CodeBuffer, CRUMBPlugin, SeenClassesPlugin, split_backbone


def main() -> None:
    """Learn two experiences of two shapes each, in the order of their frames."""
    torch.manual_seed(0)
    size = pixel_transform(64)  # the model normalises pixels itself
    benchmark = ToyShapes(
        classes=("fish", "key", "mug", "star"),
        objects_per_class=3,
        sessions=2,
        held_out_sessions=1,
        train_transform=size,
        eval_transform=size,
    )
    model = split_backbone("efficientnet_lite0", n_classes=4, image_size=64)
    seen = SeenClassesPlugin()
    replay = CRUMBPlugin(CodeBuffer(417), seen=seen)
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9),
        train_mb_size=21,
        train_epochs=3,
        plugins=[seen, replay],
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
    )
    for number, experience in enumerate(benchmark.train_stream, 1):
        strategy.train(experience, shuffle=False)
        (accuracy,) = strategy.eval(benchmark.test_stream[:number]).values()
        print(f"experience {number}: {accuracy:.1%}")
    print(
        f"{len(replay.storage_policy)} memories, {replay.storage_policy.buffer_bytes} B"
    )


if __name__ == "__main__":
    main()
