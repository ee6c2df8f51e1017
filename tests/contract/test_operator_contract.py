"""What every operator of `torch.ops.headwise` promises torch: schema, shapes, gradients, graphs.

Letters: B batch, H heads, Q and K numbers of queries and keys, E head width, N rows, V classes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.entmax import function
from headwise.kernels import native
from headwise.kernels.problem import Power
from triton_cases import make_case
from triton_marks import DEVICE, needs_triton

SLOPES = torch.tensor([0.5, 0.0])
BACK = ("test_schema", "test_faketensor")  # of what has no derivative of its own
needs_kernels = pytest.mark.skipif(
    native.reason_without() is not None, reason=str(native.reason_without())
)


def check(name: str, given: tuple[Any, ...], utilities: tuple[str, ...] | None = None) -> Any:
    """Check an operator as torch does, and return its results."""
    operator = getattr(torch.ops.headwise, name)
    options = {} if utilities is None else {"test_utils": utilities}
    torch.library.opcheck(operator, given, **options)
    return operator(*given)


def test_every_operator_is_checked() -> None:
    """Found by their schemas."""
    text = Path(__file__).read_text(encoding="utf-8")
    sources = (Path(function.__file__).parents[1]).rglob("*.py")
    text_of_sources = "".join(one.read_text("utf-8") for one in sources)
    pairs = re.findall(r'register_pair\(\s+"(\w+)"', text_of_sources)
    named = re.findall(r'"(\w+)\(Tensor ', text_of_sources)
    named += [*pairs, *(f"{name}_backward" for name in pairs)]
    assert len(named) == 9
    assert [name for name in named if f'check("{name}"' not in text] == []


@pytest.mark.usefixtures("every_implementation")
@pytest.mark.parametrize("power", list(Power))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_maps(power: Power, dtype: torch.dtype) -> None:
    scores = torch.randn(1, 2, 3, 9, dtype=dtype).requires_grad_()
    alpha = torch.tensor([1.2, 1.7], dtype=dtype).view(1, 2, 1, 1)
    mask = torch.rand(1, 1, 1, 9) > 0.2
    learned = alpha.requires_grad_() if power is Power.ANY else None
    weights = check("weights", (scores, learned, mask, int(power)))
    grad = torch.randn_like(scores)
    given = (weights.detach(), grad, learned, int(power), learned is not None)
    check("weights_backward", given, BACK)


@needs_kernels
@pytest.mark.parametrize("n_batch", [1, 2])
def test_attention(n_batch: int) -> None:
    """Queries, keys and values as they come from splitting heads: views, not contiguous."""
    states = [torch.randn(n_batch, n, 2, 8).transpose(1, 2) for n in (5, 7, 7)]
    heads = [one.requires_grad_() for one in states]
    alpha = torch.tensor([1.2, 1.7]).view(1, 2, 1, 1).requires_grad_()
    lengths, seed = torch.full((n_batch,), 6), torch.tensor(5)
    rest = (alpha, None, lengths, seed, SLOPES, int(Power.ANY), False, 0, 0.1, 0.3, 1)
    context, threshold = check("attention", (*heads, *rest))
    given = (torch.randn_like(context), *heads, *rest[:5], threshold.detach(), *rest[5:], True)
    check("attention_backward", given, BACK)


@needs_kernels
def test_attention_of_few_queries() -> None:
    """Keys and values lie in a cache with room for more."""
    query = torch.randn(2, 3, 2, 16).transpose(1, 2)
    key, value = torch.randn(2, 3, 2, 33, 16)[:, :2, :, :30].unbind()
    rest = (None, None, torch.tensor([30, 7]), SLOPES, int(Power.EXP), False, 0, 0.25, 1)
    check("attention_of_few", (query, key, value, *rest))


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_losses(alpha: float, dtype: torch.dtype) -> None:
    scores = torch.randn(6, 20).to(dtype).requires_grad_()
    target, settings = torch.arange(6), (alpha, 0.1)
    loss, *kept = check("entmax_loss", (scores, target, *settings))
    given = (torch.randn_like(loss), scores, target, *kept, *settings, True)
    check("entmax_loss_backward", given, BACK)


class TestTriton:
    pytestmark = needs_triton

    @pytest.mark.filterwarnings("ignore")  # of torch, about its own checks
    def test_attention(self) -> None:
        case = make_case((1, 2, 16, 17, 16))
        tensors = [tensor.detach().requires_grad_() for tensor in case.tensors]
        slopes = SLOPES.to(DEVICE)
        alpha, power = case.alpha.requires_grad_(), int(Power.ANY)
        settings = (power, True, 1, 0.0, 0.25, 1)
        utilities = (*BACK, "test_autograd_registration")
        shown = (*tensors, alpha, None, None, slopes, *settings)
        found: tuple[Tensor, ...] = check("triton_attention", shown, utilities)
        kept = [one.detach() for one in found[1:]]
        given = (case.grad, *tensors, alpha, None, None, slopes, *kept, *settings, True)
        check("triton_attention_backward", given, BACK)
