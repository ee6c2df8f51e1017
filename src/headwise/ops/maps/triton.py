"""The maps on a GPU: one launch forward and one backward, with any mask.

Used if weights are requested, or if `triton_attention` does not support a pattern or an α per
query. Without Triton, `reference.py` needs a hundred passes over memory.

Axes: B batch, H heads, Q and K numbers of queries and keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.ops.family import Power
from headwise.ops.triton.constants import Constants, constants
from headwise.ops.triton.device import check, is_interpreted, on_device, power_of_two

MAX_BLOCK = 1 << 11  # keys at a time
# Maximum number of keys -> rows and warps of a program. Each warp has whole rows if they fit into
# its registers: warps that share a row repeat the work per row, and reduce through memory. (For 64
# keys with a mask, 4 warps of 8 rows need 151 registers per thread, one warp of 2 rows needs 64.)
SHAPES = {32: (8, 4), 128: (2, 1), 256: (1, 1), 512: (1, 2), MAX_BLOCK: (1, 4)}


def forward(scores_BHQK: Tensor, beta: Tensor | None, power: Power, mask: Tensor | None) -> Tensor:
    """Return weights of the scores (B, H, Q, K); see `headwise.ops.maps.operator`.

    Args:
        scores_BHQK: contiguous, supported by `triton_device.supports`.
        beta: α - 1, float32, broadcastable to (B, H, Q, 1); needed for `Power.ANY`.
        power: ANY, SQUARE or LINEAR.
        mask: bool, broadcastable to the scores, True = may attend; None: all.
    """
    from headwise.ops.maps import triton_kernels

    weights_BHQK = torch.empty_like(scores_BHQK)
    n_rows, block_rows, block_keys, n_warps = _sizes(scores_BHQK)
    if n_rows == 0:
        return weights_BHQK
    mask_strides: tuple[int, ...] = (0,) * 4
    if mask is not None:
        mask = mask.expand(scores_BHQK.shape).view(torch.uint8)
        mask_strides = mask.stride()
    lists = None
    if scores_BHQK.shape[3] > block_keys:
        shape = (-(-n_rows // block_rows), -(-scores_BHQK.shape[3] // block_keys))
        lists = torch.empty(shape, dtype=torch.int32, device=scores_BHQK.device)
    with on_device(scores_BHQK):
        triton_kernels.weights_forward[(-(-n_rows // block_rows),)](
            scores_BHQK, beta, mask, weights_BHQK, lists,
            *_strides(beta, scores_BHQK), *mask_strides, n_rows, *scores_BHQK.shape[1:],
            constants_of(block_rows, block_keys, power, mask is not None), num_warps=n_warps,
        )  # fmt: skip
    return weights_BHQK


def backward(
    weights_BHQK: Tensor, grad_BHQK: Tensor, beta: Tensor | None, power: Power, with_alpha: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the scores and of α per row (B, H, Q, 1); empty if not requested.

    Args:
        weights_BHQK: result of `forward`.
        grad_BHQK: gradient of the weights, same dtype, contiguous.
        beta, power: as in `forward`.
        with_alpha: requires `Power.ANY`.
    """
    from headwise.ops.maps import triton_kernels

    grad_scores_BHQK = torch.empty_like(weights_BHQK)
    shape = (*weights_BHQK.shape[:3], 1) if with_alpha else (0,)
    n_rows, block_rows, block_keys, n_warps = _sizes(weights_BHQK, grad_BHQK)
    make = weights_BHQK.new_empty if n_rows else weights_BHQK.new_zeros
    grad_alpha = make(shape, dtype=torch.float32)
    if n_rows:
        with on_device(weights_BHQK):
            triton_kernels.weights_backward[(-(-n_rows // block_rows),)](
                weights_BHQK, grad_BHQK, beta, grad_scores_BHQK,
                grad_alpha if with_alpha else None,
                *_strides(beta, weights_BHQK), n_rows, *weights_BHQK.shape[1:],
                constants_of(block_rows, block_keys, power), num_warps=n_warps,
            )  # fmt: skip
    return grad_scores_BHQK, grad_alpha


def constants_of(
    block_rows: int, block_keys: int, power: Power, has_mask: bool = False
) -> Constants:
    """Return the constants of a launch; rows are always computed to float32 precision."""
    return constants(
        BLOCK_M=block_rows, BLOCK_N=block_keys, POWER=int(power), PRECISE=True,
        INTERPRET=is_interpreted(), HAS_MASK=has_mask,
    )  # fmt: skip


def _sizes(scores_BHQK: Tensor, *others: Tensor) -> tuple[int, int, int, int]:
    """Return the number of rows, and per program: rows, keys at a time, and warps."""
    check(scores_BHQK, *others)
    n_keys = scores_BHQK.shape[3]
    if scores_BHQK.numel() == 0:
        return 0, 1, 1, 1
    block_keys = min(power_of_two(n_keys), MAX_BLOCK)
    block_rows, n_warps = next(shape for limit, shape in SHAPES.items() if block_keys <= limit)
    return scores_BHQK.numel() // n_keys, block_rows, block_keys, n_warps


def _strides(beta: Tensor | None, scores_BHQK: Tensor) -> list[int]:
    """Return the strides of β by sentence, head and query."""
    if beta is None:
        return [0] * 3
    return list(beta.expand(*scores_BHQK.shape[:3], 1).stride()[:3])
