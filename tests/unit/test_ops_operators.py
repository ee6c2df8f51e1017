"""The operators under fake tensors, autograd and function transforms of torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad

from headwise.entmax.losses import entmax_loss
from headwise.ops.attention.cpu import attention
from headwise.ops.attention.cpu_few import attention_of_few
from headwise.ops.family import Power
from headwise.ops.maps import operator
from headwise.ops.visible import Visible
from kernel_marks import needs_kernels


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 3, 5, 9, generator=generator).requires_grad_()
    return scores, torch.tensor([1.1, 1.5, 1.9]).view(1, 3, 1, 1).requires_grad_()


def weights_of(scores: Tensor, alpha: Tensor) -> Tensor:
    return operator.weights(scores, alpha, None, Power.ANY)


def test_fake_and_meta_tensors_are_supported() -> None:
    with FakeTensorMode() as mode:
        assert isinstance(weights_of(*inputs()), FakeTensor)
    fakes = [mode.from_tensor(tensor) for tensor in inputs()]  # and outside of the mode
    assert isinstance(weights_of(*fakes), FakeTensor)
    assert weights_of(*(tensor.to("meta") for tensor in inputs())).is_meta
    heads = torch.empty(2, 3, 5, 8, device="meta")
    assert attention(heads, heads, heads, None, Power.EXP, Visible(), 0.0, 1.0).is_meta
    assert attention_of_few(heads, heads, heads, None, Power.EXP, Visible(), 1.0).is_meta


def test_no_graph_without_gradients() -> None:
    scores, alpha = inputs()
    assert weights_of(scores, alpha.detach()).requires_grad
    assert not weights_of(scores.detach(), alpha.detach()).requires_grad
    with torch.no_grad():
        assert not weights_of(scores, alpha).requires_grad


def test_in_place_changes_of_the_result_are_detected() -> None:
    scores, alpha = inputs()
    weights = weights_of(scores, alpha)
    assert not weights._is_view()
    weights.add_(1)  # autograd detects the changed version of a saved tensor
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        weights.sum().backward()


def first_weights(scores: Tensor, alpha: Tensor) -> Tensor:
    return weights_of(scores, alpha)[..., 0].square().sum()


def test_functional_gradients_equal_autograd() -> None:
    scores, alpha = inputs()
    first_weights(scores, alpha).backward()
    both = torch.func.grad(first_weights, (0, 1))
    for gradient, leaf in zip(both(scores.detach(), alpha.detach()), (scores, alpha), strict=True):
        assert torch.equal(gradient, leaf.grad)
    for gradient, leaf in zip(both(scores, alpha), (scores, alpha), strict=True):
        assert torch.equal(gradient, leaf.grad)  # for tensors that require gradients, too
    with pytest.raises(RuntimeError, match="once, not twice"):
        torch.func.grad(lambda *values: both(*values)[0].sum())(scores, alpha)


def test_vmapped_gradients_per_sentence() -> None:
    scores, alpha = (row_scores.detach() for row_scores in inputs())
    per_row = torch.func.vmap(torch.func.grad(first_weights, (0, 1)), in_dims=(0, None))
    scores_grad, alpha_grad = per_row(scores[:, None], alpha)
    for row in range(len(scores)):
        row_scores, row_alpha = scores[[row]].requires_grad_(), alpha.clone().requires_grad_()
        first_weights(row_scores, row_alpha).backward()
        assert torch.equal(scores_grad[row], row_scores.grad)
        assert torch.equal(alpha_grad[row], row_alpha.grad)


@needs_kernels
def test_functional_gradients_of_attention_and_losses() -> None:
    scores, alpha = inputs()
    target = torch.arange(2 * 3 * 5) % 9

    def attention_total(scores: Tensor, alpha: Tensor) -> Tensor:
        context = attention(scores, scores, scores, alpha, Power.ANY, Visible(), 0.0, 0.5)
        return context.square().sum()

    def loss_total(scores: Tensor, alpha: Tensor) -> Tensor:
        return entmax_loss((scores * alpha).flatten(0, 2), target, 1.3).square().sum()

    for call in (attention_total, loss_total):
        scores.grad = alpha.grad = None
        call(scores, alpha).backward()
        grads = torch.func.grad(call, (0, 1))(scores.detach(), alpha.detach())
        for gradient, leaf in zip(grads, (scores, alpha), strict=True):
            assert torch.equal(gradient, leaf.grad)


def test_forward_mode_is_refused() -> None:
    """Torch would use 0 for a missing forward-mode derivative."""
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
        assert weights_of(scores, alpha).isfinite().all()  # without dual tensors in the call
        dual = forward_ad.make_dual(scores, ones(scores))  # type: ignore[no-untyped-call]
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            weights_of(dual, alpha)


def test_functional_jacobian() -> None:
    scores, alpha = (tensor.detach()[:1, :1, :2] for tensor in inputs())
    actual = torch.func.jacrev(lambda values: weights_of(values, alpha))(scores)
    expected = torch.autograd.functional.jacobian(  # type: ignore[no-untyped-call]
        lambda values: weights_of(values, alpha), scores
    )
    assert torch.equal(actual, expected)
