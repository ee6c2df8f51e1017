"""`headwise.nn.HeadAlpha` under optimizers."""

import copy
import pickle
from functools import partial

import pytest
import torch

from headwise.nn import HeadAlpha
from headwise.nn import alpha as module

OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, momentum=0.9),
    "Adam": torch.optim.Adam,
    "AdamW, fused": partial(torch.optim.AdamW, weight_decay=0.0, fused=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_alpha_moves_lr_factor_times_as_far_as_weights(kind):
    weight, alpha = torch.nn.Parameter(torch.full((2,), 1.5)), HeadAlpha(2, 1.5, lr_factor=20)
    optimizer = OPTIMIZERS[kind]([weight, alpha.bias], lr=1e-3)
    for values in (weight, alpha()):
        (values * torch.tensor([0.3, -0.2])).sum().backward()
    assert alpha.bias.grad.equal(weight.grad)  # so clipping treats both alike
    optimizer.step()
    torch.testing.assert_close(alpha() - 1.5, 20 * (weight - 1.5), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_alpha_stays_in_its_range_and_returns_from_a_bound_at_once(kind):
    first = HeadAlpha(2)
    for alpha in (first, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        optimizer = OPTIMIZERS[kind](alpha.parameters(), lr=0.03)
        for step in range(60):
            optimizer.zero_grad()
            (alpha() * (1 if step < 20 else -1)).sum().backward()
            optimizer.step()
            stored = 1 + alpha.factor * alpha.bias.detach()
            assert stored.clamp(1, 2).equal(stored)
            assert (step >= 20) == bool((stored > 1).all())
        assert alpha().tolist() == [2.0, 2.0]


def test_gradient_at_a_bound_is_summed_before_it_is_blocked():
    for grads, expected in (((2.0, -1.0), 1.0), ((1.0, -2.0), 1.1)):
        alpha = HeadAlpha(1)
        optimizer = torch.optim.SGD(alpha.parameters(), lr=0.01)
        for grad in grads:
            (grad * alpha()).sum().backward()
        optimizer.step()
        assert alpha().item() == pytest.approx(expected)


def test_weight_decay_of_alpha_warns_once(recwarn):
    module._warn_of_decay.cache_clear()
    alpha = HeadAlpha(1, 1.5)
    alpha().sum().backward()
    torch.optim.AdamW([{"params": [alpha.bias], "weight_decay": 0.0}]).step()
    assert not recwarn.list
    for _ in range(2):
        torch.optim.AdamW(alpha.parameters()).step()
    assert ["weight decay pulls α" in str(warning.message) for warning in recwarn] == [True]


def test_alpha_under_func_transforms():
    alpha = HeadAlpha(2, 1.5)
    names = dict(alpha.named_parameters())
    grad = torch.func.grad(lambda p: torch.func.functional_call(alpha, p, ()).sum())(names)
    assert grad["bias"].tolist() == [1.0, 1.0]
    grad = torch.func.grad(lambda x: (x * alpha()).sum())(torch.ones(2))
    assert grad.tolist() == [1.5, 1.5]
