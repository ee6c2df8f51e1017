"""What a run will need, before it is started: parameters, memory and arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headwise.attention.base import Attention
from headwise.attention.scores import ScoreAttention
from headwise.data.tokenizer import N_SPECIALS
from headwise.data.tokenizer_training import given_tokenizers
from headwise.kernels import native
from headwise.model.build import build_model
from headwise.model.transformer import Transformer, n_parameters
from headwise.precision import resolve_precision
from headwise.schema import Config, ModelConfig, TokenizerConfig
from headwise.train.distributed import choose_device

SENTENCE_TOKENS = 64  # assumed length of both sides: attention grows with it
BYTES_PER_WEIGHT = 16  # weight, gradient and Adam's two moments in float32
BYTES = {"fp32": 4.0, "bf16": 2.7}  # autocast keeps a part in float32
# Elements that autograd keeps, counted on the modules of headwise.model: a position, times the
# width of the model, of all heads, or of the feed-forward block; and a score of a head.
KEPT_PER_ATTENTION = {"width": 2.5, "heads": 5, "weights": 2}
KEPT_PER_FEED_FORWARD = {"width": 3.5, "inner": 2.5}
INNER_OF_ONE_PASS = 1  # where ReLU and dropout are one kernel
BYTES_PER_INPUT = 4.0  # with recomputation a layer keeps its input, in float32


@dataclass(frozen=True)
class Budget:
    """What one rank needs for one update.

    Attributes:
        n_parameters: scalars of the model, tied ones counted once.
        n_alphas: how many of them are logits of α.
        flops: name of the part -> floating-point operations, two a multiply-add, of an update:
            forward once, twice where it is recomputed, backward twice as much, matrix products
            only.
        weight_bytes: weights, gradients and moments.
        activation_bytes: what autograd keeps of one batch (with recomputation the inputs of all
            layers and the inside of one), and the gradients that the loss makes beforehand.
    """

    n_parameters: int
    n_alphas: int
    flops: dict[str, float]
    weight_bytes: float
    activation_bytes: float


def _vocabularies(config: TokenizerConfig) -> tuple[int, int]:
    """Pieces of source and target."""
    given = given_tokenizers(config)
    if given is not None:
        return given.source.vocab_size, given.target.vocab_size
    pieces = N_SPECIALS + 256 if config.kind == "byte" else config.vocab_size
    return pieces, pieces


def budget(config: Config, sentence_tokens: int = SENTENCE_TOKENS) -> Budget:
    """Estimate for full batches of sentences with `sentence_tokens` tokens on both sides.

    The vocabulary is that of a given tokenizer, else taken to be `tokenizer.vocab_size`; for
    characters that is an upper limit.
    Attention is counted as dense: every pair of positions, whatever variant and pattern leave out.
    """
    sizes, trainer = config.model, config.trainer
    source_vocab, vocab = _vocabularies(config.tokenizer)
    with torch.device("meta"):
        model = build_model(config, source_vocab, vocab, config.tokenizer.joint)
    tokens, n_recomputed = trainer.max_tokens, int(sizes.recompute)
    # a run is planned on one machine for another, which may have the GPU
    device = torch.device("cuda") if trainer.device == "cuda" else choose_device(trainer.device)
    layers = _layer_costs(model, sizes, sentence_tokens, _kept_inner(sizes.activation, device))
    passes = 6.0 + 2.0 * n_recomputed
    flops = {
        "projections": passes * sum(layer.projections for layer in layers),
        "dense attention": passes * sum(layer.attention for layer in layers),
        "feed-forward": passes * sum(layer.feed_forward for layer in layers),
        "vocabulary": 6.0 * vocab * sizes.d_model,
    }
    element_bytes = BYTES[resolve_precision(trainer.precision, device)]
    kept = [layer.kept * element_bytes for layer in layers]
    if sizes.recompute:
        kept = [len(layers) * sizes.d_model * BYTES_PER_INPUT, max(kept)]
    alphas = [p.numel() for name, p in model.named_parameters() if name.endswith("alpha_logit")]
    n_weights = n_parameters(model)
    return Budget(
        n_parameters=n_weights,
        n_alphas=sum(alphas),
        flops={part: tokens * trainer.accumulate * n for part, n in flops.items()},
        weight_bytes=float(n_weights * BYTES_PER_WEIGHT),
        activation_bytes=float(tokens * sum(kept) + (tokens + vocab) * sizes.d_model * 4),
    )


@dataclass
class _LayerCost:
    """Multiply-adds of one layer, and elements kept, a padded token of a side."""

    projections: float = 0.0
    attention: float = 0.0
    feed_forward: float = 0.0
    kept: float = 0.0


def _kept_inner(activation: str, device: torch.device) -> float:
    is_one_pass = activation == "relu" and device.type == "cpu" and native.reason_without() is None
    return INNER_OF_ONE_PASS if is_one_pass else KEPT_PER_FEED_FORWARD["inner"]


def _layer_costs(
    model: Transformer, sizes: ModelConfig, sentence_tokens: int, kept_inner: float
) -> list[_LayerCost]:
    """Each layer of both stacks, with the heads that it has and every score computed."""
    width, inner = sizes.d_model, sizes.d_ff
    source = 1 + model.n_registers / sentence_tokens  # the encoder's positions a token
    costs: dict[tuple[bool, int], _LayerCost] = {}
    for site, number, attention in model.attentions():
        cost = costs.setdefault((site == "encoder_self", number), _LayerCost())
        n_heads = attention.place.n_heads
        heads = n_heads * attention.place.head_dim
        queries = source if site == "encoder_self" else 1.0
        keys = 1.0 if site == "decoder_self" else source
        scores = queries * keys * sentence_tokens
        cost.projections += 2 * (queries + keys) * width * heads
        cost.attention += 2 * scores * heads
        cost.kept += (
            KEPT_PER_ATTENTION["width"] * queries * width
            + KEPT_PER_ATTENTION["heads"] * (queries + keys) / 2 * heads
            + (0 if _is_fused(attention) else KEPT_PER_ATTENTION["weights"] * scores * n_heads)
        )
        if site != "cross":
            cost.feed_forward += 2 * queries * width * inner
            cost.kept += queries * (KEPT_PER_FEED_FORWARD["width"] * width + kept_inner * inner)
    return list(costs.values())


def _is_fused(attention: Attention) -> bool:
    """Whether it keeps no weights, with dropout or in half precision."""
    return isinstance(attention, ScoreAttention) and attention.normaliser.is_fused


def describe_budget(config: Config) -> str:
    """Parameters, memory and FLOPs of an update, as a text."""
    found = budget(config)
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
