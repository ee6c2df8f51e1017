"""What a run will need, before it is started: parameters, memory and arithmetic."""

from __future__ import annotations

import torch

from headwise.model.build import build_model
from headwise.model.transformer import n_parameters
from headwise.schema import Config

# Tensors of one layer's size that autograd keeps: counted on the modules of headwise.model.
KEPT_PER_BLOCK = 8  # of width D: norms, projections, residuals
BYTES = {"fp32": 4, "bf16": 2}


def describe_budget(config: Config) -> str:
    """Parameters, memory and FLOPs of an update, as a text.

    Memory: weights, gradients and two Adam moments in float32, plus the activations of a full
    batch whose two sides have `trainer.max_tokens` padded tokens and sentences of 64. FLOPs: two
    a multiply-add, forward once and backward twice, matrix products only.
    """
    model_config, trainer = config.model, config.trainer
    vocab = config.tokenizer.vocab_size
    with torch.device("meta"):
        model = build_model(config, vocab, vocab, config.tokenizer.joint)
    n_weights = n_parameters(model)
    n_learned_alpha = sum(
        p.numel() for name, p in model.named_parameters() if name.endswith("alpha_logit")
    )
    tokens, length, width = trainer.max_tokens, 64, model_config.d_model
    encoder, decoder = model_config.encoder_layers, model_config.decoder_layers
    per_token = {
        "projections": encoder * 4 * width**2 + decoder * 8 * width**2,
        "feed-forward": (encoder + decoder) * 2 * width * model_config.d_ff,
        "attention": (encoder + 2 * decoder) * 2 * length * width,
        "vocabulary": vocab * width,
    }
    flops = 6 * tokens * sum(per_token.values()) * trainer.accumulate
    kept = tokens * (
        (encoder + 2 * decoder) * (KEPT_PER_BLOCK * width + 3 * length * model_config.n_heads)
        + (encoder + decoder) * (3 * model_config.d_ff + 2 * width)
    )
    weights_gib = n_weights * 16 / 2**30
    activations_gib = (kept * BYTES[trainer.precision] + tokens * vocab * 8) / 2**30
    lines = [
        f"model {model_config.name}: {n_weights:,} parameters, {n_learned_alpha} of them α",
        f"an update: {tokens * trainer.accumulate:,} padded tokens a side and rank, "
        f"{flops / 1e12:.2f} TFLOP",
        *(
            f"  {name:<13}{6 * tokens * n * trainer.accumulate / 1e12:8.2f} TFLOP"
            for name, n in per_token.items()
        ),
        f"memory: {weights_gib:.2f} GiB weights, gradients and moments, "
        f"about {activations_gib:.2f} GiB activations (sentences of {length} tokens)",
        f"{trainer.max_updates:,} updates: {flops * trainer.max_updates / 1e15:.2f} PFLOP a rank",
    ]
    return "\n".join(lines)
