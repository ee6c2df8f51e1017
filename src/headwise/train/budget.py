"""What a run will need, before it is started: parameters, memory and arithmetic.

Counted by torch on the meta device, whose tensors have shapes and no values: one batch goes forward
and backward through the model that the configuration describes.
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

SENTENCE_TOKENS = 60  # assumed length of both sides; no width of a head, see `_is_weights`
ROWS = 2  # of the batch that is counted; all figures grow with their number
BYTES_PER_WEIGHT = 16  # weight, gradient and Adam's two moments in float32
SHARE_KEPT = {"fp32": 1.0, "bf16": 0.68}  # of float32's bytes: autocast keeps a part in float32


MakeModel = Callable[[Config], Model]


@dataclass(frozen=True)
class Budget:
    """What one rank needs for one update.

    Attributes:
        n_parameters: scalars of the model, tied ones counted once.
        n_alphas: how many of them are logits of α.
        flops: name of the part -> floating-point operations of an update, those of matrix products
            only, backward and recomputation included.
        weight_bytes: weights, gradients and moments.
        activation_bytes: what autograd keeps of one batch (with recomputation the inputs of all
            layers and the inside of one), and the gradients that the loss makes beforehand. As
            torch alone keeps it; kernels of ours, such as dropout's on a CPU, keep less.
    """

    n_parameters: int
    n_alphas: int
    flops: dict[str, float]
    weight_bytes: float
    activation_bytes: float


def budget(config: Config, make_model: MakeModel, sentence_tokens: int = SENTENCE_TOKENS) -> Budget:
    """Count full batches of rows with `sentence_tokens` tokens in every column.

    Attention is counted as dense: every pair of positions, whatever variant and pattern leave out.
    """
    trainer = config.trainer
    model, flops, kept_bytes = _counted(config, make_model, sentence_tokens)
    if config.model.recompute:
        kept = replace(config, model=replace(config.model, recompute=False))
        _, _, all_bytes = _counted(kept, make_model, sentence_tokens)
        kept_bytes += all_bytes / sum(len(stack.layers) for stack in model.stacks)
    # a run is planned on one machine for another, which may have the GPU
    device = torch.device("cuda") if trainer.device == "cuda" else choose_device(trainer.device)
    share = SHARE_KEPT[resolve_precision(trainer.precision, device)]
    batches = trainer.max_tokens / (ROWS * sentence_tokens)
    vocabulary, width = model.output.weight.shape
    alphas = [p.numel() for name, p in model.named_parameters() if name.endswith("alpha_logit")]
    n_weights = n_parameters(model)
    return Budget(
        n_parameters=n_weights,
        n_alphas=sum(alphas),
        flops={part: trainer.accumulate * batches * n for part, n in flops.items()},
        weight_bytes=float(n_weights * BYTES_PER_WEIGHT),
        activation_bytes=batches * kept_bytes * share
        + (trainer.max_tokens + vocabulary) * width * 4,
    )


def _counted(
    config: Config, make_model: MakeModel, length: int
) -> tuple[Model, dict[str, float], float]:
    """A model on the meta device; FLOPs by part and kept bytes of a batch of `ROWS` sentences."""
    with torch.device("meta"):
        model = make_model(config)
        ids = torch.zeros(ROWS, length, dtype=torch.long)
        column = Column(ids, torch.zeros(ROWS, dtype=torch.long))
        batch = Batch(dict.fromkeys(model.columns, column), ids, ids, list(range(ROWS)), 0)
    kept: dict[int, torch.UntypedStorage] = {}
    is_fused = all(
        isinstance(attention, ScoreAttention) and attention.normaliser.is_fused
        for _, _, attention in model.attentions()
    )
    positions = {length, *(length + model.n_prefix(column) for column in model.columns)}

    def keep(tensor: Tensor) -> Tensor:
        if not (is_fused and _is_weights(tensor, positions)):
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage
        return tensor

    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    with FlopCounterMode(display=False) as counter:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            states_BTD = model.train().states(**model.inputs(batch))
        torch.autograd.backward((states_BTD @ model.output.weight.T).sum())
    kept_bytes = sum(storage.nbytes() for key, storage in kept.items() if key not in own)
    return model, _by_part(counter.get_flop_counts()), float(kept_bytes)


def _is_weights(tensor: Tensor, positions: set[int]) -> bool:
    """Whether it has a number for each query and key: a kernel without weights keeps none."""
    return tensor.ndim > 2 and set(tensor.shape[-2:]) <= positions


def _by_part(counts: Mapping[str, Mapping[object, int]]) -> dict[str, float]:
    """FLOPs by part of the model, of those by module and operator."""
    total = sum(counts["Global"].values())
    linear = (torch.ops.aten.mm, torch.ops.aten.addmm)
    parts = {
        "dense attention": sum(n for op, n in counts["Global"].items() if op not in linear),
        "feed-forward": sum(
            sum(of.values()) for name, of in counts.items() if name.endswith(".feed_forward")
        ),
        "vocabulary": total - sum(counts["Stack"].values()),
    }
    return {"projections": float(total - sum(parts.values())), **parts}


def describe_budget(config: Config, make_model: MakeModel) -> str:
    """Parameters, memory and FLOPs of an update, as a text."""
    found = budget(config, make_model)
    trainer = config.trainer
    flops = sum(found.flops.values())
    tokens = trainer.max_tokens * trainer.accumulate
    recomputed = " (those of one layer, and every layer's input)" if config.model.recompute else ""
    lines = [
        f"model {config.model.name}: {found.n_parameters:,} parameters, {found.n_alphas} of them α",
        f"an update: {tokens:,} padded tokens a side and rank, {_engineering(flops)}FLOP",
        *(f"  {name:<15} {_engineering(n):>9}FLOP" for name, n in found.flops.items()),
        f"memory: {_gib(found.weight_bytes)} of weights, gradients and moments, "
        f"about {_gib(found.activation_bytes)} of activations{recomputed}",
        f"{trainer.max_updates:,} updates: {_engineering(flops * trainer.max_updates)}FLOP a rank",
        f"(sentences of {SENTENCE_TOKENS} tokens; shorter ones need less)",
    ]
    return "\n".join(lines)


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.2f} GiB"


def _engineering(number: float) -> str:
    """With three digits and a prefix, as in `1.23 T`."""
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number / 1e6:.3g} M"
