"""Data parallelism over the processes of `torchrun`; a single process needs no setup.

Gradients are summed by one flat all-reduce after the last batch of an update, not by
DistributedDataParallel: it rebuilds its buckets after the first step, so that with more than two
ranks a resumed run would sum in another order than an uninterrupted one, with other bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from headwise.errors import ConfigError, Interrupted, refuse
from headwise.precision import disable_cudnn_attention

# The other ranks wait while the first prepares a corpus, which may take longer than torch's
# ten minutes; torchrun notices a rank that dies at once.
TIMEOUT = timedelta(hours=6)

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The rank of this process in a run.

    Attributes:
        rank: number of this process, from 0.
        world_size: number of processes.
        device: device of this process.
    """

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.rank == 0

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace every gradient by its sum over the ranks; None counts as zero."""
        if self.world_size == 1:
            return
        trained = [p for p in parameters if p.requires_grad]
        flat = torch.cat(
            [(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in trained]
        )
        dist.all_reduce(flat)
        parts = torch.split(flat, [p.numel() for p in trained])
        for parameter, summed in zip(trained, parts, strict=True):
            parameter.grad = summed.view_as(parameter)

    def sum(self, values: Tensor) -> Tensor:
        """Element-wise sum over the ranks."""
        if self.world_size == 1:
            return values
        total = values.to(self.device).clone()
        dist.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any rank; the same on every rank."""
        return bool(self.sum(torch.tensor(int(flag))).item()) if self.world_size > 1 else flag

    def share(self, items: list[T]) -> list[T]:
        """Every world_size-th item, starting at index `rank`."""
        return items[self.rank :: self.world_size]

    def gather(self, shares: list[T]) -> list[T]:
        """The inverse of `share`, on every rank."""
        if self.world_size == 1:
            return shares
        collected: list[list[T]] = [[]] * self.world_size
        dist.all_gather_object(collected, shares)
        indices = range(sum(map(len, collected)))
        return [collected[i % self.world_size][i // self.world_size] for i in indices]

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Run the block on the first rank before the others, which reuse its files."""
        if not self.is_main:
            self.barrier()
        yield
        if self.is_main:
            self.barrier()

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            dist.barrier()


def choose_device(name: str, local_rank: int = 0, key: str = "trainer.device") -> torch.device:
    """The device of a name; `auto` is the GPU of this rank if there is one.

    On a GPU it disables cuDNN's fused attention for the whole process.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if local_rank >= n_gpus:
            raise ConfigError(
                f"{key}=cuda, but process {local_rank + 1} of this machine sees {n_gpus} GPUs; "
                f"use {key}=cpu or fewer processes"
            )
        disable_cudnn_attention()
        return torch.device("cuda", local_rank)
    if name == "cpu":
        return torch.device("cpu")
    if name == "gpu":
        raise ConfigError(f"{key}=gpu is not supported, use {key}=cuda")
    raise refuse(key, name, ("auto", "cpu", "cuda"))


@contextmanager
def process_group(device_name: str) -> Iterator[Ranks]:
    """Join the process group that `torchrun` describes in environment variables; leave it after."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    device = choose_device(device_name, int(os.environ.get("LOCAL_RANK", "0")))
    if world_size == 1:
        yield Ranks(0, 1, device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    leave_together = True
    try:
        yield Ranks(dist.get_rank(), world_size, device)
    except BaseException as error:
        leave_together = isinstance(error, Interrupted)
        raise
    finally:
        # NCCL waits for the other ranks, which may wait for this one: exit without leaving, so that
        # torchrun stops them
        if leave_together or device.type == "cpu":
            dist.destroy_process_group()
