"""A learned α per head that may start, and stay, at exactly 1: softmax.

Axes: H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

_ALL: WeakSet[HeadAlpha] = WeakSet()


class HeadAlpha(nn.Module):
    """α of every head: 1 + factor · bias, clamped to [1, 2].

    At α = 1 a head is softmax (Correia, Niculae and Martins 2019). Unlike the sigmoid of
    `headwise.attention.alpha_entmax`, α reaches both ends of its range. There, only gradients
    that lead further out are blocked. `bias` is named so because optimisers of Transformers leave
    parameters with this name without weight decay, which would pull α to 1.

    The gradient of `bias` is that of α, so a step moves α `lr_factor` times as far as other
    weights, under SGD as under Adam. After each step of an optimizer of torch that has `bias`, it is
    put back into its range; nothing is changed in `forward`. `factor` is saved beside `bias`.

    Args:
        n_heads: number of heads.
        init: initial α, in [1, 2].
        lr_factor: how much faster α moves than other weights, > 0.
        learned: whether α gets gradients.

    Raises:
        ValueError: `init` or `lr_factor` is out of range.
    """

    factor: Tensor

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
        options: dict[str, Any] = {"device": device, "dtype": torch.float32}
        self.bias = nn.Parameter(torch.empty(n_heads, **options), requires_grad=learned)
        self.register_buffer("factor", torch.empty((), **options))
        self.reset_parameters()
        _ALL.add(self)

    def __setstate__(self, state: dict[str, Any]) -> None:  # also of a copy
        super().__setstate__(state)
        _ALL.add(self)

    def reset_parameters(self) -> None:
        """Set α of every head to its initial value."""
        nn.init.constant_(self.factor, self.lr_factor)
        nn.init.constant_(self.bias, (self.init - 1) / self.lr_factor)

    def forward(self) -> Tensor:
        """Return α (H,), float32, also under autocast and in models of half precision."""
        bias = self.bias.full_tensor() if hasattr(self.bias, "full_tensor") else self.bias
        if torch.is_grad_enabled() and bias.requires_grad and not torch.jit.is_tracing():
            alpha: Tensor = _Bounded.apply(bias.float(), self.factor)  # type: ignore[no-untyped-call]
            return alpha
        return (1 + self.factor * bias.float()).clamp(1.0, 2.0)

    @torch.no_grad()
    def project(self) -> None:
        """Put `bias` back to where α is in [1, 2]: a step of Adam may lead beyond a bound."""
        bias = self.bias.to_local() if hasattr(self.bias, "to_local") else self.bias
        torch.minimum(bias, 1 / self.factor, out=bias).clamp_min_(0)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> HeadAlpha:
        before = self.bias.data, self.factor
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.bias.dtype in (torch.float16, torch.bfloat16):  # too coarse for steps of training
            self.bias.data, self.factor = (x.to(self.bias.device) for x in before)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load α, and keep the factor; states of headwise 0.1.0 have none, and bias for it."""
        saved = float(state_dict.pop(f"{prefix}factor", self.lr_factor))
        if (bias := state_dict.get(f"{prefix}bias")) is not None:
            state_dict[f"{prefix}bias"] = bias * (saved / self.lr_factor)
        state_dict[f"{prefix}factor"] = torch.tensor(self.lr_factor)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """Return α of the heads, for printing a model."""
        if self.bias.is_meta:
            return f"{self.n_heads} heads"
        low, high = (float(bound) for bound in self().detach().aminmax())
        span = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        learned = "" if self.bias.requires_grad else ", not learned"
        return f"{self.n_heads} heads, α {span}{learned}"


class _Bounded(torch.autograd.Function):
    """α = 1 + factor · bias in [1, 2]; `bias` gets α's gradient, unless it leads further out."""

    generate_vmap_rule = True

    @staticmethod
    def forward(bias: Tensor, factor: Tensor) -> Tensor:
        return (1 + factor * bias).clamp(1.0, 2.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (alpha,) = ctx.saved_tensors
        is_outward = ((alpha <= 1) & (grad > 0)) | ((alpha >= 2) & (grad < 0))
        return grad.masked_fill(is_outward, 0.0), None


def _project(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """After a step: put what the optimizer has of α back into its range."""
    stepped = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    for alpha in [*_ALL]:
        if id(alpha.bias) in stepped:
            alpha.project()


register_optimizer_step_post_hook(_project)
