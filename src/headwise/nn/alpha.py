"""A learned α per head that may start, and stay, at exactly 1: softmax.

Axes: H heads.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

_ALL: WeakSet[HeadAlpha] = WeakSet()


class HeadAlpha(nn.Module):
    """α of every head: 1 + factor · bias, clamped to [1, 2].

    At α = 1 a head is softmax (Correia, Niculae and Martins 2019). Unlike the sigmoid of
    `headwise.attention.alpha_entmax`, α reaches both ends of its range. `bias` is named so because
    optimizers of Transformers apply no weight decay to parameters of this name; it would pull α
    to 1.

    The gradient of `bias` is that of α, so a step moves α `lr_factor` times as far as other
    weights, under SGD as under Adam. `forward` changes nothing. Around each step of a
    `torch.optim.Optimizer` that has `bias`, hooks keep α in its range: before it, gradients of α
    at a bound that lead further out become 0 (after they are summed over batches and processes;
    those of a closure stay as they are); after it, `bias` is clamped. `factor` is saved beside
    `bias`.

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
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _ALL.add(self)

    def reset_parameters(self) -> None:
        """Set α of every head to its initial value."""
        nn.init.constant_(self.factor, self.lr_factor)
        nn.init.constant_(self.bias, (self.init - 1) / self.lr_factor)

    def forward(self) -> Tensor:
        """Return α (H,), float32, also under autocast and in models of half precision."""
        bias = (self.bias.full_tensor() if hasattr(self.bias, "full_tensor") else self.bias).float()
        alpha = (1 + self.factor * bias.detach()).clamp(1.0, 2.0)
        return alpha + (bias - bias.detach())  # + 0, which has the gradient of α

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


def _local(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor that may be sharded."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _alphas_of(optimizer: optimizers.Optimizer) -> Iterator[tuple[HeadAlpha, Tensor, Tensor, Any]]:
    """Yield what an optimizer has of α: the module, `bias`, its bound, the group of parameters."""
    groups = {id(weight): group for group in optimizer.param_groups for weight in group["params"]}
    for alpha in [*_ALL]:
        if (group := groups.get(id(alpha.bias))) is not None:
            bias = _local(alpha.bias)
            yield alpha, bias, 1 / alpha.factor.to(bias.device), group


@torch.no_grad()
def _before_step(optimizer: optimizers.Optimizer, args: Any, kwargs: Any) -> None:
    """Set gradients of α at a bound that lead further out to 0: momentum would hold it there."""
    for alpha, bias, highest, group in _alphas_of(optimizer):
        if alpha.bias.grad is not None:
            if group.get("weight_decay"):
                _warn_of_decay()
            grad = _local(alpha.bias.grad)
            down = -grad if group.get("maximize") else grad
            grad.masked_fill_(((bias <= 0) & (down > 0)) | ((bias >= highest) & (down < 0)), 0.0)


@torch.no_grad()
def _after_step(optimizer: optimizers.Optimizer, args: Any, kwargs: Any) -> None:
    """Clamp `bias`: a step of Adam may lead beyond a bound, and α would take as long to return."""
    for _, bias, highest, _ in _alphas_of(optimizer):
        torch.minimum(bias, highest, out=bias).clamp_min_(0)


@functools.cache  # once
def _warn_of_decay() -> None:
    warnings.warn(
        "weight decay pulls α of sparse heads to 1: put the parameters of HeadAlpha modules into a "
        "group of the optimizer with weight_decay=0",
        stacklevel=2,
    )


optimizers.register_optimizer_step_pre_hook(_before_step)
optimizers.register_optimizer_step_post_hook(_after_step)
