"""What a run will need, before it is started: parameters, memory and arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headwise.data.tokenizer import N_SPECIALS
from headwise.model.build import build_model
from headwise.model.transformer import n_parameters
from headwise.schema import Config
from headwise.train.distributed import choose_device
from headwise.train.precision import resolve_precision

SENTENCE_TOKENS = 64  # assumed length of both sides: attention grows with it
BYTES_PER_WEIGHT = 16  # weight, gradient and Adam's two moments in float32
BYTES = {"fp32": 4.0, "bf16": 2.7}  # autocast keeps a part in float32
# Elements that autograd keeps, counted on the modules of headwise.model.
KEPT_PER_ATTENTION = {"width": 8, "weights": 3}
KEPT_PER_FEED_FORWARD = {"width": 4, "inner": 3}


@dataclass(frozen=True)
class Budget:
    """What one rank needs for one update.

    Attributes:
        n_parameters: scalars of the model, tied ones counted once.
        n_alphas: how many of them are logits of α.
        flops: name of the part -> floating-point operations, two a multiply-add, of an update:
            forward once, backward twice as much, matrix products only.
        weight_bytes: weights, gradients and moments.
        activation_bytes: what autograd keeps of one batch, and the logits with their gradient.
    """

    n_parameters: int
    n_alphas: int
    flops: dict[str, float]
    weight_bytes: float
    activation_bytes: float


def budget(config: Config, sentence_tokens: int = SENTENCE_TOKENS) -> Budget:
    """Estimate for full batches of sentences with `sentence_tokens` tokens on both sides.

    The vocabulary is taken to be `tokenizer.vocab_size`; for characters that is an upper limit.
    """
    sizes, trainer = config.model, config.trainer
    vocab = N_SPECIALS + 256 if config.tokenizer.kind == "byte" else config.tokenizer.vocab_size
    with torch.device("meta"):
        model = build_model(config, vocab, vocab, config.tokenizer.joint)
    width, tokens = sizes.d_model, trainer.max_tokens
    encoder, decoder = sizes.encoder_layers, sizes.decoder_layers
    n_attentions, n_layers = encoder + 2 * decoder, encoder + decoder
    multiply_adds = {
        "projections": n_attentions * 4 * width**2,
        "attention": n_attentions * 2 * sentence_tokens * width,
        "feed-forward": n_layers * 2 * width * sizes.d_ff,
        "vocabulary": vocab * width,
    }
    kept = n_attentions * (
        KEPT_PER_ATTENTION["width"] * width
        + KEPT_PER_ATTENTION["weights"] * sentence_tokens * sizes.n_heads
    ) + n_layers * (
        KEPT_PER_FEED_FORWARD["width"] * width + KEPT_PER_FEED_FORWARD["inner"] * sizes.d_ff
    )
    precision = resolve_precision(trainer.precision, choose_device(trainer.device))
    n_weights = n_parameters(model)
    alphas = [p.numel() for name, p in model.named_parameters() if name.endswith("alpha_logit")]
    return Budget(
        n_parameters=n_weights,
        n_alphas=sum(alphas),
        flops={k: 6.0 * tokens * trainer.accumulate * n for k, n in multiply_adds.items()},
        weight_bytes=float(n_weights * BYTES_PER_WEIGHT),
        activation_bytes=float(tokens * (kept * BYTES[precision] + vocab * 8)),
    )


def describe_budget(config: Config) -> str:
    """Parameters, memory and FLOPs of an update, as a text."""
    found = budget(config)
    trainer = config.trainer
    flops = sum(found.flops.values())
    tokens = trainer.max_tokens * trainer.accumulate
    lines = [
        f"model {config.model.name}: {found.n_parameters:,} parameters, {found.n_alphas} of them α",
        f"an update: {tokens:,} padded tokens a side and rank, {_engineering(flops)}FLOP",
        *(f"  {name:<13} {_engineering(n):>9}FLOP" for name, n in found.flops.items()),
        f"memory: {_gib(found.weight_bytes)} of weights, gradients and moments, "
        f"about {_gib(found.activation_bytes)} of activations",
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
