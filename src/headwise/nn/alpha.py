"""A learned α per head that may start, and stay, at exactly 1: softmax.

Axes: H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headwise.ops.register import is_transformed


class HeadAlpha(nn.Module):
    """α of every head: 1 + lr_factor · bias, clamped to [1, 2].

    At α = 1 a head is softmax (Correia, Niculae and Martins 2019). Unlike the sigmoid of
    `headwise.attention.alpha_entmax`, α reaches both ends of its range. There, only gradients
    that lead further out are blocked. `bias` is named so because optimisers of Transformers leave
    parameters with this name without weight decay, which would pull α to 1.

    Args:
        n_heads: number of heads.
        init: initial α, in [1, 2].
        lr_factor: how much faster α moves than other weights under Adam, > 0.
        learned: whether α gets gradients.

    Raises:
        ValueError: `init` or `lr_factor` is out of range.
    """

    def __init__(
        self,
        n_heads: int,
        init: float = 1.0,
        lr_factor: float = 10.0,
        learned: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= init <= 2:
            raise ValueError(f"alpha_init must be in [1, 2], got {init}")
        if not 0 < lr_factor < float("inf"):
            raise ValueError(f"alpha_lr_factor must be above 0, got {lr_factor}")
        self.n_heads, self.attention = n_heads, "alpha_entmax"
        self.init, self.lr_factor = float(init), float(lr_factor)
        self.bias = nn.Parameter(
            torch.empty(n_heads, device=device, dtype=torch.float32), requires_grad=learned
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set α of every head to its initial value."""
        nn.init.constant_(self.bias, (self.init - 1) / self.lr_factor)

    def forward(self) -> Tensor:
        """Return α (H,), float32, also under autocast and in models of half precision."""
        if self.training and self.bias.requires_grad and not is_transformed():
            # a step of Adam may lead beyond a bound, from where α would take as long to return;
            # functions that torch.func transforms must not change their arguments
            with torch.no_grad():
                self.bias.clamp_(0, 1 / self.lr_factor)
        alpha: Tensor = _Bounded.apply(1 + self.lr_factor * self.bias.float())  # type: ignore[no-untyped-call]
        return alpha

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> HeadAlpha:
        before = self.bias.data
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.bias.dtype in (torch.float16, torch.bfloat16):  # too coarse for steps of training
            self.bias.data = before.to(self.bias.device)
        return self

    def extra_repr(self) -> str:
        """Return α of the heads, for printing a model."""
        if self.bias.is_meta:
            return f"{self.n_heads} heads"
        low, high = (float(bound) for bound in self().detach().aminmax())
        span = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        learned = "" if self.bias.requires_grad else ", not learned"
        return f"{self.n_heads} heads, α {span}{learned}"


class _Bounded(torch.autograd.Function):
    """Clamp to [1, 2]; at a bound, gradients that lead further out become 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(alpha: Tensor) -> Tensor:
        return alpha.clamp(1.0, 2.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (alpha,) = ctx.saved_tensors
        is_outward = ((alpha <= 1) & (grad > 0)) | ((alpha >= 2) & (grad < 0))
        return grad.masked_fill(is_outward, 0.0)
