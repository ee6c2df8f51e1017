"""Entmax losses compared with the definition in loops."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from headwise.entmax import alpha_entmax, entmax15_loss, entmax_loss, sparsemax_loss
from headwise.entmax.losses import entmax_loss_and_support, log_entmax

pytestmark = pytest.mark.usefixtures("every_implementation")
ALPHAS = [1.0, 1.001, 1.2, 1.5, 1.75, 2.0]
N_ROWS, N_CLASSES = 6, 9
SIZES = {"small": (N_ROWS, N_CLASSES, 1.5), "flat": (N_ROWS, N_CLASSES, 0.1)}
SIZES |= {"peaked": (N_ROWS, N_CLASSES, 8.0), "large": (2, 1500, 2.0)}


def reference_weights(scores, alpha):
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


def reference_loss(scores, target, alpha):
    """<p - e_y, z> + H_α(p), term by term."""
    weights = reference_weights(scores, alpha)
    total = 0.0
    for k, (weight, score) in enumerate(zip(weights, scores, strict=True)):
        total += (weight - (k == target)) * score
        if alpha == 1:
            total -= weight * math.log(weight) if weight else 0.0
        else:
            total += (weight - weight**alpha) / (alpha * (alpha - 1))
    return total


def example(n_rows=N_ROWS, n_classes=N_CLASSES, scale=1.5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(n_rows, n_classes, generator=generator, dtype=torch.float64)
    target = torch.randint(0, n_classes, (n_rows,), generator=generator)
    return scores.requires_grad_(), target


def gradient_of(loss, scores):
    (gradient,) = torch.autograd.grad(loss, scores)
    return gradient


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("size", SIZES)
def test_value_and_gradient_follow_the_definition(alpha, size):
    scores, target = example(*SIZES[size])
    losses_of_rows = entmax_loss(scores, target, alpha)
    rows = list(zip(scores.tolist(), target.tolist(), strict=True))
    expected_losses = [reference_loss(row, class_id, alpha) for row, class_id in rows]
    assert losses_of_rows.tolist() == pytest.approx(expected_losses, abs=1e-10)
    weights = torch.arange(1.0, len(rows) + 1, dtype=torch.float64)
    gradient = gradient_of((weights * losses_of_rows).sum(), scores)
    for factor, row_gradient, (row, class_id) in zip(
        weights.tolist(), gradient.tolist(), rows, strict=True
    ):
        p = reference_weights(row, alpha)
        expected = [factor * (p_k - (k == class_id)) for k, p_k in enumerate(p)]
        assert row_gradient == pytest.approx(expected, abs=1e-10)


def test_named_losses():
    scores, target = example()
    assert torch.equal(entmax15_loss(scores, target), entmax_loss(scores, target, 1.5))
    assert torch.equal(sparsemax_loss(scores, target), entmax_loss(scores, target, 2.0))
    smoothed = entmax15_loss(scores, target, label_smoothing=0.1)
    assert torch.equal(smoothed, entmax_loss(scores, target, 1.5, label_smoothing=0.1))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_alpha_1_equals_cross_entropy_and_the_limit(smoothing):
    scores, target = example()
    expected = cross_entropy(scores, target, reduction="none", label_smoothing=smoothing)
    exact = entmax_loss(scores, target, 1.0, label_smoothing=smoothing)
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-12)
    for near_1 in (1 + 1e-7, 1 + 1e-8):
        near = entmax_loss(scores, target, near_1, label_smoothing=smoothing)
        torch.testing.assert_close(near, expected, rtol=0, atol=1e-5)
    single = entmax_loss(scores.float(), target, 1 + 1e-5, label_smoothing=smoothing)
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-3)
    assert not torch.equal(single.double(), expected)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradient_equals_finite_differences(alpha):
    scores, target = example(seed=3)
    target[2], target[4] = 0, 0

    def loss(scores):
        return entmax_loss(scores, target, alpha, label_smoothing=0.15)

    assert torch.autograd.gradcheck(loss, (scores,), atol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_smoothing_uses_the_mean_over_all_classes(alpha):
    scores, target = example(seed=5)
    plain = entmax_loss(scores, target, alpha)
    smoothed = entmax_loss(scores, target, alpha, label_smoothing=0.3)
    for row, class_id, before, after in zip(
        scores.tolist(), target.tolist(), plain.tolist(), smoothed.tolist(), strict=True
    ):
        mean = sum(row) / N_CLASSES
        assert after == pytest.approx(before + 0.3 * (row[class_id] - mean), abs=1e-12)


def test_ties_across_the_selected_groups():
    scores = torch.zeros(3, 5000, dtype=torch.float64)
    scores[1, 40:80] = 1.0  # more ties than groups are selected at first
    scores[2, ::100] = 30.0
    p = log_entmax(scores, 1.5).exp()
    torch.testing.assert_close(p, alpha_entmax(scores, 1.5), rtol=0, atol=1e-12)
    target = [0, 41, 100]
    loss = entmax15_loss(scores, torch.tensor(target))
    rows = zip(scores.tolist(), target, strict=True)
    expected = [reference_loss(row, class_id, 1.5) for row, class_id in rows]
    assert loss.tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.3, 1.5, 2.0])
def test_rounded_losses_are_not_negative(alpha, every_implementation):
    n_rows = 50 if every_implementation == "triton" else 4000
    scores = torch.randn(n_rows, 7, generator=torch.Generator().manual_seed(2)) * 20
    assert (entmax_loss(scores, scores.argmax(1), alpha) >= 0).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.3, 1.5, 2.0])
@pytest.mark.parametrize("n_classes", [5, 16, 203, 3000])
def test_low_precision_is_close_to_float64(n_classes, alpha, smoothing, every_implementation):
    generator = torch.Generator().manual_seed(n_classes)
    n_rows = 5 if every_implementation == "triton" else 12  # one program per row
    scores = torch.randn(n_rows, n_classes, generator=generator) * 2
    scores[1] *= 0.01
    target = torch.randint(0, n_classes, (n_rows,), generator=generator)
    target[::3] = 0
    weight = torch.rand(n_rows, generator=generator)
    results = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        # the same scores, rounded to bfloat16
        leaf = scores.bfloat16().to(dtype).requires_grad_()
        loss, support = entmax_loss_and_support(leaf, target, alpha, smoothing)
        (loss * weight).sum().backward()
        results.append((loss.detach().double(), leaf.grad.double(), support.double()))
    (
        (expected, expected_grad, expected_support),
        (single, single_grad, support),
        (half, half_grad, _),
    ) = results
    assert (support - expected_support).abs().max() <= 1  # a class at the border may round to 0
    torch.testing.assert_close(single, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(half, expected, rtol=1e-5, atol=1e-5)  # float32 inside
    torch.testing.assert_close(single_grad, expected_grad, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(half_grad, expected_grad, rtol=2**-7, atol=1e-4)


def test_any_layout_and_type_of_scores_and_targets():
    scores = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)).t()
    strided = torch.arange(12).view(6, 2)[:, 1]
    expanded = torch.tensor(3).expand(6)

    def result(scores, target):
        leaf = scores.detach().requires_grad_()
        loss = entmax15_loss(leaf, target, label_smoothing=0.1)
        return loss.detach(), gradient_of(loss.sum(), leaf)

    for target in (strided, expanded, strided.to(torch.int32)):
        expected = result(scores.contiguous(), target.long().clone())
        torch.testing.assert_close(result(scores, target), expected, rtol=0, atol=0)
