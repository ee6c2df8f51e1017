import pytest
import torch
from torch.nn.functional import cross_entropy

from headwise.entmax import alpha_entmax, entmax_loss
from headwise.losses.loss import CrossEntropy, Entmax15Loss, EntmaxLoss, SparsemaxLoss

B, T, V = 3, 5, 7


def example(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    logits_BTV = 3 * torch.randn(B, T, V, generator=generator, dtype=torch.float64)
    target_BT = torch.randint(V, (B, T), generator=generator)
    target_BT[0, 3:] = 0
    return logits_BTV.to(dtype).requires_grad_(), target_BT


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_value_and_gradient_match_torch(smoothing):
    logits_BTV, target_BT = example()
    sums = CrossEntropy(smoothing)(logits_BTV, target_BT)
    (gradient,) = torch.autograd.grad(2.5 * sums.loss, logits_BTV)
    rows = (logits_BTV.flatten(0, 1), target_BT.flatten())
    expected = cross_entropy(*rows, reduction="sum", label_smoothing=smoothing)
    (reference,) = torch.autograd.grad(2.5 * expected, logits_BTV)
    torch.testing.assert_close(sums.loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, reference, rtol=1e-12, atol=1e-14)
    plain = cross_entropy(*rows, reduction="sum")
    torch.testing.assert_close(sums.measure, plain, rtol=1e-12, atol=0)
    assert not sums.measure.requires_grad


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_entmax_losses_sum_over_targets(smoothing):
    logits_BTV, target_BT = example()
    for loss, alpha in (
        (EntmaxLoss(1.3, smoothing), 1.3),
        (Entmax15Loss(smoothing), 1.5),
        (SparsemaxLoss(smoothing), 2.0),
    ):
        sums = loss(logits_BTV, target_BT)
        expected = entmax_loss(logits_BTV, target_BT, alpha, label_smoothing=smoothing).sum()
        torch.testing.assert_close(sums.loss, expected, rtol=1e-12, atol=0)
        p_BTV = alpha_entmax(logits_BTV.detach(), alpha)
        assert sums.measure == (p_BTV > 0).sum()
        torch.testing.assert_close(loss.log_probs(logits_BTV.detach()).exp(), p_BTV)
        assert (loss.measure, loss.output_map.is_sparse) == ("support", True)
