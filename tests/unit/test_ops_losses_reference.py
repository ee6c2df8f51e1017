"""Entmax losses without kernels use only the groups of classes with the best scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.entmax.losses import entmax_loss_and_support, log_entmax
from headwise.ops.cpp import call
from headwise.ops.losses import reference


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "supports", lambda scores: False)


def mixed_rows(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Rows of 4103 classes with a support of a few, some hundred, and nearly all classes."""
    generator = torch.Generator().manual_seed(7)
    scores = torch.randn(30, 4103, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 4103, (30,), generator=generator)
    scores[:10] *= 3.0
    scores[10:20] *= 0.6
    scores[20:] *= 0.01
    scores[3, -5:] += 9.0  # the last classes, which fill no group
    target[5:8] = 0
    return scores.to(dtype).requires_grad_(), target


@pytest.mark.parametrize("alpha", [1.05, 1.5, 1.8, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_selected_groups_equal_all_classes(
    alpha: float, dtype: torch.dtype, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, target = mixed_rows(dtype)
    fast, fast_support = entmax_loss_and_support(scores, target, alpha, smoothing)
    (fast_gradient,), fast_log = torch.autograd.grad(fast.sum(), scores), log_entmax(scores, alpha)
    monkeypatch.setattr(reference, "N_GROUPS", ())
    whole, support = entmax_loss_and_support(scores, target, alpha, smoothing)
    tolerance = 1e-12 if dtype is torch.float64 else 3e-6
    torch.testing.assert_close(fast, whole, rtol=tolerance, atol=tolerance)
    (gradient,) = torch.autograd.grad(whole.sum(), scores)
    torch.testing.assert_close(fast_gradient, gradient, rtol=0, atol=tolerance)
    torch.testing.assert_close(fast_log.exp(), log_entmax(scores, alpha).exp(), rtol=0, atol=1e-6)
    assert (fast_support - support).abs().max() <= 1  # a class at the border may round to 0
    assert (support >= 1).all()
