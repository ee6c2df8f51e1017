"""Estimates of parameters, memory and FLOPs of a run before it starts.

Counted by torch on the meta device, whose tensors have shapes but no values: one forward and
backward pass of the configured model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from headwise.attention.scores import ScoreAttention
from headwise.config.schema import Config
from headwise.data.batch import Batch, Column
from headwise.model.family import Model, n_parameters
from headwise.precision import resolve_precision
from headwise.train.distributed import choose_device

SENTENCE_TOKENS = 60  # assumed length of both sides; must differ from head sizes, see `_is_weights`
ROWS = 2  # of the counted batch; all figures are proportional to it
BYTES_PER_WEIGHT = 16  # weight, gradient and Adam's two moments in float32
# saved bytes relative to float32; autocast keeps some tensors in float32
SAVED_SHARE = {"fp32": 1.0, "bf16": 0.68}


MakeModel = Callable[[Config], Model]


@dataclass(frozen=True)
class Budget:
    """Requirements of one rank for one update.

    Attributes:
        n_parameters: scalars of the model, tied ones counted once.
        n_alphas: number of logits of α among them.
        flops: part -> FLOPs of the matmuls of an update, with backward and recomputation.
        weight_bytes: weights, gradients and moments.
        activation_bytes: tensors that autograd saves for one batch (with recomputation the inputs
            of all layers and the activations of one), and the gradients that the loss computes in
            its forward pass. For torch's operators; our kernels, such as CPU dropout, save less.
    """

    n_parameters: int
    n_alphas: int
    flops: dict[str, float]
    weight_bytes: float
    activation_bytes: float


def budget(config: Config, make_model: MakeModel, sentence_tokens: int = SENTENCE_TOKENS) -> Budget:
    """Estimate for full batches of rows with `sentence_tokens` tokens in every column.

    Attention is counted as dense, even if the variant or the pattern masks pairs of positions.
    """
    trainer = config.trainer
    model, flops, saved_bytes = _counted(config, make_model, sentence_tokens)
    if config.model.recompute:
        config = replace(config, model=replace(config.model, recompute=False))
        _, _, all_bytes = _counted(config, make_model, sentence_tokens)
        saved_bytes += all_bytes / sum(len(stack.layers) for stack in model.stacks)
    # the run may be planned on a machine without the GPU
    device = torch.device("cuda") if trainer.device == "cuda" else choose_device(trainer.device)
    saved_share = SAVED_SHARE[resolve_precision(trainer.precision, device)]
    batches = trainer.max_tokens / (ROWS * sentence_tokens)
    vocabulary, width = model.output.weight.shape
    alphas = [p.numel() for name, p in model.named_parameters() if name.endswith("alpha_logit")]
    n_weights = n_parameters(model)
    return Budget(
        n_parameters=n_weights,
        n_alphas=sum(alphas),
        flops={part: trainer.accumulate * batches * n for part, n in flops.items()},
        weight_bytes=float(n_weights * BYTES_PER_WEIGHT),
        activation_bytes=batches * saved_bytes * saved_share
        + (trainer.max_tokens + vocabulary) * width * 4,
    )


def _counted(
    config: Config, make_model: MakeModel, length: int
) -> tuple[Model, dict[str, float], float]:
    """A model on the meta device; FLOPs by part and saved bytes of a batch of `ROWS` sentences."""
    with torch.device("meta"):
        model = make_model(config)
        ids = torch.zeros(ROWS, length, dtype=torch.long)
        column = Column(ids, torch.zeros(ROWS, dtype=torch.long))
        batch = Batch(dict.fromkeys(model.columns, column), ids, ids, list(range(ROWS)), 0)
    saved: dict[int, torch.UntypedStorage] = {}
    is_fused = all(
        isinstance(attention, ScoreAttention) and attention.normaliser.is_fused
        for _, _, attention in model.attentions()
    )
    positions = {length, *(length + model.n_prefix(column) for column in model.columns)}

    def save(tensor: Tensor) -> Tensor:
        if not (is_fused and _is_weights(tensor, positions)):
            storage = tensor.untyped_storage()
            saved[storage._cdata] = storage
        return tensor

    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    with FlopCounterMode(display=False) as counter:
        with saved_tensors_hooks(save, lambda tensor: tensor):
            states_BTD = model.train().states(**model.inputs(batch))
        torch.autograd.backward((states_BTD @ model.output.weight.T).sum())
    saved_bytes = sum(storage.nbytes() for key, storage in saved.items() if key not in parameters)
    return model, _by_part(counter.get_flop_counts()), float(saved_bytes)


def _is_weights(tensor: Tensor, positions: set[int]) -> bool:
    """Whether the last two axes are queries and keys; fused kernels do not save such tensors."""
    return tensor.ndim > 2 and set(tensor.shape[-2:]) <= positions


def _by_part(counts: Mapping[str, Mapping[object, int]]) -> dict[str, float]:
    """FLOPs by part of the model, from FLOPs by module and operator."""
    total = sum(counts["Global"].values())
    linear = (torch.ops.aten.mm, torch.ops.aten.addmm)
    parts = {
        "dense attention": sum(n for op, n in counts["Global"].items() if op not in linear),
        "feed-forward": sum(
            sum(ops.values()) for name, ops in counts.items() if name.endswith(".feed_forward")
        ),
        "vocabulary": total - sum(counts["Stack"].values()),
    }
    return {"projections": float(total - sum(parts.values())), **parts}


def describe_budget(config: Config, make_model: MakeModel) -> str:
    """Parameters, memory and FLOPs of an update, as text."""
    needs = budget(config, make_model)
    trainer, n_updates = config.trainer, config.trainer.max_updates
    flops = sum(needs.flops.values())
    tokens = trainer.max_tokens * trainer.accumulate
    recomputed = " (those of one layer, and every layer's input)" if config.model.recompute else ""
    lines = [
        f"model {config.model.name}: {needs.n_parameters:,} parameters, {needs.n_alphas} of them α",
        f"update: {tokens:,} padded tokens per side and rank, {_engineering(flops)}FLOP",
        *(f"  {name:<15} {_engineering(n):>9}FLOP" for name, n in needs.flops.items()),
        f"memory: {_gib(needs.weight_bytes)} of weights, gradients and moments, "
        f"about {_gib(needs.activation_bytes)} of activations{recomputed}",
        f"{n_updates:,} updates: {_engineering(flops * n_updates)}FLOP per rank",
        f"(sentences of {SENTENCE_TOKENS} tokens; shorter ones need less)",
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
