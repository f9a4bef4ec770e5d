"""Communication between the processes that ``torchrun`` started, with the same calls in a single process."""

import contextlib
import gc
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

# Longer than any work between two collective calls, such as passing images through F.
TIMEOUT = timedelta(hours=2)


class SingleProcess:
    """One process without others: its collective calls change nothing.

    Attributes:
        rank: number of this process; rank 0 is the leader, which alone writes files and shows progress.
        size: number of processes.
        local_size: number of processes on this machine.
        is_local_leader: whether this process is the first one on its machine.
    """

    rank = 0
    size = 1
    local_size = 1
    is_local_leader = True

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """Return the device of this process for ``cpu`` or ``cuda``."""
        return name

    def wrap(self, module: nn.Module) -> nn.Module:
        """Wrap a module so that its gradients are means over the processes."""
        return module

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        return values

    def broadcast_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the leader's tensors, on the CPU."""
        return tensors

    @torch.no_grad()
    def broadcast_module(self, module: nn.Module) -> None:
        """Copy the leader's parameters and buffers into the module of every process."""
        state = module.state_dict()
        for name, tensor in self.broadcast_tensors(state).items():
            state[name].copy_(tensor)

    def broadcast_value(self, value):
        """Return the leader's value, which JSON can hold."""
        return value

    def gather(self, values: Tensor) -> list[Tensor]:
        """Return the tensors of all processes in the order of ranks; they have one shape and are on the CPU."""
        return [values]

    def barrier(self) -> None:
        """Wait until all processes have made this call."""

    @contextlib.contextmanager
    def leader_first(self) -> Iterator[None]:
        """Run the block in the leader before it runs in the others, for instance a download."""
        if not self.is_leader:
            self.barrier()
        yield
        if self.is_leader:
            self.barrier()


class ProcessGroup(SingleProcess):
    """Several processes of ``torch.distributed``: gloo on CPUs, NCCL on GPUs with one GPU for each process."""

    def __init__(self, local_rank: int, local_size: int):
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.local_rank = local_rank
        self.local_size = local_size

    @property
    def is_local_leader(self) -> bool:
        return self.local_rank == 0

    def device(self, name: str) -> str:
        return f"cuda:{self.local_rank}" if name == "cuda" else name

    def wrap(self, module: nn.Module) -> nn.Module:
        """Wrap with ``DistributedDataParallel``; batch norm is over the whole batch on GPUs, over the share on CPUs."""
        if next(module.parameters()).device.type == "cuda":
            module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return DistributedDataParallel(module)

    def all_reduce(self, values: Tensor) -> Tensor:
        there = values.to(self._device())
        dist.all_reduce(there)
        return there.to(values.device)

    def broadcast_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        kinds = {name: [list(one.shape), str(one.dtype).removeprefix("torch.")] for name, one in tensors.items()}
        found = {}
        for name, (shape, dtype) in self.broadcast_value(kinds).items():
            there = torch.empty(shape, dtype=getattr(torch, dtype), device=self._device())
            if self.is_leader:
                there.copy_(tensors[name])
            dist.broadcast(there, 0)
            found[name] = there.cpu()
        return found

    def broadcast_value(self, value):
        # As JSON: torch's broadcast_object_list uses pickle.
        text = json.dumps(value).encode() if self.is_leader else b""
        length = torch.tensor([len(text)], device=self._device())
        dist.broadcast(length, 0)
        letters = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_leader:
            letters = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        letters = letters.to(self._device())
        dist.broadcast(letters, 0)
        return json.loads(bytes(letters.cpu().numpy()))

    def gather(self, values: Tensor) -> list[Tensor]:
        there = values.to(self._device())
        everyones = [torch.empty_like(there) for _ in range(self.size)]
        dist.all_gather(everyones, there)
        return [one.cpu() for one in everyones]

    def barrier(self) -> None:
        self.all_reduce(torch.zeros(1))

    def _device(self) -> str:
        return f"cuda:{self.local_rank}" if dist.get_backend() == "nccl" else "cpu"


def _exit_with_parent(parent: int) -> None:
    """Kill this process when torchrun ends: the same command, started again, writes the same files."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def processes(device: str) -> Iterator[SingleProcess]:
    """Yield the ``ProcessGroup`` of this ``torchrun``, or a ``SingleProcess`` without it.

    Args:
        device: cpu or cuda.

    Raises:
        ValueError: fewer GPUs than processes on this machine.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ and not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        yield SingleProcess()
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
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    try:
        yield ProcessGroup(local_rank, local_size)
    finally:
        # A reference to the group keeps its threads, which abort the process if they outlive the interpreter.
        gc.collect()
        dist.destroy_process_group()
        gc.collect()
