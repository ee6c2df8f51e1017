"""The maps on a GPU: one launch forward and one backward, whatever restricts the keys.

They serve where weights are asked for, or a pattern or an α of each query keeps a call from
`triton_attention`. Without Triton, `solver.py` takes a hundred passes over memory instead.

Letters: B batch, H heads, Q and K numbers of queries and keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.kernels.problem import Power
from headwise.kernels.triton_device import check, is_interpreted, on_device, power_of_two

LONGEST_BLOCK = 1 << 11  # keys at a time
# Keys at most: rows and warps of a program. A warp has whole rows as long as its registers hold
# them: warps that share a row each repeat what is done once a row, and sum through memory. (Of 64
# keys with a mask, 4 warps of 8 rows take 151 registers a thread, one warp of 2 rows takes 64.)
SHAPES = {32: (8, 4), 128: (2, 1), 256: (1, 1), 512: (1, 2), LONGEST_BLOCK: (1, 4)}


def forward(scores_BHQK: Tensor, beta: Tensor | None, power: Power, mask: Tensor | None) -> Tensor:
    """Weights of the scores (B, H, Q, K); see `headwise.entmax.function`.

    Args:
        scores_BHQK: contiguous, of a type that `triton_device.takes`.
        beta: α - 1, float32, broadcastable to (B, H, Q, 1); needed for `Power.ANY`.
        power: ANY, SQUARE or LINEAR.
        mask: bool, broadcastable to the scores, True = may attend; None: all.
    """
    from headwise.kernels import triton_rows

    weights_BHQK = torch.empty_like(scores_BHQK)
    n_rows, block_rows, block_keys, n_warps = _cut(scores_BHQK)
    if n_rows == 0:
        return weights_BHQK
    mask_strides: tuple[int, ...] = (0,) * 4
    if mask is not None:
        mask = mask.expand(scores_BHQK.shape).view(torch.uint8)
        mask_strides = mask.stride()
    lists = None
    if scores_BHQK.shape[3] > block_keys:
        room = (-(-n_rows // block_rows), -(-scores_BHQK.shape[3] // block_keys))
        lists = torch.empty(room, dtype=torch.int32, device=scores_BHQK.device)
    with on_device(scores_BHQK):
        triton_rows.weights_forward[(-(-n_rows // block_rows),)](
            scores_BHQK, beta, mask, weights_BHQK, lists,
            *_strides(beta, scores_BHQK), *mask_strides, n_rows, *scores_BHQK.shape[1:],
            cut_of(block_rows, block_keys, power, mask is not None), num_warps=n_warps,
        )  # fmt: skip
    return weights_BHQK


def backward(
    weights_BHQK: Tensor, grad_BHQK: Tensor, beta: Tensor | None, power: Power, with_alpha: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of the scores and, for every row (B, H, Q, 1), of α; empty if not asked for.

    Args:
        weights_BHQK: what `forward` gave.
        grad_BHQK: gradient of them, same type, contiguous.
        beta, power: as there.
        with_alpha: needs `Power.ANY`.
    """
    from headwise.kernels import triton_rows

    grad_scores_BHQK = torch.empty_like(weights_BHQK)
    shape = (*weights_BHQK.shape[:3], 1) if with_alpha else (0,)
    n_rows, block_rows, block_keys, n_warps = _cut(weights_BHQK, grad_BHQK)
    make = weights_BHQK.new_empty if n_rows else weights_BHQK.new_zeros
    grad_alpha = make(shape, dtype=torch.float32)
    if n_rows:
        with on_device(weights_BHQK):
            triton_rows.weights_backward[(-(-n_rows // block_rows),)](
                weights_BHQK, grad_BHQK, beta, grad_scores_BHQK,
                grad_alpha if with_alpha else None,
                *_strides(beta, weights_BHQK), n_rows, *weights_BHQK.shape[1:],
                cut_of(block_rows, block_keys, power), num_warps=n_warps,
            )  # fmt: skip
    return grad_scores_BHQK, grad_alpha


class Cut(NamedTuple):
    """What a kernel of rows is compiled for, each a constant of Triton."""

    BLOCK_M: Any  # rows of a program
    BLOCK_N: Any  # keys at a time
    POWER: Any
    PRECISE: Any  # always
    INTERPRET: Any  # whether the interpreter of Triton runs it
    HAS_MASK: Any


def cut_of(block_rows: int, block_keys: int, power: Power, has_mask: bool = False) -> Cut:
    """That of a launch."""
    from triton.language import constexpr

    constants = (block_rows, block_keys, int(power), True, is_interpreted(), has_mask)
    return Cut(*map(constexpr, constants))


def _cut(scores_BHQK: Tensor, *others: Tensor) -> tuple[int, int, int, int]:
    """How many rows with a key there are; rows and keys of a program at a time, and its warps."""
    check(scores_BHQK, *others)
    n_keys = scores_BHQK.shape[3]
    if scores_BHQK.numel() == 0:
        return 0, 1, 1, 1
    block_keys = min(power_of_two(n_keys), LONGEST_BLOCK)
    block_rows, n_warps = next(shape for most, shape in SHAPES.items() if block_keys <= most)
    return scores_BHQK.numel() // n_keys, block_rows, block_keys, n_warps


def _strides(beta: Tensor | None, scores_BHQK: Tensor) -> list[int]:
    """By how far β of the next sentence, head and query lies ahead."""
    if beta is None:
        return [0] * 3
    return list(beta.expand(*scores_BHQK.shape[:3], 1).stride()[:3])
