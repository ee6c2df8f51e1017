"""Stacks of blocks, and their caches for decoding.

Encoders, decoder-only stacks and decoders with a memory are one class; the sites determine what
blocks attend to.

Axes: B batch, N positions, S positions of the memory, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from torch import Tensor, nn

from headwise.attention.attention import Attention
from headwise.attention.cache import AttentionCache
from headwise.attention.mask import Mask
from headwise.attention.place import Place, Site
from headwise.config.schema import ModelConfig
from headwise.model.blocks import FeedForward, Residual, call_layer
from headwise.model.parts import Parts
from headwise.model.places import place_of

MakeAttention = Callable[[Place], Attention]


@dataclass(frozen=True)
class Memory:
    """The output of an encoder: states (B, S, D) and lengths (B,) without padding.

    CLS tokens are the first positions of each row and count in the lengths.
    """

    states_BSD: Tensor
    lengths_B: Tensor

    def index_select(self, rows_B: Tensor) -> Memory:
        """Return the batch rows `rows_B`, which may repeat."""
        return Memory(self.states_BSD.index_select(0, rows_B), self.lengths_B[rows_B])


class StackCache:
    """The caches of all attentions, block by block, for decoding the next token."""

    def __init__(self, blocks: list[tuple[AttentionCache, AttentionCache | None]]) -> None:
        self.blocks = blocks
        self.length = 0  # positions decoded so far

    def reorder(self, rows_B: Tensor) -> None:
        """Move row `rows_B[i]` of the prefixes to row i; rows may repeat or be dropped."""
        for prefix, _ in self.blocks:
            prefix.reorder(rows_B)

    def reorder_memory(self, rows_B: Tensor) -> None:
        """Reorder the caches of the memory in the same way."""
        for _, memory in self.blocks:
            if memory is not None:
                memory.reorder(rows_B)


class Block(nn.Module):
    """Self-attention, cross-attention if there is a site for it, and feed-forward.

    Each has a residual connection.
    """

    cross_attention: Attention | None
    cross_residual: Residual

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        make_attention: MakeAttention,
        sites: Sequence[Site],
        parts: Parts,
    ) -> None:
        super().__init__()
        residual = partial(parts.norm, d_model=config.d_model, dropout=config.dropout)
        first, *cross = (make_attention(place_of(config, site.name, layer)) for site in sites)
        self.self_attention = first
        self.self_residual = residual()
        self.register_module("cross_attention", None)
        if cross:
            (self.cross_attention,) = cross
            self.cross_residual = residual()
        self.feed_forward = FeedForward(
            config.d_model, config.d_ff, parts.activation(), config.activation_dropout
        )
        self.feed_forward_residual = residual()

    def forward(
        self,
        states_BND: Tensor,
        mask: Mask,
        memory_BSD: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: tuple[AttentionCache, AttentionCache | None] | None = None,
    ) -> Tensor:
        """Return states (B, N, D)."""
        self_cache, memory_cache = cache if cache is not None else (None, None)
        normed = self.self_residual.before(states_BND)
        context_BND = self.self_attention(normed, normed, normed, mask, self_cache)
        states_BND = self.self_residual.after(states_BND, context_BND)
        if self.cross_attention is not None:
            assert memory_BSD is not None
            normed = self.cross_residual.before(states_BND)
            # rows that share a memory are one row with the queries of all
            query_BQD = normed.view(memory_BSD.shape[0], -1, normed.shape[2])
            context_BQD = self.cross_attention(
                query_BQD, memory_BSD, memory_BSD, memory_mask, memory_cache
            )
            states_BND = self.cross_residual.after(states_BND, context_BQD.view_as(normed))
        normed = self.feed_forward_residual.before(states_BND)
        return self.feed_forward_residual.after(states_BND, self.feed_forward(normed))


class Stack(nn.Module):
    """A sequence of blocks and the final normalisation.

    Args:
        config: sizes and kinds.
        make_attention: place -> attention module (see `headwise.attention.build`).
        sites: of self-attention and, with a memory, of cross-attention; with equal numbers of
            layers.
        parts: of the blocks.

    Attributes:
        n_branches: number of residual branches of all layers.
    """

    def __init__(
        self,
        config: ModelConfig,
        make_attention: MakeAttention,
        sites: Sequence[Site],
        parts: Parts,
    ) -> None:
        super().__init__()
        self.sites = tuple(sites)
        numbers = range(1, sites[0].n_layers + 1)
        self.layers = nn.ModuleList(Block(config, n, make_attention, sites, parts) for n in numbers)
        self.norm = self.blocks[0].self_residual.final_norm()
        self.recompute = config.recompute
        self.n_branches = (len(sites) + 1) * len(self.layers)

    @property
    def blocks(self) -> list[Block]:
        """The layers, typed."""
        return cast("list[Block]", list(self.layers))

    def attentions(self) -> Iterator[tuple[str, int, Attention]]:
        """Yield every attention with its site and layer (from 1), site by site."""
        for n_site, site in enumerate(self.sites):
            for number, block in enumerate(self.blocks, start=1):
                attention = block.cross_attention if n_site else block.self_attention
                assert attention is not None
                yield site.name, number, attention

    def make_cache(self) -> StackCache:
        """Return an empty cache."""
        caches = []
        for block in self.blocks:
            cross = block.cross_attention
            memory = None if cross is None else cross.make_cache(static=True)
            caches.append((block.self_attention.make_cache(static=False), memory))
        return StackCache(caches)

    def forward(
        self,
        states_BND: Tensor,
        lengths_B: Tensor | None = None,
        segments_BN: Tensor | None = None,
        memory: Memory | None = None,
        cache: StackCache | None = None,
        n_prefix: int = 0,
    ) -> Tensor:
        """Return states (B, N, D).

        Args:
            states_BND: output of `Input`; with a cache, only of positions that are not cached.
            lengths_B: number of positions of each row without padding; None for causal stacks,
                where padding on the right is masked for real queries anyway.
            segments_BN: document of each position, see `Mask`; None: one document.
            memory: of another stack, if there is a site of cross-attention.
            cache: of the preceding positions.
            n_prefix: number of CLS tokens at the start of the positions.
        """
        offset = cache.length if cache is not None else 0
        causal = self.sites[0].causal
        mask = Mask(
            lengths_B, causal, query_offset=offset, n_prefix=n_prefix, segments_BN=segments_BN
        )
        memory_BSD = memory_mask = None
        if memory is not None:
            memory_BSD, memory_mask = memory.states_BSD, Mask(memory.lengths_B)
        recompute = self.recompute and cache is None
        for index, layer in enumerate(self.layers):
            layer_cache = cache.blocks[index] if cache is not None else None
            states_BND = call_layer(
                layer, recompute, states_BND, mask, memory_BSD, memory_mask, layer_cache
            )
        if cache is not None:
            cache.length += states_BND.shape[1]
        normed: Tensor = self.norm(states_BND)
        return normed
