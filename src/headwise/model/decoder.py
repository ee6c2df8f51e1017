"""The decoder stack and its cache."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from headwise.attention.cache import AttentionCache
from headwise.attention.mask import Mask
from headwise.attention.protocol import Attention
from headwise.config.schema import ModelConfig
from headwise.model.blocks import FeedForward, Residual, Stack, call_layer
from headwise.model.encoder import MakeAttention
from headwise.model.places import place_of


class DecoderCache:
    """What decoding the next token needs of the prefix: per layer, self and cross."""

    def __init__(self, layers: list[tuple[AttentionCache, AttentionCache]]) -> None:
        self.layers = layers
        self.length = 0  # positions decoded so far

    def reorder(self, rows_B: Tensor) -> None:
        """Make row i of the prefixes what row `rows_B[i]` was; rows may repeat or be left out."""
        for self_cache, _ in self.layers:
            self_cache.reorder(rows_B)

    def reorder_sources(self, rows_B: Tensor) -> None:
        """The same for what was kept of the sources."""
        for _, cross_cache in self.layers:
            cross_cache.reorder(rows_B)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and feed-forward, each with its residual."""

    def __init__(self, config: ModelConfig, layer: int, make_attention: MakeAttention) -> None:
        super().__init__()
        width, pre_norm = config.d_model, config.norm == "pre"
        self.self_attention: Attention = make_attention(place_of(config, "decoder_self", layer))
        self.self_residual = Residual(width, pre_norm, config.dropout)
        self.cross_attention: Attention = make_attention(place_of(config, "cross", layer))
        self.cross_residual = Residual(width, pre_norm, config.dropout)
        self.feed_forward = FeedForward(
            width, config.d_ff, config.activation, config.activation_dropout
        )
        self.feed_forward_residual = Residual(width, pre_norm, config.dropout)

    def forward(
        self,
        states_BTD: Tensor,
        memory_BSD: Tensor,
        self_mask: Mask,
        cross_mask: Mask,
        cache: tuple[AttentionCache, AttentionCache] | None,
    ) -> Tensor:
        """States (B, T, D)."""
        self_cache, cross_cache = cache if cache is not None else (None, None)
        read = self.self_residual.before(states_BTD)
        context_BTD = self.self_attention(read, read, read, self_mask, self_cache)
        states_BTD = self.self_residual.after(states_BTD, context_BTD)
        read = self.cross_residual.before(states_BTD)
        # rows that share a source ask as one row with the queries of all
        asking_BQD = read.view(memory_BSD.shape[0], -1, read.shape[2])
        context_BQD = self.cross_attention(
            asking_BQD, memory_BSD, memory_BSD, cross_mask, cross_cache
        )
        states_BTD = self.cross_residual.after(states_BTD, context_BQD.view_as(read))
        read = self.feed_forward_residual.before(states_BTD)
        return self.feed_forward_residual.after(states_BTD, self.feed_forward(read))


class Decoder(Stack):
    """A stack of decoder layers."""

    branches_per_layer = 3

    def __init__(self, config: ModelConfig, make_attention: MakeAttention) -> None:
        numbers = range(1, config.decoder_layers + 1)
        super().__init__(config, (DecoderLayer(config, n, make_attention) for n in numbers))

    def make_cache(self) -> DecoderCache:
        """An empty cache."""
        return DecoderCache(
            [
                (
                    layer.self_attention.make_cache(static=False),
                    layer.cross_attention.make_cache(static=True),
                )
                for layer in cast("list[DecoderLayer]", list(self.layers))
            ]
        )

    def forward(
        self,
        states_BTD: Tensor,
        memory_BSD: Tensor,
        memory_lengths_B: Tensor,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """States (B, T, D).

        Padded target positions need no mask: they stand on the right, where no real query looks.
        """
        offset = cache.length if cache is not None else 0
        self_mask = Mask(causal=True, query_offset=offset)
        cross_mask = Mask(key_lengths_B=memory_lengths_B)
        recompute = self.recompute and cache is None
        for index, layer in enumerate(self.layers):
            layer_cache = cache.layers[index] if cache is not None else None
            states_BTD = call_layer(
                layer, recompute, states_BTD, memory_BSD, self_mask, cross_mask, layer_cache
            )
        if cache is not None:
            cache.length += states_BTD.shape[1]
        normed: Tensor = self.norm(states_BTD)
        return normed
