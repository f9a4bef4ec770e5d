"""The processes that `torchrun` started, or one alone: what one has to say to the others."""

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

# Longer than any share of the work that is not in step, such as passing images through F.
PATIENCE = timedelta(hours=2)


class Alone:
    """One process: nobody to share with.

    Attributes:
        rank: number of this process, 0 leads: it alone writes and shows progress.
        size: how many there are.
        neighbours: how many of them are on this machine.
        leads_machine: whether this is the first one on its machine.
    """

    rank = 0
    size = 1
    neighbours = 1
    leads_machine = True

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """The device of this process, where all are told ``cpu`` or ``cuda``."""
        return name

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with gradients that are means over the processes."""
        return module

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return values

    def tensors_of_leader(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The leader's tensors, on the CPU."""
        return tensors

    @torch.no_grad()
    def take_from_leader(self, module: nn.Module) -> None:
        """Give every process the leader's parameters and buffers."""
        state = module.state_dict()
        for name, tensor in self.tensors_of_leader(state).items():
            state[name].copy_(tensor)

    def told_by_leader(self, value):
        """The leader's value of plain Python: text, numbers, lists."""
        return value

    def gather(self, values: Tensor) -> list[Tensor]:
        """The tensor of every process, all of one shape and on the CPU."""
        return [values]

    def wait(self) -> None:
        """Until all are here."""

    @contextlib.contextmanager
    def leader_first(self) -> Iterator[None]:
        """The leader does the block before the others do: downloads, for instance."""
        if not self.leads:
            self.wait()
        yield
        if self.leads:
            self.wait()


class Together(Alone):
    """Several processes in a group of ``torch.distributed``: gloo on CPUs, NCCL on GPUs, one GPU each."""

    def __init__(self, local_rank: int, neighbours: int):
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.local_rank = local_rank
        self.neighbours = neighbours

    @property
    def leads_machine(self) -> bool:
        return self.local_rank == 0

    def device(self, name: str) -> str:
        return f"cuda:{self.local_rank}" if name == "cuda" else name

    def wrap(self, module: nn.Module) -> nn.Module:
        """As ``DistributedDataParallel``; batch norm sees the whole batch on GPUs, and each process's share on CPUs."""
        if next(module.parameters()).device.type == "cuda":
            module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return DistributedDataParallel(module)

    def add_up(self, values: Tensor) -> Tensor:
        there = values.to(self._device())
        dist.all_reduce(there)
        return there.to(values.device)

    def tensors_of_leader(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        kinds = {name: [list(one.shape), str(one.dtype).removeprefix("torch.")] for name, one in tensors.items()}
        found = {}
        for name, (shape, dtype) in self.told_by_leader(kinds).items():
            there = torch.empty(shape, dtype=getattr(torch, dtype), device=self._device())
            if self.leads:
                there.copy_(tensors[name])
            dist.broadcast(there, 0)
            found[name] = there.cpu()
        return found

    def told_by_leader(self, value):
        # Text in a tensor: torch's own way for objects is pickle.
        text = json.dumps(value).encode() if self.leads else b""
        length = torch.tensor([len(text)], device=self._device())
        dist.broadcast(length, 0)
        letters = torch.zeros(int(length), dtype=torch.uint8)
        if self.leads:
            letters = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        letters = letters.to(self._device())
        dist.broadcast(letters, 0)
        return json.loads(bytes(letters.cpu().numpy()))

    def gather(self, values: Tensor) -> list[Tensor]:
        there = values.to(self._device())
        everyones = [torch.empty_like(there) for _ in range(self.size)]
        dist.all_gather(everyones, there)
        return [one.cpu() for one in everyones]

    def wait(self) -> None:
        self.add_up(torch.zeros(1))

    def _device(self) -> str:
        return f"cuda:{self.local_rank}" if dist.get_backend() == "nccl" else "cpu"


def _follow_the_parent(parent: int) -> None:
    """End at once where torchrun was killed: the same command, given again, writes the same files."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def processes(device: str) -> Iterator[Alone]:
    """The processes of this ``torchrun``, or ``Alone()`` where there is none.

    Args:
        device: cpu or cuda.

    Raises:
        ValueError: fewer GPUs than processes on this machine.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ and not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        yield Alone()
        return
    local_rank, neighbours = (int(os.environ.get(name, n)) for name, n in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
    on_gpu = device.startswith("cuda")
    if on_gpu and neighbours > torch.cuda.device_count():
        raise ValueError(
            f"torchrun started {neighbours} processes on this machine, which has {torch.cuda.device_count()} GPUs; "
            "start one for each GPU (--nproc-per-node), or give --device cpu"
        )
    if on_gpu:
        torch.cuda.set_device(local_rank)
    threading.Thread(target=_follow_the_parent, args=(os.getppid(),), daemon=True).start()
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE)
    try:
        yield Together(local_rank, neighbours)
    finally:
        # What still holds the group keeps its threads, which abort the process if they outlive the interpreter.
        gc.collect()
        dist.destroy_process_group()
        gc.collect()
