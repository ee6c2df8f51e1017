"""The operators, as everything of torch that watches or transforms calls meets them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad

from headwise.entmax import function
from headwise.entmax.losses import entmax_loss
from headwise.kernels.cpu_attention import attention
from headwise.kernels.native_attention import attention_of_few
from headwise.kernels.problem import Power, Visible
from kernel_marks import needs_kernels


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 3, 5, 9, generator=generator).requires_grad_()
    return scores, torch.tensor([1.1, 1.5, 1.9]).view(1, 3, 1, 1).requires_grad_()


def weights_of(scores: Tensor, alpha: Tensor) -> Tensor:
    return function.weights(scores, alpha, None, Power.ANY)


def test_tensors_without_values_go_through_torch() -> None:
    with FakeTensorMode() as mode:
        assert isinstance(weights_of(*inputs()), FakeTensor)
    fakes = [mode.from_tensor(one) for one in inputs()]  # and with the mode left
    assert isinstance(weights_of(*fakes), FakeTensor)
    assert weights_of(*(one.to("meta") for one in inputs())).is_meta
    heads = torch.empty(2, 3, 5, 8, device="meta")
    assert attention(heads, heads, heads, None, Power.EXP, Visible(), 0.0, 1.0).is_meta
    assert attention_of_few(heads, heads, heads, None, Power.EXP, Visible(), 1.0).is_meta


def test_no_graph_where_none_is_wanted() -> None:
    scores, alpha = inputs()
    assert weights_of(scores, alpha.detach()).requires_grad
    assert not weights_of(scores.detach(), alpha.detach()).requires_grad
    with torch.no_grad():
        assert not weights_of(scores, alpha).requires_grad


def test_the_result_may_be_changed_in_place() -> None:
    scores, alpha = inputs()
    weights = weights_of(scores, alpha)
    assert not weights._is_view()
    weights.add_(1)  # what is kept for the way back is told apart by its version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        weights.sum().backward()


def first_weights(scores: Tensor, alpha: Tensor) -> Tensor:
    return weights_of(scores, alpha)[..., 0].square().sum()


def test_gradients_of_functions_are_those_of_tensors() -> None:
    scores, alpha = inputs()
    first_weights(scores, alpha).backward()
    both = torch.func.grad(first_weights, (0, 1))
    for found, one in zip(both(scores.detach(), alpha.detach()), (scores, alpha), strict=True):
        assert torch.equal(found, one.grad)
    for found, one in zip(both(scores, alpha), (scores, alpha), strict=True):
        assert torch.equal(found, one.grad)  # of tensors that autograd watches besides
    with pytest.raises(RuntimeError, match="once, not twice"):
        torch.func.grad(lambda *values: both(*values)[0].sum())(scores, alpha)


def test_gradients_of_every_sentence() -> None:
    scores, alpha = (one.detach() for one in inputs())
    every = torch.func.vmap(torch.func.grad(first_weights, (0, 1)), in_dims=(0, None))
    of_scores, of_alpha = every(scores[:, None], alpha)
    for place in range(len(scores)):
        one, own = scores[[place]].requires_grad_(), alpha.clone().requires_grad_()
        first_weights(one, own).backward()
        assert torch.equal(of_scores[place], one.grad)
        assert torch.equal(of_alpha[place], own.grad)


@needs_kernels
def test_attention_and_losses_by_transforms() -> None:
    scores, alpha = inputs()
    target = torch.arange(2 * 3 * 5) % 9

    def of_attention(scores: Tensor, alpha: Tensor) -> Tensor:
        found = attention(scores, scores, scores, alpha, Power.ANY, Visible(), 0.0, 0.5)
        return found.square().sum()

    def of_loss(scores: Tensor, alpha: Tensor) -> Tensor:
        return entmax_loss((scores * alpha).flatten(0, 2), target, 1.3).square().sum()

    for call in (of_attention, of_loss):
        scores.grad = alpha.grad = None
        call(scores, alpha).backward()
        found = torch.func.grad(call, (0, 1))(scores.detach(), alpha.detach())
        for one, other in zip(found, (scores, alpha), strict=True):
            assert torch.equal(one, other.grad)


def test_forward_mode_is_refused() -> None:
    """For torch an operator without a forward-mode derivative has one of 0."""
    scores, alpha = (one.detach() for one in inputs())
    ones = torch.ones_like
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.jvp(lambda values: weights_of(values, alpha), (scores,), (ones(scores),))
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.jacfwd(lambda value: weights_of(scores, value))(alpha)
    mapped = torch.func.vmap(lambda values: weights_of(values[None], alpha))
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.jvp(mapped, (scores,), (ones(scores),))
    with forward_ad.dual_level():
        assert weights_of(scores, alpha).isfinite().all()  # beside the dual tensors of others
        dual = forward_ad.make_dual(scores, ones(scores))  # type: ignore[no-untyped-call]
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            weights_of(dual, alpha)


def test_a_jacobian_by_transforms() -> None:
    scores, alpha = (one.detach()[:1, :1, :2] for one in inputs())
    found = torch.func.jacrev(lambda values: weights_of(values, alpha))(scores)
    expected = torch.autograd.functional.jacobian(  # type: ignore[no-untyped-call]
        lambda values: weights_of(values, alpha), scores
    )
    assert torch.equal(found, expected)
