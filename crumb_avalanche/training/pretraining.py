"""CRUMB pretraining of plastic layers and codebook (paper, "Initializing the codebook matrix and CNN")."""

import json
import os
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from benchmarks_toybox_ilab.tables.progress import progress_bar
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import WeightsError, check_and_load
from crumb_avalanche.system.process import get_rng_state, set_rng_state
from crumb_avalanche.system.tensor_file import (
    TensorFileError,
    read_tensors,
    write_tensors,
)
from crumb_avalanche.training.checkpoint import CheckpointFolder

FORMAT = "crumb-pretrained-1"


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


def pretrain(
    model: SplitModel,
    maps: Dataset,
    settings: PretrainingSettings,
    progress: bool = True,
    checkpoints: CheckpointFolder | None = None,
) -> list[dict[str, float]]:
    """Train plastic layers and codebook on shuffled, labelled images; F does not change.

    Paper: "Initializing the codebook matrix and CNN", with the loss of eq. 3.

    Args:
        model: with an initialised codebook and a head for all classes; trained in
            place.
        maps: items ``(image, label)`` with images as for ``SplitModel.extract``; or
            ``(raw feature map, label)`` with maps of ``(C, H, W)``, as a ``MapStore``
            returns them: F does not run then.
        settings: see ``PretrainingSettings``.
        progress: show a bar with images/s.
        checkpoints: written after each epoch. If there are any, pretraining resumes
            from the newest and ends with the weights of an uninterrupted one, bit for
            bit (on a CPU, with the same number of threads).

    Returns:
        ``loss``, ``direct_accuracy`` and ``codebook_accuracy`` of each epoch on the
        training images; accuracies are in percent and measured during training.

    Raises:
        PretrainingDivergedError: the loss became NaN or infinite.
        CheckpointError: the checkpoints were written with other settings or are
            damaged, or the disk is full.
    """
    device = model.pixel_mean.device
    random_rows = torch.Generator().manual_seed(settings.seed)
    batches = BatchSampler(
        RandomSampler(maps, generator=random_rows), settings.batch_size, drop_last=False
    )
    loader = DataLoader(maps, batch_sampler=batches, generator=random_rows)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(
        learned,
        settings.learning_rate,
        settings.momentum,
        weight_decay=settings.weight_decay,
    )
    criterion = nn.CrossEntropyLoss()
    history = []
    if checkpoints is not None:
        decides = {**asdict(settings), "images": len(maps), **checkpoints.settings}
        checkpoints = CheckpointFolder(checkpoints.folder, decides)
        history = _resume(checkpoints, model, optimizer, random_rows)
    model.train()
    for epoch in range(len(history), settings.epochs):
        totals = torch.zeros(3)  # loss, and right answers without and with codebook
        with progress_bar(len(maps), f"epoch {epoch + 1}", show=progress) as bar:
            for images, labels in loader:
                labels = labels.to(device)
                feature_map = model.features(images.to(device))
                direct = model.classify(feature_map)
                quantized = model.classify(
                    model.codebook.decode(model.encode(feature_map))
                )
                loss = settings.direct_weight * criterion(direct, labels)
                loss = loss + settings.codebook_weight * criterion(quantized, labels)
                if not torch.isfinite(loss):
                    raise PretrainingDivergedError(
                        f"the pretraining loss became {loss.item()} in epoch {epoch + 1}; lower --learning-rate"
                    )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right = [
                    float((logits.argmax(1) == labels).sum())
                    for logits in (direct, quantized)
                ]
                totals += torch.tensor([float(loss.detach()) * len(labels), *right])
                bar.update(len(labels))
        loss_mean, direct_mean, quantized_mean = (totals / len(maps)).tolist()
        history.append(
            {
                "loss": loss_mean,
                "direct_accuracy": 100 * direct_mean,
                "codebook_accuracy": 100 * quantized_mean,
            }
        )
        if checkpoints is not None:
            state = {
                "model": model.state_dict(),
                "momentum": [
                    optimizer.state[weights].get("momentum_buffer")
                    for weights in learned
                ],
                "rows": random_rows.get_state(),
                "rng": get_rng_state(),
            }
            checkpoints.write({"history": history}, state)
    model.eval()
    return history


def _resume(
    checkpoints: CheckpointFolder,
    model: SplitModel,
    optimizer: torch.optim.SGD,
    random_rows: torch.Generator,
) -> list[dict[str, float]]:
    """Restore the newest checkpoint; return the history up to it."""
    found = checkpoints.newest()
    if found is None:
        return []
    state = found.state
    check_and_load(model, state["model"], str(checkpoints.folder))
    for weights, momentum in zip(
        optimizer.param_groups[0]["params"], state["momentum"], strict=True
    ):
        if (
            momentum is not None
        ):  # with the strides of the weights: others may round differently
            optimizer.state[weights]["momentum_buffer"] = (
                torch.empty_like(weights).copy_(momentum).detach()
            )
    random_rows.set_state(state["rows"])
    set_rng_state(state["rng"])
    return found.notes["history"]


def save_pretrained(
    path: str | os.PathLike, model: SplitModel, made_with: dict
) -> None:
    """Write a split model, F included, and the settings of its pretraining, atomically and with checksums.

    ``made_with`` are plain values; at least ``backbone``, ``classes``, ``head_kernel``,
    ``codebook_size`` and ``codebook_dim``.
    """
    write_tensors(
        path, model.state_dict(), {"format": FORMAT, "made_with": json.dumps(made_with)}
    )


def read_pretrained(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict]:
    """Read the state dict and the settings that ``save_pretrained`` wrote; ``WeightsError`` for any other file."""
    try:
        tensors, metadata = read_tensors(path)
    except TensorFileError as error:
        raise WeightsError(str(error)) from error
    if metadata.get("format") != FORMAT:
        raise WeightsError(
            f"{path} was not written by crumb pretrain (its format is {metadata.get('format')!r}, not {FORMAT!r}); "
            "plain network weights go to --weights"
        )
    return tensors, json.loads(metadata["made_with"])
