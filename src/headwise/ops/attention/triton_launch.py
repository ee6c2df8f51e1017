"""The operators of fused α-entmax attention on a GPU: launches and registration.

With registered shapes and gradients, each is one node for torch.compile and activation
checkpointing. No step synchronises with the device.

Axes: B batch, H heads, G heads of keys and values, Q and K numbers of queries and keys, E head
width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.ops.attention.triton_blocks import block_lists, mask_lists
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


def _empty(tensor: Tensor, group: int = 1) -> Tensor:
    """Return an empty (B, H, N, E) with memory layout (B, N, H, E), to join heads without a copy.

    Not a view: users could not modify it in place. For a group of heads per head, in float32.
    """
    n_batch, n_heads, n_rows, head_dim = tensor.shape
    n_heads, dtype = n_heads * group, tensor.dtype if group == 1 else torch.float32
    strides = (n_rows * n_heads * head_dim, head_dim, n_heads * head_dim, 1)
    return tensor.new_empty_strided((n_batch, n_heads, n_rows, head_dim), strides, dtype=dtype)


def _summed(grad: Tensor, states: Tensor, group: int) -> Tensor:
    """Return the gradient of keys or values: the sum of those of the heads of a group."""
    if group == 1:
        return grad
    n_batch, n_heads, n_rows, head_dim = states.shape
    return _empty(states).copy_(grad.view(n_batch, n_heads, group, n_rows, head_dim).sum(2))


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

    row_keys: Tensor | None
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
    windows: Tensor | None


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
        options = Options(*map(_whole, options))
        query, key, *_ = heads
        n_batch, n_heads, n_queries, head_dim = query.shape
        n_keys = key.shape[2]
        block_queries, block_keys, n_warps = program
        n_blocks = -(-n_keys // block_keys) if by_keys else -(-n_queries // block_queries)
        keys, segments, lists = options.keys, options.segments, options.lists
        masks = Masks(options.lengths, None if keys is None else keys.view(torch.uint8), segments)
        if lists is not None:
            per_batch, per_head, *_ = lists.expand(n_batch, n_heads, -1, -1).stride()
            masks = masks._replace(lists=lists, lists_per_batch=per_batch, lists_per_head=per_head)
        draws = distances = pattern = None
        if self.dropout > 0:
            drop_below = round(self.dropout * WORD) - WORD // 2
            draws = Draws(options.row_keys, drop_below, 1 / (1 - self.dropout))
        if options.slopes is not None:
            distances = Distances(options.slopes, self.n_prefix)
        if options.places is not None:
            n_places = options.places.shape[0] * n_heads
            pattern = Pattern(options.places, n_places, options.windows)
        const = constants(
            BLOCK_M=block_queries, BLOCK_N=block_keys, WIDTH=head_dim, PADDED=tiles.padded,
            GROUP=n_heads // key.shape[1], CAUSAL=self.causal, BIASED=distances is not None,
            PATTERN=pattern is not None, SEGMENTS=segments is not None,
            UNLISTED=tiles.resident and not (keys is None and segments is None),
            POWER=self.power, PRECISE=query.dtype is torch.float32, PRECISION=_precision(query),
            INTERPRET=is_interpreted(),
        )  # fmt: skip
        kernel[(n_batch * n_heads * n_blocks,)](
            tuple(States(head, *head.stride()[:3]) for head in heads), options.alpha, masks, draws,
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
    group = query.shape[1] // key.shape[1]
    grad_query, grad_key, grad_value = _empty(query), _empty(key, group), _empty(value, group)
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
    grad_key, grad_value = _summed(grad_key, key, group), _summed(grad_value, value, group)
    return grad_query, grad_key, grad_value, grad_alpha


def _fake_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    grad_alpha = alpha.new_empty(alpha.shape if rest[-1] else 0)
    return _empty(query), _empty(key), _empty(value), grad_alpha


forward = register_pair(
    "triton_attention",
    "Tensor query BHQE, Tensor key BGKE, Tensor value BGKE, Tensor alpha H float32, "
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
