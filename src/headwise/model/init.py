"""Initial weights.

The common weights are drawn here, from a generator of the seed: two variants with the same seed
start from the same projections. What a variant draws itself comes from another generator a place
(`headwise.attention.build.AttentionFactory`).
"""

from __future__ import annotations

import torch
from torch import nn

from headwise.attention.heads import MultiHeadAttention
from headwise.attention.positions import PositionEmbedding
from headwise.model.blocks import FeedForward
from headwise.model.embedding import SCALED_GAIN
from headwise.model.stack import Stack

INITS = ("glorot", "scaled")


def initialise(model: nn.Module, output: nn.Linear, seed: int, kind: str) -> None:
    """Draw the common weights; parameters of a variant's own stay as they were made.

    `output` is the map of `model` from states to logits.

    "glorot": Glorot-uniform linear maps, zero biases, embeddings N(0, 1/D).

    "scaled" (Child et al. 2019, section 6): linear maps N(0, 0.125 / sqrt(d_in)), those that end
    a residual branch (W_p and W_2) times 1 / sqrt(n) with n the branches of their stack; token
    embeddings N(0, 0.125 / sqrt(D)), each of the n_emb tables of positions
    N(0, 0.125 / sqrt(D · n_emb)), biases and the output matrix 0. The paper has n = 2N for the
    two branches of each of its N layers: an encoder of N layers has 2N, a decoder 3N, as its
    layers have cross-attention as well. With zero logits the first gradient reaches the output
    matrix alone. The second argument of N is taken for a standard deviation: UNVERIFIED, the
    paper does not say; as a variance the streams would start about as large as they end.
    """
    generator = torch.Generator().manual_seed(seed)
    is_scaled = kind == "scaled"
    gain, narrowed = (SCALED_GAIN, _narrowed(model)) if is_scaled else (1.0, {})
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.Linear) and not is_scaled:
            nn.init.xavier_uniform_(module.weight, generator=generator)
        elif isinstance(module, nn.Linear | nn.Embedding):
            width = module.in_features if isinstance(module, nn.Linear) else module.embedding_dim
            width = max(width, 1)  # pruning may leave a place without heads
            deviation = gain * width**-0.5 * narrowed.get(module, 1.0)
            nn.init.normal_(module.weight, std=deviation, generator=generator)
    if is_scaled:
        nn.init.zeros_(output.weight)


def _narrowed(model: nn.Module) -> dict[nn.Module, float]:
    """Modules whose weights have a further factor: the ends of branches, and tables of a sum."""
    factors: dict[nn.Module, float] = {}
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        for module in stack.modules():
            if isinstance(module, MultiHeadAttention):
                factors[module.output] = stack.n_branches**-0.5
            elif isinstance(module, FeedForward):
                factors[module.outer] = stack.n_branches**-0.5
    for module in model.modules():
        if isinstance(module, PositionEmbedding) and module.n_summed:
            factors |= dict.fromkeys(module.children(), module.n_summed**-0.5)
    return factors
