"""Calls of the kernels, and their results in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.ops.attention.distances import Distances
from headwise.ops.attention.triton import triton_entmax_attention
from headwise.ops.family import ALPHAS
from headwise.ops.maps import operator
from triton_marks import DEVICE


@dataclass
class Case:
    """Inputs on the device and the other arguments of a call."""

    tensors: list[Tensor]  # query, key, value
    alpha: Tensor
    grad: Tensor
    lengths: Tensor | None = None
    causal: bool = False
    offset: int = 0
    distances: Distances | None = None

    @property
    def scale(self):
        return float(self.tensors[0].shape[-1]) ** -0.5


def make_case(
    shape,
    alpha=None,
    dtype=torch.float32,
    deviation=1.5,
    lengths=None,
    causal=False,
    offset=0,
    n_prefix=None,
):
    """Inputs of a call; `n_prefix`, also 0, adds slopes to all heads but the last."""
    n_batch, n_heads, n_queries, n_keys, head_dim = shape
    generator = torch.Generator().manual_seed(sum(shape))

    def draw(n_rows, factor=1.0):
        # views of one projection, so that rows are not contiguous
        drawn = torch.randn(n_batch, n_rows, n_heads, head_dim, generator=generator) * factor
        return drawn.to(DEVICE, dtype).transpose(1, 2)

    tensors = [draw(n_queries, deviation), draw(n_keys), draw(n_keys)]
    alphas = torch.tensor(alpha) if alpha else torch.linspace(1.05, 1.95, n_heads)
    lengths_B = None if lengths is None else torch.tensor(lengths, device=DEVICE)
    distances = None
    if n_prefix is not None:
        slopes = torch.tensor([*torch.rand(n_heads - 1, generator=generator), 0.0], device=DEVICE)
        distances = Distances(slopes, n_prefix)
    return Case(tensors, alphas.to(DEVICE), draw(n_queries), lengths_B, causal, offset, distances)


def reference(case, keep=None, dropout=0.0):
    """Context and gradients of query, key, value and α in float64, by bisection.

    The threshold is a constant but for one step of Newton, whose derivative is that of the exact
    solution; hence the gradients are independent of the closed forms that the kernels use.
    """
    query, key, value = (tensor.double().requires_grad_() for tensor in case.tensors)
    alpha = case.alpha.double().requires_grad_()
    # α = 1 is approached from above, where the formulas are defined
    beta = (alpha - 1 + 1e-5 * (alpha.detach() < 1 + 1e-6))[:, None, None]
    scores = query @ key.transpose(-1, -2) * case.scale
    if case.distances is not None:
        n, i = case.distances.n_prefix, torch.arange(query.shape[2], device=DEVICE) + case.offset
        distance = (i[:, None] - torch.arange(key.shape[2], device=DEVICE)).abs()
        distance[: max(n - case.offset, 0)], distance[:, :n] = 0, 0
        scores = scores - case.distances.slopes_H[:, None, None] * distance
    mask = torch.ones_like(scores, dtype=torch.bool)
    keys = torch.arange(key.shape[2], device=DEVICE)
    if case.lengths is not None:
        mask &= (keys < case.lengths[:, None])[:, None, None]
    if case.causal:
        mask &= keys <= torch.arange(query.shape[2], device=DEVICE)[:, None] + case.offset
    scores = scores.masked_fill(~mask, -1e30)
    below = scores.amax(-1, keepdim=True) - scores

    def weights(level):
        shift = beta * (level + below)
        inside = mask & (shift < 1)
        root = torch.where(inside, shift, 0.0)
        p = torch.where(inside, torch.exp(torch.log1p(-root) / beta), 0.0)
        return p, torch.where(inside, p / (1 - root), 0.0)

    with torch.no_grad():
        low, high = torch.zeros_like(below[..., :1]), torch.full_like(below[..., :1], 50.0)
        for _ in range(60):
            middle = (low + high) / 2
            is_left = weights(middle)[0].sum(-1, keepdim=True) > 1
            low, high = torch.where(is_left, middle, low), torch.where(is_left, high, middle)
        slope = weights(low)[1].sum(-1, keepdim=True).clamp_min(1e-300)
    excess = weights(low)[0].sum(-1, keepdim=True) - 1
    p = weights(low + torch.where(mask.any(-1, keepdim=True), excess / slope, 0.0))[0]
    if keep is not None:
        p = p * keep / (1 - dropout)
    context = p @ value
    grads = torch.autograd.grad(context, (query, key, value, alpha), case.grad.double())
    return [context.detach(), *grads]


def fused(case, dropout=0.0, alpha=None):
    query, key, value = (tensor.detach().requires_grad_() for tensor in case.tensors)
    alphas = case.alpha.detach().requires_grad_()
    context = triton_entmax_attention(
        query, key, value, alphas if alpha is None else alpha,
        case.lengths, case.causal, case.offset, dropout, case.scale, case.distances,
    )  # fmt: skip
    inputs = (query, key, value) if alpha is not None else (query, key, value, alphas)
    return [context.detach(), *torch.autograd.grad(context, inputs, case.grad)]


def errors(actual, expected):
    """Largest errors, relative to the largest value."""
    pairs = zip(actual, expected, strict=False)
    return [float((a.double() - b).abs().max() / b.abs().max().clamp_min(1e-9)) for a, b in pairs]


def assert_precise(actual, expected):
    """Assert float32 precision; for α near 2, keys at the border of the support add errors."""
    context, grad_query, grad_key, grad_value, *grad_alpha = errors(actual, expected)
    assert max(context, grad_value) < 2e-6
    assert max(grad_query, grad_key, *grad_alpha) < 3e-5


def map_results(scores, alpha, mask, power, dtype):
    """Weights, gradient of the scores and, if α is a tensor, of α."""
    grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(5))
    scores_leaf = scores.to(dtype, copy=True).requires_grad_()
    alpha_leaf = None if alpha is None else alpha.to(dtype, copy=True).requires_grad_()
    weights = operator.weights(scores_leaf, alpha_leaf, mask, power)
    weights.backward(grad.to(scores_leaf))
    actual = [weights.detach(), scores_leaf.grad, None if alpha_leaf is None else alpha_leaf.grad]
    return [one.double() for one in actual if one is not None]


def assert_near_float64(scores, alpha, mask, power):
    """Assert that a map is near torch in float64, a type that no kernel has."""
    actual = map_results(scores, alpha, mask, power, torch.float32)
    exact = map_results(scores, alpha, mask, power, torch.float64)
    assert (actual[0] - exact[0]).abs().max() <= 1e-6
    # float32 does not resolve on which side of the border of the support a close key is
    beta = scores.new_tensor(ALPHAS.get(power, 0.0)) - 1 if alpha is None else alpha - 1
    is_near = (exact[0] > 0) & (exact[0] ** beta.double() < 3e-2)
    is_clear = ~(is_near & (beta >= 0.5)).any(-1)
    assert is_clear.double().mean() > 0.5
    bound = 5e-6 * exact[1].abs().max().clamp_min(1)
    assert (actual[1] - exact[1])[is_clear].abs().max() <= bound
    if alpha is not None:
        assert actual[2].shape == alpha.shape
        bound = 1e-5 * exact[2].abs().max().clamp_min(1)
        assert (actual[2] - exact[2]).abs().max() <= bound
    return actual
