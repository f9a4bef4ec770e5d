"""CRUMB on clips of one's own: a folder of classes, objects and clips.

    python examples/own_data.py                # draws a folder of toy shapes first
    python examples/own_data.py MY_CLIPS       # MY_CLIPS/mug/red_mug/kitchen/001.jpg

One object of each class is held out for the test. docs/clips.md has other layouts.
"""

import sys
import tempfile
from pathlib import Path

import torch
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin

from benchmarks_toybox_ilab import ClipFolder, ToyShapesFrames, pixel_transform
from crumb_avalanche import CRUMBStrategy, split_backbone


def draw_clips(root: Path) -> None:
    """Write frames of toy shapes as CLASS/OBJECT/CLIP/FRAME.png."""
    classes = ("fish", "key", "mug", "star")
    table = ToyShapesFrames(classes=classes, objects_per_class=4, frames_per_clip=3)
    for row, frame in enumerate(table):
        folder = root / frame.class_name / frame.object_name / frame.session
        folder.mkdir(parents=True, exist_ok=True)
        table.read(row).save(folder / f"{frame.frame:03d}.png")


def learn(clips: str) -> None:
    """Learn the classes two by two, and test on all so far after each pair."""
    torch.manual_seed(0)
    size = pixel_transform(64)
    benchmark = ClipFolder(clips, train_transform=size, eval_transform=size)
    print(benchmark.frame_table.counts())
    classes = benchmark.n_classes
    model = split_backbone("efficientnet_lite0", n_classes=classes, image_size=64)
    strategy = CRUMBStrategy(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9),
        mem_size=417,
        first_epochs=5,
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
    )
    for number, experience in enumerate(benchmark.train_stream, 1):
        strategy.train(experience)
        (accuracy,) = strategy.eval(benchmark.test_stream[:number]).values()
        print(f"experience {number}: {accuracy:.1%}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        learn(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as drawn:
            draw_clips(Path(drawn))
            learn(drawn)
