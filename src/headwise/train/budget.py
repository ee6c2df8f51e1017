"""Parameters and FLOPs of a run, and memory of its weights, before it starts.

Counted by torch on the meta device, whose tensors have shapes but no values: one forward and
backward pass of the configured model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headwise.config.schema import Config
from headwise.data.batch import Batch, Column
from headwise.data.loader import windows_per_batch
from headwise.model.family import Model, n_parameters
from headwise.ops.flops import register_flops
from headwise.train.distributed import choose_device
from headwise.train.kernels import kernels_of

SENTENCE_TOKENS = 60  # assumed length of both sides
ROWS = 2  # of the counted batch; all figures are proportional to it
CPU_FLOPS = 2e12  # of an update that is timed on CPUs: a minute on a core
BYTES_PER_WEIGHT = 16  # weight, gradient and Adam's two moments in float32


class Planned(Protocol):
    """What is known of a run before its data are read; a `headwise.tasks.task.Task`."""

    config: Config

    @property
    def loss(self) -> nn.Module:
        """The loss of the config."""
        ...

    @property
    def row_tokens(self) -> int | None:
        """Tokens of every row; None: rows have different numbers of tokens."""
        ...

    def sizes(self) -> Mapping[str, int]:
        """Sizes of the vocabularies, or their upper limits."""
        ...

    def model(self, sizes: Mapping[str, int]) -> Model:
        """Build a model."""
        ...


@dataclass(frozen=True)
class Budget:
    """Requirements of one rank for one update.

    Attributes:
        n_parameters: scalars of the model, tied ones counted once.
        n_alphas: number of logits of α among them.
        flops: part -> FLOPs of the matmuls of an update, with backward and recomputation.
        weight_bytes: weights, gradients and moments.
        kernels: part -> kernel (reason); empty if this machine lacks the device.
    """

    n_parameters: int
    n_alphas: int
    flops: dict[str, float]
    weight_bytes: float
    kernels: dict[str, str]

    @property
    def is_measured(self) -> bool:
        """Whether updates are timed: not if they take minutes, nor for another machine."""
        fits = torch.cuda.is_available() or sum(self.flops.values()) < CPU_FLOPS
        return bool(self.kernels) and fits


def batch_tokens(task: Planned) -> int:
    """Return the tokens of a full batch of a rank; rows of one length are whole."""
    most, length = task.config.trainer.max_tokens, task.row_tokens
    return most if length is None else windows_per_batch(most, length) * length


def budget(task: Planned, length: int | None = None) -> Budget:
    """Estimate for full batches of rows with `length` tokens in every column.

    Products of masked pairs that are computed are counted: all of dense attention; with a pattern,
    those of the slots of its layout.

    Args:
        task: of the run.
        length: None: that of every row, or `SENTENCE_TOKENS`.
    """
    trainer, length = task.config.trainer, length or task.row_tokens or SENTENCE_TOKENS
    with torch.device("meta"):
        model = task.model(task.sizes())
        ids = torch.zeros(ROWS, length, dtype=torch.long)
        column = Column(ids, torch.zeros(ROWS, dtype=torch.long))
        batch = Batch(dict.fromkeys(model.columns, column), ids, ids, list(range(ROWS)), 0)
    model.train(task.config.model.recompute)
    register_flops()
    with FlopCounterMode(display=False) as counter:
        states_BTD = model.states(**model.inputs(batch))
        torch.autograd.backward((states_BTD @ model.output.weight.T).sum())
    # the run may be planned on a machine without the GPU
    device = torch.device("cuda") if trainer.device == "cuda" else choose_device(trainer.device)
    is_here = device.type == "cpu" or torch.cuda.is_available()
    kernels = kernels_of(model, task.loss, trainer.precision, device) if is_here else {}
    batches = trainer.accumulate * batch_tokens(task) / (ROWS * length)
    alphas = [p.numel() for name, p in model.named_parameters() if name.endswith("alpha_logit")]
    n_weights = n_parameters(model)
    return Budget(
        n_parameters=n_weights,
        n_alphas=sum(alphas),
        flops={part: batches * n for part, n in _by_part(counter.get_flop_counts()).items()},
        weight_bytes=float(n_weights * BYTES_PER_WEIGHT),
        kernels=kernels,
    )


def _by_part(counts: Mapping[str, Mapping[object, int]]) -> dict[str, float]:
    """FLOPs by part of the model, from FLOPs by module and operator."""
    total = sum(counts["Global"].values())
    linear = (torch.ops.aten.mm, torch.ops.aten.addmm)
    parts = {
        "attention": sum(n for op, n in counts["Global"].items() if op not in linear),
        "feed-forward": sum(
            sum(ops.values()) for name, ops in counts.items() if name.endswith(".feed_forward")
        ),
        "vocabulary": total - sum(counts["Stack"].values()),
    }
    return {"projections": float(total - sum(parts.values())), **parts}


def describe_budget(task: Planned, needs: Budget) -> str:
    """Parameters, memory of the weights, and FLOPs of an update, as text."""
    config, length, n_updates = task.config, task.row_tokens, task.config.trainer.max_updates
    flops = sum(needs.flops.values())
    tokens = batch_tokens(task) * config.trainer.accumulate
    if length is None:
        rows = "padded tokens per side and rank"
        note = [f"(sentences of {SENTENCE_TOKENS} tokens; shorter ones need less)"]
    else:
        rows, note = f"tokens per rank (rows of {length:,})", []
    lines = [
        f"model {config.model.name}: {needs.n_parameters:,} parameters, {needs.n_alphas} of them α",
        f"update: {tokens:,} {rows}, {_engineering(flops)}FLOP",
        *(f"  {name:<15} {_engineering(n):>9}FLOP" for name, n in needs.flops.items()),
        f"memory: {needs.weight_bytes / 2**30:.2f} GiB of weights, gradients and moments",
        f"{n_updates:,} updates: {_engineering(flops * n_updates)}FLOP per rank",
        *note,
        *(f"  {part}: {kernel}" for part, kernel in needs.kernels.items()),
    ]
    return "\n".join(lines)


def _engineering(number: float) -> str:
    """Format with three digits and an SI prefix: `1.23 T`."""
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number / 1e6:.3g} M"
