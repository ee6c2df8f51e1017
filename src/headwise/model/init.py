"""Initial weights: the config group `init`.

The common weights are drawn here, from a generator of the seed: two variants with the same seed
start from the same projections. What a variant draws itself comes from another generator a place
(`headwise.attention.build.AttentionFactory`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from headwise.config.schema import ModelConfig


class Init:
    """How the common weights of a model start."""

    def check(self, config: ModelConfig) -> None:
        """Refuse a model that cannot start so."""

    def scales(self, d_model: int) -> tuple[float, float]:
        """Factors on the embeddings of tokens, and on positions that are computed."""
        raise NotImplementedError

    def __call__(self, model: nn.Module, output: nn.Linear, seed: int) -> None:
        """Draw the common weights; parameters of a variant's own stay as they were made.

        `output` is the map of `model` from states to logits.
        """
        raise NotImplementedError


class Glorot(Init):
    """Glorot-uniform linear maps, zero biases, embeddings N(0, 1/D) times sqrt(D)."""

    def scales(self, d_model: int) -> tuple[float, float]:
        """See `Init.scales`."""
        return math.sqrt(d_model), 1.0

    def __call__(self, model: nn.Module, output: nn.Linear, seed: int) -> None:
        """See `Init.__call__`."""

        def draw(module: nn.Linear | nn.Embedding, generator: torch.Generator) -> None:
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
            else:
                deviation = module.embedding_dim**-0.5
                nn.init.normal_(module.weight, std=deviation, generator=generator)

        draw_all(model, seed, draw)


class DrawnLast(nn.Embedding):
    """A table without which all else starts from the same weights."""


def draw_all(
    model: nn.Module,
    seed: int,
    draw: Callable[[nn.Linear | nn.Embedding, torch.Generator], None],
) -> None:
    """Draw the weight of each linear map and table in the order of modules; biases are 0."""
    generator = torch.Generator().manual_seed(seed)
    for module in sorted(model.modules(), key=lambda module: isinstance(module, DrawnLast)):
        if isinstance(module, nn.Linear | nn.Embedding):
            draw(module, generator)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
