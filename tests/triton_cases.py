"""Calls of the kernels, and their results in float64."""

from types import SimpleNamespace

import torch

from attention_cases import Case
from headwise.ops.family import ALPHAS, Power
from headwise.ops.maps import operator
from triton_marks import DEVICE


def make_case(shape):
    """Inputs of a call for shape (B, H, Q, K, E), as views of one projection."""
    alpha = tuple(torch.linspace(1.05, 1.95, shape[1]).tolist())
    case = Case(shape[:4], Power.ANY, width=shape[4], alpha=alpha, device=DEVICE)
    *tensors, grad, alpha = case.inputs()
    return SimpleNamespace(tensors=tensors, grad=grad, alpha=alpha.flatten())


def map_results(scores, alpha, mask, power, dtype):
    """Weights, gradient of the scores and, if α is a tensor, of α."""
    grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(5))
    scores_leaf = scores.to(dtype, copy=True).requires_grad_()
    alpha_leaf = None if alpha is None else alpha.to(dtype, copy=True).requires_grad_()
    weights = operator.weights(scores_leaf, alpha_leaf, mask, power)
    weights.backward(grad.to(scores_leaf))
    actual = [weights.detach(), scores_leaf.grad, None if alpha_leaf is None else alpha_leaf.grad]
    return [one.double() for one in actual if one is not None]


def assert_near_float64(scores, alpha, mask, power):
    """Assert that a map is near torch in float64, a type that no kernel has."""
    actual = map_results(scores, alpha, mask, power, torch.float32)
    exact = map_results(scores, alpha, mask, power, torch.float64)
    assert (actual[0] - exact[0]).abs().max() <= 1e-6
    # float32 does not resolve on which side of the border of the support a close key is
    beta = scores.new_tensor(ALPHAS.get(power, 0.0)) - 1 if alpha is None else alpha - 1
    is_near = (exact[0] > 0) & (exact[0] ** beta.double() < 3e-2)
    is_clear = ~(is_near & (beta >= 0.5)).any(-1)
    assert is_clear.double().mean() > 0.5
    bound = 5e-6 * exact[1].abs().max().clamp_min(1)
    assert (actual[1] - exact[1])[is_clear].abs().max() <= bound
    if alpha is not None:
        assert actual[2].shape == alpha.shape
        bound = 1e-5 * exact[2].abs().max().clamp_min(1)
        assert (actual[2] - exact[2]).abs().max() <= bound
    return actual
