"""Small initial weights for very deep stacks (Child et al. 2019, section 6)."""

from __future__ import annotations

import math

import torch
from torch import nn

from headwise.attention.heads import MultiHeadAttention
from headwise.attention.positions import PositionEmbedding
from headwise.config.schema import ModelConfig
from headwise.errors import ConfigError
from headwise.model.blocks import FeedForward
from headwise.model.init import Init, draw_all
from headwise.model.stack import Stack

GAIN = 0.125  # of every deviation


class Scaled(Init):
    """Linear maps N(0, 0.125 / sqrt(d_in)), those that end a branch smaller in deep stacks.

    Those that end a residual branch (W_p and W_2) have 1 / sqrt(n) of that, with n the branches of
    their stack; token embeddings N(0, 0.125 / sqrt(D)), taken as they are (equation 15), each of
    the n_emb tables of positions N(0, 0.125 / sqrt(D · n_emb)), biases and the output matrix 0.
    Sinusoids, which that paper does not have, shrink with the tokens. The paper has n = 2N for the
    two branches of each of its N layers: an encoder of N layers has 2N, a decoder 3N, as its
    layers have cross-attention as well. With zero logits the first gradient reaches the output
    matrix alone. The second argument of N is taken for a standard deviation: UNVERIFIED, the
    paper does not say; as a variance the streams would start about as large as they end.
    """

    def check(self, config: ModelConfig) -> None:
        """Refuse an output matrix that is an embedding too."""
        if config.share_embeddings != "none":
            raise ConfigError(
                "model.share_embeddings must be none with init=scaled, got "
                f"{config.share_embeddings!r}: the output matrix starts at 0, the embeddings do not"
            )

    def scales(self, d_model: int) -> tuple[float, float]:
        """See `Init.scales`."""
        return 1.0, GAIN / math.sqrt(d_model)

    def __call__(self, model: nn.Module, output: nn.Linear, seed: int) -> None:
        """See `Init.__call__`."""
        narrowed = _narrowed(model)

        def draw(module: nn.Linear | nn.Embedding, generator: torch.Generator) -> None:
            width = max(module.weight.shape[1], 1)  # pruning may leave a place without heads
            deviation = GAIN * width**-0.5 * narrowed.get(module, 1.0)
            nn.init.normal_(module.weight, std=deviation, generator=generator)

        draw_all(model, seed, draw)
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
