"""CRUMB pretraining of plastic layers and codebook.

Paper: "Initializing the codebook matrix and CNN".
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from benchmarks_toybox_ilab.tables.progress import progress_bar
from crumb_avalanche.models.layers import trainable
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import WeightsError, check_and_load
from crumb_avalanche.system.file_metadata import TensorFileError, loaded_json
from crumb_avalanche.system.process import get_rng_state, set_rng_state
from crumb_avalanche.system.tensor_file import read_tensors, write_tensors
from crumb_avalanche.system.value_types import (
    StateError,
    array,
    check,
    each,
    maybe,
    real,
    record,
    text,
    whole,
)
from crumb_avalanche.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointFolder,
)

FORMAT = "crumb-pretrained-1"
PERCENT = real(0, 100)
EPOCH = record(loss=real(0, 1e30), direct_accuracy=PERCENT, codebook_accuracy=PERCENT)
MADE_WITH = record(
    further=True,
    backbone=text(),
    classes=whole(1),
    head_kernel=whole(1),
    codebook_size=whole(1),
    codebook_dim=whole(1),
)


class PretrainingDivergedError(RuntimeError):
    """The loss became NaN or infinite."""


@dataclass(frozen=True)
class PretrainingSettings:
    """Settings of ``pretrain``; the losses are eq. 3 with alpha = beta = 1."""

    epochs: int = 10
    batch_size: int = 128
    learning_rate: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 1e-4
    direct_weight: float = 1.0
    codebook_weight: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class _BatchLosses:
    """Loss and right answers of a batch.

    Attributes:
        loss: eq. 3, a scalar.
        direct_right, quantized_right: images answered right without and with codebook.
    """

    loss: Tensor
    direct_right: float
    quantized_right: float


def pretrain(
    model: SplitModel,
    maps: Dataset,
    settings: PretrainingSettings,
    progress: bool = True,
    checkpoints: CheckpointFolder | None = None,
) -> list[dict[str, float]]:
    """Train plastic layers and codebook on shuffled, labelled images.

    The feature extractor does not change. Paper: "Initializing the codebook matrix and
    CNN", with the loss of eq. 3.

    Args:
        model: with an initialised codebook and a head for all classes; trained in
            place.
        maps: items ``(image, label)``, images of uint8 pixels or normalised floats; or
            ``(raw feature map, label)`` with maps of ``(C, H, W)``, as a ``MapStore``
            returns them: the extractor does not run then.
        settings: epochs, batch size, weights of the losses, arguments of SGD, seed.
        progress: show a bar with images/s.
        checkpoints: written after each epoch. If there are any, pretraining resumes
            from the newest and ends with the weights of an uninterrupted one, bit for
            bit (on a CPU, with the same number of threads).

    Returns:
        ``loss``, ``direct_accuracy`` and ``codebook_accuracy`` of each epoch on the
        training images; accuracies are in percent and measured during training.

    Raises:
        PretrainingDivergedError: the loss became NaN or infinite.
        CheckpointError: the checkpoints were written with other settings, are damaged
            or do not fit this pretraining, or the disk is full.
    """
    random_rows = torch.Generator().manual_seed(settings.seed)  # order of the images
    sampler = RandomSampler(maps, generator=random_rows)  # type: ignore[arg-type]
    batches = BatchSampler(sampler, settings.batch_size, drop_last=False)
    loader = DataLoader(maps, batch_sampler=batches, generator=random_rows)
    trained = list(trainable(model).values())
    optimizer = torch.optim.SGD(
        trained,
        settings.learning_rate,
        settings.momentum,
        weight_decay=settings.weight_decay,
    )
    n_images = len(sampler)
    history: list[dict[str, float]] = []
    if checkpoints is not None:
        # All that changes the result: checkpoints made with other settings are refused.
        result_settings = {
            **asdict(settings),
            "images": n_images,
            **checkpoints.settings,
        }
        checkpoints = CheckpointFolder(checkpoints.folder, result_settings)
        history = _resume(checkpoints, model, optimizer, random_rows)

    model.train()
    n_finished = len(history)  # epochs before the checkpoint
    for epoch in range(n_finished, settings.epochs):
        title = f"epoch {epoch + 1}"
        with progress_bar(n_images, title, show=progress) as bar:
            epoch_results = _train_epoch(
                model, loader, optimizer, settings, title, progress=bar.update
            )
        history.append(epoch_results)
        if checkpoints is not None:
            state = _checkpoint_state(model, optimizer, trained, random_rows)
            checkpoints.write(notes={"history": history}, state=state)
    model.eval()
    return history


def _train_epoch(
    model: SplitModel,
    loader: DataLoader,
    optimizer: torch.optim.SGD,
    settings: PretrainingSettings,
    title: str,
    progress: Callable[[int], object],
) -> dict[str, float]:
    """Train on all images once, a step a batch.

    Args:
        model, optimizer: of the pretraining; they change.
        loader: of batches of images, or maps, and labels.
        settings: of the pretraining.
        title: of the epoch, for the error.
        progress: called with the number of images after each step.

    Returns:
        Mean ``loss``, and ``direct_accuracy`` and ``codebook_accuracy`` in percent,
        during training.

    Raises:
        PretrainingDivergedError: the loss became NaN or infinite.
    """
    n_images = 0
    totals = torch.zeros(3)  # loss, and right answers without and with codebook
    for images, labels in loader:
        batch = _batch_losses(model, images, labels, settings)
        if not torch.isfinite(batch.loss):
            raise PretrainingDivergedError(
                f"the pretraining loss became {batch.loss.item()} in {title}; lower "
                "--learning-rate"
            )
        optimizer.zero_grad()
        batch.loss.backward()
        optimizer.step()
        loss_sum = float(batch.loss.detach()) * len(labels)
        totals += torch.tensor([loss_sum, batch.direct_right, batch.quantized_right])
        n_images += len(labels)
        progress(len(labels))
    loss, direct_share, quantized_share = (totals / n_images).tolist()
    return {
        "loss": loss,
        "direct_accuracy": 100 * direct_share,
        "codebook_accuracy": 100 * quantized_share,
    }


def _batch_losses(
    model: SplitModel, images: Tensor, labels: Tensor, settings: PretrainingSettings
) -> _BatchLosses:
    """Compute the loss of a batch, eq. 3, and how many of its answers are right.

    L = alpha CE(P(Z), y) + beta CE(P(Z~), y), with Z~ decoded from the codes of Z

    Args:
        model: with a codebook.
        images: ``(B, 3, h, w)`` images, or raw maps ``(B, C, H, W)``.
        labels: ``(B,)`` int64.
        settings: ``direct_weight`` is alpha, ``codebook_weight`` is beta.

    Returns:
        ``loss``, a scalar with a graph, and the numbers of right answers from ``Z``,
        ``direct_right``, and from ``Z~``, ``quantized_right``.
    """
    assert model.codebook is not None, "pretraining is of a codebook"
    device = model.pixel_mean.device
    labels = labels.to(device)
    feature_map = model.features(images.to(device))
    quantized_map = model.codebook.decode(model.encode(feature_map))
    direct_logits = model.classify(feature_map)
    quantized_logits = model.classify(quantized_map)
    criterion = nn.CrossEntropyLoss()
    loss = settings.direct_weight * criterion(direct_logits, labels)
    loss = loss + settings.codebook_weight * criterion(quantized_logits, labels)
    return _BatchLosses(
        loss=loss,
        direct_right=float((direct_logits.argmax(1) == labels).sum()),
        quantized_right=float((quantized_logits.argmax(1) == labels).sum()),
    )


def _checkpoint_state(
    model: SplitModel,
    optimizer: torch.optim.SGD,
    trained: Sequence[Tensor],
    random_rows: Generator,
) -> dict[str, Any]:
    """Return what a pretraining resumes from: weights, momenta and random numbers.

    Args:
        model: all its weights are in the state.
        optimizer: SGD, whose momenta are.
        trained: the weights that have a momentum, in the order of the optimiser.
        random_rows: generator of the order of the images.
    """
    momenta = []
    for weight in trained:
        momenta.append(optimizer.state[weight].get("momentum_buffer"))
    return {
        "model": model.state_dict(),
        "momentum": momenta,
        "rows": random_rows.get_state(),
        "rng": get_rng_state(),
    }


def _check_notes(notes: dict) -> None:
    """Raise StateError unless notes of a checkpoint hold a history of epochs."""
    check(record(history=each(EPOCH)), notes)


def _check_state(state: Any, trained: Sequence[Tensor]) -> None:
    """Raise StateError unless a state has the parts that ``_checkpoint_state`` writes.

    Args:
        state: of a checkpoint, of any type.
        trained: the weights, each with a momentum of its shape or ``None``.
    """
    generator_type = array(torch.uint8, None)  # bytes, any number of them
    parts = record(model=dict, momentum=list, rows=generator_type, rng=dict)
    check(parts, state)
    check(each(Any, size=len(trained)), state["momentum"], path="momentum")
    for index, weight in enumerate(trained):
        momentum_type = maybe(array(torch.float32, *weight.shape))
        check(momentum_type, state["momentum"][index], path=f"momentum[{index}]")


def _resume(
    checkpoints: CheckpointFolder,
    model: SplitModel,
    optimizer: torch.optim.SGD,
    random_rows: Generator,
) -> list[dict[str, float]]:
    """Restore the newest checkpoint; return the results of the epochs up to it.

    Without a checkpoint nothing is changed, and the list is empty.

    Args:
        checkpoints: folder of the checkpoints.
        model, optimizer, random_rows: of this pretraining; their state is replaced.

    Returns:
        ``loss``, ``direct_accuracy`` and ``codebook_accuracy`` of each finished epoch;
        accuracies are in percent.

    Raises:
        CheckpointError: the state does not fit this pretraining.
    """
    newest = checkpoints.newest(_check_notes)
    if newest is None:
        return []
    try:
        _restore(newest, model, optimizer, random_rows, source=str(checkpoints.folder))
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the state in {checkpoints.path(newest.number)} does not fit this "
            f"pretraining ({' '.join(str(error).split())}); remove that file to resume "
            "from the one before it"
        ) from error
    return newest.notes["history"]


def _restore(
    checkpoint: Checkpoint,
    model: SplitModel,
    optimizer: torch.optim.SGD,
    random_rows: Generator,
    source: str,
) -> None:
    """Load the state of a checkpoint into a pretraining, and set the global RNG.

    Args:
        checkpoint: its state has weights, momenta and random numbers, as
            ``_checkpoint_state`` returned them.
        model, optimizer, random_rows: of this pretraining; they are changed.
        source: folder of the checkpoints, which errors name.

    Raises:
        WeightsError, LookupError, TypeError, ValueError: the state does not fit.
    """
    state = checkpoint.state
    trained = optimizer.param_groups[0]["params"]  # weights, as momenta are in order
    _check_state(state, trained)
    check_and_load(model, state["model"], source)
    for weight, momentum in zip(trained, state["momentum"], strict=True):
        if momentum is not None:
            # With the strides of the weight: others may round differently.
            buffer = torch.empty_like(weight).copy_(momentum).detach()
            optimizer.state[weight]["momentum_buffer"] = buffer
    random_rows.set_state(state["rows"])
    set_rng_state(state["rng"])


def save_pretrained(
    path: str | os.PathLike, model: SplitModel, made_with: dict
) -> None:
    """Write a pretrained split model and the settings of its pretraining to a file.

    It has all weights, those of the feature extractor too. The file is written
    atomically and has checksums.

    Args:
        path: of the file.
        model: the pretrained model.
        made_with: plain values; at least ``backbone``, ``classes``, ``head_kernel``,
            ``codebook_size`` and ``codebook_dim``.
    """
    metadata = {"format": FORMAT, "made_with": json.dumps(made_with)}
    write_tensors(path, model.state_dict(), metadata)


def read_pretrained(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict]:
    """Read the state dict and the settings that ``save_pretrained`` wrote.

    Args:
        path: of the file.

    Returns:
        Tensors by name, and the checked settings: ``backbone``, ``classes`` and so on.

    Raises:
        WeightsError: the file is another one, or lacks a part.
    """
    try:
        tensors, metadata = read_tensors(path)
    except TensorFileError as error:
        raise WeightsError(str(error)) from error
    if metadata.get("format") != FORMAT:
        raise WeightsError(
            f"{path} was not written by crumb pretrain (its format is "
            f"{metadata.get('format')!r}, not {FORMAT!r}); plain network weights go to "
            "--weights"
        )
    try:
        made_with = loaded_json(metadata.get("made_with", ""))
        check(MADE_WITH, made_with)  # names, types and ranges
        n_classes = made_with["classes"]
        # The head has a row for each class; its name depends on the network.
        if not any(tensor.shape[:1] == (n_classes,) for tensor in tensors.values()):
            raise StateError(
                f"classes is {n_classes}, but no tensor has that many rows"
            )
    except StateError as error:
        raise WeightsError(
            f"{path} is damaged: the settings of its pretraining are wrong ({error}); "
            "pretrain again"
        ) from error
    return tensors, made_with
