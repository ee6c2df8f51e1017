"""Operators and public functions on arguments of any type, shape, stride and device.

Each call is right or raises one TypeError or ValueError, also in shape functions. Inputs lie
between NaN and new memory is NaN, so that reads and writes of other memory are seen.
"""

import random
import re

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from headwise import entmax
from headwise.ops.linear import linear
from kernel_marks import needs_kernels

GUARD, REFUSED = 64, (TypeError, ValueError)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
CHANGES = [
    lambda x, draw: x.to(draw.choice((*FLOATS, torch.int64, torch.int32))),
    lambda x, draw: x.to("meta"),
    lambda x, draw: x[None],
    lambda x, draw: x[0],
    lambda x, draw: x.narrow(draw.randrange(x.dim()), 0, 1),
    lambda x, draw: x.narrow(draw.randrange(x.dim()), 0, 0),
    lambda x, draw: torch.cat([x, x], draw.randrange(x.dim())),
    lambda x, draw: x.narrow(draw.randrange(x.dim()), 0, 1).expand(x.shape),
    lambda x, draw: x.mT.contiguous().mT,
    lambda x, draw: torch.stack([x, x], -1)[..., 0],
    lambda x, draw: torch._neg_view(-x) if x.is_floating_point() else x,
]
SCORES, ALPHA = torch.randn(2, 3, 4, 9), torch.tensor([1.05, 1.1, 1.2]).view(1, 3, 1, 1)
MASK, TARGET = torch.rand(2, 1, 4, 9) > 0.2, torch.tensor([8, 0, 3, 5, 5, 1])
HEADS = [torch.randn(2, 3, n, 8) for n in (4, 9, 9)]
ATTENTION = (*HEADS, ALPHA, MASK, torch.tensor([9, 5]), torch.tensor(5), torch.rand(3))
OPTIONAL = ATTENTION[3:]
SETTINGS, SAVED = (1, True, 5, 0.1, 0.3, 1), torch.rand(2, 3, 4, 2)
ROWS = (torch.rand(6), torch.rand(6, 9), TARGET, torch.rand(6), torch.rand(6, 2))


def softmax(scores, dim, mask):
    return entmax.softmax(scores, dim, mask=mask)


def alpha_entmax(scores, alpha, dim, mask):
    return entmax.alpha_entmax(scores, alpha, dim, mask=mask)


ARGUMENTS = {
    "weights": (SCORES, ALPHA, MASK, 1),
    "weights_backward": (SCORES.softmax(-1), SCORES, ALPHA, 1, True),
    "attention": (*ATTENTION, *SETTINGS),
    "attention_backward": (HEADS[0], *ATTENTION, SAVED, *SETTINGS, True),
    "attention_of_few": (*ATTENTION[:6], ATTENTION[7], 1, True, 5, 0.3, 1),
    "entmax_loss": (ROWS[1], TARGET, 1.3, 0.1),
    "entmax_loss_backward": (*ROWS, 1.5, 0.1, True),
    softmax: (SCORES, -2, MASK),
    entmax.entmax15: (SCORES[:, :, 0], -1, MASK[:, :, 0]),
    alpha_entmax: (SCORES[None], ALPHA[None], 4, MASK[None]),
    entmax.entmax_loss: (torch.randn(2, 3, 9), TARGET.view(2, 3), 1.3),
}


@pytest.fixture(autouse=True)
def _new_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def guarded(value):
    if not isinstance(value, Tensor):
        return value
    fill = torch.nan if value.is_floating_point() else 1
    buffer = torch.full((value.numel() + 2 * GUARD,), fill, dtype=value.dtype)
    return buffer[GUARD:-GUARD].view(value.shape).copy_(value)


def changed(arguments, draw):
    values, dtype = [guarded(value) for value in arguments], draw.choice(FLOATS)
    if draw.random() < 0.3:  # scores and states, all at once
        return [x.to(dtype) if getattr(x, "shape", ())[-1:] in ((8,), (9,)) else x for x in values]
    for index in draw.sample(range(len(values)), draw.choice((1, 1, 2))):
        value = values[index]
        if any(arguments[index] is x for x in OPTIONAL) and draw.random() < 0.3:
            values[index] = None
        elif isinstance(value, Tensor):
            values[index] = draw.choice(CHANGES if value.dim() > 1 else CHANGES[:3])(value, draw)
        elif not isinstance(value, bool):
            values[index] = type(value)(draw.choice((-7, -1, 0, 1, 2, 5)))
    return values


def plain(value, dtype):
    if not isinstance(value, Tensor):
        return value
    value = value.to(dtype) if value.is_floating_point() else value
    return value.clone(memory_format=torch.contiguous_format)


def outcome(call, arguments):
    """Return the results as a list, or the error that is raised."""
    try:
        results = call(*arguments)
    except (*REFUSED, IndexError) as error:  # an axis out of range is an IndexError, as in torch
        return error
    return list(results) if isinstance(results, tuple) else [results]


@needs_kernels
@pytest.mark.parametrize("name", ARGUMENTS)
def test_any_arguments_are_right_or_refused(name):
    draw, n_right, n_refused = random.Random(1), 0, 0
    call = getattr(torch.ops.headwise, name) if isinstance(name, str) else name
    is_float32 = str(name).startswith(("attention", "entmax_loss"))  # else float64 is supported
    for _ in range(60):
        arguments = changed(ARGUMENTS[name], draw)
        results = outcome(call, arguments)
        if isinstance(name, str):
            with FakeTensorMode() as mode:
                fakes = [mode.from_tensor(x) if isinstance(x, Tensor) else x for x in arguments]
            shapes = outcome(call, fakes)
            if isinstance(shapes, Exception):
                assert (type(shapes), str(shapes)) == (type(results), str(results))
            else:  # shapes without values, and float16 of GPUs
                assert isinstance(results, list) or re.search("no class|C.. kernels", str(results))
        tensors = [x for x in arguments if isinstance(x, Tensor)]
        if isinstance(results, Exception) or any(x.is_meta for x in tensors):
            n_refused += isinstance(results, Exception)
            continue
        n_right += 1
        # the reference saves no threshold, and does not read that of a kernel
        without_kernel = any(x.dtype in (torch.float16, torch.float64) for x in tensors)
        if str(name).startswith("entmax_loss") and without_kernel:
            continue
        dtype = torch.float32 if is_float32 else torch.float64
        tolerance = 0.1 if any(x.dtype in FLOATS[2:] for x in tensors) else 1e-4
        pairs = zip(results, outcome(call, [plain(x, dtype) for x in arguments]), strict=True)
        for pair in pairs:
            result, exact = (x.to(dtype) for x in pair)
            torch.testing.assert_close(
                result, exact, equal_nan=True, rtol=tolerance, atol=tolerance
            )
    assert n_right > 5 < n_refused


@needs_kernels
def test_size_of_a_batch_may_depend_on_values():
    def call(query, is_used):
        heads, others = [query[is_used]] * 3, (ALPHA, *[None] * 4, *SETTINGS[:3], 0.0, 0.3, 0)
        return torch.ops.headwise.attention(*heads, *others)[0]

    arguments = HEADS[0], torch.tensor([True, False])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(call, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*arguments), call(*arguments))


META = [torch.empty(2, 3, n, 16, device="meta") for n in (4, 9, 9)]
TRITON = (*META, torch.empty(3, device="meta"), *(None,) * 6, 1, False, 0, 0.0, 0.3, 0)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, META[0].double(), "query must be torch.float16 or torch.bfloat16 or torch.float32"),
        (1, META[1].half(), "key must be torch.float32"),
        (3, torch.ones(3), "alpha must be torch.float32 on meta, got torch.float32 on cpu"),
        (4, META[0][0, 0, :1, 0].int(), r"lengths must have shape \(2\)"),
        (13, 0.5, "dropout needs random numbers"),
    ],
)
def test_triton_operator_refuses_arguments(position, value, message):
    assert torch.ops.headwise.triton_attention(*TRITON)[0].is_meta
    with pytest.raises(REFUSED, match=message):
        torch.ops.headwise.triton_attention(*TRITON[:position], value, *TRITON[position + 1 :])


@needs_kernels
def test_linear_reads_no_other_memory():
    values, weight, bias = torch.randn(512, 256), torch.randn(512, 256), torch.randn(512)
    for one in (bias[0], bias[:1], bias[None]):
        expected = functional.linear(values, weight, one)
        torch.testing.assert_close(linear(values, weight, one), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="device"):
        linear(values, weight, bias.to("meta"))
