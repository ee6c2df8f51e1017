"""Contract of every operator of `torch.ops.headwise`: schema, shapes, gradients, graphs.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width, N rows, V classes.
"""

import re
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from headwise.entmax.losses import entmax_loss
from headwise.ops.attention.cpu import attention
from headwise.ops.attention.cpu_few import attention_of_few
from headwise.ops.family import Power
from headwise.ops.losses import operator as losses  # noqa: F401 (registers its operators)
from headwise.ops.maps import bisection, operator
from headwise.ops.visible import Visible
from kernel_marks import needs_kernels
from triton_cases import make_case
from triton_marks import DEVICE, needs_triton

SLOPES = torch.tensor([0.5, 0.0])
WITHOUT_GRADIENT = ("test_schema", "test_faketensor")  # checks of operators without a derivative


def check(name, arguments, utilities=None):
    """Check an operator with torch's checks and return its results."""
    operator = getattr(torch.ops.headwise, name)
    options = {} if utilities is None else {"test_utils": utilities}
    torch.library.opcheck(operator, arguments, **options)
    return operator(*arguments)


def test_every_operator_is_checked():
    """The sources are searched for the schemas of operators."""
    text = Path(__file__).read_text(encoding="utf-8")
    sources = (Path(operator.__file__).parents[1]).rglob("*.py")
    source_text = "".join(source.read_text("utf-8") for source in sources)
    pairs = re.findall(r'register_pair\(\s+"(\w+)"', source_text)
    operators = re.findall(r'"(\w+)\(Tensor ', source_text)
    operators += [*pairs, *(f"{name}_backward" for name in pairs)]
    assert len(operators) == 11
    assert [name for name in operators if f'check("{name}"' not in text] == []


@pytest.mark.parametrize("kind", list(bisection.Map))
def test_maps_by_bisection(kind):
    scores = torch.randn(1, 2, 3, 9, requires_grad=True)
    parameter = torch.tensor([2.2, 2.7]).view(1, 2, 1, 1).requires_grad_()
    weights = check("bisected_weights", (scores, parameter, int(kind)))
    inputs = (weights.detach(), torch.randn_like(scores), parameter, int(kind))
    check("bisected_weights_backward", inputs, WITHOUT_GRADIENT)


@pytest.mark.usefixtures("every_implementation")
@pytest.mark.parametrize("power", list(Power))
def test_maps(power):
    dtype = torch.float32  # float64 is computed by the reference, as float32 without kernels
    scores = torch.randn(1, 2, 3, 9, dtype=dtype).requires_grad_()
    alpha = torch.tensor([1.2, 1.7], dtype=dtype).view(1, 2, 1, 1)
    mask = torch.rand(1, 1, 1, 9) > 0.2
    alpha_argument = alpha.requires_grad_() if power is Power.ANY else None
    weights = check("weights", (scores, alpha_argument, mask, int(power)))
    grad = torch.randn_like(scores)
    settings = (alpha_argument, int(power), alpha_argument is not None)
    backward_inputs = (weights.detach(), grad, *settings)
    check("weights_backward", backward_inputs, WITHOUT_GRADIENT)


@needs_kernels
@pytest.mark.parametrize("n_batch", [1, 2])
def test_attention(n_batch):
    """Queries, keys and values are non-contiguous views, as after splitting heads."""
    states = [torch.randn(n_batch, n, 2, 8).transpose(1, 2) for n in (5, 7, 7)]
    heads = [state.requires_grad_() for state in states]
    alpha = torch.tensor([1.2, 1.7]).view(1, 2, 1, 1).requires_grad_()
    lengths, seed = torch.full((n_batch,), 6), torch.tensor(5)
    settings = (alpha, None, lengths, seed, SLOPES, int(Power.ANY), False, 0, 0.1, 0.3, 1)
    context, threshold = check("attention", (*heads, *settings))
    saved = (*settings[:5], threshold.detach(), *settings[5:], True)
    backward_inputs = (torch.randn_like(context), *heads, *saved)
    check("attention_backward", backward_inputs, WITHOUT_GRADIENT)


@needs_kernels
def test_attention_of_few_queries():
    """Keys and values are views of a longer cache."""
    query = torch.randn(2, 3, 2, 16).transpose(1, 2)
    key, value = torch.randn(2, 3, 2, 33, 16)[:, :2, :, :30].unbind()
    settings = (None, None, torch.tensor([30, 7]), SLOPES, int(Power.EXP), False, 0, 0.25, 1)
    check("attention_of_few", (query, key, value, *settings))


@pytest.mark.usefixtures("every_implementation")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_losses(alpha, dtype):
    scores = torch.randn(6, 20).to(dtype).requires_grad_()
    target, settings = torch.arange(6), (alpha, 0.1)
    loss, *saved = check("entmax_loss", (scores, target, *settings))
    backward_inputs = (torch.randn_like(loss), scores, target, *saved, *settings, True)
    check("entmax_loss_backward", backward_inputs, WITHOUT_GRADIENT)


class TestTriton:
    pytestmark = needs_triton

    @pytest.mark.filterwarnings("ignore")  # from torch, about its checks
    def test_attention(self):
        case = make_case((1, 2, 16, 17, 16))
        tensors = [tensor.detach().requires_grad_() for tensor in case.tensors]
        masks = (*(None,) * 4, SLOPES.to(DEVICE), None, None, None)
        alpha, power = case.alpha.requires_grad_(), int(Power.ANY)
        settings = (power, True, 1, 0.0, 0.25, 1)
        utilities = (*WITHOUT_GRADIENT, "test_autograd_registration")
        inputs = (*tensors, alpha, *masks, *settings)
        results = check("triton_attention", inputs, utilities)
        saved = [result.detach() for result in results[1:]]
        backward_inputs = (case.grad, *tensors, alpha, *masks, *saved, *settings, True)
        check("triton_attention_backward", backward_inputs, WITHOUT_GRADIENT)


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
    for tensors in (leaves, (scores, alpha)):  # also if they require gradients
        exact = torch.func.grad(total(call), (0, 1))(*tensors)
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
    of_scores = torch.func.grad(call)
    for twice in (torch.func.jacrev(torch.func.jacrev(call)), torch.func.grad(total(of_scores))):
        with pytest.raises(RuntimeError, match="once, not twice"):
            twice(scores, alpha)
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


@needs_kernels
def test_size_of_a_batch_may_depend_on_values():
    def call(query, is_used):
        others = (torch.full((1, 3, 1, 1), 1.1), *[None] * 4, int(Power.ANY), True, 5, 0.0, 0.3, 0)
        return torch.ops.headwise.attention(*[query[is_used]] * 3, *others)[0]

    arguments = torch.randn(2, 3, 4, 8), torch.tensor([True, False])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(call, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*arguments), call(*arguments))


META = [torch.empty(2, 3, n, 16, device="meta") for n in (4, 9, 9)]
TRITON = (*META, torch.empty(3, device="meta"), *(None,) * 8, 1, False, 0, 0.0, 0.3, 0)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, META[0].double(), "query must be torch.float16 or torch.bfloat16 or torch.float32"),
        (1, META[1].half(), "key must be torch.float32"),
        (3, torch.ones(3), "alpha must be torch.float32 on meta, got torch.float32 on cpu"),
        (4, META[0][0, 0, :1, 0].int(), r"lengths must have shape \(2\)"),
        (15, 0.5, "dropout needs random numbers"),
    ],
)
def test_triton_operator_refuses_arguments(position, value, message):
    assert torch.ops.headwise.triton_attention(*TRITON)[0].is_meta
    with pytest.raises((TypeError, ValueError), match=message):
        torch.ops.headwise.triton_attention(*TRITON[:position], value, *TRITON[position + 1 :])
