"""Contract of every loss in `conf/loss/`, found by glob, and the values of those that there are.

Axes: B batch, T target length, V vocabulary.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy

import oracle
from headwise.config.instantiate import instantiate
from headwise.config.register import group_choices, group_node
from headwise.losses.loss import CrossEntropy, Entmax15Loss, EntmaxLoss, Loss, SparsemaxLoss

LOSSES = group_choices("loss")
B, T = 3, 5
every_loss = pytest.mark.parametrize("name", LOSSES)
every_vocabulary = pytest.mark.parametrize("vocab_size", [11, 1500])


def build(name):
    loss = instantiate(group_node("loss", name), "loss")
    assert isinstance(loss, Loss)
    return loss


def example(vocab_size, dtype=torch.float32):
    generator = torch.Generator().manual_seed(4)
    logits_BTV = 2 * torch.randn(B, T, vocab_size, generator=generator)
    target_BT = torch.randint(vocab_size, (B, T), generator=generator)
    target_BT[0, 3:] = 0
    logits_BTV.scatter_(-1, target_BT[:, :, None], -1.0)  # no target has the largest logit
    return logits_BTV.to(dtype).requires_grad_(), target_BT


@every_loss
@every_vocabulary
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_and_gradients_are_finite(name, vocab_size, dtype):
    logits_BTV, target_BT = example(vocab_size, dtype)
    sums = build(name)(logits_BTV, target_BT)
    assert sums.loss.shape == sums.measure.shape == ()
    assert sums.loss.dtype == sums.measure.dtype == torch.float32
    assert torch.isfinite(sums.loss)
    assert torch.isfinite(sums.measure)
    assert not sums.measure.requires_grad
    (gradient,) = torch.autograd.grad(sums.loss, logits_BTV)
    assert gradient.dtype == dtype
    assert torch.isfinite(gradient).all()
    # probabilities and targets both sum to one
    assert gradient.float().sum(-1).abs().max() < (1e-5 if dtype is torch.float32 else 0.05)
    assert (gradient.gather(-1, target_BT[:, :, None]) < 0).all()


@every_loss
@every_vocabulary
def test_class_0_is_not_special(name, vocab_size):
    loss = build(name)
    logits_BTV, target_BT = example(vocab_size)
    order = torch.arange(vocab_size)
    order[[0, 7]] = order[[7, 0]]
    renumbered = loss(logits_BTV[..., order], order[target_BT])
    sums = loss(logits_BTV, target_BT)
    torch.testing.assert_close((renumbered.loss, renumbered.measure), (sums.loss, sums.measure))
    zero_targets = loss(logits_BTV[:1, 3:], torch.zeros(1, 2, dtype=torch.long))
    assert zero_targets.loss > 0


@every_loss
@every_vocabulary
def test_sums_of_batches_add_up(name, vocab_size):
    loss = build(name)
    logits_BTV, target_BT = example(vocab_size)
    whole = loss(logits_BTV, target_BT)
    parts = [loss(logits_BTV[:1], target_BT[:1]), loss(logits_BTV[1:], target_BT[1:])]
    torch.testing.assert_close(parts[0].loss + parts[1].loss, whole.loss)
    torch.testing.assert_close(parts[0].measure + parts[1].measure, whole.measure)


@every_loss
@every_vocabulary
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_sum_to_one_and_give_the_measure(name, vocab_size, dtype):
    loss = build(name)
    logits_BTV, target_BT = example(vocab_size, dtype)
    log_probs_BTV = loss.log_probs(logits_BTV.detach())
    assert log_probs_BTV.shape == logits_BTV.shape
    assert log_probs_BTV.dtype == torch.float32
    torch.testing.assert_close(log_probs_BTV.exp().sum(-1), torch.ones(B, T))
    assert loss.output_map.log_probs(logits_BTV.detach()).equal(log_probs_BTV)
    is_impossible_BTV = log_probs_BTV == -torch.inf
    assert bool(is_impossible_BTV.any()) == loss.output_map.is_sparse
    expected = {
        "nll": -log_probs_BTV.gather(-1, target_BT[:, :, None])[:, :, 0],
        "support": (~is_impossible_BTV).sum(-1).float(),
    }
    measure = loss(logits_BTV, target_BT).measure
    torch.testing.assert_close(measure, expected[loss.measure].sum())


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_cross_entropy_equals_that_of_torch(smoothing):
    logits_BTV, target_BT = example(7, torch.float64)
    sums = CrossEntropy(smoothing)(logits_BTV, target_BT)
    (gradient,) = torch.autograd.grad(2.5 * sums.loss, logits_BTV)
    rows = logits_BTV.flatten(0, 1), target_BT.flatten()
    expected = cross_entropy(*rows, reduction="sum", label_smoothing=smoothing)
    (reference,) = torch.autograd.grad(2.5 * expected, logits_BTV)
    torch.testing.assert_close(sums.loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, reference, rtol=1e-12, atol=1e-14)
    plain = cross_entropy(*rows, reduction="sum")
    torch.testing.assert_close(sums.measure, plain, rtol=1e-12, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("kind", "settings", "alpha"),
    [(EntmaxLoss, [1.3], 1.3), (Entmax15Loss, [], 1.5), (SparsemaxLoss, [], 2.0)],
)
def test_entmax_losses_are_sums_over_targets(kind, settings, alpha, smoothing):
    """With label smoothing the target is (1 - s) e_y + s / V."""
    logits_BTV, target_BT = example(7, torch.float64)
    loss = kind(*settings, smoothing)
    sums = loss(logits_BTV, target_BT)
    z_BTV = logits_BTV.detach()
    other = z_BTV.gather(-1, target_BT[..., None])[..., 0] - z_BTV.mean(-1)
    expected = (oracle.loss(z_BTV, target_BT, alpha) + smoothing * other).sum()
    torch.testing.assert_close(sums.loss.detach(), expected, rtol=1e-9, atol=0)
    p_BTV = oracle.weights(z_BTV, alpha)
    assert sums.measure == (p_BTV > 0).sum()
    torch.testing.assert_close(loss.log_probs(z_BTV).exp(), p_BTV)
    assert (loss.measure, loss.output_map.is_sparse) == ("support", True)
