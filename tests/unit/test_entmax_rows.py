"""The maps and losses of whole rows, computed every way, against torch's arithmetic in float64."""

from __future__ import annotations

import pytest
import torch

from headwise.kernels import triton_loss, triton_maps
from headwise.kernels.problem import Power
from headwise.losses.loss import CrossEntropy
from triton_cases import assert_near_float64, map_results
from triton_marks import DEVICE, choose_implementation, needs_triton

WAYS = ["kernels", "torch", pytest.param("triton", marks=needs_triton)]
every_power = pytest.mark.parametrize("power", list(Power))


@pytest.fixture(autouse=True, params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way; by Triton, rows of usual length take several blocks."""
    choose_implementation(request.param, monkeypatch)
    monkeypatch.setattr(triton_maps, "LONGEST_BLOCK", 64)
    return str(request.param)


@pytest.fixture
def device(way: str) -> str:
    return DEVICE if way == "triton" else "cpu"


@pytest.mark.parametrize("n_keys", [1, 2, 15, 16, 17, 30, 64, 65, 95, 96, 97, 128, 500, 1031])
@every_power
def test_rows_of_every_length(power: Power, n_keys: int, device: str) -> None:
    generator = torch.Generator().manual_seed(n_keys)
    scores = torch.randn(3, 2, 11, n_keys, generator=generator) * 2
    mask = torch.rand(3, 1, 1, n_keys, generator=generator) > 0.3
    mask[1] = False  # rows without a key
    alpha = torch.tensor([1.0, 1.6]).view(1, 2, 1, 1).to(device) if power is Power.ANY else None
    found = assert_near_float64(scores.to(device), alpha, mask.to(device), power)
    for one in found[:2]:
        assert not one[~mask.expand(scores.shape).to(device)].any()


@pytest.mark.parametrize(
    "mask_shape", [(1, 1, 1, 40), (4, 1, 1, 40), (1, 3, 2, 40), (4, 3, 2, 1), (1, 1, 2, 40)]
)
@pytest.mark.parametrize("alpha_shape", [(1, 1, 1, 1), (1, 3, 1, 1), (4, 3, 2, 1), (1, 1, 2, 1)])
def test_masks_and_alphas_broadcast(
    mask_shape: tuple[int, ...], alpha_shape: tuple[int, ...], device: str
) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(4, 3, 2, 40, generator=generator).to(device)
    mask = (torch.rand(mask_shape, generator=generator) > 0.4).to(device)
    alpha = (torch.rand(alpha_shape, generator=generator) + 1).to(device)
    for given in (mask, mask.transpose(-1, -2).contiguous().transpose(-1, -2)):
        assert_near_float64(scores, alpha, given, Power.ANY)


@pytest.mark.parametrize("deviation", [0.01, 1.0, 30.0])
def test_every_alpha(deviation: float, device: str) -> None:
    alphas = torch.tensor([1.0, 1 + 1e-6, 1.001, 1.05, 1.3, 1.5, 1.8, 1.99, 2.0]).to(device)
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(1, len(alphas), 3, 200, generator=generator).to(device) * deviation
    assert_near_float64(scores, alphas.view(1, -1, 1, 1), None, Power.ANY)


def test_ties_steps_and_lone_keys(device: str) -> None:
    scores = torch.zeros(1, 4, 6, 130)
    scores[:, :, 1, 7] = 50.0  # one key far ahead
    scores[:, :, 2, 65:] = -1e4  # half of them far behind
    scores[:, :, 3] = torch.linspace(0, 1e-3, 130)
    scores[:, :, 4, ::2] = 1.0
    scores[:, :, 5] = torch.arange(130) * -3.0
    alpha = torch.tensor([1.0, 1.1, 1.5, 2.0]).view(1, 4, 1, 1).to(device)
    assert_near_float64(scores.to(device), alpha, None, Power.ANY)


@pytest.mark.parametrize("n_keys", [5, 100, 300])
@every_power
def test_what_is_no_number_stays_in_its_row(power: Power, n_keys: int, device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(1, 1, 40, n_keys, generator=generator).to(device)
    alpha = torch.full((1, 1, 1, 1), 1.3).to(device) if power is Power.ANY else None
    clean = map_results(scores, alpha, None, power, torch.float32)
    scores[0, 0, 2, -1], scores[0, 0, 5, 3] = torch.nan, torch.inf
    scores[0, 0, 2, :-1] = -torch.inf  # what is no number is the only key of its block
    scores[0, 0, 9] *= 1e4  # nor do hard rows change their neighbours' bits
    found = map_results(scores, alpha, None, power, torch.float32)
    is_good = torch.tensor([row not in (2, 5, 9) for row in range(40)])
    for one, other in zip(found[:2], clean[:2], strict=True):
        assert torch.equal(one[:, :, is_good], other[:, :, is_good])
    assert found[0][:, :, [2, 5]].isnan().all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_of_classes_in_several_blocks(
    smoothing: float, way: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_loss, "READ_BLOCK", 64)
    monkeypatch.setattr(triton_loss, "WRITE_BLOCK", 64)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(9, 300, generator=generator).to(device) * 4
    target = torch.randint(0, 300, (9,), generator=generator).to(device)
    target[2] = 0
    loss = CrossEntropy(smoothing)
    exact = loss.of_rows(logits.double(), target, with_gradient=True)
    room = logits.clone()
    found = loss.of_rows(room, target, with_gradient=True)
    assert found.grad_RV is room or way == "torch"
    for one, reference in zip(vars(found).values(), vars(exact).values(), strict=True):
        torch.testing.assert_close(one.double(), reference, rtol=2e-6, atol=1e-6)
    alone = loss.of_rows(logits.clone(), target, with_gradient=False)
    assert torch.equal(alone.loss, found.loss)
    assert alone.grad_RV is None


def test_what_would_be_misread_is_refused(way: str) -> None:
    scores = torch.zeros(1, 1, 4, 6, device=DEVICE)
    for misread in (scores.double(), scores.mT) if way == "triton" else ():
        with pytest.raises(TypeError, match="contiguous"):
            triton_maps.forward(misread, None, Power.SQUARE, None)
        with pytest.raises(TypeError, match="contiguous"):
            triton_loss.read(misread[0, 0], 1.5, with_total=False)
