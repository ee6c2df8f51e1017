"""The operators under fake tensors, autograd and function transforms of torch."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from headwise.entmax.losses import entmax_loss
from headwise.ops.attention.cpu import attention
from headwise.ops.attention.cpu_few import attention_of_few
from headwise.ops.family import Power
from headwise.ops.maps import operator
from headwise.ops.visible import Visible
from kernel_marks import needs_kernels


def inputs():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 3, 5, 9, generator=generator).requires_grad_()
    return scores, torch.tensor([1.1, 1.5, 1.9]).view(1, 3, 1, 1).requires_grad_()


def weights_of(scores, alpha):
    return operator.weights(scores, alpha, None, Power.ANY)


def test_fake_and_meta_tensors_are_supported():
    with FakeTensorMode() as mode:
        assert isinstance(weights_of(*inputs()), FakeTensor)
    fakes = [mode.from_tensor(tensor) for tensor in inputs()]  # and outside of the mode
    assert isinstance(weights_of(*fakes), FakeTensor)
    assert weights_of(*(tensor.to("meta") for tensor in inputs())).is_meta
    heads = torch.empty(2, 3, 5, 8, device="meta")
    assert attention(heads, heads, heads, None, Power.EXP, Visible(), 0.0, 1.0).is_meta
    assert attention_of_few(heads, heads, heads, None, Power.EXP, Visible(), 1.0).is_meta


def test_no_graph_without_gradients():
    scores, alpha = inputs()
    assert weights_of(scores, alpha.detach()).requires_grad
    assert not weights_of(scores.detach(), alpha.detach()).requires_grad
    with torch.no_grad():
        assert not weights_of(scores, alpha).requires_grad


def test_in_place_changes_of_the_result_are_detected():
    scores, alpha = inputs()
    weights = weights_of(scores, alpha)
    assert not weights._is_view()
    weights.add_(1)  # autograd detects the changed version of a saved tensor
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        weights.sum().backward()


def first_weights(scores, alpha):
    return weights_of(scores, alpha)[..., 0].square().sum()


def test_functional_gradients_equal_autograd():
    scores, alpha = inputs()
    first_weights(scores, alpha).backward()
    both = torch.func.grad(first_weights, (0, 1))
    for gradient, leaf in zip(both(scores.detach(), alpha.detach()), (scores, alpha), strict=True):
        assert torch.equal(gradient, leaf.grad)
    for gradient, leaf in zip(both(scores, alpha), (scores, alpha), strict=True):
        assert torch.equal(gradient, leaf.grad)  # for tensors that require gradients, too
    with pytest.raises(RuntimeError, match="once, not twice"):
        torch.func.grad(lambda *values: both(*values)[0].sum())(scores, alpha)


def test_vmapped_gradients_per_sentence():
    scores, alpha = (row_scores.detach() for row_scores in inputs())
    per_row = torch.func.vmap(torch.func.grad(first_weights, (0, 1)), in_dims=(0, None))
    scores_grad, alpha_grad = per_row(scores[:, None], alpha)
    for row in range(len(scores)):
        row_scores, row_alpha = scores[[row]].requires_grad_(), alpha.clone().requires_grad_()
        first_weights(row_scores, row_alpha).backward()
        assert torch.equal(scores_grad[row], row_scores.grad)
        assert torch.equal(alpha_grad[row], row_alpha.grad)


def context_of(scores, alpha):
    return attention(scores, scores, scores, alpha, Power.ANY, Visible(), 0.0, 0.5)


def losses_of(scores, alpha):
    rows = (scores * alpha).flatten(0, 2)
    return entmax_loss(rows, torch.full(rows.shape[:1], 3), 1.3)


def total(call):
    return lambda scores, alpha: call(scores, alpha).square().sum()


OPERATORS = {"weights": weights_of, "attention": context_of, "entmax_loss": losses_of}
each_operator = pytest.mark.parametrize("name", OPERATORS)


@needs_kernels
@each_operator
def test_transforms_in_any_order_eager_and_in_graphs(name):
    scores, alpha = inputs()
    call = OPERATORS[name]
    total(call)(scores, alpha).backward()
    leaves, expected = (scores.detach(), alpha.detach()), (scores.grad, alpha.grad)
    by_sentence = torch.func.vmap(torch.func.grad(total(call), (0, 1)), in_dims=(0, None))

    def of_sentences(scores, alpha):
        scores_grad, alpha_grad = by_sentence(scores[:, None], alpha)
        return scores_grad[:, 0], alpha_grad.sum(0)

    mapped = torch.func.vmap(call, in_dims=(0, None))
    of_batch = torch.func.grad(lambda scores, alpha: total(mapped)(scores[:, None], alpha), (0, 1))
    graph = make_fx(of_sentences)(*leaves)
    exact = torch.func.grad(total(call), (0, 1))(*leaves)
    torch.testing.assert_close(exact, expected, rtol=0, atol=0)
    compiled = torch.compile(of_sentences, backend="aot_eager", fullgraph=True)
    for transformed in (of_sentences, of_batch, graph, compiled):
        torch.testing.assert_close(transformed(*leaves), expected)
    targets = {str(node.target) for node in graph.graph.nodes}
    assert {f"headwise.{name}.default", f"headwise.{name}_backward.default"} <= targets


@needs_kernels
@each_operator
def test_operators_are_one_node_of_exported_and_compiled_graphs(name):
    class Module(torch.nn.Module):
        def forward(self, scores, alpha):
            return OPERATORS[name](scores, alpha)

    scores, alpha = inputs()
    exported = torch.export.export(Module(), (scores, alpha))
    targets = [str(node.target) for node in exported.graph.nodes]
    is_operator = name != "weights"  # exported models run without headwise
    assert targets.count(f"headwise.{name}.default") == is_operator
    compiled = torch.compile(Module(), backend="aot_eager", fullgraph=True)
    expected = Module()(scores, alpha)
    for call in (exported.module(), compiled):
        torch.testing.assert_close(call(scores, alpha), expected)
    gradients = torch.autograd.grad(compiled(scores, alpha).sum(), (scores, alpha))
    expected_gradients = torch.autograd.grad(expected.sum(), (scores, alpha))
    torch.testing.assert_close(gradients, expected_gradients)


@needs_kernels
@each_operator
def test_second_order_and_forward_over_reverse_are_refused(name):
    """Torch would use 0 for a forward-mode derivative that is lost between two transforms."""
    scores, alpha = inputs()
    call = total(OPERATORS[name])
    (gradient,) = torch.autograd.grad(call(scores, alpha), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="once, not twice"):
        gradient.sum().backward()
    with pytest.raises(RuntimeError, match="once, not twice"):
        torch.func.jacrev(torch.func.jacrev(call))(scores, alpha)
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.hessian(call)(scores, alpha)


@needs_kernels
def test_attention_of_few_queries_is_mapped_and_has_no_gradient():
    heads, alpha = (tensor.detach() for tensor in inputs())

    def call(heads):
        return attention_of_few(heads, heads, heads, alpha, Power.ANY, Visible(), 0.5)

    torch.testing.assert_close(torch.func.vmap(call)(heads[:, None])[:, 0], call(heads))
    with pytest.raises(RuntimeError, match="once, not twice"):
        call(heads.requires_grad_()).sum().backward()


def test_forward_mode_is_refused():
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
        dual = forward_ad.make_dual(scores, ones(scores))
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            weights_of(dual, alpha)


def test_functional_jacobian():
    scores, alpha = (tensor.detach()[:1, :1, :2] for tensor in inputs())
    actual = torch.func.jacrev(lambda values: weights_of(values, alpha))(scores)
    expected = torch.autograd.functional.jacobian(lambda values: weights_of(values, alpha), scores)
    assert torch.equal(actual, expected)
