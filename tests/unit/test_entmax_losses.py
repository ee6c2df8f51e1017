"""Losses of the entmax family, with every implementation, and as chunks of an output projection."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import oracle
from headwise.entmax import alpha_entmax, entmax15_loss, entmax_loss, sparsemax_loss
from headwise.entmax.losses import entmax_loss_and_support, log_entmax, log_softmax
from headwise.losses import projected
from headwise.losses.loss import CrossEntropy, EntmaxLoss, Loss, SparsemaxLoss

ALPHAS = [1.0, 1.001, 1.2, 1.5, 1.75, 2.0]
SIZES = {"flat": (6, 9, 0.1), "small": (5, 16, 1.5), "peaked": (6, 9, 8.0)}
SIZES |= {"odd": (6, 203, 2.0), "large": (5, 3000, 2.0)}
every_implementation = pytest.mark.usefixtures("every_implementation")


def example(n_rows=6, n_classes=9, scale=1.5, dtype=torch.float64):
    """Scores that bfloat16 has too, and targets, of which some are 0."""
    generator = torch.Generator().manual_seed(n_classes)
    scores = scale * torch.randn(n_rows, n_classes, generator=generator)
    target = torch.randint(0, n_classes, (n_rows,), generator=generator)
    target[::3] = 0
    return scores.bfloat16().to(dtype).requires_grad_(), target


def smoothed(scores, target, alpha, smoothing):
    """Loss of the oracle with label smoothing by the mean over all classes."""
    gold = scores.gather(-1, target[:, None])[:, 0]
    return oracle.loss(scores, target, alpha) + smoothing * (gold - scores.mean(-1))


LIMITS = {  # of losses and gradients
    torch.float64: ({"rtol": 0, "atol": 1e-10}, {"rtol": 0, "atol": 1e-10}),
    torch.float32: ({"rtol": 1e-5, "atol": 1e-5}, {"rtol": 1e-4, "atol": 2e-5}),
    torch.bfloat16: ({"rtol": 1e-5, "atol": 1e-5}, {"rtol": 2**-7, "atol": 1e-4}),
}


@every_implementation
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("size", SIZES)
def test_value_gradient_and_support_follow_the_definition(size, alpha, smoothing, dtype):
    scores, target = example(*SIZES[size], dtype)
    loss, support = entmax_loss_and_support(scores, target, alpha, smoothing)
    factors = torch.arange(1.0, len(scores) + 1).to(loss)
    (gradient,) = torch.autograd.grad((factors * loss).sum(), scores)
    exact = oracle.with_gradients(
        lambda z: smoothed(z, target, alpha, smoothing), [scores], factors
    )
    for actual, expected, limit in zip((loss, gradient), exact, LIMITS[dtype], strict=True):
        torch.testing.assert_close(actual.double(), expected, **limit)
    n_classes = (oracle.weights(scores.detach(), alpha) > 0).sum(-1)
    assert (support - n_classes).abs().max() <= 1  # a class at the border may round to 0


@every_implementation
@pytest.mark.parametrize("shift", [0.0, 1000.0])
@pytest.mark.parametrize("alpha", [1.0, 1.00001, 1.001, 1.1, 1.5, 2.0])
def test_losses_are_exact_to_their_rounding(alpha, shift):
    """Near α = 1 too, and where scores are far larger than losses."""
    generator = torch.Generator().manual_seed(1)
    scores = 4 * torch.randn(6, 12_000, generator=generator) + shift
    target = torch.randint(12_000, (6,), generator=generator)
    exact = oracle.loss(scores, target, alpha)
    error = (entmax_loss(scores, target, alpha).double() - exact).norm() / exact.norm()
    assert error < 8e-8


def test_named_losses():
    scores, target = example()
    for loss, alpha in ((entmax15_loss, 1.5), (sparsemax_loss, 2.0)):
        for options in ({}, {"label_smoothing": 0.1}):
            expected = entmax_loss(scores, target, alpha, **options)
            assert torch.equal(loss(scores, target, **options), expected)


@every_implementation
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


@pytest.mark.parametrize("alpha", [1.0, 1.2, 2.0])
def test_gradient_equals_finite_differences(alpha):
    scores, target = example()
    for loss in (oracle.loss, entmax_loss):
        assert torch.autograd.gradcheck(loss, (scores, target, alpha), atol=1e-6)


@every_implementation
def test_ties_across_the_selected_groups():
    scores = torch.zeros(3, 5000, dtype=torch.float64)
    scores[1, 40:80] = 1.0  # more ties than groups are selected at first
    scores[2, ::100] = 30.0
    p = log_entmax(scores, 1.5).exp()
    torch.testing.assert_close(p, alpha_entmax(scores, 1.5), rtol=0, atol=1e-12)
    target = torch.tensor([0, 41, 100])
    expected = oracle.loss(scores, target, 1.5)
    torch.testing.assert_close(entmax15_loss(scores, target), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.3, 1.5, 2.0])
def test_rounded_losses_are_not_negative(alpha, every_implementation):
    n_rows = 50 if every_implementation == "triton" else 4000
    scores = torch.randn(n_rows, 7, generator=torch.Generator().manual_seed(2)) * 20
    assert (entmax_loss(scores, scores.argmax(1), alpha) >= 0).all()


@every_implementation
def test_any_layout_and_type_of_scores_and_targets():
    scores = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)).t()
    strided = torch.arange(12).view(6, 2)[:, 1]
    expanded = torch.tensor(3).expand(6)

    def result(scores, target):
        leaf = scores.detach().requires_grad_()
        loss = entmax15_loss(leaf, target, label_smoothing=0.1)
        return loss.detach(), *torch.autograd.grad(loss.sum(), leaf)

    for target in (strided, expanded, strided.to(torch.int32)):
        expected = result(scores.contiguous(), target.long().clone())
        torch.testing.assert_close(result(scores, target), expected, rtol=0, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_over_several_blocks(smoothing, every_implementation):
    scores, target = example(9, 3000, 4.0, torch.float32)
    scores = scores.detach()
    loss, buffer = CrossEntropy(smoothing), scores.clone()
    actual = loss.row_sums(buffer, target, with_gradient=True)
    assert actual.grad_RV is buffer or every_implementation == "torch"
    measure = oracle.loss(scores, target, 1).sum()
    exact = oracle.with_gradients(
        lambda z: smoothed(z, target, 1, smoothing).sum(), [scores], torch.ones(())
    )
    computed = actual.measure, actual.loss, actual.grad_RV
    for values, expected in zip(computed, (measure, *exact), strict=True):
        torch.testing.assert_close(values.double(), expected, rtol=2e-6, atol=1e-6)
    alone = loss.row_sums(scores.clone(), target, with_gradient=False)
    assert torch.equal(alone.loss, actual.loss)
    assert alone.grad_RV is None


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_log_softmax_equals_torch(dtype, scale):
    generator = torch.Generator().manual_seed(1)
    logits = (scale * torch.randn(2, 5, 1003, generator=generator)).to(dtype)
    logits[0, 1, 4], logits[1, 0, 5] = -torch.inf, scale * 2
    logits[0, 2, 7], logits[0, 3, 9] = math.nan, torch.inf
    strided = logits.transpose(1, 2)[:, ::2].transpose(1, 2)
    close = {"rtol": 1e-6, "atol": 1e-5, "equal_nan": True}
    for values in (logits, strided, logits[:0]):
        log_probs = log_softmax(values)
        assert log_probs.dtype == torch.promote_types(dtype, torch.float32)
        torch.testing.assert_close(log_probs.double(), values.double().log_softmax(-1), **close)
    assert log_softmax(logits)[0, 2:4].isnan().all()
    leaf = logits[1].float().requires_grad_()
    (gradient,) = torch.autograd.grad(log_softmax(leaf)[:, 3].sum(), leaf)
    assert gradient.isfinite().all()
    assert (gradient != 0).any()


class Squares(Loss):
    """A loss without a closed-form gradient."""

    def rows(self, logits_RV, targets_R):
        wide_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
        return wide_RV.square().sum(-1), torch.ones_like(wide_RV[:, 0])


class TestChunks:
    """Output projection and loss in chunks, compared with the loss of all logits."""

    R, D, V, CHUNK = 300, 64, 300, 128
    LOSSES = (
        CrossEntropy(0.1), CrossEntropy(0.0), EntmaxLoss(1.3, 0.1), SparsemaxLoss(), Squares()
    )  # fmt: skip
    each_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)

    @pytest.fixture(autouse=True)
    def _several_chunks_and_groups(self, monkeypatch):
        monkeypatch.setitem(projected.CHUNK_LOGITS, "cpu", 0)
        monkeypatch.setattr(projected, "GROUP_LOGITS", 2 * self.CHUNK * self.V)

    def example(self, dtype=torch.float64):
        generator = torch.Generator().manual_seed(1)
        states = torch.randn(self.R, self.D, generator=generator, dtype=dtype) / 2
        weight = torch.randn(self.V, self.D, generator=generator, dtype=dtype) / 2
        targets = torch.randint(self.V, (self.R,), generator=generator)
        return states.requires_grad_(), weight.requires_grad_(), targets

    @each_loss
    @pytest.mark.parametrize(
        ("dtype", "is_low", "limit"),
        [(torch.float64, False, 1e-12), (torch.float32, False, 2e-6), (torch.float32, True, 0.02)],
        ids=["float64", "float32", "autocast"],
    )
    def test_sums_and_gradients(self, loss, dtype, is_low, limit):
        *leaves, targets = self.example(dtype)
        results = []
        with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
            logits = nn.functional.linear(*leaves)
            for sums in (loss(logits, targets), loss.from_states(*leaves, targets)):
                gradients = torch.autograd.grad(2.5 * sums.loss, leaves)
                results.append((sums.loss.detach(), sums.measure, *gradients))
        for one, other in zip(*results, strict=True):
            assert (other - one).abs().max() / one.abs().max() < limit
            assert other.is_contiguous()
        if is_low:  # both sums are of the same logits
            torch.testing.assert_close(results[1][:2], results[0][:2], rtol=1e-5, atol=0)

    @each_loss
    def test_loss_and_measure_of_each_row(self, loss):
        states, weight, targets = self.example()
        of_rows = torch.stack(loss.rows_from_states(states, weight, targets))
        for row in range(0, self.R, 30):
            sums = loss.from_states(states[[row]], weight, targets[[row]])
            expected = torch.stack([sums.loss, sums.measure])
            torch.testing.assert_close(of_rows[:, row], expected)

    def test_chunks_are_limited_and_gradients_computed_if_needed(self):
        calls = []

        class RecordingLoss(CrossEntropy):
            def row_sums(self, logits_RV, target_R, with_gradient):
                calls.append((len(logits_RV), with_gradient))
                return super().row_sums(logits_RV, target_R, with_gradient)

        states, weight, targets = self.example()
        trained = RecordingLoss(0.1).from_states(states, weight, targets).loss
        with torch.no_grad():
            evaluated = RecordingLoss(0.1).from_states(states, weight, targets).loss
        sizes = [self.CHUNK, self.CHUNK, self.R - 2 * self.CHUNK]
        assert calls == [(n, is_trained) for is_trained in (True, False) for n in sizes]
        assert not evaluated.requires_grad
        torch.testing.assert_close(evaluated, trained.detach())

    def test_likelihood_of_large_logits_is_precise(self):
        logits = (1e4 + torch.randn(40, 37, generator=torch.Generator().manual_seed(3))).float()
        target = torch.arange(40) % 36 + 1
        exact = cross_entropy(logits.double(), target, reduction="sum")
        sums = CrossEntropy(0.0).row_sums(logits.clone(), target, True)
        for values in (sums.measure, sums.loss):
            torch.testing.assert_close(values.double(), exact, rtol=1e-6, atol=0)

    def test_no_rows_have_zero_loss_and_gradients(self):
        states, weight, targets = self.example()
        sums = CrossEntropy(0.1).from_states(states[:0], weight, targets[:0])
        gradients = torch.autograd.grad(sums.loss, (states, weight))
        assert sums.loss.item() == sums.measure.item() == 0
        assert all(gradient.eq(0).all() for gradient in gradients)
