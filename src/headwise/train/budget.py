"""Estimates of parameters, memory and FLOPs of a run before it starts.

Counted by torch on the meta device, whose tensors have shapes but no values: one forward and
backward pass of the configured model.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headwise.attention.scores import ScoreAttention
from headwise.config.folders import group_node
from headwise.config.schema import Config, SitesConfig
from headwise.data.batch import Batch, Column
from headwise.data.plan import windows_per_batch
from headwise.losses.projected import chunk_rows
from headwise.model.family import Model, n_parameters
from headwise.ops.flops import register_flops
from headwise.precision import resolve_precision
from headwise.train.distributed import choose_device
from headwise.train.kernels import kernels_of
from headwise.train.memory import n_bytes, saved_storages

SENTENCE_TOKENS = 60  # assumed length of both sides
ROWS = 2  # of the counted batch; all figures are proportional to it
BYTES_PER_WEIGHT = 16  # weight, gradient and Adam's two moments in float32
# saved bytes relative to float32; autocast keeps some tensors in float32
SAVED_SHARE = {"fp32": 1.0, "bf16": 0.68}


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

    def changed(self, **changes: Any) -> Self:
        """The same with other settings."""
        ...


@dataclass(frozen=True)
class Budget:
    """Requirements of one rank for one update.

    Attributes:
        n_parameters: scalars of the model, tied ones counted once.
        n_alphas: number of logits of α among them.
        flops: part -> FLOPs of the matmuls of an update, with backward and recomputation.
        weight_bytes: weights, gradients and moments.
        activation_bytes: tensors that autograd saves for one batch (with recomputation the inputs
            of all layers and the activations of one), a chunk of logits, and the gradients that
            the loss computes in its forward pass. Dropout is left out: it saves nothing on a CPU,
            masks on a GPU.
        kernels: part -> kernel (reason); empty if this machine lacks the device.
    """

    n_parameters: int
    n_alphas: int
    flops: dict[str, float]
    weight_bytes: float
    activation_bytes: float
    kernels: dict[str, str]


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
    tokens = batch_tokens(task)
    model, flops, saved_bytes = _counted(task, length, with_flops=True)
    if _has_fused_pattern(model):  # kernels save the same as without a pattern
        none = group_node("pattern", "none")
        task = task.changed(pattern=none, pattern_sites=SitesConfig())
        _, _, saved_bytes = _counted(task, length)
    if task.config.model.recompute:
        task = task.changed(model=replace(task.config.model, recompute=False))
        _, _, all_bytes = _counted(task, length)
        saved_bytes += all_bytes / sum(len(stack.layers) for stack in model.stacks)
    # the run may be planned on a machine without the GPU
    device = torch.device("cuda") if trainer.device == "cuda" else choose_device(trainer.device)
    saved_share = SAVED_SHARE[resolve_precision(trainer.precision, device)]
    kernels = {}
    if device.type == "cpu" or torch.cuda.is_available():
        kernels = kernels_of(model, task.loss, trainer.precision, device)
    batches = tokens / (ROWS * length)
    vocabulary, width = model.output.weight.shape
    logits_bytes = 4 * vocabulary * min(tokens, chunk_rows(vocabulary, device))
    gradient_bytes = 4 * width * (tokens + vocabulary)  # that the loss computes
    alphas = [p.numel() for name, p in model.named_parameters() if name.endswith("alpha_logit")]
    n_weights = n_parameters(model)
    return Budget(
        n_parameters=n_weights,
        n_alphas=sum(alphas),
        flops={part: trainer.accumulate * batches * n for part, n in flops.items()},
        weight_bytes=float(n_weights * BYTES_PER_WEIGHT),
        activation_bytes=saved_share * (batches * saved_bytes + logits_bytes) + gradient_bytes,
        kernels=kernels,
    )


def _has_fused_pattern(model: Model) -> bool:
    """Return whether there is a pattern, and kernels compute all attention without its weights."""
    attentions = [attention for _, _, attention in model.attentions()]
    is_fused = all(isinstance(a, ScoreAttention) and a.normaliser.is_fused for a in attentions)
    return is_fused and any(getattr(a, "pattern", None) is not None for a in attentions)


def _counted(
    task: Planned, length: int, with_flops: bool = False
) -> tuple[Model, dict[str, float], float]:
    """A model on the meta device; FLOPs by part and saved bytes of a batch of `ROWS` rows."""
    with torch.device("meta"):
        model = task.model(task.sizes())
        ids = torch.zeros(ROWS, length, dtype=torch.long)
        column = Column(ids, torch.zeros(ROWS, dtype=torch.long))
        batch = Batch(dict.fromkeys(model.columns, column), ids, ids, list(range(ROWS)), 0)
    model.train(task.config.model.recompute)  # else torch's dropout would save masks
    register_flops()
    with FlopCounterMode(display=False) if with_flops else nullcontext() as counter:
        with saved_storages(model) as saved:
            states_BTD = model.states(**model.inputs(batch))
        if with_flops:
            torch.autograd.backward((states_BTD @ model.output.weight.T).sum())
    flops = {} if counter is None else _by_part(counter.get_flop_counts())
    return model, flops, float(n_bytes(saved))


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


def describe_budget(task: Planned) -> str:
    """Parameters, memory and FLOPs of an update, as text."""
    needs, config, length = budget(task), task.config, task.row_tokens
    trainer, n_updates = config.trainer, config.trainer.max_updates
    flops = sum(needs.flops.values())
    tokens = batch_tokens(task) * trainer.accumulate
    if length is None:
        rows = "padded tokens per side and rank"
        note = [f"(sentences of {SENTENCE_TOKENS} tokens; shorter ones need less)"]
    else:
        rows, note = f"tokens per rank (rows of {length:,})", []
    recomputed = " (those of one layer, and every layer's input)" if config.model.recompute else ""
    lines = [
        f"model {config.model.name}: {needs.n_parameters:,} parameters, {needs.n_alphas} of them α",
        f"update: {tokens:,} {rows}, {_engineering(flops)}FLOP",
        *(f"  {name:<15} {_engineering(n):>9}FLOP" for name, n in needs.flops.items()),
        f"memory: {_gib(needs.weight_bytes)} of weights, gradients and moments, "
        f"about {_gib(needs.activation_bytes)} of activations{recomputed}",
        f"{n_updates:,} updates: {_engineering(flops * n_updates)}FLOP per rank",
        *note,
        *(f"  {part}: {kernel}" for part, kernel in needs.kernels.items()),
    ]
    return "\n".join(lines)


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.2f} GiB"


def _engineering(number: float) -> str:
    """Format with three digits and an SI prefix: `1.23 T`."""
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number / 1e6:.3g} M"
