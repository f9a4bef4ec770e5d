"""CRUMB pretraining of plastic layers and codebook (paper, "Initializing the codebook matrix and CNN")."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import WeightsError
from crumb_avalanche.system.process_group import SingleProcess
from crumb_avalanche.system.progress import progress_bar
from crumb_avalanche.system.tensor_file import TensorFileError, read_tensors, write_tensors
from crumb_avalanche.training.checkpoint import CheckpointFolder
from crumb_avalanche.training.pretraining_state import State

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


class Shares:
    """Batch sampler that yields the part of each batch for one of several processes.

    The parts of all processes make up the batch. A process whose part of a small batch is empty gets the first item of
    the batch, which the caller must not count.

    Args:
        batches: batches of row numbers, the same in each process.
        rank: number of this process.
        size: number of processes.
    """

    def __init__(self, batches: BatchSampler, rank: int, size: int):
        self.batches = batches
        self.rank = rank
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            yield batch[self.rank :: self.size] or batch[:1]

    def __len__(self) -> int:
        return len(self.batches)


class BothLogits(nn.Module):
    """Compute direct and codebook-out logits in one module, as averaging gradients over processes requires."""

    def __init__(self, model: SplitModel):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        feature_map = self.model.features(images)
        direct = self.model.classify(feature_map)
        return direct, self.model.classify(self.model.codebook.decode(self.model.encode(feature_map)))


def pretrain(
    model: SplitModel,
    maps: Dataset,
    settings: PretrainingSettings,
    progress: bool = True,
    checkpoints: CheckpointFolder | None = None,
    group: SingleProcess | None = None,
) -> list[dict[str, float]]:
    """Train plastic layers and codebook on shuffled, labelled images; F does not change.

    Paper: "Initializing the codebook matrix and CNN", with the loss of eq. 3.

    Several processes share each batch of ``batch_size``: the gradient is that of the whole batch, and the losses are
    those of one process up to rounding, where P has no dropout (each process draws its own) and no batch norm.

    Args:
        model: with an initialised codebook and a head for all classes; trained in place.
        maps: items ``(image, label)`` with images as for ``SplitModel.extract``; or ``(raw feature map, label)`` with
            maps of ``(C, H, W)``, as a ``MapStore`` returns them: F does not run then.
        settings: see ``PretrainingSettings``.
        progress: show a bar with images/s.
        checkpoints: written after each epoch. If there are any, pretraining resumes from the newest and ends with the
            weights of an uninterrupted one, bit for bit (on a CPU, with the same number of threads).
        group: processes that share the work (see ``process_group.processes``); default this process alone.

    Returns:
        ``loss``, ``direct_accuracy`` and ``codebook_accuracy`` of each epoch on the training images; accuracies are in
        percent and measured during training.

    Raises:
        PretrainingDivergedError: the loss became NaN or infinite.
        CheckpointError: the checkpoints were written with other settings or are damaged, or the disk is full.
    """
    group = group or SingleProcess()
    device = model.pixel_mean.device
    random_rows = torch.Generator().manual_seed(settings.seed)
    batches = BatchSampler(RandomSampler(maps, generator=random_rows), settings.batch_size, drop_last=False)
    loader = DataLoader(maps, batch_sampler=Shares(batches, group.rank, group.size), generator=random_rows)
    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    criterion = nn.CrossEntropyLoss()
    if group.rank:
        torch.manual_seed(torch.initial_seed() + group.rank)  # for different dropout masks
    state = State(model, optimizer, random_rows, group)
    history = []
    if checkpoints is not None:
        decides = {**asdict(settings), "images": len(maps), **checkpoints.settings}
        checkpoints = CheckpointFolder(checkpoints.folder, decides)
        history = state.take(checkpoints)
    both_logits = group.wrap(BothLogits(model))
    both_logits.train()
    for epoch in range(len(history), settings.epochs):
        totals = torch.zeros(3)
        hidden = not (progress and group.is_leader)
        with progress_bar(len(maps), f"epoch {epoch + 1}", show=not hidden) as bar:
            for number, (images, labels) in enumerate(loader):
                count = min(settings.batch_size, len(maps) - number * settings.batch_size)  # of all processes
                counted = len(labels) if group.rank < count else 0
                labels = labels.to(device)
                direct, quantized = both_logits(images.to(device))
                loss = settings.direct_weight * criterion(direct, labels)
                loss = loss + settings.codebook_weight * criterion(quantized, labels)
                if not torch.isfinite(loss):
                    raise PretrainingDivergedError(
                        f"the pretraining loss became {loss.item()} in epoch {epoch + 1}; lower --learning-rate"
                    )
                optimizer.zero_grad()
                # The gradient is averaged over processes, whose parts may differ by one image.
                (loss * (counted * group.size / count)).backward()
                optimizer.step()
                right = [float((logits.argmax(1) == labels).sum()) for logits in (direct, quantized)]
                if counted:
                    totals += torch.tensor([float(loss.detach()) * counted, *right])
                bar.update(count)
        loss_mean, direct_mean, quantized_mean = (group.all_reduce(totals) / len(maps)).tolist()
        history.append(
            {"loss": loss_mean, "direct_accuracy": 100 * direct_mean, "codebook_accuracy": 100 * quantized_mean}
        )
        if checkpoints is not None:
            state.keep(checkpoints, history)
    model.eval()
    return history


def save_pretrained(path: str | os.PathLike, model: SplitModel, made_with: dict) -> None:
    """Write a split model, F included, and the settings of its pretraining, atomically and with checksums.

    Args:
        path: a ``.safetensors`` file.
        model: the pretrained model.
        made_with: settings as plain values; at least ``backbone``, ``classes``, ``head_kernel``, ``codebook_size`` and
            ``codebook_dim``.
    """
    write_tensors(path, model.state_dict(), {"format": FORMAT, "made_with": json.dumps(made_with)})


def read_pretrained(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict]:
    """Read the state dict and the settings that ``save_pretrained`` wrote.

    A file of an older version has no checksums; it is read with a warning.

    Raises:
        WeightsError: the file is absent, damaged, or of another format.
    """
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
