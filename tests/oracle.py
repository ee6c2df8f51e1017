"""The mathematics in float64, from the papers' equations and from nothing in src.

Axes: B batch, H heads, Q queries, K keys, E head width, V classes.
"""

import math

import torch

N_BISECTIONS = 80
BETA_LIMIT = 1e-5  # closer to α = 1 the difference in the gradient of α cancels


class _Entmax(torch.autograd.Function):
    """α-entmax along the last axis: p_i = [β z_i - τ]_+^(1/β), β = α - 1 (Peters et al. 2019)."""

    @staticmethod
    def forward(ctx, scores, alpha):
        beta = (alpha - 1).clamp_min(1e-12)
        top = scores.amax(-1, keepdim=True)
        is_empty = top == -math.inf
        gap = beta * (scores - top.masked_fill(is_empty, 0.0))

        def powers(shift):  # with τ = β max(z) - 1 + shift
            rest = (gap - shift).clamp_min(-1.0)
            return torch.exp(torch.log1p(rest) / beta)

        low = torch.zeros_like(gap[..., :1])
        high = low - torch.expm1(-beta * math.log(scores.shape[-1]))
        for _ in range(N_BISECTIONS):
            middle = (low + high) / 2
            is_low = powers(middle).sum(-1, keepdim=True) > 1
            low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
        p = powers((low + high) / 2)
        p = torch.where(alpha == 1, scores.masked_fill(is_empty, 0.0).softmax(-1), p)
        p = (p / p.sum(-1, keepdim=True)).masked_fill(is_empty, 0.0)
        ctx.save_for_backward(p, alpha)
        return p

    @staticmethod
    def backward(ctx, grad):
        p, alpha = ctx.saved_tensors
        is_inside, beta = p > 0, alpha - 1
        s = torch.where(is_inside, p ** (2 - alpha), 0.0)
        tilted = s / s.sum(-1, keepdim=True).clamp_min(1e-300)
        grad_scores = s * (grad - (tilted * grad).sum(-1, keepdim=True))
        # Correia et al. 2019, proposition 1, and its limit at α = 1
        log_p = torch.where(is_inside, p, 1.0).log()
        h, square = -p * log_p, log_p**2
        far = (p - tilted) / beta**2 + (h - tilted * h.sum(-1, keepdim=True)) / beta
        near = p / 2 * ((p * square).sum(-1, keepdim=True) - square)
        jacobian = torch.where(beta < BETA_LIMIT, near, far)
        return grad_scores, (grad * jacobian).sum(-1, keepdim=True).sum_to_size(alpha.shape)


def weights(scores, alpha, mask=None):
    """Weights along the last axis; `alpha` broadcasts to (..., 1); a row without a key is 0."""
    scores = scores.double()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    if not scores.numel():
        return scores
    return _Entmax.apply(scores, torch.as_tensor(alpha, dtype=torch.float64))


def entropy(p, alpha):
    """Tsallis entropy along the last axis in nats; Shannon's at α = 1."""
    if alpha == 1:
        return torch.special.entr(p).sum(-1)
    return (p - p**alpha).sum(-1) / (alpha * (alpha - 1))


def loss(scores, target, alpha):
    """Fenchel-Young loss <p - e_y, z> + H(p) (Blondel et al. 2019); its gradient is p - e_y."""
    scores = scores.double()
    p = weights(scores.detach(), alpha)
    return ((p * scores).sum(-1) - scores.gather(-1, target[..., None])[..., 0]) + entropy(p, alpha)


def bits(probabilities):
    """Mean of -log2 of the probabilities of tokens."""
    return float(-torch.as_tensor(probabilities, dtype=torch.float64).log2().mean())


def visible(n_queries, n_keys, lengths=None, is_causal=False, offset=0, pattern=None):
    """Mask (B or 1, 1, Q, K): keys before the length, not after the query, in the pattern."""
    keys, queries = torch.arange(n_keys), torch.arange(n_queries)[:, None] + offset
    mask = torch.ones(1, 1, n_queries, n_keys, dtype=torch.bool)
    if lengths is not None:
        mask = mask & (keys < torch.as_tensor(lengths)[:, None, None, None])
    if is_causal:
        mask = mask & (keys <= queries)
    return mask if pattern is None else mask & pattern


def distance_bias(slopes_H, n_queries, n_keys, n_prefix=0, offset=0):
    """-slope |i - j| (H, Q, K); 0 where the query or the key is in the prefix (ALiBi)."""
    keys, queries = torch.arange(n_keys), torch.arange(n_queries)[:, None] + offset
    is_apart = (queries >= n_prefix) & (keys >= n_prefix)
    distance = (queries - keys).abs() * is_apart
    return -torch.as_tensor(slopes_H).double()[:, None, None] * distance


def attention(query, key, value, alpha, mask=None, scale=None, bias=0.0, factor=1.0):
    """Context (..., Q, E); `factor` multiplies the weights: kept by dropout / (1 - rate)."""
    query, key, value = query.double(), key.double(), value.double()
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return (weights(query @ key.mT * scale + bias, alpha, mask) * factor) @ value


def with_gradients(function, tensors, grad):
    """[result, gradients of tensors] of `function(*tensors)` with float64 copies of them."""
    leaves = [one.detach().double().requires_grad_() for one in tensors]
    result = function(*leaves)
    return [result.detach(), *torch.autograd.grad(result, leaves, grad.double())]
