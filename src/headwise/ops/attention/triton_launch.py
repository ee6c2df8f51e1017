"""The operators of fused α-entmax attention on a GPU: launches and registration.

With registered shapes and gradients, each is one node for torch.compile and activation
checkpointing. No step synchronises with the device.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.ops.attention.triton_blocks import mask_lists
from headwise.ops.attention.triton_tiles import (
    MAX_REGISTERS,
    SEARCH_REGISTERS,
    Tiles,
    blocks,
    tiles,
)
from headwise.ops.register import register_pair
from headwise.ops.triton.constants import constants
from headwise.ops.triton.device import DTYPES, is_interpreted, on_device

WORD = 1 << 32


def _empty(tensor: Tensor) -> Tensor:
    """Return an empty (B, H, N, E) with memory layout (B, N, H, E), to join heads without a copy.

    Not a view: users could not modify it in place.
    """
    _, n_heads, n_rows, head_dim = tensor.shape
    strides = (n_rows * n_heads * head_dim, head_dim, n_heads * head_dim, 1)
    return tensor.new_empty_strided(tensor.shape, strides)


def _precision(tensor: Tensor) -> str:
    """Return the precision of float32 matmuls, from torch's setting."""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", "ieee")  # torch 2.9 and later
    return "tf32" if precision == "tf32" else "ieee"


class States(NamedTuple):
    """A tensor (B, H, N, E) with contiguous rows, and its strides."""

    tensor: Tensor
    per_batch: int
    per_head: int
    per_row: int


class Draws(NamedTuple):
    """Dropout: what is drawn for the queries, and which weights are dropped."""

    row_keys: Tensor
    drop_below: int  # of the words of the weights
    keep_scale: float


class Distances(NamedTuple):
    """A bias by distance."""

    slopes: Tensor
    n_prefix: int


class Masks(NamedTuple):
    """Which keys are visible beside causality and a pattern.

    Attributes:
        lengths: number of keys of each sentence before padding.
        keys: uint8, (B, K), 0 for keys that no query sees.
        segments: document of each position, (B, N); a query sees the keys of its own.
        lists: blocks with a visible pair, for the forward kernel of long rows: see
            `triton_blocks.mask_lists` and, with a pattern, `triton_blocks.PatternTiles`.
        lists_per_batch, lists_per_head: strides of the lists.
    """

    lengths: Tensor | None
    keys: Tensor | None
    segments: Tensor | None
    lists: Tensor | None = None
    lists_per_batch: int = 0
    lists_per_head: int = 0


class Pattern(NamedTuple):
    """`triton_blocks.PatternTiles`, and the number of places of sentences and heads."""

    places: Tensor
    n_places: int
    windows: Tensor


class Results(NamedTuple):
    """Results of the forward kernels."""

    context: Any
    centre: Any
    top: Any
    shift: Any


class Options(NamedTuple):
    """The tensors of a call besides queries, keys, values; all but α may be None."""

    alpha: Tensor
    lengths: Tensor | None
    keys: Tensor | None
    segments: Tensor | None
    row_keys: Tensor | None
    slopes: Tensor | None
    places: Tensor | None
    windows: Tensor | None
    lists: Tensor | None


class Call(NamedTuple):
    """The settings of a call."""

    power: int
    causal: bool
    query_offset: int
    dropout: float
    scale: float
    n_prefix: int

    def launch(
        self, kernel: Any, tiles: Tiles, program: tuple[int, int, int], by_keys: bool,
        heads: tuple[Tensor, ...], options: Options, *more: Any, registers: int = MAX_REGISTERS,
    ) -> None:  # fmt: skip
        """Launch a kernel with one program per block of keys, or of queries."""
        heads = tuple(head if head.stride(3) == 1 else head.contiguous() for head in heads)
        alpha, lengths, keys, segments, row_keys, slopes, places, windows, lists = map(
            _whole, options
        )
        query, key, *_ = heads
        n_batch, n_heads, n_queries, head_dim = query.shape
        n_keys = key.shape[2]
        block_queries, block_keys, n_warps = program
        n_blocks = -(-n_keys // block_keys) if by_keys else -(-n_queries // block_queries)
        masks = Masks(lengths, None if keys is None else keys.view(torch.uint8), segments)
        if lists is not None:
            strides = lists.expand(n_batch, n_heads, -1, -1).stride()
            masks = Masks(*masks[:3], lists, *strides[:2])
        draws = distances = pattern = None
        if self.dropout > 0:
            drop_below = round(self.dropout * WORD) - WORD // 2
            draws = Draws(row_keys, drop_below, 1 / (1 - self.dropout))
        if slopes is not None:
            distances = Distances(slopes, self.n_prefix)
        if places is not None:
            pattern = Pattern(places, places.shape[0] * n_heads, windows)
        const = constants(
            BLOCK_M=block_queries, BLOCK_N=block_keys, WIDTH=head_dim, PADDED=tiles.padded,
            CAUSAL=self.causal, BIASED=slopes is not None, PATTERN=pattern is not None,
            SEGMENTS=segments is not None,
            UNLISTED=tiles.resident and not (keys is None and segments is None),
            POWER=self.power, PRECISE=query.dtype is torch.float32, PRECISION=_precision(query),
            INTERPRET=is_interpreted(),
        )  # fmt: skip
        kernel[(n_batch * n_heads * n_blocks,)](
            tuple(States(head, *head.stride()[:3]) for head in heads), alpha, masks, draws,
            distances, pattern, *more, n_heads, n_queries, n_keys, self.query_offset, self.scale,
            const,
            num_warps=n_warps, num_stages=tiles.stages, maxnreg=registers,
        )  # fmt: skip


N_OPTIONS = len(Options._fields)


def launch_forward(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, ...]:
    """Return context, centre, top, shift and marks of blocks.

    After the heads come the fields of `Options` and of `Call`.
    """
    from headwise.ops.attention import triton_forward, triton_forward_long

    options, call = Options(*others[:N_OPTIONS]), Call(*others[N_OPTIONS:])
    n_batch, n_heads, n_queries, head_dim = query.shape
    n_keys = key.shape[2]
    tiling = tiles(n_queries, n_keys, head_dim, query.element_size(), options.places is not None)
    *out, live = _fake_forward(query, key, value, *options)
    heads = (query, key, value)
    with on_device(query):
        if tiling.resident:
            kernel = triton_forward.forward_resident
            call.launch(kernel, tiling, tiling.forward, False, heads, options, Results(*out))
        else:
            if options.lists is None:
                sizes = (n_queries, n_keys, call.causal, call.query_offset, tiling.block)
                listed = mask_lists(options.lengths, options.keys, options.segments, *sizes)
                options = options._replace(lists=listed)
            n_lines, n_items = live.shape[2:]
            lists = query.new_empty(n_batch, n_heads, n_lines, 1 + n_items, dtype=torch.int16)
            kernel = triton_forward_long.forward_streaming
            registers = SEARCH_REGISTERS if query.element_size() == 2 else MAX_REGISTERS
            for marks, limit in ((None, registers), (live.zero_(), MAX_REGISTERS)):
                more = (Results(*out), marks, lists)
                call.launch(
                    kernel, tiling, tiling.forward, False, heads, options, *more, registers=limit
                )
    return *out, live


def _fake_forward(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, ...]:
    """Return empty results: context, centre, top, shift and marks of blocks."""
    options = Options(*others[:N_OPTIONS])
    n_batch, n_heads, n_queries, head_dim = query.shape
    n_keys = key.shape[2]
    rows = query.new_empty(n_batch, n_heads, n_queries, dtype=torch.float32)
    has_pattern = options.places is not None
    resident, block = blocks(n_keys, head_dim, query.element_size(), has_pattern)
    n_lines, n_items = (0, 0) if resident else (-(-n_queries // block), -(-n_keys // block))
    live = query.new_empty(n_batch, n_heads, n_lines, n_items, dtype=torch.uint8)
    return _empty(query), _empty(query), rows, torch.empty_like(rows), live


def _whole(tensor: Any) -> Any:
    return None if tensor is None else tensor.contiguous()


def block_lists(live: Tensor, by_keys: bool) -> Tensor:
    """Return for every line of blocks the number of marked ones and their entries.

    The number is not above 32,767; entries are those of `triton_visible.listed_block`.
    """
    from headwise.ops.attention import triton_backward

    n_batch, n_heads, n_query_blocks, n_key_blocks = live.shape
    n_lines, n_items, stride_line, stride_item = n_query_blocks, n_key_blocks, n_key_blocks, 1
    if by_keys:
        n_lines, n_items, stride_line, stride_item = n_key_blocks, n_query_blocks, 1, n_key_blocks
    lists = live.new_empty(n_batch, n_heads, n_lines, 1 + n_items, dtype=torch.int16)
    with on_device(live):
        triton_backward.live_lists[(n_batch * n_heads * n_lines,)](
            live, lists, stride_line, stride_item, n_lines, n_items, CHUNK=128, num_warps=1
        )
    return lists


def launch_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value, and α (or empty).

    After the heads come the fields of `Options`, centre, top, shift and marks of blocks, the fields
    of `Call`, and whether to compute the gradient of α.
    """
    from headwise.ops.attention import triton_backward

    options = Options(*others[:N_OPTIONS])
    centre, top, shift, live, *settings, has_alpha = others[N_OPTIONS:]
    call = Call(*settings)
    sizes = (query.shape[2], key.shape[2], query.shape[3], query.element_size())
    tiling = tiles(*sizes, options.places is not None)
    top, shift, live = map(_whole, (top, shift, live))
    centre = _whole(centre.transpose(1, 2)).transpose(1, 2)
    grad_query, grad_key, grad_value = _empty(query), _empty(key), _empty(value)
    grad_rows = torch.empty_like(top) if has_alpha else None
    grad_dot_centre = torch.empty_like(top)
    tensors = ((query, key, value, grad), options._replace(lists=None))
    with on_device(query):
        of_queries = None if tiling.resident else block_lists(live, by_keys=False)
        call.launch(
            triton_backward.backward_queries, tiling, tiling.queries, False, *tensors,
            (centre, top, shift), of_queries, grad_query, grad_rows, grad_dot_centre,
        )  # fmt: skip
        of_keys = None if tiling.resident else block_lists(live, by_keys=True)
        call.launch(
            triton_backward.backward_keys, tiling, tiling.keys, True, *tensors,
            (grad_dot_centre, top, shift), of_keys, grad_key, grad_value,
        )  # fmt: skip
    grad_alpha = top.new_empty(0) if grad_rows is None else grad_rows.sum((0, 2))
    return grad_query, grad_key, grad_value, grad_alpha


def _fake_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    grad_alpha = alpha.new_empty(alpha.shape if rest[-1] else 0)
    return _empty(query), _empty(key), _empty(value), grad_alpha


forward = register_pair(
    "triton_attention",
    "Tensor query BHQE, Tensor key BHKE, Tensor value BHKE, Tensor alpha H float32, "
    "Tensor? lengths B int64 int32, Tensor? keys BK bool, Tensor? segments BQ int32, "
    "Tensor? row_keys 2BHQ int32, Tensor? slopes H float32, "
    "Tensor? places PH4Q int32, Tensor? windows H int32, Tensor? lists RHTL int16",
    "int power, bool causal, int query_offset, float dropout, float scale, int n_prefix",
    "BHQE",
    "Tensor centre BHQE, Tensor top BHQ float32, Tensor shift BHQ float32, Tensor live BHMN uint8",
    4,
    launch_forward,
    _fake_forward,
    launch_backward,
    _fake_backward,
    DTYPES,
)
