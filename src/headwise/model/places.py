"""Where attention happens in a model of given sizes."""

from __future__ import annotations

from headwise.attention.base import Place
from headwise.schema import ModelConfig


def place_of(config: ModelConfig, site: str, layer: int) -> Place:
    """The place of one site of one layer (from 1), with the heads that pruning left there."""
    head_dim = config.d_model // config.n_heads
    if config.heads is None:
        return Place(site, layer, config.n_heads, head_dim)
    kept = tuple(config.heads[site][layer - 1])
    return Place(site, layer, len(kept), head_dim, config.d_model, kept)
