"""The maps and losses of whole rows by every implementation, compared with torch in float64."""

import pytest
import torch

from headwise.losses.loss import CrossEntropy
from headwise.ops.family import Power
from headwise.ops.losses import triton as triton_losses
from headwise.ops.maps import triton as triton_maps
from triton_cases import assert_near_float64, map_results
from triton_marks import DEVICE, choose_implementation, needs_triton

WAYS = ["kernels", "torch", pytest.param("triton", marks=needs_triton)]
every_power = pytest.mark.parametrize("power", list(Power))


@pytest.fixture(autouse=True, params=WAYS)
def way(request, monkeypatch):
    """Choose the implementation; with Triton, rows of usual length take several blocks."""
    choose_implementation(request.param, monkeypatch)
    monkeypatch.setattr(triton_maps, "MAX_BLOCK", 64)
    return str(request.param)


@pytest.fixture
def device(way):
    return DEVICE if way == "triton" else "cpu"


@pytest.mark.parametrize("n_keys", [1, 2, 15, 16, 17, 30, 64, 65, 95, 96, 97, 128, 500, 1031])
@every_power
def test_rows_of_any_length(power, n_keys, device):
    generator = torch.Generator().manual_seed(n_keys)
    scores = torch.randn(3, 2, 11, n_keys, generator=generator) * 2
    mask = torch.rand(3, 1, 1, n_keys, generator=generator) > 0.3
    mask[1] = False  # rows without a key
    alpha = torch.tensor([1.0, 1.6]).view(1, 2, 1, 1).to(device) if power is Power.ANY else None
    results = assert_near_float64(scores.to(device), alpha, mask.to(device), power)
    for result in results[:2]:
        assert not result[~mask.expand(scores.shape).to(device)].any()


@pytest.mark.parametrize(
    "mask_shape", [(1, 1, 1, 40), (4, 1, 1, 40), (1, 3, 2, 40), (4, 3, 2, 1), (1, 1, 2, 40)]
)
@pytest.mark.parametrize("alpha_shape", [(1, 1, 1, 1), (1, 3, 1, 1), (4, 3, 2, 1), (1, 1, 2, 1)])
def test_masks_and_alphas_broadcast(mask_shape, alpha_shape, device):
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(4, 3, 2, 40, generator=generator).to(device)
    mask = (torch.rand(mask_shape, generator=generator) > 0.4).to(device)
    alpha = (torch.rand(alpha_shape, generator=generator) + 1).to(device)
    for layout in (mask, mask.transpose(-1, -2).contiguous().transpose(-1, -2)):
        assert_near_float64(scores, alpha, layout, Power.ANY)


@pytest.mark.parametrize("deviation", [0.01, 1.0, 30.0])
def test_every_alpha(deviation, device):
    alphas = torch.tensor([1.0, 1 + 1e-6, 1.001, 1.05, 1.3, 1.5, 1.8, 1.99, 2.0]).to(device)
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(1, len(alphas), 3, 200, generator=generator).to(device) * deviation
    assert_near_float64(scores, alphas.view(1, -1, 1, 1), None, Power.ANY)


def test_ties_steps_and_single_keys(device):
    scores = torch.zeros(1, 4, 6, 130)
    scores[:, :, 1, 7] = 50.0  # one key far ahead
    scores[:, :, 2, 65:] = -1e4  # half of them far below
    scores[:, :, 3] = torch.linspace(0, 1e-3, 130)
    scores[:, :, 4, ::2] = 1.0
    scores[:, :, 5] = torch.arange(130) * -3.0
    alpha = torch.tensor([1.0, 1.1, 1.5, 2.0]).view(1, 4, 1, 1).to(device)
    assert_near_float64(scores.to(device), alpha, None, Power.ANY)


@pytest.mark.parametrize("n_keys", [5, 100, 300])
@every_power
def test_nan_and_inf_stay_in_their_row(power, n_keys, device):
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(1, 1, 40, n_keys, generator=generator).to(device)
    alpha = torch.full((1, 1, 1, 1), 1.3).to(device) if power is Power.ANY else None
    clean = map_results(scores, alpha, None, power, torch.float32)
    scores[0, 0, 2, -1], scores[0, 0, 5, 3] = torch.nan, torch.inf
    scores[0, 0, 2, :-1] = -torch.inf  # NaN is the only visible key of its block
    scores[0, 0, 9] *= 1e4  # extreme rows do not change other rows either
    results = map_results(scores, alpha, None, power, torch.float32)
    is_unchanged = torch.tensor([row not in (2, 5, 9) for row in range(40)])
    for one, other in zip(results[:2], clean[:2], strict=True):
        assert torch.equal(one[:, :, is_unchanged], other[:, :, is_unchanged])
    assert results[0][:, :, [2, 5]].isnan().all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_over_several_blocks(smoothing, way, device, monkeypatch):
    monkeypatch.setattr(triton_losses, "READ_BLOCK", 64)
    monkeypatch.setattr(triton_losses, "WRITE_BLOCK", 64)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(9, 300, generator=generator).to(device) * 4
    target = torch.randint(0, 300, (9,), generator=generator).to(device)
    target[2] = 0
    loss = CrossEntropy(smoothing)
    expected = loss.row_sums(logits.double(), target, with_gradient=True)
    buffer = logits.clone()
    actual = loss.row_sums(buffer, target, with_gradient=True)
    assert actual.grad_RV is buffer or way == "torch"
    for tensor, expected_tensor in zip(vars(actual).values(), vars(expected).values(), strict=True):
        torch.testing.assert_close(tensor.double(), expected_tensor, rtol=2e-6, atol=1e-6)
    alone = loss.row_sums(logits.clone(), target, with_gradient=False)
    assert torch.equal(alone.loss, actual.loss)
    assert alone.grad_RV is None


def test_unsupported_layouts_are_refused(way):
    scores = torch.zeros(1, 1, 4, 6, device=DEVICE)
    cases = ((scores.double(), "must be torch.float16 or"), (scores.mT, "contiguous"))
    for unsupported, reason in cases if way == "triton" else ():
        with pytest.raises(TypeError, match=reason):
            triton_maps.forward(unsupported, None, Power.SQUARE, None)
        with pytest.raises(TypeError, match=reason):
            triton_losses.read(unsupported[0, 0], 1.5, with_total=False)
