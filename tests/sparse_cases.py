"""Sparse patterns, and attention with them in float64.

Axes: B batch, H heads, N positions, E head width.
"""

import math

import torch

from headwise.attention.fixed import Fixed
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.strided import Strided
from headwise.entmax import alpha_entmax
from headwise.ops.family import ALPHAS

B, H, E = 3, 3, 8
PATTERNS = {
    "strided": (Strided, {}),
    "fixed": (Fixed, {"summary_cells": 2}),
    "fixed own cells": (Fixed, {"summary_cells": 1, "own_cells": True}),
}
COMBINATIONS = [
    ("merged", None, 1),
    ("interleaved", None, 1),
    ("interleaved", None, 2),
    ("heads", None, 1),
    ("heads", ["merged", "interleaved"], 2),
]


def make_pattern(name, combine="merged", heads=None, layer=1, stride=4):
    """Make a pattern that is block-sparse at every length."""
    kind, settings = PATTERNS[name]
    pattern = kind(
        Place("encoder_self", layer, H, E), stride, combine=combine, heads=heads,
        block_sparse_from=1, **settings,
    )  # fmt: skip
    pattern.max_share = math.inf
    return pattern


def inputs(n, n_batch=B, width=E):
    """Queries, keys, values and a gradient of the context, strided as those of a model."""
    generator = torch.Generator().manual_seed(n)
    shape = (n_batch, n, H, width)
    return [torch.randn(shape, generator=generator).transpose(1, 2) for _ in range(4)]


def layout_and_mask(pattern, n, causal, lengths=None, device="cpu"):
    mask, on_device = Mask(lengths, causal, pattern), torch.device(device)
    layout, dense = mask.layout(n, n, on_device), mask.dense(n, n, on_device)
    assert layout is not None
    assert dense is not None
    return layout, dense


def dense(tensors, alpha, settings, mask, factor=1.0):
    """Return the same in float64 with all scores and weights; `factor`: dropout."""
    leaves = [
        one.detach().double().requires_grad_() for one in (*tensors[:3], alpha) if one is not None
    ]
    scores = leaves[0] @ leaves[1].mT * settings.scale
    if settings.distances is not None:
        scores = settings.distances.biased(scores, 0)
    power = ALPHAS.get(settings.power) if alpha is None else leaves[3]
    context = (alpha_entmax(scores, power, mask=mask) * factor) @ leaves[2]
    context.backward(tensors[3].double())
    return [context.detach(), *(leaf.grad for leaf in leaves)]


def assert_same(actual, expected, limit=1e-5):
    for tensor, exact in zip(actual, expected, strict=True):
        assert tensor.shape == exact.shape
        assert (tensor - exact).abs().max() <= limit * exact.abs().max().clamp_min(1)
