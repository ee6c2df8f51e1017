"""The operators of fused α-entmax attention on a GPU: how calls are cut, launched and registered.

As operators of torch's library with shapes and gradients registered, they pass through
torch.compile and activation checkpointing as a whole. No step waits for the device.

Letters: B batch, H heads, Q and K numbers of queries and keys, E head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.kernels.operators import register_pair
from headwise.kernels.triton_device import is_interpreted, on_device, power_of_two

LIST = 64  # rows and columns of the blocks that are passed over where they are empty
WIDE_BYTES = 256  # keys beyond it (float32 of 128 numbers) are taken in blocks of half of LIST
MAX_REGISTERS = 255  # said, since a compiler that has to spill registers may settle for 32
# Longest rows of which scores are held, by the bytes of the keys of a head and by their number, and
# how many scores a program holds in half precision. Compiled for sm_90, more spill registers; and
# longer rows would leave fewer than 32 queries a program, each of which reads all keys.
RESIDENT_BYTES, RESIDENT_KEYS, RESIDENT_SCORES = 1 << 15, 256, 1 << 13
WORD = 1 << 32


@dataclass(frozen=True)
class Tiles:
    """How a call is cut into programs.

    Attributes:
        resident: whether the scores of some queries are held; else blocks are read again and
            again, and empty ones marked, to be passed over on the way back.
        block: rows and columns of these blocks.
        forward, queries, keys: (queries, keys, warps) of a program of each kernel.
        padded: the head width, a power of two.
        stages: how far loads run ahead; with three, tiles of wide heads overflow shared memory.
    """

    resident: bool
    block: int
    forward: tuple[int, int, int]
    queries: tuple[int, int, int]
    keys: tuple[int, int, int]
    padded: int
    stages: int


def blocks(n_keys: int, head_dim: int, itemsize: int) -> tuple[bool, int]:
    """`resident` and `block` of `Tiles`.

    The number of keys is compared and nothing else, so that a graph which is compiled for any
    length stays so.
    """
    padded = power_of_two(head_dim)
    n_bytes = padded * itemsize
    block = LIST if n_bytes <= WIDE_BYTES else LIST // 2
    # heads narrower than 64 leave each warp with whole rows, which at 256 keys spill
    longest = RESIDENT_KEYS if padded >= 64 and itemsize == 2 else RESIDENT_KEYS // 2
    resident = n_bytes <= WIDE_BYTES and n_keys <= min(longest, RESIDENT_BYTES // n_bytes)
    return resident, block


def tiles(n_queries: int, n_keys: int, head_dim: int, itemsize: int) -> Tiles:
    """The cut of a call, from its sizes alone, so that nothing is timed at run time."""
    resident, block = blocks(n_keys, head_dim, itemsize)
    padded = power_of_two(head_dim)
    n_bytes = padded * itemsize
    n_row = power_of_two(n_keys)
    short_queries, short_keys = min(block, power_of_two(n_queries)), min(block, n_row)
    if resident:
        n_block = min(short_queries, max(16, RESIDENT_SCORES * 2 // itemsize // n_row))
        forward = (n_block, n_row, 8 if n_row > 256 else _n_warps(n_block * n_row, itemsize))
    else:
        # two groups of warps share the keys where there are queries enough to fill the device
        n_block = 2 * block if n_queries >= 16 * LIST and itemsize == 2 else block
        forward = (n_block, block, 8 if itemsize == 4 else n_block // 16)
        short_queries = short_keys = block
    n_warps = 8 if n_bytes >= WIDE_BYTES else _n_warps(short_queries * short_keys, itemsize)
    back = (short_queries, short_keys, n_warps)
    stages = 3 if n_bytes <= 128 else 2 if n_bytes <= WIDE_BYTES else 1
    return Tiles(resident, block, forward, back, back, padded, stages)


def _n_warps(n_scores: int, itemsize: int) -> int:
    """About 32 scores a thread, 16 in small tiles and in float32, which needs more registers."""
    return max(1, min(8 if itemsize == 4 else 4, n_scores >> 9))


def _room(tensor: Tensor) -> Tensor:
    """(B, H, N, E) laid out as (B, N, H, E), which the heads are joined from without a copy.

    Not a view: that could not be changed in place.
    """
    _, n_heads, n_rows, head_dim = tensor.shape
    strides = (n_rows * n_heads * head_dim, head_dim, n_heads * head_dim, 1)
    return tensor.new_empty_strided(tensor.shape, strides)


def _precision(tensor: Tensor) -> str:
    """How products of float32 are formed, as torch's own setting says."""
    return "tf32" if torch.get_float32_matmul_precision() != "highest" else "ieee"


class Cut(NamedTuple):
    """What a kernel of attention is compiled for, each a constant of Triton."""

    BLOCK_M: Any  # queries of a program or, going by keys, of a step
    BLOCK_N: Any  # keys
    WIDTH: Any  # of a head
    PADDED: Any  # the same, a power of two
    CAUSAL: Any
    BIASED: Any  # whether by distance
    POWER: Any
    PRECISE: Any  # whether to float32
    PRECISION: Any  # of products
    INTERPRET: Any  # whether the interpreter of Triton runs it


class Call(NamedTuple):
    """What is told of a call beside its tensors."""

    power: int
    causal: bool
    query_offset: int
    dropout: float
    scale: float
    n_prefix: int

    def launch(
        self, kernel: Any, tiles: Tiles, program: tuple[int, int, int], by_keys: bool,
        heads: tuple[Tensor, ...], alpha: Tensor, key_lengths: Tensor | None,
        row_keys: Tensor | None, slopes: Tensor | None, *more: Any,
    ) -> None:  # fmt: skip
        """Start a kernel with programs that go by keys, or by queries."""
        from triton.language import constexpr

        query, key = heads[:2]
        n_batch, n_heads, n_queries, head_dim = query.shape
        n_keys = key.shape[2]
        block_queries, block_keys, n_warps = program
        n_blocks = -(-n_keys // block_keys) if by_keys else -(-n_queries // block_queries)
        draws = None
        if self.dropout > 0:
            draws = (row_keys, round(self.dropout * WORD) - WORD // 2, 1 / (1 - self.dropout))
        distances = None if slopes is None else (slopes, self.n_prefix)
        constants = Cut(
            block_queries, block_keys, head_dim, tiles.padded, self.causal, slopes is not None,
            self.power, query.dtype is torch.float32, _precision(query), is_interpreted(),
        )  # fmt: skip
        kernel[(n_batch * n_heads * n_blocks,)](
            heads, tuple(one.stride()[:3] for one in heads), alpha, key_lengths, draws, distances,
            *more, n_heads, n_queries, n_keys, self.query_offset, self.scale,
            Cut(*map(constexpr, constants)),
            num_warps=n_warps, num_stages=tiles.stages, maxnreg=MAX_REGISTERS,
        )  # fmt: skip


def launch_forward(
    query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, key_lengths: Tensor | None,
    row_keys: Tensor | None, slopes: Tensor | None, *settings: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Context, centre, top, shift and marks of blocks; settings are those of `Call`."""
    from headwise.kernels import triton_forward, triton_streaming

    n_batch, n_heads, n_queries, head_dim = query.shape
    cut = tiles(n_queries, key.shape[2], head_dim, query.element_size())
    *out, live = _fake_forward(query, key)
    kernel: Any = triton_forward.forward_resident
    more: tuple[Any, ...] = (tuple(out),)
    if not cut.resident:
        n_blocks, n_lists = -(-n_queries // cut.forward[0]), -(-key.shape[2] // cut.block)
        lists = query.new_empty(n_batch, n_heads, n_blocks, n_lists, dtype=torch.int16)
        kernel = triton_streaming.forward_streaming
        more = (tuple(out), live.zero_(), lists)
    given = ((query, key, value), alpha, key_lengths, row_keys, slopes)
    with on_device(query):
        Call(*settings).launch(kernel, cut, cut.forward, False, *given, *more)
    return *out, live


def _fake_forward(query: Tensor, key: Tensor, *_: Any) -> tuple[Tensor, ...]:
    """The results without values: context, centre, top, shift and marks of blocks."""
    n_batch, n_heads, n_queries, head_dim = query.shape
    n_keys = key.shape[2]
    rows = query.new_empty(n_batch, n_heads, n_queries, dtype=torch.float32)
    resident, block = blocks(n_keys, head_dim, query.element_size())
    n_lines, n_items = (0, 0) if resident else (-(-n_queries // block), -(-n_keys // block))
    live = query.new_empty(n_batch, n_heads, n_lines, n_items, dtype=torch.uint8)
    return _room(query), _room(query), rows, torch.empty_like(rows), live


def _live_lists(live: Tensor, by_keys: bool) -> tuple[Tensor, Tensor]:
    """Marked blocks of every line of blocks, and how many they are."""
    from headwise.kernels import triton_backward

    n_batch, n_heads, n_query_blocks, n_key_blocks = live.shape
    n_lines, n_items, stride_line, stride_item = n_query_blocks, n_key_blocks, n_key_blocks, 1
    if by_keys:
        n_lines, n_items, stride_line, stride_item = n_key_blocks, n_query_blocks, 1, n_key_blocks
    lists = live.new_empty(n_batch, n_heads, n_lines, n_items, dtype=torch.int16)
    counts = live.new_empty(n_batch, n_heads, n_lines, dtype=torch.int32)
    triton_backward.live_lists[(n_batch * n_heads * n_lines,)](
        live, lists, counts, stride_line, stride_item, n_lines, n_items, CHUNK=128, num_warps=1
    )
    return lists, counts


def launch_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor,
    key_lengths: Tensor | None, row_keys: Tensor | None, slopes: Tensor | None, centre: Tensor,
    top: Tensor, shift: Tensor, live: Tensor, *settings: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of query, key, value, and of α (or empty).

    Settings are those of `Call`, and whether α's gradient is wanted.
    """
    from headwise.kernels import triton_backward

    *told, has_alpha = settings
    call = Call(*told)
    cut = tiles(query.shape[2], key.shape[2], query.shape[3], query.element_size())
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    grad_query, grad_key, grad_value = _room(query), _room(key), _room(value)
    grad_rows = torch.empty_like(top) if has_alpha else None
    product = torch.empty_like(top)
    given = ((query, key, value, grad), alpha, key_lengths, row_keys, slopes)
    with on_device(query):
        lists = None if cut.resident else _live_lists(live, by_keys=False)
        call.launch(
            triton_backward.backward_queries, cut, cut.queries, False, *given,
            (centre, top, shift), lists, grad_query, grad_rows, product,
        )  # fmt: skip
        lists = None if cut.resident else _live_lists(live, by_keys=True)
        call.launch(
            triton_backward.backward_keys, cut, cut.keys, True, *given,
            (product, top, shift), lists, grad_key, grad_value,
        )  # fmt: skip
    grad_alpha = top.new_empty(0) if grad_rows is None else grad_rows.sum((0, 2))
    return grad_query, grad_key, grad_value, grad_alpha


def _fake_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    grad_alpha = alpha.new_empty(alpha.shape if rest[-1] else 0)
    return _room(query), _room(key), _room(value), grad_alpha


forward = register_pair(
    "triton_attention",
    "Tensor query, Tensor key, Tensor value, Tensor alpha, Tensor? lengths, Tensor? row_keys, "
    "Tensor? slopes",
    "int power, bool causal, int query_offset, float dropout, float scale, int n_prefix",
    4,
    4,
    launch_forward,
    _fake_forward,
    launch_backward,
    _fake_backward,
    dispatch="CompositeExplicitAutograd",
)
