"""Contract of every operator of `torch.ops.headwise`: schema, shapes, gradients, graphs.

Axes: B batch, H heads, Q and K numbers of queries and keys, E head width, N rows, V classes.
"""

import re
from pathlib import Path

import pytest
import torch

from headwise.ops.cpp import build
from headwise.ops.family import Power
from headwise.ops.losses import operator as losses  # noqa: F401 (registers its operators)
from headwise.ops.maps import bisection, operator
from triton_cases import make_case
from triton_marks import DEVICE, needs_triton

SLOPES = torch.tensor([0.5, 0.0])
WITHOUT_GRADIENT = ("test_schema", "test_faketensor")  # checks of operators without a derivative
needs_kernels = pytest.mark.skipif(
    build.unavailable_reason() is not None, reason=str(build.unavailable_reason())
)


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
    backward_inputs = (
        weights.detach(),
        grad,
        alpha_argument,
        int(power),
        alpha_argument is not None,
    )
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
    backward_inputs = (
        torch.randn_like(context),
        *heads,
        *settings[:5],
        threshold.detach(),
        *settings[5:],
        True,
    )
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
        masks = (None, None, SLOPES.to(DEVICE), None, None, None)
        alpha, power = case.alpha.requires_grad_(), int(Power.ANY)
        settings = (power, True, 1, 0.0, 0.25, 1)
        utilities = (*WITHOUT_GRADIENT, "test_autograd_registration")
        inputs = (*tensors, alpha, *masks, *settings)
        results = check("triton_attention", inputs, utilities)
        saved = [result.detach() for result in results[1:]]
        backward_inputs = (case.grad, *tensors, alpha, *masks, *saved, *settings, True)
        check("triton_attention_backward", backward_inputs, WITHOUT_GRADIENT)
