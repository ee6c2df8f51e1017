"""Losses over a vocabulary on GPU, as `cpu.py` on a CPU, without synchronisation.

Axes: N rows, V classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.ops.family import BETA_MIN, POWERS, Power
from headwise.ops.maps.triton import constants_of
from headwise.ops.triton.device import check, on_device, power_of_two

# Classes at a time; the search needs more registers, so it takes half as many.
READ_BLOCK, WRITE_BLOCK = 1 << 11, 1 << 12
N_WARPS = 8


def read(
    scores_NV: Tensor, alpha: float, with_total: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return per row: value, support size, sum of the scores or None, (maximum, threshold) (N, 2).

    See `headwise.ops.losses.cpu.read`.
    """
    from headwise.ops.losses import triton_kernels

    check(scores_NV)
    n_rows, n_classes = scores_NV.shape
    threshold_N2 = scores_NV.new_empty(n_rows, 2, dtype=torch.float32)
    # not views of one tensor: operators must not return views
    value_N, support_N, total_N = (torch.empty_like(threshold_N2[:, 0]) for _ in range(3))
    power = POWERS.get(alpha, Power.ANY)
    block = min(power_of_two(n_classes), READ_BLOCK)
    n_blocks = -(-n_classes // block)
    lists = None
    if n_blocks > 1 and power is not Power.EXP:
        lists = torch.empty(n_rows, n_blocks, dtype=torch.int32, device=scores_NV.device)
    if n_rows:
        with on_device(scores_NV):
            triton_kernels.loss_forward[(n_rows,)](
                scores_NV, threshold_N2, value_N, support_N, total_N if with_total else None,
                lists, alpha, max(alpha - 1, BETA_MIN), n_classes,
                constants_of(1, block, power), num_warps=N_WARPS,
            )  # fmt: skip
    return value_N, support_N, total_N if with_total else None, threshold_N2


def write_gradient(
    scores_NV: Tensor,
    threshold_N2: Tensor,
    out_NV: Tensor,
    scale_N: Tensor,
    target_N: Tensor,
    alpha: float,
    smoothing: float,
    eps_v: float,
) -> None:
    """Write the gradient of the losses; arguments as for `headwise.ops.losses.cpu`."""
    from headwise.ops.losses import triton_kernels

    check(scores_NV, threshold_N2, out_NV, scale_N)
    n_rows, n_classes = scores_NV.shape
    block = min(power_of_two(n_classes), WRITE_BLOCK)
    if n_rows:
        with on_device(scores_NV):
            triton_kernels.loss_backward[(n_rows, -(-n_classes // block))](
                scores_NV, threshold_N2, out_NV, scale_N, target_N,
                max(alpha - 1, BETA_MIN), smoothing, eps_v, n_classes,
                constants_of(1, block, POWERS.get(alpha, Power.ANY)), num_warps=N_WARPS,
            )  # fmt: skip
