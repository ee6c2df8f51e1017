"""Output projection and loss by chunks: what the loss of whole logits gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.data.tokenizer import PAD
from headwise.kernels import linear
from headwise.losses import vocabulary_loss
from headwise.losses.loss import CrossEntropy, EntmaxLoss, Loss, LossSum, SparsemaxLoss
from headwise.losses.vocabulary_loss import chunk_rows

B, T, D, V = 4, 9, 6, 37
LOSSES = [CrossEntropy(0.1), CrossEntropy(0.0), EntmaxLoss(1.3, 0.1), SparsemaxLoss()]


class Squares(Loss):
    """A loss that does not know how to make its gradient."""

    def forward(self, logits_BTV: Tensor, target_BT: Tensor) -> LossSum:
        real_BT = target_BT != PAD
        wide_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
        squares_BT = wide_BTV.square().sum(-1) * real_BT
        return LossSum(squares_BT.sum(), real_BT.sum().to(squares_BT.dtype))


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_loss, "MIN_CHUNK_ROWS", 5)
    monkeypatch.setattr(vocabulary_loss, "CHUNK_LOGITS", {"cpu": 5 * V})
    monkeypatch.setattr(vocabulary_loss, "GROUP_LOGITS", 10 * V)
    monkeypatch.setattr(linear, "MIN_MULTIPLICATIONS", 0)


def example(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    states_BTD = torch.randn(B, T, D, generator=generator, dtype=dtype)
    weight_VD = torch.randn(V, D, generator=generator, dtype=dtype)
    target_BT = torch.randint(1, V, (B, T), generator=generator)
    target_BT[0, 4:] = PAD
    target_BT[2, 1:] = PAD
    return states_BTD.requires_grad_(), weight_VD.requires_grad_(), target_BT


@pytest.mark.parametrize("loss", [*LOSSES, Squares()], ids=repr)
@pytest.mark.parametrize(
    ("dtype", "is_low", "limit"),
    [(torch.float64, False, 1e-12), (torch.float32, False, 2e-6), (torch.float32, True, 0.02)],
    ids=["float64", "float32", "autocast"],
)
def test_sums_and_gradients_are_those_of_the_logits(
    loss: Loss, dtype: torch.dtype, is_low: bool, limit: float
) -> None:
    states_BTD, weight_VD, target_BT = example(dtype)
    found = []
    for by_chunks in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
            if by_chunks:
                sums = loss.of_states(states_BTD, weight_VD, target_BT)
            else:
                sums = loss(nn.functional.linear(states_BTD, weight_VD), target_BT)
        gradients = torch.autograd.grad(2.5 * sums.loss, (states_BTD, weight_VD))
        found.append((sums.loss.detach(), sums.measure, *gradients))
    for one, other in zip(*found, strict=True):
        largest_error = (other - one).abs().max() / one.abs().max()
        assert largest_error < limit
        assert other.is_contiguous()
    if is_low:  # the sums see the very same logits
        torch.testing.assert_close(found[1][:2], found[0][:2], rtol=1e-5, atol=0)


def test_by_chunks_and_gradients_of_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted: list[bool] = []
    n_rows: list[int] = []

    class Watched(CrossEntropy):
        def of_rows(self, logits_RV: Tensor, target_R: Tensor, with_gradient: bool):  # type: ignore[no-untyped-def]
            wanted.append(with_gradient)
            n_rows.append(len(logits_RV))
            return super().of_rows(logits_RV, target_R, with_gradient)

    states_BTD, weight_VD, target_BT = example()
    loss = Watched(0.1)
    both = loss.of_states(states_BTD, weight_VD, target_BT).loss
    assert sum(n_rows) == (target_BT != PAD).sum()
    assert max(n_rows) == chunk_rows(V, torch.device("cpu")) == 5
    of_states, of_weight = torch.autograd.grad(both, (states_BTD, weight_VD))
    for product, given, of in (
        ("product", (states_BTD.detach(), weight_VD), (weight_VD, of_weight)),
        ("weight_gradient", (states_BTD, weight_VD.detach()), (states_BTD, of_states)),
    ):
        with monkeypatch.context() as without:  # what is frozen costs no product
            without.delattr(vocabulary_loss, product)
            alone = loss.of_states(*given, target_BT).loss
            torch.testing.assert_close(torch.autograd.grad(alone, of[0])[0], of[1])
    assert all(wanted)
    wanted.clear()
    with torch.no_grad():
        nothing = loss.of_states(states_BTD, weight_VD, target_BT)
    assert not any(wanted)
    assert not nothing.loss.requires_grad
    torch.testing.assert_close(nothing.loss, both.detach())


def test_scores_far_from_0_keep_the_digits_of_the_likelihood() -> None:
    generator = torch.Generator().manual_seed(3)
    logits_RV = (1e4 + torch.randn(40, V, generator=generator)).float()
    target_R = torch.randint(1, V, (40,), generator=generator)
    exact = nn.functional.cross_entropy(logits_RV.double(), target_R, reduction="sum")
    found = CrossEntropy(0.0).of_rows(logits_RV.clone(), target_R, True)
    torch.testing.assert_close(found.measure.double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.loss.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_of_padding_have_no_part_in_sums_and_gradient(loss: Loss, dtype: torch.dtype) -> None:
    logits_RV = torch.randn(6, V, generator=torch.Generator().manual_seed(4), dtype=dtype)
    target_R = torch.tensor([3, PAD, 5, PAD, 1, 2])
    is_real_R = target_R != PAD
    whole = loss.of_rows(logits_RV.clone(), target_R, True)
    real = loss.of_rows(logits_RV[is_real_R], target_R[is_real_R], True)
    torch.testing.assert_close((whole.loss, whole.measure), (real.loss, real.measure))
    assert whole.grad_RV is not None
    assert not whole.grad_RV[~is_real_R].any()
    torch.testing.assert_close(whole.grad_RV[is_real_R], real.grad_RV)


def test_nothing_but_padding_costs_nothing() -> None:
    states_BTD, weight_VD, _ = example()
    sums = CrossEntropy(0.1).of_states(states_BTD, weight_VD, torch.zeros(B, T, dtype=torch.long))
    gradients = torch.autograd.grad(sums.loss, (states_BTD, weight_VD))
    assert sums.loss.item() == sums.measure.item() == 0
    assert all(gradient.eq(0).all() for gradient in gradients)
