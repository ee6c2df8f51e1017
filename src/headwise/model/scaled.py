"""Small initial weights for very deep stacks (Child et al. 2019, section 6)."""

from __future__ import annotations

import math

import torch
from torch import nn

from headwise.attention.attention import MultiHeadAttention
from headwise.attention.positions import PositionEmbedding
from headwise.config.schema import ModelConfig
from headwise.errors import ConfigError
from headwise.model.blocks import FeedForward
from headwise.model.init import Init, draw_all
from headwise.model.stack import Stack

GAIN = 0.125  # factor on every standard deviation


class Scaled(Init):
    """Linear layers N(0, 0.125 / sqrt(d_in)), smaller at the ends of branches in deep stacks.

    The ends of residual branches (W_p and W_2) have a further factor 1 / sqrt(n) for the n
    branches of their stack. Token embeddings are N(0, 0.125 / sqrt(D)), unscaled (equation 15);
    each of the n_emb position tables is N(0, 0.125 / sqrt(D · n_emb)); biases and the output
    matrix are 0, so that the first gradient reaches only the output matrix. Sinusoids, which the
    paper does not use, are scaled like tokens. The paper has n = 2N for the two branches of each of
    N layers; a decoder has 3N, with cross-attention. The second argument of N is taken as a
    standard deviation: UNVERIFIED, the paper does not say; as a variance, the residual stream
    would start about as large as it ends.
    """

    def check(self, config: ModelConfig) -> None:
        """Raise ConfigError for an output matrix that is shared with embeddings."""
        if config.share_embeddings != "none":
            raise ConfigError(
                "model.share_embeddings must be none with init=scaled, got "
                f"{config.share_embeddings!r}: only the output matrix starts at 0"
            )

    def scales(self, d_model: int) -> tuple[float, float]:
        return 1.0, GAIN / math.sqrt(d_model)

    def __call__(self, model: nn.Module, output: nn.Linear, seed: int) -> None:
        factors = _branch_factors(model)

        def draw(module: nn.Linear | nn.Embedding, generator: torch.Generator) -> None:
            width = max(module.weight.shape[1], 1)  # all heads of a place may be pruned
            deviation = GAIN * width**-0.5 * factors.get(module, 1.0)
            nn.init.normal_(module.weight, std=deviation, generator=generator)

        draw_all(model, seed, draw)
        nn.init.zeros_(output.weight)


def _branch_factors(model: nn.Module) -> dict[nn.Module, float]:
    """Return module -> further factor, for the ends of branches and for summed tables."""
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
