"""Dropout: what is dropped, how often, and from which generator."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from headwise.kernels import native
from headwise.kernels.dropout import Dropout, add_dropout, dropout, relu_dropout
from headwise.kernels.native_dropout import drop
from headwise.kernels.problem import DRAWN, Draws
from kernel_marks import needs_kernels

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", TYPES)
def test_an_entry_is_0_or_scaled_and_the_gradient_says_the_same(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    values = (1 + torch.rand(7, 501)).to(dtype).requires_grad_()
    dropped = dropout(values, 0.25)
    assert dropped.dtype == dtype
    gradient = (1 + torch.rand(7, 501)).to(dtype)
    (found,) = torch.autograd.grad(dropped, values, gradient)
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, values / 0.75, 0.0))
    torch.testing.assert_close(found, torch.where(kept, gradient / 0.75, 0.0))


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_the_rate_holds_everywhere_and_entries_are_independent(rate: float) -> None:
    torch.manual_seed(2)
    kept = (dropout(torch.ones(512, 512), rate) != 0).double()
    deviation = (rate * (1 - rate)) ** 0.5
    assert abs(1 - kept.mean() - rate) < 5 * deviation / kept.numel() ** 0.5
    for axis in (0, 1):  # and in every row and column of it
        means = kept.mean(axis)
        n_each = kept.numel() / len(means)
        assert (1 - means - rate).abs().max() < 6 * deviation / n_each**0.5
    centred = kept - kept.mean()
    for lag in (1, 2, 3, 4, 16, 512, 4096):
        together = (centred.flatten()[lag:] * centred.flatten()[:-lag]).mean() / deviation**2
        assert together.abs() < 6 / kept.numel() ** 0.5


def test_a_rate_next_to_0_or_1_is_still_one() -> None:
    """A kernel takes no kept draw, and as many as there are, for no dropout at all."""
    assert Draws(0, 1e-12).n_kept == DRAWN - 1
    assert Draws(0, 1 - 1e-12).n_kept == 1


@pytest.mark.parametrize("kind", ["alone", "relu", "added"])
def test_a_gradient_of_any_layout(kind: str) -> None:
    values, grad = torch.randn(7, 50), torch.randn(50, 7).t()
    found = []
    for given in (grad, grad.contiguous()):
        ours = values.clone().requires_grad_()
        torch.manual_seed(5)
        if kind == "added":
            dropped = add_dropout(ours, torch.ones(7, 50), 0.5)
        else:
            dropped = dropout(ours, 0.5) if kind == "alone" else relu_dropout(ours, 0.5)
        dropped.backward(given)
        found.append(ours.grad)
    assert torch.equal(*found)


@needs_kernels
def test_what_is_no_number_stays_so_in_bfloat16_whatever_its_bits() -> None:
    bits = torch.tensor([0x7FC00000, 0x7FFFFFFF, 0x7F800001, -1], dtype=torch.int32)
    values, draws = bits.view(torch.float32).repeat(64), Draws(1, 0.5)
    kept = drop(torch.ones(256), draws) > 0
    assert torch.equal(drop(values, draws, torch.bfloat16).isnan(), kept)


def test_a_seed_decides_it_and_checkpointing_repeats_it() -> None:
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


def test_nothing_happens_in_evaluation_and_at_rate_0() -> None:
    values = torch.ones(3)
    state = torch.get_rng_state()
    assert Dropout(0.4).eval()(values) is values
    assert Dropout(0.0)(values) is values
    assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize("shape", [(0,), (3,), (2, 3, 7), (5, 4099)])
@pytest.mark.parametrize("dtype", TYPES)
def test_relu_dropout_equals_two_steps(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(7)
    values, gradient = torch.randn(2, *shape, generator=generator).to(dtype).unbind()
    if len(values):
        values.view(-1)[0] = -0.0
        values.view(-1)[-1] = math.nan
    found = []
    for both in (relu_dropout, lambda one, rate: dropout(one.relu(), rate)):
        torch.manual_seed(8)
        leaf = values.clone().requires_grad_()
        dropped = both(leaf, 0.3)
        found.append((dropped, *torch.autograd.grad(dropped, leaf, gradient)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("added_dtype", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_adding_equals_two_steps(dtype: torch.dtype, added_dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(9)
    values, added, gradient = torch.randn(3, 7, 601, generator=generator).unbind()
    leaves = [values.to(dtype).requires_grad_(), added.to(added_dtype).requires_grad_()]
    found = []
    for both in (add_dropout, lambda one, to, rate: to + dropout(one, rate)):
        torch.manual_seed(10)
        total = both(*leaves, 0.3)
        found.append((total, *torch.autograd.grad(total, leaves, gradient.to(total.dtype))))
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        bit = 0.02 if torch.bfloat16 in (dtype, added_dtype) else 0.0
        torch.testing.assert_close(one, other, rtol=bit, atol=bit)
    assert add_dropout(*leaves, 0.0).equal(leaves[1] + leaves[0])


@needs_kernels
@pytest.mark.parametrize("added_dtype", [torch.float32, torch.bfloat16])
def test_a_sum_of_half_precision_is_rounded_once(added_dtype: torch.dtype) -> None:
    values = torch.randn(90, 601, generator=torch.Generator().manual_seed(12)).bfloat16()
    added = values.flip(0).to(added_dtype)
    torch.manual_seed(13)
    total = add_dropout(values, added, 0.3)
    torch.manual_seed(13)
    kept = dropout(torch.ones_like(values), 0.3) != 0
    exact = added.double() + torch.where(kept, values.double() / 0.7, 0.0)
    rounding = torch.finfo(added_dtype).eps / 2 * exact.abs() + 1e-6
    assert ((total.double() - exact).abs() <= rounding).all()


def test_added_to_another_shape_or_layout() -> None:
    values, added = torch.rand(3, 5), torch.rand(5, 3).t()
    for to in (added, torch.tensor(2.0), torch.rand(4, 3, 5)):
        torch.manual_seed(11)
        total = add_dropout(values, to, 0.5)
        torch.manual_seed(11)
        torch.testing.assert_close(total, to + dropout(values, 0.5))


@needs_kernels
def test_nothing_is_kept_but_what_the_next_map_reads() -> None:
    kept: list[int] = []

    def keep(one: torch.Tensor) -> torch.Tensor:
        kept.append(one.data_ptr())
        return one

    values, added = torch.rand(2, 4, 600, requires_grad=True).unbind()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        dropped = relu_dropout(values, 0.5)
        add_dropout(values, added, 0.5)
        dropout(values, 0.5)
    assert kept == [dropped.data_ptr()]


@needs_kernels
def test_drops_do_not_depend_on_threads_or_layout(set_threads: Callable[[int], None]) -> None:
    values = 1 + torch.rand(300, 211)  # more than a thread does alone
    found = []
    for n_threads, given in ((1, values), (2, values), (1, values.t().contiguous().t())):
        set_threads(n_threads)
        torch.manual_seed(5)
        found.append(dropout(given, 0.3))
    assert found[0].equal(found[1])
    assert found[0].equal(found[2])
    torch.manual_seed(5)
    assert (dropout(values.bfloat16(), 0.3) == 0).equal(found[0] == 0)


def test_without_kernels_it_is_torch_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "takes", lambda values: False)
    torch.manual_seed(6)
    found = dropout(torch.ones(50, 50), 0.3)
    torch.manual_seed(6)
    assert found.equal(torch.nn.functional.dropout(torch.ones(50, 50), 0.3))


def test_a_compiled_graph_takes_torch_s_own() -> None:
    layer = Dropout(0.5)
    compiled = torch.compile(lambda values: layer(values) + 1, backend="eager", fullgraph=True)
    assert set(compiled(torch.ones(100)).tolist()) == {1.0, 3.0}
