"""Initial weights: the config group `init`.

The common weights are drawn here, from one generator with the seed, so variants with equal seeds
have equal initial projections. Parameters of a variant are drawn from a separate generator per
place (`headwise.attention.build.AttentionFactory`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from headwise.config.schema import ModelConfig


class Init:
    """Base class: initialises the common weights of a model."""

    def check(self, config: ModelConfig) -> None:
        """Raise ConfigError for a model that this initialisation does not support."""

    def scales(self, d_model: int) -> tuple[float, float]:
        """Return the factors on token embeddings and on computed positions."""
        raise NotImplementedError

    def __call__(self, model: nn.Module, output: nn.Linear, seed: int) -> None:
        """Draw the common weights; parameters of variants are not changed.

        `output` is the layer of `model` from states to logits.
        """
        raise NotImplementedError


class Glorot(Init):
    """Glorot-uniform linear layers, zero biases, embeddings N(0, 1/D) times sqrt(D)."""

    def scales(self, d_model: int) -> tuple[float, float]:
        return math.sqrt(d_model), 1.0

    def __call__(self, model: nn.Module, output: nn.Linear, seed: int) -> None:
        def draw(module: nn.Linear | nn.Embedding, generator: torch.Generator) -> None:
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
            else:
                deviation = module.embedding_dim**-0.5
                nn.init.normal_(module.weight, std=deviation, generator=generator)

        draw_all(model, seed, draw)


class LateEmbedding(nn.Embedding):
    """A table that is initialised last, so that it does not change the other initial weights."""


def draw_all(
    model: nn.Module,
    seed: int,
    draw: Callable[[nn.Linear | nn.Embedding, torch.Generator], None],
) -> None:
    """Draw the weights of linear layers and tables in the order of modules; biases are 0."""
    generator = torch.Generator().manual_seed(seed)
    for module in sorted(model.modules(), key=lambda module: isinstance(module, LateEmbedding)):
        if isinstance(module, nn.Linear | nn.Embedding):
            draw(module, generator)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
