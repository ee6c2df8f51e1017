"""Masks, extreme rows, types, shapes and errors of the maps."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headwise.entmax import alpha_entmax, entmax15, softmax, sparsemax
from headwise.ops.maps import reference

INF, NAN = float("inf"), float("nan")
Map = Callable[..., Tensor]


def learned(alpha):
    """α-entmax with α as a tensor, the general path."""

    def call(scores, dim=-1, *, mask=None):
        return alpha_entmax(scores, torch.tensor(alpha, requires_grad=True), dim, mask=mask)

    return call


pytestmark = pytest.mark.usefixtures("every_implementation")
MAPS = {"softmax": softmax, "entmax15": entmax15, "sparsemax": sparsemax}
MAPS |= {f"alpha={alpha}": learned(alpha) for alpha in (1.0, 1.05, 1.5, 1.8, 2.0)}
every_map = pytest.mark.parametrize("apply_map", MAPS.values(), ids=MAPS)


@every_map
def test_masking_equals_removing_keys(apply_map):
    torch.manual_seed(0)
    scores = torch.randn(6, 11)
    mask = torch.rand(6, 11) > 0.4
    mask[:, 0] = True
    alone = [apply_map(scores[row, mask[row]]) for row in range(6)]
    with_mask = [(junk, mask) for junk in (0.0, 1e9, INF, -INF, NAN)]
    for junk, given_mask in (*with_mask, (-INF, None), (-1e9, None), (-3e38, None)):
        filled = torch.where(mask, scores, junk).requires_grad_()
        weights = apply_map(filled, mask=given_mask)
        assert (weights[~mask] == 0).all()
        weights.backward(torch.randn(6, 11))
        assert (filled.grad[~mask] == 0).all()
        assert filled.grad.isfinite().all()
        for row in range(6):
            torch.testing.assert_close(weights[row, mask[row]], alone[row], rtol=0, atol=3e-7)


@every_map
def test_row_without_a_key_is_zero_with_zero_gradients(apply_map):
    mask = torch.tensor([[True, True, False], [False] * 3])
    by_mask = torch.randn(2, 3, requires_grad=True)
    by_score = torch.where(mask, by_mask.detach(), -INF).requires_grad_()
    for scores, weights in (
        (by_mask, apply_map(by_mask, mask=mask)),
        (by_score, apply_map(by_score)),
    ):
        assert (weights[1] == 0).all()
        weights.backward(torch.randn(2, 3))
        assert (scores.grad[1] == 0).all()
        assert scores.grad.isfinite().all()


def test_row_without_a_key_has_no_alpha_gradient():
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
def test_simple_rows_are_exact(apply_map):
    assert (apply_map(torch.randn(5, 1)) == 1).all()
    assert torch.equal(apply_map(torch.tensor([-INF, 3.0, -INF])), torch.tensor([0.0, 1.0, 0.0]))
    for n_keys in (2, 3, 7, 64, 1000):
        equal = apply_map(torch.full((2, n_keys), 4.2))
        assert (equal == equal[0, 0]).all()
        torch.testing.assert_close(equal, torch.full_like(equal, 1 / n_keys), rtol=0, atol=6e-8)
    tied = apply_map(torch.tensor([1.0, -4.0, 1.0, -4.0, 1.0]))
    assert tied[0] == tied[2] == tied[4]
    assert tied[1] == tied[3]


def adversarial(n_keys):
    """Rows that are hard to solve: plateaus, ramps, gaps, heavy tails, large offsets."""
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
def test_adversarial_rows(alpha, n_keys):
    scores = adversarial(n_keys)
    weights = alpha_entmax(scores, torch.tensor(alpha))
    # the same float32 scores in float64
    expected = alpha_entmax(scores.double(), torch.tensor(alpha).double())
    assert (expected.sum(-1) - 1).abs().max() < 1e-12
    assert (weights.double().sum(-1) - 1).abs().max() <= 5e-7
    assert (weights - expected).abs().max() <= 5e-7
    if alpha in (1.5, 2.0):
        weights = alpha_entmax(scores, alpha)
        assert (weights - expected).abs().max() <= 5e-7
        assert (weights.double().sum(-1) - 1).abs().max() <= 5e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_keys", [2, 33, 4096])
def test_fixed_iteration_counts_solve_adversarial_rows(n_keys, dtype, monkeypatch):
    """As on an accelerator, where the host does not wait for the rows."""
    scores = adversarial(n_keys).to(dtype)
    scores[-1] = -INF
    limit = 5e-7 if dtype is torch.float32 else 1e-11
    alphas = [1.5, 2.0, *(scores.new_tensor(1 + b) for b in (1e-7, 0.02, 0.25, 0.5, 0.75, 0.95, 1))]
    adaptive = [reference.weights(scores, alpha) for alpha in alphas]
    monkeypatch.setattr(reference, "_are_solved", lambda excess, enough: False)
    for alpha, expected in zip(alphas, adaptive, strict=True):
        fixed = reference.weights(scores, alpha)
        assert (fixed - expected).abs().max() <= limit
        assert (fixed[:-1].sum(-1, dtype=torch.float64) - 1).abs().max() <= limit
        assert (fixed[-1] == 0).all()


@every_map
def test_any_axis_and_memory_layout(apply_map):
    torch.manual_seed(2)
    scores = torch.randn(3, 4, 5, 6)
    mask = torch.rand(4, 1, 6) > 0.3
    last = apply_map(scores, mask=mask)
    for dim in range(-4, 4):
        moved = scores.movedim(-1, dim)
        moved_mask = mask.expand(3, 4, 5, 6).movedim(-1, dim)
        for layout in (moved, moved.contiguous()):
            weights = apply_map(layout, dim, mask=moved_mask)
            torch.testing.assert_close(weights.movedim(dim, -1), last, rtol=0, atol=3e-7)
    strided = torch.randn(3, 4, 12)[..., ::2]
    torch.testing.assert_close(apply_map(strided), apply_map(strided.contiguous()), rtol=0, atol=0)


@every_map
def test_noncontiguous_gradient(apply_map):
    torch.manual_seed(3)
    first, second = (torch.randn(4, 5, generator=torch.Generator().manual_seed(1)) for _ in "ab")
    grad = torch.randn(5, 4).t()
    apply_map(first.requires_grad_()).backward(grad)
    apply_map(second.requires_grad_()).backward(grad.contiguous())
    torch.testing.assert_close(first.grad, second.grad, rtol=0, atol=0)


@every_map
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 5)])
def test_empty_tensors(apply_map, shape):
    scores = torch.zeros(shape, requires_grad=True)
    weights = apply_map(scores)
    assert weights.shape == shape
    weights.sum().backward()
    assert scores.grad.shape == shape


@every_map
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_at_the_end(apply_map, dtype):
    torch.manual_seed(4)
    scores = (torch.randn(30, 70) * 2).to(dtype)
    half, single = scores.clone().requires_grad_(), scores.float().requires_grad_()
    weights, expected = apply_map(half), apply_map(single)
    assert weights.dtype is dtype
    assert torch.equal(weights, expected.to(dtype))
    grad = torch.randn(30, 70).to(dtype)
    weights.backward(grad)
    expected.backward(grad.float())
    assert torch.equal(half.grad, single.grad.to(dtype))


@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1), (1, 4, 1, 1), (3, 4, 5, 1), (5, 1)])
def test_alpha_gradient_has_the_shape_of_alpha(shape):
    torch.manual_seed(5)
    scores, grad = torch.randn(3, 4, 5, 7), torch.randn(3, 4, 5, 7)
    alpha = (1.2 + 0.6 * torch.rand(shape)).requires_grad_()
    alpha_entmax(scores, alpha).backward(grad)
    full = alpha.detach().expand(3, 4, 5, 1).clone().requires_grad_()
    alpha_entmax(scores, full).backward(grad)
    torch.testing.assert_close(alpha.grad, full.grad.sum_to_size(shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1, -3])
def test_alpha_differs_along_the_axes_that_are_not_normalised(dim):
    scores = torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(7))
    alpha = torch.linspace(1.1, 1.9, 16).view(4, 4, 1)
    last = alpha_entmax(scores, alpha)
    weights = alpha_entmax(scores.movedim(-1, dim), alpha.movedim(-1, dim), dim)
    torch.testing.assert_close(weights.movedim(dim, -1), last, rtol=0, atol=0)


def test_half_precision_alpha_is_computed_in_float32():
    scores = torch.randn(2, 3, 4, 5).bfloat16()
    alpha = torch.full((3, 1, 1), 1.3, requires_grad=True)
    alpha_entmax(scores, alpha).float().square().sum().backward()
    expected_alpha = torch.full((3, 1, 1), 1.3, requires_grad=True)
    alpha_entmax(scores.float(), expected_alpha).bfloat16().float().square().sum().backward()
    assert alpha.grad.dtype is torch.float32
    assert torch.equal(alpha.grad, expected_alpha.grad)


def test_differentiable_once_only():
    scores = torch.randn(3, 4, requires_grad=True)
    for apply_map in (softmax, entmax15, learned(1.3)):
        (grad,) = torch.autograd.grad(apply_map(scores)[:, 0].sum(), scores, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiated once"):
            grad.sum().backward()


@pytest.mark.parametrize("with_alpha", [True, False])
def test_only_weights_are_saved_for_backward(with_alpha):
    saved_sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved_sizes.append(x.numel()) or x, id):
        scores = torch.randn(4, 3, 8, 16, requires_grad=True)
        alpha = torch.full((3, 1, 1), 1.3, requires_grad=True) if with_alpha else 1.5
        mask = torch.ones(4, 1, 1, 16, dtype=torch.bool)
        alpha_entmax(scores, alpha, mask=mask)
    assert sum(saved_sizes) == scores.numel() + (3 if with_alpha else 0)


def test_invalid_arguments_are_refused():
    scores = torch.zeros(2, 3, 4)
    for alpha in (0.99, 2.01, NAN, INF, -1):
        with pytest.raises(ValueError, match=r"alpha must be in \[1, 2\]"):
            alpha_entmax(scores, alpha)
    for dim in (3, 5, -4):
        with pytest.raises(IndexError, match="out of range"):
            entmax15(scores, dim)
    with pytest.raises(ValueError, match=r"alpha must be in \[1, 2\].*2\.5"):
        alpha_entmax(scores, torch.tensor([[1.5], [2.5], [1.0]]))
    with pytest.raises(ValueError, match=r"size 1 along dim -1.*\(H, 1, 1\)"):
        alpha_entmax(scores, torch.full((4,), 1.5))
    with pytest.raises(TypeError, match="mask must be bool"):
        entmax15(scores, mask=torch.ones(2, 3, 4))
    with pytest.raises(TypeError, match="floating-point"):
        softmax(torch.zeros(3, dtype=torch.int64))
