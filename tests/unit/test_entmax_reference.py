"""Values and gradients against independent computations of the same formulas."""

import math

import entmax as oracle
import pytest
import torch

from headwise.entmax import alpha_entmax, entmax15, softmax, sparsemax

ALPHAS = [1.0, 1 + 1e-6, 1.001, 1.01, 1.09, 1.11, 1.3, 1.5, 1.7, 1.9, 1.99, 2.0]


def bisected(scores, alpha):
    """Weights by bisection of the threshold in float64 (papers: Peters et al. 2019)."""
    if alpha == 1:
        return torch.softmax(scores.double(), -1)
    beta = alpha - 1
    below = scores.double() - scores.double().amax(-1, keepdim=True)
    low = torch.zeros_like(below[..., :1])
    high = torch.full_like(low, (1 - scores.shape[-1] ** -beta) / beta)

    def weights(shift):
        return torch.exp(torch.log1p((beta * (below - shift)).clamp_min(-1)) / beta)

    for _ in range(100):
        middle = (low + high) / 2
        is_left = weights(middle).sum(-1, keepdim=True) > 1
        low, high = torch.where(is_left, middle, low), torch.where(is_left, high, middle)
    return weights((low + high) / 2)


def alpha_jacobian(p, alpha):
    """∂p/∂α as in Correia et al. 2019, from float64 weights; its limit at α = 1."""
    log_p = torch.where(p > 0, p, 1.0).log()
    if alpha == 1:
        return p / 2 * ((p * log_p**2).sum(-1, keepdim=True) - log_p**2)
    tilted = torch.where(p > 0, p ** (2 - alpha), 0.0)
    tilted = tilted / tilted.sum(-1, keepdim=True)
    h = -p * log_p
    return (p - tilted) / (alpha - 1) ** 2 + (h - tilted * h.sum(-1, keepdim=True)) / (alpha - 1)


def away_from_border(p, alpha):
    """Select rows without a key so close to the border of the support that float32 errs."""
    return ((p ** (alpha - 1) > 3e-2) | (p == 0)).all(-1) if alpha >= 1.5 else p[..., 0] >= 0


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("n_keys", [1, 2, 7, 30, 257, 4096])
def test_weights_and_gradients_match_float64(alpha, n_keys):
    torch.manual_seed(n_keys)
    n_rows = max(4, 4000 // n_keys)
    scores = (torch.randn(n_rows, n_keys) * torch.rand(n_rows, 1) * 6).requires_grad_()
    alpha_R1 = torch.full((n_rows, 1), alpha, requires_grad=True)
    grad = torch.randn(n_rows, n_keys)
    weights = alpha_entmax(scores, alpha_R1)
    weights.backward(grad)

    exact_alpha = alpha_R1.detach().double()[0].item()  # as rounded to float32
    p, dp = bisected(scores.detach(), exact_alpha), grad.double()
    assert (weights - p).abs().max() <= 5e-7
    assert (weights.double().sum(-1) - 1).abs().max() <= 5e-7
    s = torch.where(p > 0, p ** (2 - exact_alpha), 0.0)
    dz = s * (dp - (s * dp).sum(-1, keepdim=True) / s.sum(-1, keepdim=True))
    rows = away_from_border(p, exact_alpha)
    assert rows.any()
    assert (scores.grad - dz)[rows].abs().max() <= 2e-6
    if alpha == 1 or alpha >= 1.001:  # closer to 1 the reference is not precise
        d_alpha = (alpha_jacobian(p, exact_alpha) * dp).sum(-1, keepdim=True)
        error = (alpha_R1.grad - d_alpha).abs() / d_alpha.abs().clamp_min(1)
        assert error[rows].max() <= 2e-6


@pytest.mark.parametrize("alpha", [1.05, 1.3, 1.5, 1.7, 2.0])
def test_matches_public_package(alpha):
    torch.manual_seed(0)
    scores = torch.randn(3, 4, 5, 19, dtype=torch.float64) * 2
    expected = oracle.entmax_bisect(scores, alpha, n_iter=100)
    torch.testing.assert_close(alpha_entmax(scores, alpha), expected, rtol=0, atol=1e-12)
    heads = torch.tensor([alpha] * 4, dtype=torch.float64).view(4, 1, 1)
    torch.testing.assert_close(alpha_entmax(scores, heads), expected, rtol=0, atol=1e-12)


def test_fixed_maps_match_public_package():
    torch.manual_seed(0)
    for our_map, public_map in ((entmax15, oracle.entmax15), (sparsemax, oracle.sparsemax)):
        scores = torch.randn(50, 33, dtype=torch.float64, requires_grad=True)
        public_scores = scores.detach().clone().requires_grad_()
        weights, expected = our_map(scores), public_map(public_scores, dim=-1)
        grad = torch.randn_like(scores)
        weights.backward(grad)
        expected.backward(grad)
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(
            scores.grad, public_scores.grad, rtol=0, atol=1e-7
        )  # √p at the border


VECTORS = [  # scores, α, p, ∂p/∂α
    ([-1, 0, 0.5], 1.33, [0.0460, 0.3276, 0.6264], [-0.256168, -0.011402, 0.267570]),
    ([-2, 0, 0.5], 1.5, [0, 0.3260, 0.6740], None),
    ([-2, 0, 0.5], 2.0, [0, 0.25, 0.75], None),
    ([-2, 0, 0.5], 1.0, [0.0486, 0.3592, 0.5922], None),
    ([1.3, 0.2, -0.5, 0.9, -2], 2.0, [0.7, 0, 0, 0.3, 0], [0.14424, 0, 0, -0.14424, 0]),
    ([1.3, 0.2, -0.5, 0.9, -2], 1.5, None, [0.27167, -0.29339, 0, 0.02172, 0]),
    ([1.3, 0.2, -0.5, 0.9, -2], 1.33, None, [0.32133, -0.21691, -0.17091, 0.06648, 0]),
]


@pytest.mark.parametrize(("scores", "alpha", "expected", "slope"), VECTORS)
def test_published_vectors(scores, alpha, expected, slope):
    scores_K = torch.tensor(scores, dtype=torch.float32)
    if expected is not None:
        torch.testing.assert_close(
            alpha_entmax(scores_K, alpha), torch.tensor(expected).float(), rtol=0, atol=5.1e-5
        )
    if slope is not None:
        measured = []
        for key in range(len(scores)):
            alpha_1 = torch.tensor([alpha], requires_grad=True)
            alpha_entmax(scores_K, alpha_1)[key].backward()
            measured.append(alpha_1.grad.item())
        assert measured == pytest.approx(slope, abs=6e-6)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.8])
def test_gradcheck(alpha):
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(200, 6, dtype=torch.float64, generator=generator)
    # finite differences must not cross the border of the support
    scores = scores[away_from_border(alpha_entmax(scores, alpha), alpha)][:24].view(2, 3, 4, 6)
    heads = torch.tensor([alpha, alpha, alpha], dtype=torch.float64)
    inputs = (scores.requires_grad_(), heads.view(3, 1, 1).requires_grad_())
    assert torch.autograd.gradcheck(alpha_entmax, inputs)
    upright = scores.detach().transpose(1, -1).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: alpha_entmax(z, alpha, dim=1), (upright,))


def test_gradcheck_softmax():
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 5, [True, False, True, True, False], [False] * 5])
    assert torch.autograd.gradcheck(lambda z: softmax(z, mask=mask), (scores,))


def test_alpha_gradient_equals_finite_differences():
    torch.manual_seed(2)
    scores = torch.randn(40, 12, dtype=torch.float64)
    grad = torch.randn(40, 12, dtype=torch.float64)
    for alpha in (1.02, 1.25, 1.6):
        alpha_1 = torch.tensor([alpha], dtype=torch.float64, requires_grad=True)
        alpha_entmax(scores, alpha_1).backward(grad)
        above, below = (bisected(scores, alpha + step) for step in (1e-6, -1e-6))
        numeric = ((above - below) * grad).sum() / 2e-6
        assert math.isclose(alpha_1.grad.item(), numeric.item(), rel_tol=1e-5, abs_tol=1e-5)


def test_fixed_alpha_equals_learned_alpha():
    torch.manual_seed(4)
    scores = torch.randn(200, 40) * 2
    for alpha, fixed_map in ((1.0, softmax), (1.5, entmax15), (2.0, sparsemax)):
        general = alpha_entmax(scores, torch.tensor([alpha]))
        torch.testing.assert_close(fixed_map(scores), general, rtol=0, atol=5e-7)
        torch.testing.assert_close(fixed_map(scores), alpha_entmax(scores, alpha), rtol=0, atol=0)
    assert (sparsemax(scores) == 0).any()
    assert (entmax15(scores) == 0).any()


def test_each_head_uses_its_alpha():
    torch.manual_seed(6)
    scores = torch.randn(2, 5, 3, 9)
    heads = torch.tensor([1.0, 1.03, 1.5, 1.93, 2.0]).view(5, 1, 1).requires_grad_()
    grad = torch.randn_like(scores)
    together = alpha_entmax(scores, heads)
    together.backward(grad)
    for head in range(5):
        alone_alpha = heads.detach()[head].requires_grad_()
        alone = alpha_entmax(scores[:, head], alone_alpha)
        alone.backward(grad[:, head])
        torch.testing.assert_close(together[:, head], alone, rtol=0, atol=3e-7)
        pair = heads.grad[head].item(), alone_alpha.grad.item()
        assert math.isclose(*pair, rel_tol=1e-5, abs_tol=1e-5)
