"""The maps and losses of whole rows by Triton's kernels, against torch's arithmetic in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headwise.data.tokenizer import PAD
from headwise.entmax import function
from headwise.entmax.losses import entmax_loss_and_support, log_entmax
from headwise.kernels import triton_device, triton_loss, triton_maps
from headwise.kernels.problem import ALPHAS, Power
from headwise.losses.loss import CrossEntropy
from triton_marks import DEVICE, needs_triton

pytestmark = needs_triton
POWERS = [Power.ANY, Power.SQUARE, Power.LINEAR]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of usual length take several blocks."""
    monkeypatch.setattr(triton_maps, "LONGEST_BLOCK", 64)


@pytest.fixture(autouse=True)
def on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float64, the reference, is none of the kernels' types."""
    monkeypatch.setattr(triton_device, "takes", lambda values: values.dtype in triton_device.TYPES)
    monkeypatch.setattr("headwise.kernels.native.takes", lambda values: False)
    monkeypatch.setattr("headwise.kernels.verification.verify", lambda *case: None)
    monkeypatch.setattr("headwise.kernels.verification.verdict", lambda case: None)


def results(
    scores: Tensor, alpha: Tensor | None, mask: Tensor | None, power: Power, dtype: torch.dtype
) -> list[Tensor]:
    """Weights, gradient of the scores and, where learned, of α."""
    grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(5))
    ours = scores.to(DEVICE, dtype, copy=True).requires_grad_()
    learned = None if alpha is None else alpha.to(DEVICE, dtype, copy=True).requires_grad_()
    weights = function.weights(ours, learned, None if mask is None else mask.to(DEVICE), power)
    weights.backward(grad.to(DEVICE, dtype))
    found = [weights.detach(), ours.grad, None if learned is None else learned.grad]
    return [one.double() for one in found if one is not None]


def assert_near_float64(
    scores: Tensor, alpha: Tensor | None, mask: Tensor | None, power: Power
) -> list[Tensor]:
    found = results(scores, alpha, mask, power, torch.float32)
    exact = results(scores, alpha, mask, power, torch.float64)
    assert (found[0] - exact[0]).abs().max() <= 1e-6
    # float32 cannot tell on which side of the border of the support a key lies that is close to it
    beta = torch.full((1, 1, 1, 1), ALPHAS.get(power, 0.0) - 1) if alpha is None else alpha - 1
    is_near = (exact[0] > 0) & (exact[0] ** beta.double().to(DEVICE) < 3e-2)
    is_clear = ~(is_near & (beta.to(DEVICE) >= 0.5)).any(-1)
    assert is_clear.double().mean() > 0.5
    bound = 5e-6 * exact[1].abs().max().clamp_min(1)
    assert (found[1] - exact[1])[is_clear].abs().max() <= bound
    if alpha is not None:
        bound = 1e-5 * exact[2].abs().max().clamp_min(1)
        assert (found[2] - exact[2]).abs().max() <= bound
    return found


@pytest.mark.parametrize("n_keys", [1, 2, 17, 64, 65, 300])
@pytest.mark.parametrize("power", POWERS)
def test_rows_of_every_length(power: Power, n_keys: int, small_blocks: None) -> None:
    generator = torch.Generator().manual_seed(n_keys)
    scores = torch.randn(3, 2, 5, n_keys, generator=generator) * 2
    mask = torch.rand(3, 1, 1, n_keys, generator=generator) > 0.3
    mask[1] = False  # rows without a key
    alpha = torch.tensor([1.02, 1.6]).view(1, 2, 1, 1) if power is Power.ANY else None
    weights, grad, *_ = assert_near_float64(scores, alpha, mask, power)
    is_seen = mask.expand(scores.shape).to(DEVICE)
    assert not weights[~is_seen].any()
    assert not grad[~is_seen].any()


@pytest.mark.parametrize(
    "mask_shape", [(1, 1, 1, 40), (4, 1, 1, 40), (1, 3, 2, 40), (4, 3, 2, 1), (1, 1, 2, 40)]
)
@pytest.mark.parametrize("alpha_shape", [(1, 1, 1, 1), (1, 3, 1, 1), (4, 3, 2, 1), (1, 1, 2, 1)])
def test_masks_and_alphas_broadcast(
    mask_shape: tuple[int, ...], alpha_shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(4, 3, 2, 40, generator=generator)
    mask = torch.rand(mask_shape, generator=generator) > 0.4
    alpha = torch.rand(alpha_shape, generator=generator) + 1
    for given in (mask, mask.transpose(-1, -2).contiguous().transpose(-1, -2)):
        assert_near_float64(scores, alpha, given, Power.ANY)


@pytest.mark.parametrize("deviation", [0.01, 1.0, 30.0])
def test_every_alpha(deviation: float, small_blocks: None) -> None:
    alphas = [1.0, 1 + 1e-6, 1.001, 1.05, 1.3, 1.5, 1.8, 1.99, 2.0]
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(1, len(alphas), 3, 200, generator=generator) * deviation
    assert_near_float64(scores, torch.tensor(alphas).view(1, -1, 1, 1), None, Power.ANY)


def test_ties_steps_and_lone_keys(small_blocks: None) -> None:
    scores = torch.zeros(1, 4, 6, 130)
    scores[:, :, 1, 7] = 50.0  # one key far ahead
    scores[:, :, 2, 65:] = -1e4  # half of them far behind
    scores[:, :, 3] = torch.linspace(0, 1e-3, 130)
    scores[:, :, 4, ::2] = 1.0
    scores[:, :, 5] = torch.arange(130) * -3.0
    alpha = torch.tensor([1.0, 1.1, 1.5, 2.0]).view(1, 4, 1, 1)
    assert_near_float64(scores, alpha, None, Power.ANY)


@pytest.mark.parametrize("power", POWERS)
def test_what_is_no_number_stays_in_its_row(power: Power, small_blocks: None) -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(1, 1, 8, 100, generator=generator)
    alpha = torch.full((1, 1, 1, 1), 1.3) if power is Power.ANY else None
    clean = results(scores, alpha, None, power, torch.float32)
    scores[0, 0, 2, 90], scores[0, 0, 5, 3] = torch.nan, torch.inf
    scores[0, 0, 2, :90] = -torch.inf  # what is no number is the only key of its block
    found = results(scores, alpha, None, power, torch.float32)
    is_good = torch.tensor([row not in (2, 5) for row in range(8)])
    for one, other in zip(found[:2], clean[:2], strict=True):
        assert torch.equal(one[:, :, is_good], other[:, :, is_good])
        assert one[:, :, ~is_good].isnan().all()


def test_what_would_be_misread_is_refused() -> None:
    scores = torch.zeros(1, 1, 4, 6, device=DEVICE)
    for misread in (scores.double(), scores.mT):
        with pytest.raises(TypeError, match="contiguous"):
            triton_maps.forward(misread, None, Power.SQUARE, None)
        with pytest.raises(TypeError, match="contiguous"):
            triton_loss.read(misread[0, 0], 1.5, with_total=False)


def test_nothing_is_launched_for_nothing() -> None:
    for shape in ((0, 2, 3, 4), (1, 2, 3, 0)):
        assert (
            results(torch.zeros(shape), None, None, Power.SQUARE, torch.float32)[0].shape == shape
        )


def loss_results(
    scores: Tensor, target: Tensor, alpha: float, smoothing: float, dtype: torch.dtype
) -> list[Tensor]:
    """Losses, support sizes and gradient."""
    ours = scores.to(DEVICE, dtype, copy=True).requires_grad_()
    loss, support = entmax_loss_and_support(ours, target.to(DEVICE), alpha, smoothing, 0)
    loss.sum().backward()
    return [loss.detach().double(), support.double(), ours.grad.double()]


@pytest.mark.parametrize("n_classes", [5, 64, 1000])
@pytest.mark.parametrize("alpha", [1.0, 1.01, 1.3, 1.5, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_of_classes_in_several_blocks(
    n_classes: int, alpha: float, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_loss, "READ_BLOCK", 64)
    monkeypatch.setattr(triton_loss, "WRITE_BLOCK", 64)
    generator = torch.Generator().manual_seed(n_classes)
    scores = torch.randn(7, n_classes, generator=generator) * 3
    scores[1] *= 0.01
    target = torch.randint(1, n_classes, (7,), generator=generator)
    target[4], scores[4, 2] = 0, torch.nan  # ignored, whatever it holds
    found = loss_results(scores, target, alpha, smoothing, torch.float32)
    exact = loss_results(scores, target, alpha, smoothing, torch.float64)
    for one, reference in zip(found, exact, strict=True):
        torch.testing.assert_close(one, reference, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_in_place(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_loss, "READ_BLOCK", 64)
    monkeypatch.setattr(triton_loss, "WRITE_BLOCK", 64)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(9, 300, generator=generator).to(DEVICE) * 4
    target = torch.randint(0, 300, (9,), generator=generator).to(DEVICE)
    target[2] = PAD
    loss = CrossEntropy(smoothing)
    exact = loss.of_rows(logits.double(), target, with_gradient=True)
    room = logits.clone()
    found = loss.of_rows(room, target, with_gradient=True)
    assert found.grad_RV is room
    for one, reference in zip(vars(found).values(), vars(exact).values(), strict=True):
        torch.testing.assert_close(one.double(), reference, rtol=2e-6, atol=1e-6)
    alone = loss.of_rows(logits.clone(), target, with_gradient=False)
    assert torch.equal(alone.loss, found.loss)
    assert alone.grad_RV is None


@pytest.mark.parametrize("alpha", [1.5, 1.2])
def test_log_probabilities_for_a_search(alpha: float) -> None:
    scores = torch.randn(4, 3000, generator=torch.Generator().manual_seed(2)).to(DEVICE) * 2
    found, exact = log_entmax(scores, alpha).double(), log_entmax(scores.double(), alpha)
    torch.testing.assert_close(found.exp(), exact.exp(), rtol=0, atol=1e-6)
    assert (found == -torch.inf).any()
