"""Output projection and loss in chunks, compared with the loss of all logits."""

import pytest
import torch
from torch import nn

from headwise.losses import projected
from headwise.losses.loss import CrossEntropy, EntmaxLoss, Loss, SparsemaxLoss
from headwise.losses.projected import chunk_rows
from headwise.ops import linear

R, D, V = 23, 6, 37
LOSSES = [CrossEntropy(0.1), CrossEntropy(0.0), EntmaxLoss(1.3, 0.1), SparsemaxLoss()]


class Squares(Loss):
    """A loss without a closed-form gradient."""

    def rows(self, logits_RV, targets_R):
        wide_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
        return wide_RV.square().sum(-1), torch.ones_like(wide_RV[:, 0])


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch):
    monkeypatch.setattr(projected, "MIN_CHUNK_ROWS", 5)
    monkeypatch.setattr(projected, "CHUNK_LOGITS", {"cpu": 5 * V})
    monkeypatch.setattr(projected, "GROUP_LOGITS", 10 * V)
    monkeypatch.setattr(linear, "MIN_MULTIPLICATIONS", 0)


def example(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    states_RD = torch.randn(R, D, generator=generator, dtype=dtype)
    weight_VD = torch.randn(V, D, generator=generator, dtype=dtype)
    targets_R = torch.randint(V, (R,), generator=generator)
    return states_RD.requires_grad_(), weight_VD.requires_grad_(), targets_R


@pytest.mark.parametrize("loss", [*LOSSES, Squares()], ids=repr)
@pytest.mark.parametrize(
    ("dtype", "is_low", "limit"),
    [(torch.float64, False, 1e-12), (torch.float32, False, 2e-6), (torch.float32, True, 0.02)],
    ids=["float64", "float32", "autocast"],
)
def test_sums_and_gradients(loss, dtype, is_low, limit):
    states_RD, weight_VD, targets_R = example(dtype)
    results = []
    for by_chunks in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
            if by_chunks:
                sums = loss.from_states(states_RD, weight_VD, targets_R)
            else:
                sums = loss(nn.functional.linear(states_RD, weight_VD), targets_R)
        gradients = torch.autograd.grad(2.5 * sums.loss, (states_RD, weight_VD))
        results.append((sums.loss.detach(), sums.measure, *gradients))
    for one, other in zip(*results, strict=True):
        largest_error = (other - one).abs().max() / one.abs().max()
        assert largest_error < limit
        assert other.is_contiguous()
    if is_low:  # both sums are of the same logits
        torch.testing.assert_close(results[1][:2], results[0][:2], rtol=1e-5, atol=0)


@pytest.mark.parametrize("loss", [*LOSSES, Squares()], ids=repr)
def test_loss_and_measure_of_each_row(loss):
    states_RD, weight_VD, targets_R = example()
    row_sums = loss.rows_from_states(states_RD, weight_VD, targets_R)
    for row in range(R):
        one = slice(row, row + 1)
        sums = loss.from_states(states_RD[one], weight_VD, targets_R[one])
        torch.testing.assert_close((row_sums[0][row], row_sums[1][row]), (sums.loss, sums.measure))


def test_chunks_are_limited_and_gradients_computed_if_needed():
    gradient_flags = []
    n_rows = []

    class RecordingLoss(CrossEntropy):
        def row_sums(self, logits_RV, target_R, with_gradient):
            gradient_flags.append(with_gradient)
            n_rows.append(len(logits_RV))
            return super().row_sums(logits_RV, target_R, with_gradient)

    states_RD, weight_VD, targets_R = example()
    loss = RecordingLoss(0.1)
    both = loss.from_states(states_RD, weight_VD, targets_R).loss
    assert sum(n_rows) == R
    assert max(n_rows) == chunk_rows(V, torch.device("cpu")) == 5
    assert all(gradient_flags)
    gradient_flags.clear()
    with torch.no_grad():
        evaluated = loss.from_states(states_RD, weight_VD, targets_R)
    assert not any(gradient_flags)
    assert not evaluated.loss.requires_grad
    torch.testing.assert_close(evaluated.loss, both.detach())


def test_likelihood_of_large_logits_is_precise():
    generator = torch.Generator().manual_seed(3)
    logits_RV = (1e4 + torch.randn(40, V, generator=generator)).float()
    target_R = torch.randint(1, V, (40,), generator=generator)
    exact = nn.functional.cross_entropy(logits_RV.double(), target_R, reduction="sum")
    sums = CrossEntropy(0.0).row_sums(logits_RV.clone(), target_R, True)
    torch.testing.assert_close(sums.measure.double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(sums.loss.double(), exact, rtol=1e-6, atol=0)


def test_no_rows_have_zero_loss_and_gradients():
    states_RD, weight_VD, targets_R = example()
    sums = CrossEntropy(0.1).from_states(states_RD[:0], weight_VD, targets_R[:0])
    gradients = torch.autograd.grad(sums.loss, (states_RD, weight_VD))
    assert sums.loss.item() == sums.measure.item() == 0
    assert all(gradient.eq(0).all() for gradient in gradients)
