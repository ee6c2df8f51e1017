"""The maps from scores to weights and their gradients, by the C++ kernels.

Axes: B batch, H heads, Q and K numbers of queries and keys, R some of the rows (B, H, Q).
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from headwise.ops.cpp.build import functions
from headwise.ops.cpp.call import DTYPES, FLOAT, Problem, address, readable
from headwise.ops.draws import Draws
from headwise.ops.family import Power
from headwise.ops.visible import EVERYTHING, Visible


def forward(
    scores_BHQK: Tensor, beta: Tensor | None, power: Power, visible: Visible = EVERYTHING
) -> Tensor:
    """Return weights of the scores (B, H, Q, K); see `headwise.ops.maps.operator`.

    Args:
        scores_BHQK: float32 or bfloat16, contiguous.
        beta, power, visible: as for `Rows`.
    """
    weights_BHQK = torch.empty_like(scores_BHQK)
    Rows(scores_BHQK.shape, beta, power, visible).forward(scores_BHQK, weights_BHQK)
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
    grad_scores_BHQK = torch.empty_like(weights_BHQK)
    shape = (*weights_BHQK.shape[:3], 1) if with_alpha else (0,)
    grad_alpha = weights_BHQK.new_zeros(shape, dtype=torch.float32)
    rows = Rows(weights_BHQK.shape, beta, power, grad_alpha=grad_alpha)
    rows.backward(weights_BHQK, grad_BHQK, grad_scores_BHQK)
    return grad_scores_BHQK, grad_alpha


class Rows:
    """The rows of a call as the kernels read them; each call of a kernel computes some of them.

    Args:
        shape: (B, H, Q, K) of the call.
        beta: α - 1, float32, broadcastable to (B, H, Q, 1); needed for `Power.ANY`.
        power: the map.
        visible: which keys a row may attend to.
        draws: dropout on the weights, or None.
        threshold_BHQ2: float32, contiguous: maximum and threshold of every row, which `forward`
            writes, and from which `backward` recomputes the weights; None: neither.
        grad_alpha: float32, receives the gradient of α per row (B, H, Q, 1); None or empty: it is
            not computed.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        beta: Tensor | None,
        power: Power,
        visible: Visible = EVERYTHING,
        draws: Draws | None = None,
        threshold_BHQ2: Tensor | None = None,
        grad_alpha: Tensor | None = None,
    ) -> None:
        self.shape = shape
        self.struct = struct = Problem(map=power, n_threads=torch.get_num_threads())
        struct.size[:] = shape
        mask, key_lengths_B = visible.mask, visible.key_lengths_B
        struct.causal, struct.query_offset = visible.causal, visible.query_offset
        if beta is not None:
            struct.beta = address(beta, FLOAT, is_strided=True)
            struct.beta_stride[:] = beta.expand(*shape[:3], 1).stride()[:3]
        if draws is not None:
            struct.n_kept, struct.seed = draws.n_kept, draws.seed
        if mask is not None:
            mask = readable(mask)
            struct.mask = address(mask, (torch.bool,), is_strided=True)
            struct.mask_stride[:] = mask.expand(shape).stride()
        if key_lengths_B is not None:
            key_lengths_B = key_lengths_B.to(torch.int64).expand(shape[0]).contiguous()
            struct.key_lengths = address(key_lengths_B, (torch.int64,))
        if threshold_BHQ2 is not None:
            struct.threshold = address(threshold_BHQ2, FLOAT, (*shape[:3], 2))
        if grad_alpha is not None and grad_alpha.numel():
            struct.grad_alpha = address(grad_alpha, FLOAT)
        # the kernels read and write their memory
        self._tensors = (beta, mask, key_lengths_B, threshold_BHQ2, grad_alpha)

    def forward(self, scores_RK: Tensor, out_RK: Tensor, first_row: int = 0) -> None:
        """Write the weights of the scores of some rows to `out_RK`, which may be the scores.

        Args:
            scores_RK: float32 or bfloat16, contiguous, (..., K); K may be smaller than that of the
                call if other keys are not visible.
            out_RK: of the same dtype and shape.
            first_row: index of the first of these rows.
        """
        self.set_rows(scores_RK, out_RK, first_row)
        functions().headwise_forward(ctypes.byref(self.struct))

    def backward(
        self, input_RK: Tensor, grad_RK: Tensor, out_RK: Tensor, first_row: int = 0,
        weights_RK: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Write the gradients of the scores of some rows to `out_RK`, which may be the input.

        Args:
            input_RK: weights, or with thresholds scores, as in `forward`.
            grad_RK, out_RK: gradients of weights and scores, of the same dtype and shape.
            first_row: index of the first of these rows.
            weights_RK: with thresholds, receives the weights after dropout.
        """
        self.set_rows(input_RK, out_RK, first_row)
        dtypes, shape = (input_RK.dtype,), input_RK.shape
        self.struct.grad = address(grad_RK, dtypes, shape)
        if weights_RK is not None:
            self.struct.weights = address(weights_RK, dtypes, shape)
        functions().headwise_backward(ctypes.byref(self.struct))

    def restrict(self, mask: Tensor, first_row: int) -> None:
        """Set the mask of the rows from `first_row` on, which are some queries or whole heads.

        Args:
            mask: bool, True = may attend, broadcastable to their (B, H, Q, K); keys contiguous.
            first_row: index of the first of these rows.
        """
        self._mask = mask
        stride = [0 if n == 1 else step for n, step in zip(mask.shape, mask.stride(), strict=True)]
        of_heads, query = divmod(first_row, self.shape[2])
        first = (*divmod(of_heads, self.shape[1]), query)
        # the kernels count from the first row of the call
        before = sum(index * step for index, step in zip(first, stride, strict=False))
        self.struct.mask = address(mask, (torch.bool,), is_strided=True) - before
        self.struct.mask_stride[:] = stride

    def set_rows(self, input_RK: Tensor, out_RK: Tensor, first_row: int = 0) -> None:
        """Set which rows a kernel computes, and from what; see `forward` and `backward`."""
        struct, shape = self.struct, input_RK.shape
        struct.input = address(input_RK, DTYPES)
        struct.out = address(out_RK, (input_RK.dtype,), shape)
        struct.is_half = input_RK.dtype is torch.bfloat16
        n_keys = shape[-1]
        struct.first_row, struct.size[3] = first_row, n_keys
        struct.n_rows = input_RK.numel() // n_keys if n_keys else 0
