"""Functions, modules and losses with the names of the `entmax` package; published numbers."""

import copy
import inspect
import subprocess
import sys
from functools import partial
from pathlib import Path

import entmax as package
import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.autograd.functional import hessian, jacobian

import oracle
from headwise import entmax
from headwise.entmax import alpha_entmax

BOTH = entmax, package
ALPHAS = [-1.5, 0.0, 0.3, 0.9, 1.3, 2.0, 2.25, 4.0]


def drawn(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def results(call, *inputs):
    """Return the value, and the gradients of the inputs for a drawn gradient."""
    leaves = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in inputs]
    value = call(*leaves)
    value.backward(drawn(*value.shape, seed=2))
    return [value.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("name", [name for name, of in vars(package).items() if callable(of)])
def test_names_positions_and_defaults_are_those_of_the_package(name):
    ours = list(inspect.signature(getattr(entmax, name)).parameters.values())
    theirs = inspect.signature(getattr(package, name)).parameters.values()
    shared = [(one.name, one.default) for one in ours if one.kind is not one.KEYWORD_ONLY]
    assert shared == [(one.name, one.default) for one in theirs]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_entmax_of_every_alpha_equals_the_package(dim):
    scores = drawn(8, 8, 8)
    shape = [1 if axis == dim % 3 else 8 for axis in range(3)]
    alpha = torch.tensor(ALPHAS, dtype=torch.float64).repeat(8).view(shape)
    for inputs in ((scores, alpha), (scores, torch.tensor(2.25).double())):
        ours = results(lambda X, a: entmax.entmax_bisect(X, a, dim), *inputs)
        theirs = results(lambda X, a: package.entmax_bisect(X, a, dim, 100), *inputs)
        if inputs[1].dim() == 0:
            theirs[2] = theirs[2].sum()
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)
    for value in ALPHAS:
        expected = entmax.entmax_bisect(scores, torch.full(shape, value), dim)
        number = entmax.entmax_bisect(scores, value, dim)
        torch.testing.assert_close(number, expected, rtol=0, atol=1e-6)  # a float32 tensor


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_named_maps_equal_the_package(name, dim):
    scores = 2 * drawn(33, 50)
    maps = [getattr(of, name) for of in BOTH]
    actual, expected = (results(partial(one, dim=dim), scores) for one in maps)
    torch.testing.assert_close(actual[0], expected[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(actual[1], expected[1], rtol=0, atol=1e-7)  # √p at the border


@pytest.mark.parametrize("name", ["normmax", "budget"])
@pytest.mark.parametrize("parameter", [1.01, 2, 3.5, 6])
def test_normmax_and_budget_equal_the_package(name, parameter):
    scores = drawn(5, 7)
    ours, theirs = (getattr(of, f"{name}_bisect") for of in BOTH)
    actual = results(lambda X: ours(X, parameter, 0), scores)
    expected = results(lambda X: theirs(X, parameter, 0, 100), scores)
    if name == "budget" and parameter > 5:
        expected = [torch.ones_like(scores), torch.zeros_like(scores)]
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


def test_gradients_that_the_package_lacks():
    inputs = drawn(4, 6).requires_grad_(), (1.2 + drawn(4, 1).abs()).requires_grad_()
    assert gradcheck(entmax.normmax_bisect, inputs)
    assert gradcheck(entmax.budget_bisect, inputs)


@pytest.mark.parametrize("name", ["entmax_bisect", "normmax_bisect"])
def test_second_derivatives_of_losses_are_those_of_the_map(name):
    scores, target = drawn(4, 6), torch.tensor([0, 5, 2, 2])
    loss, apply_map = (getattr(entmax, end) for end in (f"{name}_loss", name))
    second = hessian(lambda X: loss(X, target, 2.25).sum(), scores)
    torch.testing.assert_close(second, jacobian(lambda X: apply_map(X, 2.25), scores))


LOSSES = {
    "Sparsemax": {},
    "SparsemaxBisect": {"n_iter": 100},
    "Entmax15": {},
    "EntmaxBisect": {"alpha": 2.25, "n_iter": 100},
    "EntmaxBisect, 0.4": {"alpha": 0.4, "n_iter": 100},
    "NormmaxBisect": {"alpha": 1.7, "n_iter": 100},
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["elementwise_mean", "sum", "none"])
def test_losses_equal_the_package(name, reduction):
    scores, target = drawn(20, 6), torch.arange(20) % 6
    options = {**LOSSES[name], "ignore_index": 2, "reduction": reduction}
    ours, theirs = (getattr(of, name.split(",")[0] + "Loss")(**options) for of in (entmax, package))
    expected = results(lambda X: theirs(X, target), scores)
    torch.testing.assert_close(results(lambda X: ours(X, target), scores), expected)
    assert ours(scores[2:3], target[2:3]).sum() == 0  # all ignored
    assert ours(scores.bfloat16(), target).dtype is torch.float32


def test_mean_and_negative_ignored_index_are_those_of_cross_entropy():
    scores, target = drawn(4, 6), torch.tensor([1, -100, 3, -100])
    expected = nn.functional.cross_entropy(scores, target)
    loss = entmax.EntmaxBisectLoss(alpha=torch.tensor(1.0), reduction="mean")
    torch.testing.assert_close(loss(scores, target), expected)
    torch.testing.assert_close(entmax.EntmaxBisectLoss(1)(scores, target), expected)


def test_parameters_of_modules_are_learned_and_saved():
    scores = drawn(4, 6).float()
    alpha = nn.Parameter(torch.tensor([[0.7], [1.2], [2.5], [1.5]]))
    module = entmax.EntmaxBisect(alpha, n_iter=7)
    module(scores)[:, 0].sum().backward()
    assert alpha.grad[:2].all()  # of sparse rows it may be 0
    twin = copy.deepcopy(module)
    twin.alpha.data.fill_(2.0)
    torch.testing.assert_close(twin(scores), entmax.Sparsemax(k=3)(scores), rtol=0, atol=3e-7)
    twin.load_state_dict(module.state_dict())
    mask = torch.tensor([True, False] * 3)
    assert torch.equal(twin(scores, mask=mask), entmax.entmax_bisect(scores, alpha, mask=mask))


VECTORS = [  # scores, α, p, ∂p/∂α
    ([-1, 0, 0.5], 1.33, [0.0460, 0.3276, 0.6264], [-0.256168, -0.011402, 0.267570]),
    ([-2, 0, 0.5], 1.5, [0, 0.3260, 0.6740], None),
    ([-2, 0, 0.5], 2.0, [0, 0.25, 0.75], None),
    ([-2, 0, 0.5], 1.0, [0.0486, 0.3592, 0.5922], None),
    ([1.3, 0.2, -0.5, 0.9, -2], 2.0, [0.7, 0, 0, 0.3, 0], [0.14424, 0, 0, -0.14424, 0]),
    ([1.3, 0.2, -0.5, 0.9, -2], 1.5, None, [0.27167, -0.29339, 0, 0.02172, 0]),
    ([1.3, 0.2, -0.5, 0.9, -2], 1.33, None, [0.32133, -0.21691, -0.17091, 0.06648, 0]),
]


@pytest.mark.parametrize("call", [alpha_entmax, oracle.weights])
@pytest.mark.parametrize(("scores", "alpha", "values", "slope"), VECTORS)
def test_published_vectors(scores, alpha, values, slope, call):
    scores, alpha = torch.tensor(scores), torch.tensor([alpha], dtype=torch.float64)
    if values is not None:
        assert call(scores, alpha).tolist() == pytest.approx(values, abs=5.1e-5)
    if slope is not None:
        slopes = torch.autograd.functional.jacobian(lambda a: call(scores.double(), a), alpha)
        assert slopes[:, 0].tolist() == pytest.approx(slope, abs=6e-6)


@pytest.mark.slow
def test_the_tests_of_the_package_pass():
    script = Path(__file__).parents[1] / "entmax_package.py"
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]
    assert "126 of 127" in run.stdout
