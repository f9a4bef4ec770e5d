"""Online-ImageNet: 1000 classes in 10 experiences of 100.

1,281,167 training and 50,000 test images. The test images are those of the validation
set.

Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge", International
Journal of Computer Vision 115, 2015.
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
    name="imagenet",
    title="ImageNet",
    tree="<root>/{train,val}/<wnid>/<image>.JPEG, "
    "e.g. train/n01440764/n01440764_10026.JPEG",
    source="https://image-net.org/challenges/LSVRC/2012/ (ILSVRC2012; needs an "
    "account). Unpack its archives with torchvision.datasets.ImageNet(root, split), "
    'for split "train" and for "val"',
    pattern=re.compile(
        r"(?P<folder>train|val)/(?P<class_name>n[0-9]{8})/"
        r"(?P<name>[^/.][^/]*)\.(?i:jpe?g|png)"
    ),
    rule="<wnid> is the class: n and 8 digits. Images of val must lie in one folder "
    "per class too, and only the labels in the development kit name the classes: "
    'torchvision.datasets.ImageNet(root, split="val") sorts them if '
    "ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz lie in its root",
    folders=("train", "val"),
    counts={"classes": 1000, "train": 1_281_167, "test": 50_000},
)


ImageNetFrames = LAYOUT.image_table
"""Make the table of ImageNet's images, as `Layout.image_table`."""
BENCHMARK = register(
    Benchmark(
        LAYOUT,
        ImageNetFrames,
        classes_per_experience=100,
        batch_size=128,
        budget_images=10_000,
        protocol="class_iid",
    )
)


@shows_keywords
def OnlineImageNet(
    dataset_root: str | Path | None = None,
    *,
    reference: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make ImageNet as an Avalanche benchmark of 10 experiences.

    Each has about 128,000 training images; stream them once. The protocol is class_iid
    by default. See `Benchmark.stream`.
    """
    return BENCHMARK.stream(dataset_root, {"reference": reference}, **host)
