"""``crumb pretrain``: pretrain on labelled images and write a file for ``crumb run --pretrained``."""

import inspect
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset, Subset

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform, pixel_transform
from benchmarks_toybox_ilab.tables.disk_errors import cured
from benchmarks_toybox_ilab.tables.image import read_image
from crumb_avalanche.models.backbone_names import preprocessing_of
from crumb_avalanche.models.backbones import CODEBOOK_DIM
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.map_store import MapStore, files_key
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.runs.plan import settings_of_backbone
from crumb_avalanche.runs.pretrain_settings import PretrainSettings
from crumb_avalanche.runs.session import build_model
from crumb_avalanche.runs.settings import part_for
from crumb_avalanche.runs.tables import table
from crumb_avalanche.system.folder_lock import LOCK, locked
from crumb_avalanche.system.process import check_device, set_up_process
from crumb_avalanche.system.tensor_file import format_of
from crumb_avalanche.system.words import counted
from crumb_avalanche.training.checkpoint import CheckpointFolder
from crumb_avalanche.training.pretraining import (
    FORMAT,
    PretrainingSettings,
    pretrain,
    save_pretrained,
)

# after the output: its folder of checkpoints, which is removed at the end
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
    """Pretrain and write the file."""
    output = Path(settings.output)
    if output.suffix != ".safetensors":
        raise ValueError(f"output is {output}; a pretrained file ends in .safetensors")
    check_device(settings.device)
    _refuse_existing(output, settings.overwrite)
    if output.exists() and format_of(output) != FORMAT:
        raise FileExistsError(
            f"{output} exists and is not of crumb pretrain, so it stays as it is: choose another --output"
        )
    settings = replace(
        settings,
        data=settings.data
        if ":" in settings.data
        else str(Path(settings.data).resolve()),
    )
    settings = with_defaults(settings)
    set_up_process(settings.threads, settings.seed)
    folder = output.with_name(output.name + CHECKPOINTS)
    try:
        with locked(folder):
            _refuse_existing(output, settings.overwrite)  # written since the start
            pretrain_on(open_images(settings), settings)
    finally:
        with suppress(
            OSError
        ):  # it is empty after a pretraining that ended, and the lock in it is removed
            folder.rmdir()


def _refuse_existing(output: Path, overwrite: bool) -> None:
    if output.exists() and not overwrite:
        raise FileExistsError(
            f"{output} exists already; choose another --output, or replace it with --overwrite true"
        )


def with_defaults(settings: PretrainSettings) -> PretrainSettings:
    """Fill in the settings that are ``None``."""
    side, dim = (
        settings.image_size or preprocessing_of(settings.backbone).size,
        settings.codebook_dim or CODEBOOK_DIM,
    )
    filled = replace(settings, image_size=side, codebook_dim=dim)
    return replace(filled, **settings_of_backbone(settings, vars(filled), True))


def pretrain_on(images: Dataset, settings: PretrainSettings) -> None:
    """Pretrain on a data set with ``targets`` and write ``settings.output``.

    Writes a checkpoint after each epoch into the folder ``OUTPUT.checkpoints``, and the
    feature maps too if ``feature_cache`` is ``None``. The same call resumes from this
    folder and removes it at the end.
    """
    output = Path(settings.output)
    labels = np.asarray(images.targets)
    classes = int(labels.max()) + 1
    rows = choose_rows(labels, settings.images_per_class, settings.seed)
    chosen = Subset(images, rows.tolist())
    model = build_model(settings, classes, codebook=True).to(settings.device)
    model.set_precision(settings.precision)
    calibrate(model, chosen, settings.codebook_init, settings.seed)
    # Rows count the whole data set: pretrainings on other choices of its images share
    # the cache file.
    samples = getattr(images, "samples", None)
    names = (
        files_key(path for path, _ in samples)
        if samples
        else f"{settings.data} {settings.dataset_root}"
    )
    key = f"{names} {len(images)} {transform_of(settings)!r}"
    decides = {
        name: value
        for name, value in vars(settings).items()
        if name not in NON_RESULT_SETTINGS
    }
    decides["frozen_weights"] = weights_hash(
        model.feature_extractor
    )  # a file of the same name may hold others
    if samples:
        decides["files"] = names
    checkpoints = CheckpointFolder(output.with_name(output.name + CHECKPOINTS), decides)
    # Without a cache folder, maps are kept until the end: a resumed pretraining does
    # not compute them again.
    folder = settings.feature_cache or checkpoints.folder / "maps"
    half = settings.cache_precision == "fp16"
    with MapStore(
        folder, model, len(images), key, settings.workers, settings.progress, half
    ) as store:
        maps = store.dataset(chosen, rows, labels[rows].tolist())
        chosen_settings = PretrainingSettings(**part_for(PretrainingSettings, settings))
        history = pretrain(model, maps, chosen_settings, settings.progress, checkpoints)
    made_with = {
        **vars(settings),
        "classes": classes,
        "images": len(rows),
        "history": history,
    }
    save_pretrained(output, model, made_with)
    checkpoints.clear(but=LOCK)
    lines = [
        [
            str(i + 1),
            f"{e['loss']:.3f}",
            f"{e['direct_accuracy']:.1f}",
            f"{e['codebook_accuracy']:.1f}",
        ]
        for i, e in enumerate(history)
    ]
    print(
        table(["epoch", "loss", "direct accuracy %", "codebook-out accuracy %"], lines)
    )
    print(
        f"\n{counted(len(rows), 'image')} of {counted(classes, 'class')}; written to {output}; use it with crumb run "
        f"--pretrained {output}"
    )


def transform_of(settings: PretrainSettings) -> PixelTransform:
    """Return the conversion of an image to pixels."""
    expected = preprocessing_of(settings.backbone)
    return pixel_transform(settings.image_size or expected.size, expected.interpolation)


def _is_visible_image(path: str) -> bool:
    """Whether a file is an image by its name, and not hidden."""
    from torchvision.datasets.folder import is_image_file

    return is_image_file(path) and not Path(path).name.startswith(".")


def open_images(settings: PretrainSettings) -> Dataset:
    """Open the labelled images of ``--data`` as a data set of ``uint8`` tensors with ``targets``."""
    from torchvision import datasets

    transform = transform_of(settings)
    if settings.data.startswith("torchvision:"):
        name = settings.data.removeprefix("torchvision:")
        factory = getattr(datasets, name, None)
        # Other data sets select training images and store labels in various ways.
        if (
            not isinstance(factory, type)
            or "train" not in inspect.signature(factory).parameters
        ):
            raise ValueError(
                f"torchvision has no data set {name!r} with train=True, as CIFAR10, CIFAR100 and FashionMNIST have; "
                "unpack it as an image folder (one folder per class) and give that"
            )
        try:
            return factory(
                settings.dataset_root or "data",
                train=True,
                download=True,
                transform=transform,
            )
        except (
            OSError,
            HTTPException,
            RuntimeError,
        ) as error:  # torchvision raises RuntimeError for wrong checksums
            if isinstance(error, OSError) and cured(error):
                raise
            raise ValueError(
                f"torchvision's {name} cannot be fetched ({getattr(error, 'reason', error)}); connect to the network, "
                "or give a folder that holds it as --dataset-root"
            ) from error
    if not Path(settings.data).is_dir():
        raise ValueError(
            f"data {settings.data} is not a folder; give an image folder (one folder per class) or torchvision:NAME"
        )
    try:
        return datasets.ImageFolder(
            settings.data, transform, loader=load_image, is_valid_file=_is_visible_image
        )
    except FileNotFoundError as error:
        raise ValueError(
            f"data {settings.data} holds no class folders with images ({error}); the layout is <class>/<image>"
        ) from error


def load_image(path: str):
    """Read a PIL image; ``ValueError`` names a file that cannot be decoded."""
    try:
        return read_image(path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cannot decode {path} ({error}); replace it or remove it"
        ) from error


def choose_rows(labels: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """Return ascending row numbers of ``per_class`` random images of each class; of all images if it is 0."""
    if per_class == 0:
        return np.arange(len(labels))
    random = np.random.default_rng(seed)
    chosen = [
        random.permutation(np.flatnonzero(labels == label))[:per_class]
        for label in np.unique(labels)
    ]
    return np.sort(np.concatenate(chosen))
