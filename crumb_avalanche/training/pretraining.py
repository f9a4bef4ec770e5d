"""CRUMB pretraining of plastic layers and codebook (paper, "Initializing the codebook matrix and CNN").

The processes that ``torchrun`` starts share its work; see ``processes``.
"""

import gc
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import WeightsError, check_and_load
from crumb_avalanche.system.progress import progress_bar
from crumb_avalanche.system.rng_state import get_rng_state, set_rng_state
from crumb_avalanche.system.tensor_file import TensorFileError, read_tensors, write_tensors
from crumb_avalanche.training.checkpoint import CheckpointError, CheckpointFolder

FORMAT = "crumb-pretrained-1"
# Longer than any work between two collective calls, such as passing images through F.
TIMEOUT = timedelta(hours=2)


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
class ProcessGroup:
    """Processes that share a pretraining; the collective calls of a single one change nothing.

    Attributes:
        rank: number of this process; rank 0 is the leader, which alone writes files and shows progress.
        size: number of processes.
        local_rank: number of this process on its machine.
        local_size: number of processes on this machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """Return the device of this process for ``cpu`` or ``cuda``."""
        return f"cuda:{self.local_rank}" if name == "cuda" and self.size > 1 else name

    def wrap(self, module: nn.Module) -> nn.Module:
        """Wrap a module so that its gradients are means over the processes, which begin with the leader's weights.

        Batch norm is over the whole batch on GPUs, over the share on CPUs.
        """
        if self.size == 1:
            return module
        if next(module.parameters()).is_cuda:
            module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return DistributedDataParallel(module)

    @torch.no_grad()
    def broadcast_module(self, module: nn.Module) -> None:
        """Copy the leader's parameters and buffers into the module of every process."""
        for tensor in module.state_dict().values() if self.size > 1 else ():
            dense = tensor.contiguous()
            dist.broadcast(dense, 0)
            tensor.copy_(dense)

    def broadcast(self, value: Any) -> Any:
        """Return the leader's value."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, 0)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in the order of ranks."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def barrier(self) -> None:
        """Wait until all processes have made this call."""
        self.all_reduce(torch.zeros(1))

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        """Run the block in the leader before it runs in the others, for instance a download."""
        if not self.is_leader:
            self.barrier()
        yield
        if self.is_leader:
            self.barrier()


def _exit_with_parent(parent: int) -> None:
    """Kill this process when torchrun ends: the same command, started again, writes the same files."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def processes(device: str) -> Iterator[ProcessGroup]:
    """Yield the processes of this ``torchrun``, or this process alone without it.

    Args:
        device: cpu, where they communicate by gloo, or cuda, by NCCL with a GPU for each process.

    Raises:
        ValueError: fewer GPUs than processes on this machine.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ and not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        yield ProcessGroup()
        return
    local_rank, local_size = (int(os.environ.get(name, n)) for name, n in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
    on_gpu = device.startswith("cuda")
    if on_gpu and local_size > torch.cuda.device_count():
        raise ValueError(
            f"torchrun started {local_size} processes on this machine, which has {torch.cuda.device_count()} GPUs; "
            "start one for each GPU (--nproc-per-node), or give --device cpu"
        )
    if on_gpu:
        torch.cuda.set_device(local_rank)
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size(), local_rank, local_size)
    finally:
        # A reference to the group keeps its threads, which abort the process if they outlive the interpreter.
        gc.collect()
        dist.destroy_process_group()
        gc.collect()


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
    group: ProcessGroup | None = None,
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
        group: processes that share the work (see ``processes``); default this process alone.

    Returns:
        ``loss``, ``direct_accuracy`` and ``codebook_accuracy`` of each epoch on the training images; accuracies are in
        percent and measured during training.

    Raises:
        PretrainingDivergedError: the loss became NaN or infinite.
        CheckpointError: the checkpoints were written with other settings or are damaged, or the disk is full.
    """
    group = group or ProcessGroup()
    device = model.pixel_mean.device
    random_rows = torch.Generator().manual_seed(settings.seed)
    batches = BatchSampler(RandomSampler(maps, generator=random_rows), settings.batch_size, drop_last=False)
    loader = DataLoader(maps, batch_sampler=Shares(batches, group.rank, group.size), generator=random_rows)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(
        learned,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    criterion = nn.CrossEntropyLoss()
    if group.rank:
        torch.manual_seed(torch.initial_seed() + group.rank)  # for different dropout masks
    history = []
    if checkpoints is not None:
        decides = {**asdict(settings), "images": len(maps), **checkpoints.settings}
        checkpoints = CheckpointFolder(checkpoints.folder, decides)
        history = _resume(checkpoints, model, optimizer, random_rows, group)
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
            rng_states = group.gather(get_rng_state())
            if group.is_leader:
                state = {
                    "model": model.state_dict(),
                    "momentum": [optimizer.state[weights].get("momentum_buffer") for weights in learned],
                    "rows": random_rows.get_state(),
                    "rng": rng_states,
                }
                checkpoints.write({"history": history, "processes": group.size}, state)
    model.eval()
    return history


def _resume(
    checkpoints: CheckpointFolder,
    model: SplitModel,
    optimizer: torch.optim.SGD,
    random_rows: torch.Generator,
    group: ProcessGroup,
) -> list[dict[str, float]]:
    """Restore the leader's newest checkpoint in every process; return the history up to it.

    Raises:
        CheckpointError: see ``CheckpointFolder.newest``; or the number of processes differs.
    """
    found = group.broadcast(checkpoints.newest() if group.is_leader else None)
    if found is None:
        return []
    if found.notes["processes"] != group.size:
        raise CheckpointError(
            f"{checkpoints.folder} is of a pretraining in {found.notes['processes']} processes, not {group.size}; "
            f"start as many (torchrun --nproc-per-node), or remove {checkpoints.folder} to start over"
        )
    state = found.state
    check_and_load(model, state["model"], str(checkpoints.folder))
    for weights, momentum in zip(optimizer.param_groups[0]["params"], state["momentum"], strict=True):
        if momentum is not None:  # with the strides of the weights: others may round differently
            optimizer.state[weights]["momentum_buffer"] = torch.empty_like(weights).copy_(momentum).detach()
    random_rows.set_state(state["rows"])
    set_rng_state(state["rng"][group.rank])
    return found.notes["history"]


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
