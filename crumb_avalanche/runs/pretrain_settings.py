"""Typed settings of ``crumb pretrain``. Imports neither torch nor Avalanche.

A setting that is not explained means what it means in ``RunSettings``.
"""

from dataclasses import dataclass
from typing import Literal

from crumb_avalanche.runs.settings import Grouping, Search
from crumb_avalanche.system import setting_ranges as ranges


@dataclass
class PretrainSettings(ranges.InRange):
    """Pretrain plastic layers and codebook on labelled images.

    The losses are the direct and the codebook-out loss.

    Attributes:
        data: an image folder with one folder per class, or torchvision:NAME for a data
            set with a train=True argument, such as torchvision:CIFAR100.
        dataset_root: folder that holds a torchvision data set or receives its download.
        output: the .safetensors file to write. An interrupted pretraining resumes from
            the folder OUTPUT.checkpoints.
        overwrite: replace an existing file.
        weights: 'torchvision' (the published ones, which most backbones download), a
            .npz, .safetensors or .pth file, or 'none' for random weights.
        backbone: squeezenet1_0, squeezenet1_1, efficientnet_lite0, mobilenet_v2,
            resnet18, small_cnn or timm:NAME.
        cut_layer: number of leading layers that are frozen, or for timm:NAME of stages
            or the name of the last frozen module; default the paper's cut.
        images_per_class: number of images of each class to use; 0 takes all.
        epochs: passes over the images.
        batch_size: images per batch.
        direct_weight: weight of the direct loss (alpha of eq. 3).
        codebook_search: what a memory block is chosen by: direction (paper) or
            distance.
        codebook_tables: number of tables of memory blocks, which groups of channels
            share.
        codebook_grouping: which channels make a group: consecutive ones (paper), or
            correlated ones.
        codebook_filter: filter rebuilt maps over 3 x 3 locations.
        codebook_weight: weight of the codebook-out loss (beta of eq. 3).
        feature_cache: folder for the cached F(x); default a temporary one beside the
            output.
        seed: seed of all random draws.
    """

    data: str
    output: str = "pretrained.safetensors"
    dataset_root: str | None = None
    overwrite: bool = False
    weights: str = "torchvision"
    backbone: str = "squeezenet1_0"
    cut_layer: ranges.Number | str | None = None
    image_size: ranges.ImageSize | None = None
    images_per_class: ranges.Upper = 0
    epochs: ranges.Epochs = 10
    batch_size: ranges.Count = 128
    learning_rate: ranges.Rate = 1e-3
    momentum: ranges.Share = 0.9
    weight_decay: ranges.Decay = 1e-4
    codebook_size: ranges.CodebookSize = 256
    codebook_dim: ranges.Count | None = None
    codebook_init: str = "matched"
    codebook_search: Search = "direction"
    codebook_tables: ranges.Tables = 1
    codebook_grouping: Grouping = "consecutive"
    codebook_filter: bool = False
    direct_weight: ranges.NotNegative = 1.0
    codebook_weight: ranges.NotNegative = 1.0
    relu_logits: bool = False
    head_kernel: ranges.Count = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    feature_cache: str | None = None
    cache_precision: Literal["fp32", "fp16"] = "fp32"
    device: str = "cpu"
    threads: ranges.Threads = 0
    workers: ranges.Workers = 0
    seed: ranges.Seed = 0
    progress: bool = True
