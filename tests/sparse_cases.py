"""Sparse patterns, and attention with them in float64.

Axes: B batch, H heads, N positions, E head width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headwise.attention.factorised import FactorisedPattern
from headwise.attention.fixed import Fixed
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.strided import Strided
from headwise.entmax import alpha_entmax
from headwise.ops.attention.cpu_sparse import Settings
from headwise.ops.attention.layout import BlockLayout
from headwise.ops.family import ALPHAS

B, H, E = 3, 3, 8
PATTERNS: dict[str, tuple[type[FactorisedPattern], dict[str, Any]]] = {
    "strided": (Strided, {}),
    "fixed": (Fixed, {"summary_cells": 2}),
    "fixed own cells": (Fixed, {"summary_cells": 1, "own_cells": True}),
}
COMBINATIONS: list[tuple[str, list[str] | None, int]] = [
    ("merged", None, 1),
    ("interleaved", None, 1),
    ("interleaved", None, 2),
    ("heads", None, 1),
    ("heads", ["merged", "interleaved"], 2),
]


def make_pattern(
    name: str,
    combine: str = "merged",
    heads: list[str] | None = None,
    layer: int = 1,
    stride: int = 4,
) -> FactorisedPattern:
    """Make a pattern that is block-sparse at every length."""
    kind, settings = PATTERNS[name]
    pattern = kind(
        Place("encoder_self", layer, H, E), stride, combine=combine, heads=heads,
        block_sparse_from=1, **settings,
    )  # fmt: skip
    pattern.max_share = math.inf  # type: ignore[misc]
    return pattern


def inputs(n: int, n_batch: int = B, width: int = E) -> list[Tensor]:
    """Queries, keys, values and a gradient of the context, strided as those of a model."""
    generator = torch.Generator().manual_seed(n)
    shape = (n_batch, n, H, width)
    return [torch.randn(shape, generator=generator).transpose(1, 2) for _ in range(4)]


def layout_and_mask(
    pattern: FactorisedPattern,
    n: int,
    causal: bool,
    lengths: Tensor | None = None,
    device: str = "cpu",
) -> tuple[BlockLayout, Tensor]:
    mask, on_device = Mask(lengths, causal, pattern), torch.device(device)
    layout, dense = mask.layout(n, n, on_device), mask.dense(n, n, on_device)
    assert layout is not None
    assert dense is not None
    return layout, dense


def dense(
    tensors: list[Tensor],
    alpha: Tensor | None,
    settings: Settings,
    mask: Tensor,
    factor: Tensor | float = 1.0,
) -> list[Tensor]:
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


def assert_same(actual: list[Tensor], expected: list[Tensor], limit: float = 1e-5) -> None:
    for tensor, exact in zip(actual, expected, strict=True):
        assert tensor.shape == exact.shape
        assert (tensor - exact).abs().max() <= limit * exact.abs().max().clamp_min(1)
