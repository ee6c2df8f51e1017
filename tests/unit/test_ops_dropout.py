"""Dropout: masks, rates, gradients and generators."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from headwise.ops.cpp import call
from headwise.ops.draws import N_DRAWS, Draws
from headwise.ops.dropout.operator import Dropout, dropout
from kernel_marks import needs_kernels

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", TYPES)
def test_entries_and_gradients_are_0_or_scaled(dtype):
    torch.manual_seed(1)
    values = (1 + torch.rand(7, 501)).to(dtype).requires_grad_()
    dropped = dropout(values, 0.25)
    assert dropped.dtype == dtype
    gradient = (1 + torch.rand(7, 501)).to(dtype)
    (values_grad,) = torch.autograd.grad(dropped, values, gradient)
    is_kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(is_kept, values / 0.75, 0.0))
    torch.testing.assert_close(values_grad, torch.where(is_kept, gradient / 0.75, 0.0))


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_dropout_rate_holds_per_axis_and_entries_are_independent(rate):
    torch.manual_seed(2)
    is_kept = (dropout(torch.ones(512, 512), rate) != 0).double()
    deviation = (rate * (1 - rate)) ** 0.5
    assert abs(1 - is_kept.mean() - rate) < 5 * deviation / is_kept.numel() ** 0.5
    for axis in (0, 1):  # and in every row and column of it
        means = is_kept.mean(axis)
        n_each = is_kept.numel() / len(means)
        assert (1 - means - rate).abs().max() < 6 * deviation / n_each**0.5
    centred = is_kept - is_kept.mean()
    for lag in (1, 2, 3, 4, 16, 512, 4096):
        correlation = (centred.flatten()[lag:] * centred.flatten()[:-lag]).mean() / deviation**2
        assert correlation.abs() < 6 / is_kept.numel() ** 0.5


def test_rate_close_to_0_or_1_still_drops_and_keeps():
    """A kernel reads 0 or `N_DRAWS` kept draws as no dropout at all."""
    assert Draws(0, 1e-12).n_kept == N_DRAWS - 1
    assert Draws(0, 1 - 1e-12).n_kept == 1


def test_under_func_transforms():
    values = torch.ones(3, 200)
    grads = torch.func.grad(lambda leaf: dropout(leaf, 0.5).sum())(values)
    assert set(grads.unique().tolist()) == {0.0, 2.0}
    per_row = torch.func.vmap(lambda row: dropout(row, 0.5), randomness="different")(values)
    assert not torch.equal(per_row[0], per_row[1])


def test_any_layout_of_the_gradient():
    values, grad = torch.randn(7, 50), torch.randn(50, 7).t()
    grads = []
    for output_grad in (grad, grad.contiguous()):
        leaf = values.clone().requires_grad_()
        torch.manual_seed(5)
        dropout(leaf, 0.5).backward(output_grad)
        grads.append(leaf.grad)
    assert torch.equal(*grads)


def test_seed_and_checkpointing_repeat_the_mask():
    layer = Dropout(0.4)
    values = torch.ones(33, 5, requires_grad=True)
    torch.manual_seed(4)
    first, second = layer(values), layer(values)
    torch.manual_seed(4)
    assert layer(values).equal(first)
    assert layer(values).equal(second)
    assert not first.equal(second)
    recomputed = checkpoint(layer, values, use_reentrant=False)
    (gradient,) = torch.autograd.grad(recomputed.square().sum() / 2, values)
    torch.testing.assert_close(gradient, recomputed.detach() / 0.6)


def test_evaluation_and_rate_0_change_nothing():
    values = torch.ones(3)
    state = torch.get_rng_state()
    assert Dropout(0.4).eval()(values) is values
    assert Dropout(0.0)(values) is values
    assert torch.get_rng_state().equal(state)


@needs_kernels
def test_nothing_is_saved_for_backward():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda tensor: tensor):
        dropout(torch.rand(4, 600, requires_grad=True), 0.5)
    assert not saved


@needs_kernels
def test_mask_does_not_depend_on_threads_or_layout(set_threads):
    values = 1 + torch.rand(300, 211)  # enough for two threads
    results = []
    for n_threads, layout in ((1, values), (2, values), (1, values.t().contiguous().t())):
        set_threads(n_threads)
        torch.manual_seed(5)
        results.append(dropout(layout, 0.3))
    assert results[0].equal(results[1])
    assert results[0].equal(results[2])
    torch.manual_seed(5)
    assert (dropout(values.bfloat16(), 0.3) == 0).equal(results[0] == 0)


def test_without_kernels_equals_torch_dropout(monkeypatch):
    monkeypatch.setattr(call, "supports", lambda values: False)
    torch.manual_seed(6)
    dropped = dropout(torch.ones(50, 50), 0.3)
    torch.manual_seed(6)
    assert dropped.equal(torch.nn.functional.dropout(torch.ones(50, 50), 0.3))


def test_compiled_graph_uses_torch_dropout():
    layer = Dropout(0.5)
    compiled = torch.compile(lambda values: layer(values) + 1, backend="eager", fullgraph=True)
    assert set(compiled(torch.ones(100)).tolist()) == {1.0, 3.0}
