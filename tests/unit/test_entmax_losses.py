"""Entmax losses against the definition in plain loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.entmax import alpha_entmax, entmax15_loss, entmax_loss, sparsemax_loss
from headwise.entmax.losses import entmax_loss_and_support, log_entmax

pytestmark = pytest.mark.usefixtures("every_implementation")
ALPHAS = [1.0, 1.001, 1.2, 1.5, 1.75, 2.0]
N_ROWS, N_CLASSES = 6, 9
SIZES = {"small": (N_ROWS, N_CLASSES, 1.5), "flat": (N_ROWS, N_CLASSES, 0.1)}
SIZES |= {"peaked": (N_ROWS, N_CLASSES, 8.0), "large": (2, 1500, 2.0)}


def reference_weights(scores: Sequence[float], alpha: float) -> list[float]:
    """α-entmax of one row by bisection of its threshold."""
    if alpha == 1:
        exponentials = [math.exp(score - max(scores)) for score in scores]
        return [value / sum(exponentials) for value in exponentials]
    beta = alpha - 1
    below, above = beta * max(scores) - 1, beta * max(scores)
    for _ in range(100):
        middle = (below + above) / 2
        total = sum(max(beta * score - middle, 0.0) ** (1 / beta) for score in scores)
        below, above = (middle, above) if total >= 1 else (below, middle)
    weights = [max(beta * score - below, 0.0) ** (1 / beta) for score in scores]
    return [weight / sum(weights) for weight in weights]


def reference_loss(scores: Sequence[float], gold: int, alpha: float) -> float:
    """<p - e_y, z> + H_α(p), term by term."""
    weights = reference_weights(scores, alpha)
    total = 0.0
    for k, (weight, score) in enumerate(zip(weights, scores, strict=True)):
        total += (weight - (k == gold)) * score
        if alpha == 1:
            total -= weight * math.log(weight) if weight else 0.0
        else:
            total += (weight - weight**alpha) / (alpha * (alpha - 1))
    return total


def example(
    n_rows: int = N_ROWS, n_classes: int = N_CLASSES, scale: float = 1.5, seed: int = 1
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(n_rows, n_classes, generator=generator, dtype=torch.float64)
    target = torch.randint(0, n_classes, (n_rows,), generator=generator)
    return scores.requires_grad_(), target


def gradient_of(loss: Tensor, scores: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, scores)
    return gradient


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("size", SIZES)
def test_value_and_gradient_are_those_of_the_definition(alpha: float, size: str) -> None:
    scores, target = example(*SIZES[size])
    found = entmax_loss(scores, target, alpha)
    rows = list(zip(scores.tolist(), target.tolist(), strict=True))
    losses = [reference_loss(row, gold, alpha) for row, gold in rows]
    assert found.tolist() == pytest.approx(losses, abs=1e-10)
    weights = torch.arange(1.0, len(rows) + 1, dtype=torch.float64)
    gradient = gradient_of((weights * found).sum(), scores)
    for factor, got, (row, gold) in zip(weights.tolist(), gradient.tolist(), rows, strict=True):
        p = reference_weights(row, alpha)
        expected = [factor * (p_k - (k == gold)) for k, p_k in enumerate(p)]
        assert got == pytest.approx(expected, abs=1e-10)


def test_named_losses() -> None:
    scores, target = example()
    assert torch.equal(entmax15_loss(scores, target), entmax_loss(scores, target, 1.5))
    assert torch.equal(sparsemax_loss(scores, target), entmax_loss(scores, target, 2.0))
    smoothed = entmax15_loss(scores, target, label_smoothing=0.1)
    assert torch.equal(smoothed, entmax_loss(scores, target, 1.5, 0.1))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_alpha_1_is_cross_entropy_and_the_limit(smoothing: float) -> None:
    scores, target = example()
    expected = cross_entropy(scores, target, reduction="none", label_smoothing=smoothing)
    exact = entmax_loss(scores, target, 1.0, smoothing)
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-12)
    for near_1 in (1 + 1e-7, 1 + 1e-8):
        near = entmax_loss(scores, target, near_1, smoothing)
        torch.testing.assert_close(near, expected, rtol=0, atol=1e-5)
    single = entmax_loss(scores.float(), target, 1 + 1e-5, smoothing)
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-3)
    assert not torch.equal(single.double(), expected)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("smoothing", [0.0, 0.15])
def test_gradient_agrees_with_differences(alpha: float, smoothing: float) -> None:
    scores, target = example(seed=3)
    target[2], target[4] = 0, 0

    def loss(scores: Tensor) -> Tensor:
        return entmax_loss(scores, target, alpha, smoothing)

    assert torch.autograd.gradcheck(loss, (scores,), atol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_smoothing_is_of_the_mean_over_all_classes(alpha: float) -> None:
    scores, target = example(seed=5)
    plain = entmax_loss(scores, target, alpha)
    smoothed = entmax_loss(scores, target, alpha, 0.3)
    for row, gold, before, after in zip(
        scores.tolist(), target.tolist(), plain.tolist(), smoothed.tolist(), strict=True
    ):
        mean = sum(row) / N_CLASSES
        assert after == pytest.approx(before + 0.3 * (row[gold] - mean), abs=1e-12)


def test_equal_scores_across_the_edge_of_the_groups_taken() -> None:
    scores = torch.zeros(3, 5000, dtype=torch.float64)
    scores[1, 40:80] = 1.0  # more ties than groups are taken at first
    scores[2, ::100] = 30.0
    p = log_entmax(scores, 1.5).exp()
    torch.testing.assert_close(p, alpha_entmax(scores, 1.5), rtol=0, atol=1e-12)
    target = [0, 41, 100]
    loss = entmax15_loss(scores, torch.tensor(target))
    rows = zip(scores.tolist(), target, strict=True)
    expected = [reference_loss(row, gold, 1.5) for row, gold in rows]
    assert loss.tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.3, 1.5, 2.0])
def test_rounding_takes_no_loss_below_0(alpha: float, every_implementation: str) -> None:
    n_rows = 100 if every_implementation == "triton" else 4000
    scores = torch.randn(n_rows, 7, generator=torch.Generator().manual_seed(2)) * 20
    assert (entmax_loss(scores, scores.argmax(1), alpha) >= 0).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.3, 1.5, 2.0])
@pytest.mark.parametrize("n_classes", [5, 16, 203, 3000])
def test_low_precision_is_near_float64(n_classes: int, alpha: float, smoothing: float) -> None:
    generator = torch.Generator().manual_seed(n_classes)
    scores = torch.randn(12, n_classes, generator=generator) * 2
    scores[1] *= 0.01
    target = torch.randint(0, n_classes, (12,), generator=generator)
    target[::3] = 0
    weight = torch.rand(12, generator=generator)
    found = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        # the same scores, as bfloat16 holds them
        ours = scores.bfloat16().to(dtype).requires_grad_()
        loss, support = entmax_loss_and_support(ours, target, alpha, smoothing)
        (loss * weight).sum().backward()
        found.append((loss.detach().double(), ours.grad.double(), support.double()))
    (exact, exact_grad, exact_support), (single, single_grad, support), (half, half_grad, _) = found
    assert (support - exact_support).abs().max() <= 1  # a class at the edge may round to 0
    torch.testing.assert_close(single, exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(half, exact, rtol=1e-5, atol=1e-5)  # float32 inside
    torch.testing.assert_close(single_grad, exact_grad, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(half_grad, exact_grad, rtol=2**-7, atol=1e-4)


def test_scores_and_targets_of_any_layout_and_type() -> None:
    scores = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)).t()
    strided = torch.arange(12).view(6, 2)[:, 1]
    expanded = torch.tensor(3).expand(6)

    def result(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        ours = scores.detach().requires_grad_()
        loss = entmax15_loss(ours, target, 0.1)
        return loss.detach(), gradient_of(loss.sum(), ours)

    for target in (strided, expanded, strided.to(torch.int32)):
        plain = result(scores.contiguous(), target.long().clone())
        torch.testing.assert_close(result(scores, target), plain, rtol=0, atol=0)
