"""``crumb pretrain``: pretrain on labelled images, for ``crumb run --pretrained``."""

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image
from torch.utils.data import Subset

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform, pixel_transform
from benchmarks_toybox_ilab.tables.disk_errors import disk_advice
from benchmarks_toybox_ilab.tables.image import read_image
from crumb_avalanche.models.backbone_names import preprocessing_of
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.map_store import MapStore, files_key
from crumb_avalanche.models.split_backbone import CODEBOOK_DIM
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.runs.model import build_model
from crumb_avalanche.runs.plan import settings_of_backbone
from crumb_avalanche.runs.pretrain_settings import PretrainSettings
from crumb_avalanche.runs.settings import part_for
from crumb_avalanche.runs.tables import format_table
from crumb_avalanche.system.file_metadata import format_of
from crumb_avalanche.system.folder_lock import LOCK, locked
from crumb_avalanche.system.named_values import without
from crumb_avalanche.system.process import check_device, set_up_process
from crumb_avalanche.system.words import counted
from crumb_avalanche.training.checkpoint import CheckpointFolder
from crumb_avalanche.training.pretraining import (
    FORMAT,
    PretrainingSettings,
    pretrain,
    save_pretrained,
)

# Begins a --data that is no folder: torchvision:CIFAR10 is a data set of torchvision.
TORCHVISION_PREFIX = "torchvision:"
# After the output: its folder of checkpoints, which is removed at the end.
CHECKPOINTS = ".checkpoints"
# Settings that may differ when a pretraining is resumed.
NON_RESULT_SETTINGS = {
    "output",
    "overwrite",
    "dataset_root",
    "feature_cache",
    "threads",
    "workers",
    "progress",
}


def main(settings: PretrainSettings) -> None:
    """Pretrain on labelled images and write the pretrained file.

    Raises:
        ValueError: a setting, the data set or an image cannot be used.
        FileExistsError: the output exists and is not to be replaced.
    """
    output = Path(settings.output)
    if output.suffix != ".safetensors":
        raise ValueError(f"output is {output}; a pretrained file ends in .safetensors")
    check_device(settings.device)  # raises if this computer has none
    _refuse_existing(output, settings.overwrite)
    if output.exists() and format_of(output) != FORMAT:
        raise FileExistsError(
            f"{output} exists and is not of crumb pretrain, so it stays as it is: "
            "choose another --output"
        )
    # The checkpoint compares the settings: the folder of images is the same when the
    # command is repeated from elsewhere. torchvision:NAME is no path.
    if not settings.data.startswith(TORCHVISION_PREFIX):
        settings = replace(settings, data=str(Path(settings.data).resolve()))
    settings = with_defaults(settings)  # those of the backbone
    set_up_process(settings.threads, settings.seed)
    folder = output.with_name(output.name + CHECKPOINTS)
    try:
        with locked(folder):
            _refuse_existing(output, settings.overwrite)  # written since the start
            pretrain_on(open_images(settings), settings)
    finally:
        # It is empty after a pretraining that ended, and the lock in it is removed.
        with suppress(OSError):
            folder.rmdir()


def _refuse_existing(output: Path, overwrite: bool) -> None:
    """Raise FileExistsError if the output is there and is not to be replaced."""
    if output.exists() and not overwrite:
        raise FileExistsError(
            f"{output} exists already; choose another --output, or replace it with "
            "--overwrite true"
        )


def with_defaults(settings: PretrainSettings) -> PretrainSettings:
    """Fill in the settings of a pretraining that are ``None``."""
    with_sizes = replace(
        settings,
        image_size=settings.image_size or preprocessing_of(settings.backbone).size,
        codebook_dim=settings.codebook_dim or CODEBOOK_DIM,
    )
    of_backbone = settings_of_backbone(settings, vars(with_sizes), codebook=True)
    return replace(with_sizes, **of_backbone)


def pretrain_on(images: Any, settings: PretrainSettings) -> None:
    """Pretrain on a data set and write ``settings.output``.

    Writes a checkpoint after each epoch into the folder ``OUTPUT.checkpoints``, and the
    feature maps too if ``feature_cache`` is ``None``. The same call resumes from this
    folder and removes it at the end.

    Args:
        images: data set of ``(3, H, W)`` uint8 tensors and labels, with all labels in
            its attribute ``targets``.
        settings: without ``None`` for a setting that has a default; see
            ``with_defaults``.
    """
    output = Path(settings.output)
    labels = np.asarray(images.targets)
    n_classes = int(labels.max()) + 1
    rows = choose_rows(labels, settings.images_per_class, settings.seed)
    chosen_images = Subset(images, rows.tolist())
    model = build_model(settings, n_classes, codebook=True).to(settings.device)
    model.set_precision(settings.precision)
    # Sets the feature scale, and the codebook's first memory blocks.
    calibrate(model, chosen_images, settings.codebook_init, settings.seed)
    # The same call resumes only with the same settings, images and weights.
    checkpoints = CheckpointFolder(
        output.with_name(output.name + CHECKPOINTS),
        _compared_settings(settings, images, model),
    )
    # Those of the settings that the training loop takes.
    training_settings = PretrainingSettings(**part_for(PretrainingSettings, settings))
    # Rows count the whole data set: pretrainings on other choices of its images share
    # the cache file. Without a cache folder, maps are kept until the end: a resumed
    # pretraining does not compute them again.
    images_key = _images_key(settings, images)
    with MapStore(
        settings.feature_cache or checkpoints.folder / "maps",
        model,
        count=len(images),
        key=f"{images_key} {len(images)} {transform_of(settings)!r}",
        workers=settings.workers,
        progress=settings.progress,
        half=settings.cache_precision == "fp16",
    ) as store:
        maps = store.dataset(chosen_images, rows, labels[rows].tolist())
        # Losses and accuracies of each epoch.
        history = pretrain(
            model, maps, training_settings, settings.progress, checkpoints
        )
    made_with = {
        **vars(settings),
        "classes": n_classes,
        "images": len(rows),
        "history": history,
    }
    save_pretrained(output, model, made_with)
    checkpoints.clear(but=LOCK)
    print(_history_table(history))
    print(
        f"\n{counted(len(rows), 'image')} of {counted(n_classes, 'class')}; written to "
        f"{output}; use it with crumb run "
        f"--pretrained {output}"
    )


def _images_key(settings: PretrainSettings, images: Any) -> str:
    """Return a key of a data set's images, which changes if one of its files does.

    An image folder of torchvision has ``samples``: path and label of each image.
    """
    samples = getattr(images, "samples", None)
    if samples:
        return files_key(path for path, _ in samples)
    return f"{settings.data} {settings.dataset_root}"


def _compared_settings(
    settings: PretrainSettings, images: Any, model: SplitModel
) -> dict[str, Any]:
    """Return what must be the same for a pretraining to resume from a checkpoint."""
    compared = without(vars(settings), *NON_RESULT_SETTINGS)
    # A file of the same name may hold others.
    compared["frozen_weights"] = weights_hash(model.feature_extractor)
    if getattr(images, "samples", None):
        compared["files"] = _images_key(settings, images)
    return compared


def _history_table(history: Sequence[dict[str, float]]) -> str:
    """Format loss and accuracies (percent) after each epoch of a pretraining."""
    rows = []
    for epoch, measures in enumerate(history, 1):
        loss = f"{measures['loss']:.3f}"
        direct = f"{measures['direct_accuracy']:.1f}"
        codebook_out = f"{measures['codebook_accuracy']:.1f}"
        rows.append([str(epoch), loss, direct, codebook_out])
    return format_table(
        ["epoch", "loss", "direct accuracy %", "codebook-out accuracy %"], rows
    )


def transform_of(settings: PretrainSettings) -> PixelTransform:
    """Return the conversion of a PIL image to the pixels that the backbone takes."""
    preprocessing = preprocessing_of(settings.backbone)
    size = settings.image_size or preprocessing.size
    return pixel_transform(size, preprocessing.interpolation)


def _is_visible_image(path: str) -> bool:
    """Whether a file is an image by its name, and not hidden."""
    from torchvision.datasets.folder import is_image_file

    return is_image_file(path) and not Path(path).name.startswith(".")


def open_images(settings: PretrainSettings) -> Any:
    """Open the labelled images of ``--data``: ``uint8`` tensors with ``targets``.

    Raises:
        ValueError: there is no such data set or folder, or it cannot be downloaded.
    """
    transform = transform_of(settings)
    if settings.data.startswith(TORCHVISION_PREFIX):
        name = settings.data.removeprefix(TORCHVISION_PREFIX)
        return _open_torchvision(name, settings.dataset_root or "data", transform)
    return _open_folder(settings.data, transform)


def _open_torchvision(name: str, root: str, transform: PixelTransform) -> Any:
    """Open the training images of a data set of torchvision.

    It is downloaded if it is not in the folder ``root``.

    Args:
        name: of its class in torchvision, such as "CIFAR10".
        root: folder for the download.
        transform: makes a ``(3, H, W)`` uint8 tensor of an image.

    Raises:
        ValueError: there is no such data set, or it cannot be downloaded.
    """
    from torchvision import datasets

    dataset_class = getattr(datasets, name, None)
    # Other data sets select training images and store labels in various ways.
    takes_train = (
        isinstance(dataset_class, type)
        and "train" in inspect.signature(dataset_class).parameters
    )
    if dataset_class is None or not takes_train:
        raise ValueError(
            f"torchvision has no data set {name!r} with train=True, as CIFAR10, "
            "CIFAR100 and FashionMNIST have; "
            "unpack it as an image folder (one folder per class) and give that"
        )
    try:
        return dataset_class(root, train=True, download=True, transform=transform)
    # torchvision raises RuntimeError for wrong checksums.
    except (OSError, HTTPException, RuntimeError) as error:
        if isinstance(error, OSError) and disk_advice(error):
            raise
        raise ValueError(
            f"torchvision's {name} cannot be fetched "
            f"({getattr(error, 'reason', error)}); connect to the network, "
            "or give a folder that holds it as --dataset-root"
        ) from error


def _open_folder(folder: str, transform: PixelTransform) -> Any:
    """Open an image folder with one folder per class, as a data set of torchvision.

    Args:
        folder: path of the image folder.
        transform: makes a ``(3, H, W)`` uint8 tensor of an image.

    Raises:
        ValueError: it is no folder, or holds no class folders with images.
    """
    from torchvision import datasets

    if not Path(folder).is_dir():
        raise ValueError(
            f"data {folder} is not a folder; give an image folder (one folder per "
            "class) or torchvision:NAME"
        )
    try:
        return datasets.ImageFolder(
            folder, transform, loader=load_image, is_valid_file=_is_visible_image
        )
    except FileNotFoundError as error:
        raise ValueError(
            f"data {folder} holds no class folders with images ({error}); the layout "
            "is <class>/<image>"
        ) from error


def load_image(path: str) -> Image:
    """Read a PIL image; ``ValueError`` names a file that cannot be decoded."""
    try:
        return read_image(path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cannot decode {path} ({error}); replace it or remove it"
        ) from error


def choose_rows(labels: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """Choose images at random, at most the same number of each class.

    Args:
        labels: ``(N,)`` of all images.
        per_class: number of images of each class; 0 for all.
        seed: of the choice.

    Returns:
        ``(M,)`` rows of ``labels`` in ascending order.
    """
    if per_class == 0:
        return np.arange(len(labels))
    rng = np.random.default_rng(seed)
    rows_by_class = []
    for label in np.unique(labels):
        rows_of_class = rng.permutation(np.flatnonzero(labels == label))
        rows_by_class.append(rows_of_class[:per_class])
    return np.sort(np.concatenate(rows_by_class))
