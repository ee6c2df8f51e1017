"""Data parallelism over the processes of `torchrun`; a single process needs no setup.

Gradients are summed during the backward pass (`Ranks.overlapped`), or with `trainer.compile` by one
all-reduce after it (`Ranks.sum_gradients`). In both the order of the sum is fixed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from headwise.config.schema import TrainerConfig
from headwise.data.loader import BatchLoader, Examples, Prefetched
from headwise.errors import ConfigError, Interrupted, RunError, counted, refuse
from headwise.precision import disable_cudnn_attention, use_deterministic_kernels
from headwise.runs.environment import rank_variables
from headwise.train.interrupt import ended_by_signals
from headwise.train.memory import keep_freed_memory

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
        started_with: world_size when a run that resumes was started; None: the same.
    """

    rank: int
    world_size: int
    device: torch.device
    started_with: int | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.rank == 0

    @property
    def n_shares(self) -> int:
        """Ranks that the run was started with: a batch has `trainer.max_tokens` for each."""
        return self.started_with or self.world_size

    @property
    def n_pieces(self) -> int:
        """Pieces of a batch that a rank trains on one after the other; 1 unless ranks are lost."""
        return -(-self.n_shares // self.world_size)

    def overlapped(self, module: nn.Module) -> DistributedDataParallel:
        """A module that sums its gradients over the ranks during its backward pass.

        The order of the sum is fixed: with `find_unused_parameters` the buckets are those of the
        order of the parameters. Otherwise DistributedDataParallel rebuilds them after the first
        step, and a resumed run would sum in another order than an uninterrupted one.
        """
        # its successor is not in torch 2.8
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        wrapped = DistributedDataParallel(
            module,
            broadcast_buffers=False,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
        )
        wrapped.register_comm_hook(None, lambda _, bucket: _start_sum(bucket.buffer()))
        return wrapped

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over the ranks; it is None if it is None on all."""
        if self.world_size == 1:
            return
        trained = [p for p in parameters if p.requires_grad]
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in trained]
        used = torch.tensor([float(p.grad is not None) for p in trained], device=self.device)
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), used])
        with ended_by_signals():
            dist.all_reduce(flat)
        *parts, used = torch.split(flat, [*(p.numel() for p in trained), len(trained)])
        for parameter, summed, n_used in zip(trained, parts, used, strict=True):
            if parameter.grad is not None or n_used:  # `n_used` would wait for a GPU
                parameter.grad = summed.view_as(parameter)

    def sum(self, values: Tensor) -> Tensor:
        """Element-wise sum over the ranks."""
        if self.world_size == 1:
            return values
        total = values.to(self.device).clone()
        with ended_by_signals():
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
        with ended_by_signals():
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
            with ended_by_signals():
                dist.barrier()


def _start_sum(bucket: Tensor) -> torch.futures.Future[Tensor]:
    """Sum a bucket over the ranks; without this hook the result is the mean."""
    future: torch.futures.Future[list[Tensor]] = dist.all_reduce(bucket, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


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
                f"{key}=cuda, but process {local_rank + 1} of this machine sees "
                f"{counted(n_gpus, 'GPU')}; use {key}=cpu or fewer processes"
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
    rank, world_size, local_rank = rank_variables()
    device = choose_device(device_name, local_rank)
    if world_size == 1:
        yield Ranks(0, 1, device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        with ended_by_signals():
            store, *_ = next(rendezvous("env://", timeout=TIMEOUT))
            # torchrun's store outlives a restart: the new processes would read old addresses
            store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT
            )
    except RuntimeError as error:
        address = ":".join(os.environ[f"MASTER_{part}"] for part in ("ADDR", "PORT"))
        reason = str(error).splitlines()[0]
        raise RunError(f"no connection between processes at {address}: {reason}") from error
    leave_together = True
    try:
        yield Ranks(rank, world_size, device)
    except BaseException as error:
        leave_together = isinstance(error, Interrupted)
        # gloo raises RuntimeError, with its source file
        if isinstance(error, dist.DistError) or (
            type(error) is RuntimeError and "gloo" in str(error)
        ):
            raise RunError(
                "another process of this run has ended; the reason is in its own output"
            ) from error
        raise
    finally:
        # NCCL waits for the other ranks, which may wait for this one: exit without leaving, so that
        # torchrun stops them
        if leave_together or device.type == "cpu":
            dist.destroy_process_group()


@contextmanager
def training_process(config: TrainerConfig) -> Iterator[Ranks]:
    """Set the threads, the memory and the kernels of this process, and join its group."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    keep_freed_memory()
    with process_group(config.device) as ranks:
        use_deterministic_kernels(ranks.device)
        yield ranks


def training_batches(examples: Examples, ranks: Ranks) -> Prefetched:
    """Batches of this rank, prefetched in the background; the caller closes it."""
    loader = BatchLoader(examples, ranks.rank, ranks.world_size, ranks.n_pieces)
    return Prefetched(loader, gpu=ranks.device if ranks.device.type == "cuda" else None)
