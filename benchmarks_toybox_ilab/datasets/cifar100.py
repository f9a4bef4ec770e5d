"""Online-CIFAR100: 100 classes of images of 32 x 32 pixels, in 20 experiences of 5.

50,000 training and 10,000 test images.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

import re
from pathlib import Path

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
    shows_keywords,
)

LAYOUT = Layout(
    name="cifar100",
    title="CIFAR-100",
    tree="<root>/{train,test}/<class>/<image>.png, e.g. train/apple/apple_s_000022.png",
    source="https://www.cs.toronto.edu/~kriz/cifar.html; `crumb prepare cifar100` "
    "downloads and unpacks it",
    pattern=re.compile(
        r"(?P<folder>train|test)/(?P<class_name>[^/]+)/"
        r"(?P<name>[^/.][^/]*)\.(?:png|jpe?g)",
        re.IGNORECASE,
    ),
    folders=("train", "test"),
    counts={"classes": 100, "train": 50_000, "test": 10_000},
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
)


CIFAR100Frames = LAYOUT.image_table
"""Make the table of CIFAR-100's images, as `Layout.image_table`."""
BENCHMARK = register(
    Benchmark(
        LAYOUT,
        CIFAR100Frames,
        classes_per_experience=5,
        batch_size=128,
        budget_images=100,
        protocol="class_iid",
    )
)


@shows_keywords
def OnlineCIFAR100(
    dataset_root: str | Path | None = None,
    *,
    reference: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make CIFAR-100 as an Avalanche benchmark of 20 experiences.

    Each has 2,500 training images; stream them once. The protocol is class_iid by
    default. See `Benchmark.stream`.
    """
    return BENCHMARK.stream(dataset_root, {"reference": reference}, **host)
