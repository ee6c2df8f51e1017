"""Random calls of `nn.functional.attention` and of the maps, beside explicit weights in float64.

A call follows from its number: `check(NUMBER)` repeats it.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import entmax
from headwise.nn.functional import attention

N_CALLS, N_FAST, N_AT_ONCE = 5000, 150, 485
ALPHAS = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0}
FLOATS = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Tolerated errors of results and gradients: multiples of the precision of the dtype, times the
# largest score and the largest expected value. Gradients may be sums that cancel.
UNITS, GRADIENT_UNITS = 30, 1000


class Draws:
    """Random choices and tensors of one call."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.generator = torch.Generator().manual_seed(number)

    def choose(self, *values: Any) -> Any:
        return self.random.choice(values)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, scale: float = 1.0) -> Tensor:
        """Normal values in one of several layouts of memory."""
        values = (torch.randn(shape, generator=self.generator) * scale).to(dtype)
        axes = self.choose(None, (-1, -2), (-2, -3), (-1, -3))
        if axes is None:
            return torch.stack([values, values], -1)[..., 0] if self.choose(0, 1) else values
        if len(shape) < -axes[1]:
            return values
        return values.transpose(*axes).contiguous().transpose(*axes)

    def broadcast(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Draw a shape that broadcasts to `shape`."""
        first = self.choose(0, self.random.randint(0, len(shape)))
        return tuple(self.choose(1, size, size) for size in shape[first:])

    def mask(self, shape: tuple[int, ...]) -> Tensor:
        share = self.choose(0.0, 0.3, 0.9)
        return torch.rand(self.broadcast(shape), generator=self.generator) >= share

    def alpha(self, shape: tuple[int, ...]) -> Tensor | float:
        """Draw α: a number or a tensor, often 1, 1.5 and 2."""
        if self.choose(0, 1):
            return float(self.choose(1, 1.0001, 1.2, 1.5, 1.9, 2))
        values = torch.rand(shape, generator=self.generator)
        halves = torch.randint(0, 6, shape, generator=self.generator) / 2
        dtype = self.choose(torch.float32, torch.float64, torch.bfloat16)
        return 1 + torch.where(halves <= 1, halves, values).to(dtype)


def explicit_weights(scores: Tensor, alpha: Tensor | float, allowed: Tensor) -> Tensor:
    """Weights along the last axis by bisection, float64; a row without a key is 0."""
    if not scores.shape[-1]:
        return scores
    scores = scores.masked_fill(~allowed, -math.inf)
    top = scores.detach().amax(-1, keepdim=True)
    gap = scores - top.masked_fill(top == -math.inf, 0.0)
    if not isinstance(alpha, Tensor) and alpha == 1:
        return gap.exp() / gap.exp().sum(-1, keepdim=True).clamp_min(1e-300)
    # α of tensors is clamped
    beta = (torch.as_tensor(alpha, dtype=torch.float64).detach() - 1).clamp_min(1e-7)
    low, high = torch.zeros_like(top * beta), torch.ones_like(top * beta)
    for _ in range(70):
        middle = (low + high) / 2
        is_low = _powers(gap.detach(), beta, middle).sum(-1, keepdim=True) > 1
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    # a step of Newton has the gradient of the threshold
    weights = _powers(gap, beta, low)
    slopes = weights.detach().pow(1 - beta).masked_fill(weights == 0, 0.0) / beta
    weights = _powers(
        gap, beta, low + (weights.sum(-1, keepdim=True) - 1) / slopes.sum(-1, keepdim=True)
    )
    return weights.masked_fill(top == -math.inf, 0.0)


def _powers(gap: Tensor, beta: Tensor, threshold: Tensor) -> Tensor:
    rest = gap * beta - threshold
    is_positive = rest > -1
    powers = (rest.masked_fill(~is_positive, 0.0).log1p() / beta).exp()
    return powers.masked_fill(~is_positive, 0.0)


def explicit_attention(
    query: Tensor, key: Tensor, value: Tensor, attention: str, alpha: Any, attn_mask: Any,
    is_causal: bool, scale: float | None, enable_gqa: bool, dropout_p: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the context, and the scores."""
    query, key, value = (x.double() for x in (query, key, value))
    if enable_gqa:
        repeats = (query.shape[-3] // key.shape[-3], -3)
        key, value = key.repeat_interleave(*repeats), value.repeat_interleave(*repeats)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool)
    allowed = allowed.tril() if is_causal else allowed
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        allowed = allowed & attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask.double()
    alpha = ALPHAS.get(attention, alpha)
    if isinstance(alpha, Tensor) and alpha.dim() == 1:
        alpha = alpha[:, None, None]
    return explicit_weights(scores, alpha, allowed) @ value, scores


def draw_attention(draws: Draws) -> dict[str, Any]:
    """Draw the arguments of a valid call."""
    n_axes, n_heads = draws.choose(2, 3, 4, 4, 4, 5), draws.choose(1, 2, 6)
    batch = tuple(draws.choose(0, 1, 2, 3, 3) for _ in range(n_axes - 3))
    n_queries, n_keys, width, value_width = (draws.choose(0, 1, 2, 5, 8, 17, 40) for _ in range(4))
    if draws.random.random() < 0.1:
        n_queries, n_keys = 20, 140  # enough for kernels that form no weights
    rows = (*batch, n_heads, n_queries)[1 - n_axes :]
    is_grouped = n_axes > 2 and draws.choose(True, False)
    n_groups = (
        draws.choose(1, n_heads, n_heads // 2 or 1) if is_grouped else draws.choose(1, n_heads)
    )
    outer = (*(draws.choose(1, size, size) for size in batch), n_groups)[: n_axes - 2]
    dtype, name = draws.choose(*FLOATS), draws.choose("alpha_entmax", *ALPHAS)
    mask = draws.choose(None, draws.mask((*rows, n_keys)))
    if mask is not None and draws.choose(True, False):
        mask_dtype = draws.choose(dtype, torch.float32)
        low = draws.choose(-math.inf, -1.0, torch.finfo(mask_dtype).min)
        mask = draws.tensor(mask.shape, mask_dtype).masked_fill(~mask, low)
    of_rows = (draws.broadcast((*rows, 1)), (n_heads if n_axes > 2 else 1,))
    return {
        "query": draws.tensor((*rows, width or 1), dtype, draws.choose(0.0, 0.3, 1.0, 1.0, 10.0)),
        "key": draws.tensor((*outer, n_keys, width or 1), dtype),
        "value": draws.tensor((*outer, n_keys, value_width), dtype),
        "attention": name,
        "alpha": draws.alpha(draws.choose(*of_rows)) if name == "alpha_entmax" else None,
        "attn_mask": mask,
        "is_causal": draws.choose(True, False),
        "dropout_p": 0.0,
        "scale": draws.choose(None, None, 0.5, -1.0, 0.0),
        "enable_gqa": is_grouped,
    }


def wrong_attention(draws: Draws, call: dict[str, Any]) -> dict[str, Any]:
    """Make one argument wrong."""
    query, key = call["query"], call["key"]
    learned = {"attention": "alpha_entmax"}
    more_keys = torch.ones(*query.shape[:-1], key.shape[-2] + 2, dtype=torch.bool)
    return call | draws.choose(
        {"query": query.long()},
        {"query": query.flatten()},
        {"query": torch.cat([query, query], -1)},
        {"query": query.to(torch.float32 if query.dtype is torch.float64 else torch.float64)},
        {"key": key[None]},
        {"key": key.new_zeros(*key.shape[:-2], key.shape[-2] + 2, key.shape[-1])},
        {"value": call["value"].to("meta")},
        {"attention": "entmax"},
        {"attention": "softmax", "alpha": 1.5},
        *(learned | {"alpha": alpha} for alpha in (None, 0.9, 2.1, math.nan, "high")),
        learned | {"alpha": torch.full((5, 1, 1, 1, 1, 1), 1.5)},
        learned | {"alpha": torch.tensor(1)},
        {"attn_mask": more_keys},
        {"attn_mask": more_keys.long()},
        {"dropout_p": 1.0},
        {"dropout_p": -0.1},
        {"scale": "large"},
    )


def draw_map(draws: Draws) -> dict[str, Any]:
    """Draw the arguments of a valid call of a map."""
    shape = tuple(draws.choose(0, 1, 2, 3, 4, 40) for _ in range(draws.choose(1, 2, 3, 4, 5)))
    shape = tuple(min(size, 4) for size in shape[:-2]) + shape[-2:]
    dim, dtype = draws.random.randrange(-len(shape), len(shape)), draws.choose(*FLOATS)
    scores = draws.tensor(shape, dtype, draws.choose(0.0, 1.0, 10.0, 1e4))
    rows = tuple(1 if axis == dim % len(shape) else size for axis, size in enumerate(shape))
    name = draws.choose("alpha_entmax", "entmax_bisect", *ALPHAS)
    learned = {} if name in ALPHAS else {"alpha": draws.alpha(draws.broadcast(rows))}
    mask = draws.choose(None, draws.mask(shape))
    if draws.choose(0, 0, 1):
        scores = scores.masked_fill(~draws.mask(shape).expand(shape), -math.inf)
    return {"name": name, "scores": scores, "dim": dim, "mask": mask, **learned}


def wrong_map(draws: Draws, call: dict[str, Any]) -> dict[str, Any]:
    shape = call["scores"].shape
    learned = {"name": "alpha_entmax"}
    return call | draws.choose(
        {"scores": call["scores"].long()},
        {"mask": torch.ones(shape)},
        {"mask": torch.ones((2, *shape), dtype=torch.bool)},
        {"mask": torch.ones((*shape[:-1], shape[-1] + 2), dtype=torch.bool)},
        {"dim": len(shape)},
        *(learned | {"alpha": alpha} for alpha in (0.5, 3.0, math.nan, "high", None)),
        learned | {"alpha": torch.full((*shape[:-1], shape[-1] + 2), 1.5)},
    )


def call_map(name: str, scores: Tensor, dim: int, mask: Any, **alpha: Any) -> Tensor:
    return getattr(entmax, name)(scores, *alpha.values(), dim=dim, mask=mask)


def explicit_map(
    name: str, scores: Tensor, dim: int, mask: Any, alpha: Any = None
) -> tuple[Tensor, Tensor]:
    alpha = ALPHAS.get(name, alpha)
    if isinstance(alpha, Tensor):
        alpha = alpha.expand((1,) * (scores.dim() - alpha.dim()) + alpha.shape).movedim(dim, -1)
    allowed = (
        torch.ones(scores.shape, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
    )
    rows = scores.double().movedim(dim, -1)
    return explicit_weights(rows, alpha, allowed.movedim(dim, -1)).movedim(-1, dim), scores.double()


def largest(values: Tensor) -> float:
    """Return the largest magnitude; values that mask a key do not count."""
    values = values.detach()[values.abs() < 1e9]
    return float(values.abs().max()) if values.numel() else 0.0


def check(number: int) -> None:
    """Make one call, and compare result and gradients."""
    draws = Draws(number)
    draw, wrong, function, explicit = draws.choose(
        (draw_attention, wrong_attention, attention, explicit_attention),
        (draw_map, wrong_map, call_map, explicit_map),
    )
    call = draw(draws)
    if draws.random.random() < 0.2:
        with pytest.raises((TypeError, ValueError)):
            function(**wrong(draws, call))
        return
    leaves = [x for x in call.values() if isinstance(x, Tensor) and x.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_()
    with torch.set_grad_enabled(draws.choose(True, False)):
        result = function(**call)
    assert result.dtype is leaves[0].dtype
    expected, scores = explicit(**call)
    pairs = [(result, expected.view(result.shape))]
    if result.requires_grad:
        ours, theirs = (
            torch.autograd.grad(x.double().square().sum(), leaves, allow_unused=True)
            for x in pairs[0]
        )
        pairs += [pair for pair in zip(ours, theirs, strict=True) if pair[1] is not None]
        assert all(grad is None or grad.isfinite().all() for grad in ours)
    unit = torch.finfo(result.dtype).eps * (1 + largest(scores))
    for index, (actual, right) in enumerate(pairs):
        units = GRADIENT_UNITS if index else UNITS
        tolerance = units * unit * max(1.0, largest(right))
        torch.testing.assert_close(actual.double(), right.double(), atol=tolerance, rtol=0)


def check_all(numbers: range) -> None:
    for number in numbers:
        try:
            check(number)
        except BaseException as error:
            error.add_note(f"call {number}")
            raise


def test_calls_equal_explicit_weights() -> None:
    check_all(range(N_FAST))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(N_FAST, N_CALLS, N_AT_ONCE))
def test_more_calls_equal_explicit_weights(first: int) -> None:
    check_all(range(first, first + N_AT_ONCE))
