"""Masks, odd rows, types, shapes and surroundings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.entmax import alpha_entmax, entmax15, softmax, sparsemax
from headwise.entmax.solver import solve
from headwise.kernels.problem import Power

INF, NAN = float("inf"), float("nan")
Map = Callable[..., Tensor]


def learned(alpha: float) -> Map:
    """α-entmax with α as a tensor, the general path."""

    def call(scores: Tensor, dim: int = -1, mask: Tensor | None = None) -> Tensor:
        return alpha_entmax(scores, torch.tensor(alpha, requires_grad=True), dim, mask)

    return call


pytestmark = pytest.mark.usefixtures("computed_every_way")
MAPS = {"softmax": softmax, "entmax15": entmax15, "sparsemax": sparsemax}
MAPS |= {f"alpha={alpha}": learned(alpha) for alpha in (1.0, 1.05, 1.5, 1.8, 2.0)}
every_map = pytest.mark.parametrize("one", MAPS.values(), ids=MAPS)
SPARSE = [one for name, one in MAPS.items() if name not in ("softmax", "alpha=1.0")]


@every_map
def test_masked_keys_are_as_if_removed(one: Map) -> None:
    torch.manual_seed(0)
    scores = torch.randn(6, 11)
    mask = torch.rand(6, 11) > 0.4
    mask[:, 0] = True
    for junk in (0.0, 1e9, INF, -INF, NAN):
        filled = torch.where(mask, scores, junk).requires_grad_()
        weights = one(filled, mask=mask)
        assert (weights[~mask] == 0).all()
        weights.backward(torch.randn(6, 11))
        assert (filled.grad[~mask] == 0).all()
        assert filled.grad.isfinite().all()
        for row in range(6):
            alone = one(scores[row, mask[row]])
            torch.testing.assert_close(weights[row, mask[row]], alone, rtol=0, atol=3e-7)


@every_map
@pytest.mark.parametrize("fill", [-INF, -1e9, -3e38])
def test_fills_mask_as_well(one: Map, fill: float) -> None:
    torch.manual_seed(1)
    scores = torch.randn(4, 9)
    mask = torch.rand(4, 9) > 0.3
    mask[:, 0] = True
    filled = torch.where(mask, scores, fill).requires_grad_()
    weights = one(filled)
    weights.backward(torch.randn(4, 9))
    assert (weights[~mask] == 0).all()
    assert (filled.grad[~mask] == 0).all()
    torch.testing.assert_close(weights, one(scores, mask=mask), rtol=0, atol=3e-7)


@every_map
def test_row_without_a_key_is_zero_with_zero_gradients(one: Map) -> None:
    mask = torch.tensor([[True, True, False], [False] * 3])
    by_mask = torch.randn(2, 3, requires_grad=True)
    by_score = torch.where(mask, by_mask.detach(), -INF).requires_grad_()
    for scores, weights in ((by_mask, one(by_mask, mask=mask)), (by_score, one(by_score))):
        assert (weights[1] == 0).all()
        weights.backward(torch.randn(2, 3))
        assert (scores.grad[1] == 0).all()
        assert scores.grad.isfinite().all()


def test_row_without_a_key_leaves_alpha_alone() -> None:
    scores = torch.randn(2, 1, 3, 4)
    mask = torch.ones(2, 1, 1, 4, dtype=torch.bool)
    mask[1] = False
    grads = []
    for batch in (slice(None), slice(0, 1)):
        alpha = torch.tensor([[[1.4]]], requires_grad=True)
        alpha_entmax(scores[batch], alpha, mask=mask[batch]).sum(-1).square().sum().backward()
        alpha_entmax(scores[batch], alpha, mask=mask[batch])[..., 0].sum().backward()
        grads.append(alpha.grad)
    torch.testing.assert_close(grads[0], grads[1])


@every_map
@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("n_keys", [5, 300])
def test_bad_scores_stay_in_their_row(one: Map, bad: float, n_keys: int) -> None:
    scores = torch.randn(3, n_keys)
    clean = one(scores)
    scores[1, 2] = bad
    weights = one(scores)
    assert weights[1].isnan().all()
    torch.testing.assert_close(weights[[0, 2]], clean[[0, 2]], rtol=0, atol=3e-7)


@every_map
def test_simple_rows_are_exact(one: Map) -> None:
    assert (one(torch.randn(5, 1)) == 1).all()
    assert torch.equal(one(torch.tensor([-INF, 3.0, -INF])), torch.tensor([0.0, 1.0, 0.0]))
    for n_keys in (2, 3, 7, 64, 1000):
        equal = one(torch.full((2, n_keys), 4.2))
        assert (equal == equal[0, 0]).all()
        torch.testing.assert_close(equal, torch.full_like(equal, 1 / n_keys), rtol=0, atol=6e-8)
    tied = one(torch.tensor([1.0, -4.0, 1.0, -4.0, 1.0]))
    assert tied[0] == tied[2] == tied[4]
    assert tied[1] == tied[3]


@pytest.mark.parametrize("one", SPARSE)
def test_a_large_lead_takes_all(one: Map) -> None:
    scores = torch.tensor([[30.0, 0.0, 5.0], [1e4, -1e4, 0.0], [-1e4, 1e4, -1e4]])
    expected = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    torch.testing.assert_close(one(scores), expected, rtol=0, atol=1e-6)
    assert (one(scores)[1:] == expected[1:]).all()


def adversarial(n_keys: int) -> Tensor:
    """Rows on which solvers stumble: plateaus, ramps, gaps, heavy tails, large offsets."""
    ramp = torch.arange(n_keys, dtype=torch.float32)
    generator = torch.Generator().manual_seed(n_keys)
    normal = torch.randn(n_keys, generator=generator)
    rows = [
        torch.zeros(n_keys),
        torch.where(ramp == 0, 1.0, 0.0),
        torch.where(ramp == 0, 0.0, -1.0),
        torch.where(ramp < n_keys // 2, 0.0, -0.999),
        torch.where(ramp == 0, 1e4, 0.0),
        torch.where(ramp % 2 == 0, 1e4, -1e4),
        -ramp,
        -ramp / n_keys,
        -ramp * 1e-6,
        -(2.0 ** (-ramp.clamp_max(60))),
        2.0 ** (-ramp.clamp_max(60)),
        -(1.1 ** ramp.clamp_max(100)),
        torch.floor(ramp.sqrt()) * -0.5,
        normal / normal.roll(1),
        normal * 1e-3 + 1e4,
        normal * 1e-6,
        torch.linspace(-1, 1, n_keys) * 3e38,
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.02, 1.25, 1.5, 1.75, 1.95, 2.0])
@pytest.mark.parametrize("n_keys", [2, 33, 500, 4096])
def test_adversarial_rows(alpha: float, n_keys: int) -> None:
    scores = adversarial(n_keys)
    weights = alpha_entmax(scores, torch.tensor(alpha))
    # from the same float32 numbers, in float64
    exact = alpha_entmax(scores.double(), torch.tensor(alpha).double())
    assert (exact.sum(-1) - 1).abs().max() < 1e-12
    assert (weights.double().sum(-1) - 1).abs().max() <= 5e-7
    assert (weights - exact).abs().max() <= 5e-7
    if alpha in (1.5, 2.0):
        weights = alpha_entmax(scores, alpha)
        assert (weights - exact).abs().max() <= 5e-7
        assert (weights.double().sum(-1) - 1).abs().max() <= 5e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_keys", [2, 33, 4096])
def test_fixed_counts_of_an_accelerator_solve_adversarial_rows(
    n_keys: int, dtype: torch.dtype
) -> None:
    scores = adversarial(n_keys).to(dtype)
    scores[-1] = -INF
    limit = 5e-7 if dtype is torch.float32 else 1e-11
    for beta in (1e-7, 0.02, 0.25, 0.5, 0.75, 0.95, 1.0):
        powers = {0.5: [Power.ANY, Power.SQUARE], 1.0: [Power.ANY, Power.LINEAR]}
        for power in powers.get(beta, [Power.ANY]):
            fixed, adaptive = torch.empty_like(scores), torch.empty_like(scores)
            beta_11 = scores.new_full((1, 1), beta)
            solve(scores, beta_11, power, fixed, is_adaptive=False)
            solve(scores, beta_11, power, adaptive, is_adaptive=True)
            assert (fixed - adaptive).abs().max() <= limit
            assert (fixed[:-1].sum(-1, dtype=torch.float64) - 1).abs().max() <= limit
            assert (fixed[-1] == 0).all()


@pytest.mark.gpu
def test_accelerator_agrees_with_cpu() -> None:
    torch.manual_seed(8)
    scores, grad = torch.randn(4, 3, 50, 70) * 2, torch.randn(4, 3, 50, 70)
    mask = torch.rand(4, 1, 1, 70) > 0.3
    mask[0] = False
    results = []
    for device in ("cpu", "cuda"):
        alpha = torch.tensor([1.0, 1.05, 1.6], device=device).view(3, 1, 1).requires_grad_()
        inputs = scores.to(device).requires_grad_()
        for one in (softmax, entmax15, sparsemax):
            one(inputs, mask=mask.to(device)).backward(grad.to(device))
        weights = alpha_entmax(inputs, alpha, mask=mask.to(device))
        weights.backward(grad.to(device))
        results.append([weights.cpu(), inputs.grad.cpu(), alpha.grad.cpu()])
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-4, atol=1e-4)


@every_map
def test_any_axis_and_memory_layout(one: Map) -> None:
    torch.manual_seed(2)
    scores = torch.randn(3, 4, 5, 6)
    mask = torch.rand(4, 1, 6) > 0.3
    last = one(scores, mask=mask)
    for dim in range(-4, 4):
        moved = scores.movedim(-1, dim)
        moved_mask = mask.expand(3, 4, 5, 6).movedim(-1, dim)
        for layout in (moved, moved.contiguous()):
            weights = one(layout, dim, moved_mask)
            torch.testing.assert_close(weights.movedim(dim, -1), last, rtol=0, atol=3e-7)
    strided = torch.randn(3, 4, 12)[..., ::2]
    torch.testing.assert_close(one(strided), one(strided.contiguous()), rtol=0, atol=0)


@every_map
def test_noncontiguous_gradient(one: Map) -> None:
    torch.manual_seed(3)
    first, second = (torch.randn(4, 5, generator=torch.Generator().manual_seed(1)) for _ in "ab")
    grad = torch.randn(5, 4).t()
    one(first.requires_grad_()).backward(grad)
    one(second.requires_grad_()).backward(grad.contiguous())
    torch.testing.assert_close(first.grad, second.grad, rtol=0, atol=0)


@every_map
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 5)])
def test_empty(one: Map, shape: tuple[int, ...]) -> None:
    scores = torch.zeros(shape, requires_grad=True)
    weights = one(scores)
    assert weights.shape == shape
    weights.sum().backward()
    assert scores.grad.shape == shape


@every_map
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_at_the_end(one: Map, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    scores = (torch.randn(30, 70) * 2).to(dtype)
    mine, wide = scores.clone().requires_grad_(), scores.float().requires_grad_()
    weights, expected = one(mine), one(wide)
    assert weights.dtype is dtype
    assert torch.equal(weights, expected.to(dtype))
    grad = torch.randn(30, 70).to(dtype)
    weights.backward(grad)
    expected.backward(grad.float())
    assert torch.equal(mine.grad, wide.grad.to(dtype))


@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1), (1, 4, 1, 1), (3, 4, 5, 1), (5, 1)])
def test_alpha_gradient_has_the_shape_of_alpha(shape: tuple[int, ...]) -> None:
    torch.manual_seed(5)
    scores, grad = torch.randn(3, 4, 5, 7), torch.randn(3, 4, 5, 7)
    alpha = (1.2 + 0.6 * torch.rand(shape)).requires_grad_()
    alpha_entmax(scores, alpha).backward(grad)
    full = alpha.detach().expand(3, 4, 5, 1).clone().requires_grad_()
    alpha_entmax(scores, full).backward(grad)
    torch.testing.assert_close(alpha.grad, full.grad.sum_to_size(shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1, -3])
def test_alpha_differs_along_the_axes_that_are_not_normalised(dim: int) -> None:
    scores = torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(7))
    alpha = torch.linspace(1.1, 1.9, 16).view(4, 4, 1)
    last = alpha_entmax(scores, alpha)
    weights = alpha_entmax(scores.movedim(-1, dim), alpha.movedim(-1, dim), dim)
    torch.testing.assert_close(weights.movedim(dim, -1), last, rtol=0, atol=0)


def test_half_precision_alpha_is_computed_in_float32() -> None:
    scores = torch.randn(2, 3, 4, 5).bfloat16()
    alpha = torch.full((3, 1, 1), 1.3, requires_grad=True)
    alpha_entmax(scores, alpha).float().square().sum().backward()
    wide = torch.full((3, 1, 1), 1.3, requires_grad=True)
    alpha_entmax(scores.float(), wide).bfloat16().float().square().sum().backward()
    assert alpha.grad.dtype is torch.float32
    assert torch.equal(alpha.grad, wide.grad)


def test_works_under_autocast() -> None:
    torch.manual_seed(6)
    query = torch.randn(2, 3, 4, 8, requires_grad=True)
    alpha = torch.tensor([1.2, 1.5, 1.8]).view(3, 1, 1).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = query @ query.transpose(-1, -2)
        weights = alpha_entmax(scores, alpha)
        context = weights @ query
    assert weights.dtype is torch.bfloat16
    context.float().sum().backward()
    assert query.grad.isfinite().all()
    assert alpha.grad.isfinite().all()
    assert (weights.float().sum(-1) - 1).abs().max() < 2e-2


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_works_under_checkpointing(use_reentrant: bool) -> None:
    grads = []
    for keep in (True, False):
        scores = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
        alpha = torch.tensor([1.4], requires_grad=True)
        if keep:
            weights = alpha_entmax(scores, alpha)
        else:
            weights = checkpoint(alpha_entmax, scores, alpha, use_reentrant=use_reentrant)
        weights[:, 0].sum().backward()
        grads.append((scores.grad, alpha.grad))
    assert torch.equal(grads[0][0], grads[1][0])
    assert torch.equal(grads[0][1], grads[1][1])


def test_survives_torch_compile() -> None:
    def attend(scores: Tensor, alpha: Tensor) -> Tensor:
        return alpha_entmax(scores * 2, alpha) * 3

    scores = torch.randn(2, 3, 4, 5)
    alpha = torch.tensor([1.2, 1.5, 1.8]).view(3, 1, 1).requires_grad_()
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    result = compiled(scores, alpha)
    torch.testing.assert_close(result, attend(scores, alpha), rtol=0, atol=0)
    result.square().sum().backward()
    assert alpha.grad.isfinite().all()


def test_differentiable_once_only() -> None:
    scores = torch.randn(3, 4, requires_grad=True)
    for one in (softmax, entmax15, learned(1.3)):
        (grad,) = torch.autograd.grad(one(scores)[:, 0].sum(), scores, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiated once"):
            grad.sum().backward()


@pytest.mark.parametrize("with_alpha", [True, False])
def test_keeps_only_the_weights_for_backward(with_alpha: bool) -> None:
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, id):
        scores = torch.randn(4, 3, 8, 16, requires_grad=True)
        alpha = torch.full((3, 1, 1), 1.3, requires_grad=True) if with_alpha else 1.5
        mask = torch.ones(4, 1, 1, 16, dtype=torch.bool)
        alpha_entmax(scores, alpha, mask=mask)
    assert sum(kept) == scores.numel() + (3 if with_alpha else 0)


def test_inputs_are_left_alone() -> None:
    scores, alpha = torch.randn(5, 6), torch.full((5, 1), 1.3)
    mask = torch.rand(5, 6) > 0.3
    before = scores.clone(), alpha.clone(), mask.clone()
    for one in MAPS.values():
        one(scores)
        one(scores, mask=mask)
    alpha_entmax(scores, alpha, mask=mask)
    assert all(torch.equal(a, b) for a, b in zip(before, (scores, alpha, mask), strict=True))


@pytest.mark.parametrize("alpha", [0.99, 2.01, NAN, INF, -1])
def test_refuses_a_number_outside_of_the_range(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"alpha must be in \[1, 2\]"):
        alpha_entmax(torch.zeros(3), alpha)


def test_refuses_wrong_tensors() -> None:
    scores = torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match=r"alpha must be in \[1, 2\].*2\.5"):
        alpha_entmax(scores, torch.tensor([[1.5], [2.5], [1.0]]))
    with pytest.raises(ValueError, match=r"size 1 along dim -1.*\(H, 1, 1\)"):
        alpha_entmax(scores, torch.full((4,), 1.5))
    with pytest.raises(TypeError, match="mask must be bool"):
        entmax15(scores, mask=torch.ones(2, 3, 4))
    with pytest.raises(TypeError, match="floating-point"):
        softmax(torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("dim", [3, 5, -4])
def test_an_axis_that_is_not_there_is_an_error(dim: int) -> None:
    with pytest.raises(IndexError, match="out of range"):
        entmax15(torch.randn(2, 3, 4), dim)
