"""The tiling of attention on a GPU into programs: sizes, warps, stages, from the sizes of a call.

Axes: K number of keys, E head width.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwise.ops.triton.device import power_of_two

BLOCK = 64  # rows and columns of the blocks that are skipped if empty
# Keys with more bytes (float32 from width 65 on, others from 129 on) use half of BLOCK, those with
# more than twice as many a quarter: tiles must fit into 99 KiB.
WIDE_BYTES = 256
MAX_REGISTERS = 255  # explicit, as a compiler that spills registers may choose 32
SEARCH_REGISTERS = 128  # of the search in long rows, in half precision: 16 warps on a processor
# Limits of rows whose scores stay in registers, by the bytes of the keys of a head and by their
# number, and scores per program in half precision. On sm_90 more scores spill registers; and longer
# rows would leave fewer than 32 queries per program, each of which reads all keys.
RESIDENT_BYTES, RESIDENT_KEYS, RESIDENT_SCORES = 1 << 15, 256, 1 << 13


@dataclass(frozen=True)
class Tiles:
    """The tiling of a call into programs.

    Attributes:
        resident: whether scores stay in registers; else blocks are recomputed in each pass, and
            the backward pass skips empty ones.
        block: rows and columns of these blocks.
        forward, queries, keys: (queries, keys, warps) per program of each kernel.
        padded: the head width, rounded up to a power of two.
        stages: of software pipelining; with 3, tiles of wide heads overflow shared memory.
    """

    resident: bool
    block: int
    forward: tuple[int, int, int]
    queries: tuple[int, int, int]
    keys: tuple[int, int, int]
    padded: int
    stages: int


def blocks(n_keys: int, head_dim: int, itemsize: int, has_pattern: bool) -> tuple[bool, int]:
    """Return `resident` and `block` of `Tiles`. With a pattern, blocks are never resident.

    The number of keys is only compared, so that graphs stay dynamic in the length.
    """
    padded = power_of_two(head_dim)
    n_bytes = padded * itemsize
    block = BLOCK if n_bytes <= WIDE_BYTES else max(16, BLOCK * WIDE_BYTES // n_bytes)
    # with heads narrower than 64 each warp has whole rows, which spill at 256 keys
    longest = RESIDENT_KEYS if padded >= 64 and itemsize == 2 else RESIDENT_KEYS // 2
    resident = n_bytes <= WIDE_BYTES and n_keys <= min(longest, RESIDENT_BYTES // n_bytes)
    return resident and not has_pattern, block


def tiles(
    n_queries: int, n_keys: int, head_dim: int, itemsize: int, has_pattern: bool = False
) -> Tiles:
    """Return the tiling of a call, from its sizes only: there is no autotuning."""
    resident, block = blocks(n_keys, head_dim, itemsize, has_pattern)
    padded = power_of_two(head_dim)
    n_bytes = padded * itemsize
    # one short size, as each is compiled for seconds and sentences have all lengths
    block_queries, block_keys = (16 if resident and n <= 16 else block for n in (n_queries, n_keys))
    n_warps = 8 if n_bytes >= WIDE_BYTES else _n_warps(block_queries * block_keys, itemsize)
    forward = backward = (block_queries, block_keys, n_warps)
    if resident:
        n_row = power_of_two(n_keys, at_least=block_keys)
        n_block = min(block_queries, max(16, RESIDENT_SCORES * 2 // itemsize // n_row))
        forward = (n_block, n_row, 8 if n_row > 256 else _n_warps(n_block * n_row, itemsize))
    stages = 3 if n_bytes <= 128 else 2 if n_bytes <= WIDE_BYTES else 1
    return Tiles(resident, block, forward, backward, backward, padded, stages)


def _n_warps(n_scores: int, itemsize: int) -> int:
    """Return warps for 32 scores per thread, 16 in small tiles and in float32."""
    return max(1, min(8 if itemsize == 4 else 4, n_scores >> 9))
