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

pytestmark = pytest.mark.usefixtures("computed_every_way")
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
    assert found.tolist() == pytest.approx(
        [reference_loss(row, gold, alpha) for row, gold in rows], abs=1e-10
    )
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
    smoothed = entmax15_loss(scores, target, label_smoothing=0.1, ignore_index=0)
    assert torch.equal(smoothed, entmax_loss(scores, target, 1.5, 0.1, 0))


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
        return entmax_loss(scores, target, alpha, smoothing, ignore_index=0)

    assert torch.autograd.gradcheck(loss, (scores,), atol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_smoothing_is_of_the_mean_over_all_but_the_ignored_class(alpha: float) -> None:
    scores, target = example(seed=5)
    target.clamp_min_(1)
    plain = entmax_loss(scores, target, alpha)
    smoothed = entmax_loss(scores, target, alpha, 0.3, ignore_index=0)
    for row, gold, before, after in zip(
        scores.tolist(), target.tolist(), plain.tolist(), smoothed.tolist(), strict=True
    ):
        mean = sum(row[1:]) / (N_CLASSES - 1)
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("ignored", [0, 4, -100])
def test_ignored_targets_cost_nothing(ignored: int, dtype: torch.dtype) -> None:
    scores, target = example()
    scores = scores.detach().to(dtype).requires_grad_()
    target[target == ignored] = 1
    expected = entmax15_loss(scores, target)
    is_ignored = torch.tensor([False, True, False, False, True, True])
    with torch.no_grad():
        scores[1] = torch.tensor([torch.inf, -1e30, torch.nan] * 3)
    shown = target.masked_fill(is_ignored, ignored)
    loss, support = entmax_loss_and_support(scores, shown, 1.5, ignore_index=ignored)
    gradient = gradient_of(loss.sum(), scores)
    assert not loss[is_ignored].any()
    assert not support[is_ignored].any()
    assert not gradient[is_ignored].any()
    assert torch.equal(loss[~is_ignored], expected[~is_ignored])
    assert (gradient[~is_ignored].abs().sum(1) > 0).all()


def test_scores_that_are_large_masked_or_not_numbers() -> None:
    far = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = entmax15_loss(far, torch.tensor([1]))
    assert loss.tolist() == pytest.approx([2e4])
    assert gradient_of(loss.sum(), far).tolist() == [[1.0, -1.0, 0.0]]
    masked = torch.tensor([[0.5, -torch.inf, 0.2]], requires_grad=True)
    loss = entmax15_loss(masked, torch.tensor([0]))
    short = entmax15_loss(torch.tensor([[0.5, 0.2]]), torch.tensor([0]))
    torch.testing.assert_close(loss, short)
    assert gradient_of(loss.sum(), masked)[0, 1] == 0
    for n_classes in (9, 3000):
        broken = torch.randn(3, n_classes)
        broken[1, 4] = torch.nan
        found = entmax15_loss(broken, torch.tensor([1, 2, 3]))
        assert found.isnan().tolist() == [False, True, False]
        log_p = log_entmax(broken, 1.5)
        assert log_p[1].isnan().all()
        assert not log_p[::2].isnan().any()


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("n_classes", [9, 2500])
def test_log_probabilities_are_those_of_the_map(alpha: float, n_classes: int) -> None:
    scores, _ = example(12, n_classes, scale=2.0)
    log_p = log_entmax(scores.view(3, 4, n_classes), alpha)
    p = alpha_entmax(scores, alpha).view(3, 4, n_classes)
    assert log_p.shape == (3, 4, n_classes)
    assert not log_p.requires_grad
    torch.testing.assert_close(log_p.exp(), p, rtol=0, atol=1e-12)
    single = scores.float()
    of_single = log_entmax(single, alpha).exp().double()
    torch.testing.assert_close(of_single, alpha_entmax(single.double(), alpha), rtol=0, atol=1e-6)
    certain = p > 1e-9
    torch.testing.assert_close(log_p[certain], p[certain].log(), rtol=0, atol=1e-6)
    assert bool((log_p == -torch.inf).any()) == (alpha > 1.001)
    assert log_entmax(scores.bfloat16(), alpha).dtype == torch.float32


def test_shapes_and_an_empty_batch() -> None:
    scores, target = example(6, 7)
    loss, support = entmax_loss_and_support(scores.view(2, 3, 7), target.view(2, 3), 1.5)
    assert loss.shape == support.shape == (2, 3)
    assert torch.equal(loss.flatten(), entmax15_loss(scores, target))
    for n_classes in (7, 4000):
        empty = torch.zeros(0, n_classes, requires_grad=True)
        loss = entmax15_loss(empty, torch.zeros(0, dtype=torch.long))
        assert loss.shape == (0,)
        assert gradient_of(loss.sum(), empty).shape == (0, n_classes)


def test_what_is_refused() -> None:
    scores, target = example()
    for alpha in (0.9, 2.1, math.nan):
        with pytest.raises(ValueError, match=r"alpha must be in \[1, 2\]"):
            entmax_loss(scores, target, alpha)
    with pytest.raises(ValueError, match="label_smoothing"):
        entmax_loss(scores, target, 1.5, 1.0)
    with pytest.raises(TypeError, match="floating-point"):
        entmax_loss(scores.long(), target, 1.5)
    loss = entmax15_loss(scores, target)
    with pytest.raises(RuntimeError, match="once"):
        torch.autograd.grad(loss.sum(), scores, create_graph=True)


@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.3, 1.5, 2.0])
def test_rounding_takes_no_loss_below_0(alpha: float, computed_every_way: str) -> None:
    n_rows = 100 if computed_every_way == "triton" else 4000
    scores = torch.randn(n_rows, 7, generator=torch.Generator().manual_seed(2)) * 20
    assert (entmax_loss(scores, scores.argmax(1), alpha) >= 0).all()


@pytest.mark.parametrize("ignore_index", [None, 0, -100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.3, 1.5, 2.0])
@pytest.mark.parametrize("n_classes", [5, 16, 203, 3000])
def test_float32_and_bfloat16_are_near_float64(
    n_classes: int, alpha: float, smoothing: float, ignore_index: int | None
) -> None:
    generator = torch.Generator().manual_seed(n_classes)
    scores = torch.randn(12, n_classes, generator=generator) * 2
    scores[1] *= 0.01
    target = torch.randint(0, n_classes, (12,), generator=generator)
    if ignore_index is not None:
        target[::3] = ignore_index
    weight = torch.rand(12, generator=generator)
    results = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        # the same scores, as bfloat16 holds them
        ours = scores.bfloat16().to(dtype).requires_grad_()
        loss, support = entmax_loss_and_support(ours, target, alpha, smoothing, ignore_index)
        (loss * weight).sum().backward()
        results.append((loss.detach().double(), ours.grad.double(), support.double()))
    (exact, exact_grad, exact_support), (single, single_grad, support), (half, half_grad, _) = (
        results
    )
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
