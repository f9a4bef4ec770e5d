"""Typed settings of the commands beside ``crumb run``. Imports neither torch nor Avalanche, as ``settings``."""

from dataclasses import dataclass


@dataclass
class PretrainSettings:
    """Pretrain plastic layers and codebook on labelled images, with direct and codebook-out loss.

    Attributes:
        data: an image folder with one folder per class, or torchvision:NAME of a data set that takes train=True, as
            torchvision:CIFAR100 does.
        dataset_root: where a torchvision data set lies or is downloaded to.
        output: the .safetensors file to write; beside it, OUTPUT.checkpoints, to go on from after an interruption.
        overwrite: replace an existing file.
        weights: 'torchvision' (downloads), a .npz, .safetensors or .pth file, or 'none' for random weights.
        backbone: squeezenet1_0, squeezenet1_1, mobilenet_v2, resnet18 or small_cnn.
        cut_layer: number of leading layers that are frozen; default the paper's cut.
        image_size: images are resized to this many pixels square.
        images_per_class: how many images of each class to use; 0 takes all.
        epochs: passes over the images.
        batch_size: images per batch.
        learning_rate: of SGD.
        momentum: of SGD.
        weight_decay: of SGD.
        codebook_size: number of memory blocks.
        codebook_dim: length of a memory block.
        codebook_init: matched, dense_matched, normal, uniform, sampled or kmeans.
        direct_weight: alpha.
        codebook_weight: beta.
        relu_logits: ReLU on SqueezeNet's logits before they are pooled.
        head_kernel: kernel of SqueezeNet's last convolution, 1 or 3.
        feature_cache: folder in which F(x) is kept; default one beside the output, removed at the end.
        device: cpu or cuda; with torchrun, one GPU for each process.
        threads: CPU threads of torch and faiss; 0 takes one per core.
        workers: loader processes.
        seed: of everything random.
        progress: show progress bars.
    """

    data: str
    output: str = "pretrained.safetensors"
    dataset_root: str | None = None
    overwrite: bool = False
    weights: str = "torchvision"
    backbone: str = "squeezenet1_0"
    cut_layer: int | None = None
    image_size: int = 224
    images_per_class: int = 0
    epochs: int = 10
    batch_size: int = 128
    learning_rate: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 1e-4
    codebook_size: int = 256
    codebook_dim: int = 16
    codebook_init: str = "matched"
    direct_weight: float = 1.0
    codebook_weight: float = 1.0
    relu_logits: bool = False
    head_kernel: int = 1
    feature_cache: str | None = None
    device: str = "cpu"
    threads: int = 0
    workers: int = 0
    seed: int = 0
    progress: bool = True


@dataclass
class DemoSettings:
    """Pretrain on rendered shapes, stream others, and compare CRUMB with its bounds: nothing to download.

    Attributes:
        output: folder for the runs, the table and the picture; runs finished in it are not repeated.
        overwrite: start over.
        threads: CPU threads; 0 takes one per core.
        seed: the run that is streamed.
        progress: show progress bars.
    """

    output: str = "runs/demo"
    overwrite: bool = False
    threads: int = 0
    seed: int = 0
    progress: bool = True


@dataclass
class PrepareSettings:
    """Bring a data set from what is downloaded to what its benchmark reads, or check what is there.

    Attributes:
        name: core50, toybox, ilab, icub, ilab_core50, cifar100 or imagenet.
        dataset_root: folder for the data set; give the same to crumb run.
        source: what you downloaded: an archive, or a folder of archives, videos or images; core50 and cifar100 are
            downloaded without it.
        check: change nothing, and list what is missing of all that the paper uses.
        workers: processes for videos, threads for images; 0 takes one per core.
        progress: show progress bars.
    """

    name: str
    dataset_root: str
    source: str | None = None
    check: bool = False
    workers: int = 0
    progress: bool = True


@dataclass
class ReportSettings:
    """Show finished runs as tables and pictures.

    Attributes:
        folders: run folders, or folders of runs.
        output: folder for page, tables and pictures; those of an earlier report in it are replaced. Default the run's
            own folder for one run, the folder given if it holds several, the parent of the first of several folders.
    """

    folders: list[str]
    output: str | None = None


@dataclass
class StrategiesSettings:
    """List the methods that crumb run knows, with what each stores and what a budget buys.

    Attributes:
        name: only this one.
    """

    name: str | None = None
