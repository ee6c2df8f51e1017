"""Random calls of `nn.functional.attention` and of the maps, beside explicit weights in float64.

A call follows from its number: `check(NUMBER)` repeats it.
"""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import entmax
from headwise.nn.functional import attention

N_CALLS, N_FAST = 5000, 150
ALPHAS = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0}
FLOATS = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Tolerated errors of results and gradients: multiples of the precision of the dtype, times the
# largest score and the largest expected value. Gradients may be sums that cancel.
UNITS, GRADIENT_UNITS = 30, 1000
Choose = Callable[[Any], Any]


def laid_out(choose, values):
    """Return the values in one of several layouts of memory."""
    axes = choose([(-1, -1), (-1, -2), (-2, -3), (-1, -3)])
    if values.dim() >= -axes[1]:
        values = values.transpose(*axes).contiguous().transpose(*axes)
    return choose([values, torch.stack([values, values], -1)[..., 0]])


def broadcast(choose, shape):
    """Return a shape that broadcasts to `shape`."""
    return tuple(choose([1, n, n]) for n in shape[choose([0, *range(len(shape) + 1)]) :])


def draw_mask(choose, shape):
    return torch.rand(broadcast(choose, shape)) >= choose([0.0, 0.3, 0.9])


def draw_alpha(choose, shape):
    """Return a number or a tensor, often 1, 1.5 and 2."""
    halves = torch.randint(0, 6, shape) / 2
    values = 1 + torch.where(halves <= 1, halves, torch.rand(shape))
    numbers = [1.0, 1.0001, 1.2, 1.5, 1.9, 2.0]
    return choose([values.to(choose([torch.float64, torch.bfloat16])), values, *numbers])


def draw_attention(choose):
    """Return the arguments of a valid call."""
    n_axes, n_heads = choose([2, 3, 4, 4, 4, 5]), choose([1, 2, 6])
    batch = tuple(choose([0, 1, 2, 3, 3]) for _ in range(n_axes - 3))
    n_queries, n_keys, width, value_width = (choose([0, 1, 2, 5, 17, 40]) for _ in range(4))
    if choose(range(10)) == 0:
        n_queries, n_keys = 20, 140  # enough for kernels that form no weights
    rows = (*batch, n_heads, n_queries)[1 - n_axes :]
    is_grouped = n_axes > 2 and choose([True, False])
    n_groups = choose([1, n_heads, n_heads // 2 or 1] if is_grouped else [1, n_heads])
    outer = (*(choose([1, size, size]) for size in batch), n_groups)[: n_axes - 2]
    shapes = ((*rows, width or 1), (*outer, n_keys, width or 1), (*outer, n_keys, value_width))
    dtype, scales = choose(FLOATS), (choose([0.0, 0.3, 1.0, 10.0]), 1.0, 1.0)
    heads = [scale * torch.randn(shape) for scale, shape in zip(scales, shapes, strict=True)]
    query, key, value = (laid_out(choose, x.to(dtype)) for x in heads)
    name, mask = choose(["alpha_entmax", *ALPHAS]), draw_mask(choose, (*rows, n_keys))
    of_rows = choose([broadcast(choose, (*rows, 1)), (n_heads if n_axes > 2 else 1,)])
    bias_dtype = choose([dtype, torch.float32])
    low = choose([-math.inf, -1.0, torch.finfo(bias_dtype).min])
    bias = laid_out(choose, torch.randn(mask.shape).to(bias_dtype)).masked_fill(~mask, low)
    return {
        "query": query, "key": key, "value": value, "attention": name,
        "alpha": draw_alpha(choose, of_rows) if name == "alpha_entmax" else None,
        "attn_mask": choose([None, mask, bias]), "is_causal": choose([True, False]),
        "dropout_p": 0.0, "scale": choose([None, 0.5, -1.0, 0.0]), "enable_gqa": is_grouped,
    }  # fmt: skip


def wrong_attention(choose, call):
    """Return one argument that is wrong for the call."""
    query, key, learned = call["query"], call["key"], {"attention": "alpha_entmax"}
    more_keys = torch.ones(*query.shape[:-1], key.shape[-2] + 2, dtype=torch.bool)
    other = torch.float32 if query.dtype is torch.float64 else torch.float64
    return choose([
        {"query": query.long()}, {"query": query.flatten()}, {"query": query.to(other)},
        {"query": torch.cat([query, query], -1)}, {"key": key[None]},
        {"key": key.new_zeros(*key.shape[:-2], key.shape[-2] + 2, key.shape[-1])},
        {"value": call["value"].to("meta")}, {"scale": "large"},
        {"attention": "entmax"}, {"attention": "softmax", "alpha": 1.5},
        *(learned | {"alpha": alpha} for alpha in (None, 0.9, 2.1, math.nan, "high")),
        *(learned | {"alpha": alpha} for alpha in (torch.ones((5,) * 6), torch.tensor(1))),
        {"attn_mask": more_keys}, {"attn_mask": more_keys.long()},
        {"dropout_p": 1.0}, {"dropout_p": -0.1},
    ])  # fmt: skip


def explicit_attention(call):
    """Return the context and the scores, float64."""
    query, key, value = (call[name].double() for name in ("query", "key", "value"))
    if call["enable_gqa"]:
        repeats = (query.shape[-3] // key.shape[-3], -3)
        key, value = key.repeat_interleave(*repeats), value.repeat_interleave(*repeats)
    scale, mask, alpha = call["scale"], call["attn_mask"], call["alpha"]
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool)
    allowed = allowed.tril() if call["is_causal"] else allowed
    if mask is not None and mask.dtype is torch.bool:
        allowed = allowed & mask
    elif mask is not None:
        scores = scores + mask.double()
    if isinstance(alpha, Tensor) and alpha.dim() == 1:
        alpha = alpha[:, None, None]
    alpha = ALPHAS.get(call["attention"], alpha)
    return explicit_weights(scores, alpha, allowed) @ value, scores


def explicit_weights(scores, alpha, allowed):
    """Return weights along the last axis, by bisection; a row without a key is 0."""
    if not scores.shape[-1]:
        return scores
    scores = scores.masked_fill(~allowed, -math.inf)
    top = scores.detach().amax(-1, keepdim=True)
    gap = scores - top.masked_fill(top == -math.inf, 0.0)
    smallest = 1e-7 if isinstance(alpha, Tensor) else 1e-18  # tensors are clamped
    beta = (torch.as_tensor(alpha, dtype=torch.float64).detach() - 1).clamp_min(smallest)

    def powers(threshold):
        rest = gap * beta - threshold
        is_zero = rest <= -1
        return (rest.masked_fill(is_zero, 0.0).log1p() / beta).exp().masked_fill(is_zero, 0.0)

    low = torch.zeros_like(top * beta)
    high = low - torch.expm1(-beta * math.log(scores.shape[-1]))
    with torch.no_grad():
        for _ in range(70):
            middle = (low + high) / 2
            is_low = powers(middle).sum(-1, keepdim=True) > 1
            low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
        slopes = powers(low).pow(1 - beta).masked_fill(powers(low) == 0, 0.0) / beta
    # a step of Newton has the gradient of the threshold
    step = (powers(low).sum(-1, keepdim=True) - 1) / slopes.sum(-1, keepdim=True).clamp_min(1e-300)
    return powers(low + step).masked_fill(top == -math.inf, 0.0)


def draw_map(choose):
    """Return the arguments of a valid call."""
    n_axes = choose([1, 2, 3, 4, 5])
    shape = tuple(choose([0, 1, 2, 3, 4, *[40] * (n < 2)]) for n in reversed(range(n_axes)))
    dim, name = choose(range(-n_axes, n_axes)), choose(["alpha_entmax", "entmax_bisect", *ALPHAS])
    scores = torch.randn(shape) * choose([0.0, 1.0, 10.0, 1e4])
    scores = scores.masked_fill(~draw_mask(choose, shape).expand(shape), choose([0.0, -math.inf]))
    rows = tuple(1 if axis == dim % n_axes else size for axis, size in enumerate(shape))
    alpha = {"alpha": draw_alpha(choose, broadcast(choose, rows))} if name not in ALPHAS else {}
    scores, mask = laid_out(choose, scores.to(choose(FLOATS))), draw_mask(choose, shape)
    return {"name": name, "scores": scores, "dim": dim, "mask": choose([None, mask]), **alpha}


def wrong_map(choose, call):
    """Return one argument that is wrong for the call."""
    shape, learned = call["scores"].shape, {"name": "alpha_entmax"}
    more = torch.ones((*shape[:-1], shape[-1] + 2))
    return choose([
        {"scores": call["scores"].long()}, {"dim": len(shape)},
        {"mask": torch.ones(shape)}, {"mask": more.bool()}, {"mask": torch.ones(2, *shape).bool()},
        *(learned | {"alpha": alpha} for alpha in (0.5, 3.0, math.nan, "high", None, more)),
    ])  # fmt: skip


def call_map(name, scores, dim, mask, **alpha):
    return getattr(entmax, name)(scores, *alpha.values(), dim=dim, mask=mask)


def explicit_map(call):
    """Return the weights and the scores, float64."""
    scores, dim, mask = call["scores"].double(), call["dim"], call["mask"]
    alpha = ALPHAS.get(call["name"], call.get("alpha"))
    if isinstance(alpha, Tensor):
        alpha = alpha.expand((1,) * (scores.dim() - alpha.dim()) + alpha.shape).movedim(dim, -1)
    allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    rows, allowed = scores.movedim(dim, -1), allowed.expand(scores.shape).movedim(dim, -1)
    return explicit_weights(rows, alpha, allowed).movedim(-1, dim), scores


def largest(values):
    """Return the largest magnitude; values that exclude a key do not count."""
    values = values.detach()[values.abs() < 1e9]
    return float(values.abs().max()) if values.numel() else 0.0


def check(number):
    """Make one call, and compare result and gradients."""
    choose = random.Random(number).choice
    torch.manual_seed(number)
    draw, wrong, function, explicit = choose([
        (draw_attention, wrong_attention, attention, explicit_attention),
        (draw_map, wrong_map, call_map, explicit_map),
    ])  # fmt: skip
    call = draw(choose)
    if choose(range(5)) == 0:
        with pytest.raises((TypeError, ValueError)):
            function(**(call | wrong(choose, call)))
        return
    leaves = [x for x in call.values() if isinstance(x, Tensor) and x.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_()
    with torch.set_grad_enabled(choose([True, False])):
        result = function(**call)
    assert result.dtype is leaves[0].dtype
    expected, scores = explicit(call)
    pairs = [(result, expected.view(result.shape))]
    if result.requires_grad:
        squares = [x.double().square().sum() for x in pairs[0]]
        ours, theirs = (torch.autograd.grad(x, leaves, allow_unused=True) for x in squares)
        assert all(grad is None or grad.isfinite().all() for grad in ours)
        pairs += [pair for pair in zip(ours, theirs, strict=True) if pair[1] is not None]
    unit = torch.finfo(result.dtype).eps * (1 + largest(scores))
    mask = call.get("attn_mask")
    for index, (actual, right) in enumerate(pairs):
        units = GRADIENT_UNITS if index else UNITS
        tolerance = units * unit * max(1.0, largest(right))
        if index and mask is not None and actual.shape == mask.shape and mask.numel():
            # a sum over scores, which may be 0 but for rounding
            tolerance *= max(1.0, scores.numel() / mask.numel()) ** 0.5
        torch.testing.assert_close(actual.double(), right.double(), atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    "numbers",
    [
        range(N_FAST),
        *(
            pytest.param(range(n, n + 970), marks=pytest.mark.slow)
            for n in range(N_FAST, N_CALLS, 970)
        ),
    ],
)
def test_calls_equal_explicit_weights(numbers):
    for number in numbers:
        try:
            check(number)
        except BaseException as error:
            error.add_note(f"call {number}")
            raise
