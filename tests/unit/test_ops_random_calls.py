"""Random calls of public functions and of operators: right beside the oracle, or refused.

A call of a public function follows from its number: `check(NUMBER)` repeats it. Operators are
called with any type, shape, stride and device: each call is right or raises one TypeError or
ValueError, also in shape functions. Inputs lie between NaN and new memory is NaN, so that reads and
writes of other memory are seen.
"""

import math
import random
import re

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import oracle
from headwise import entmax
from headwise.nn.functional import attention
from headwise.ops.linear import linear
from kernel_marks import needs_kernels

N_CALLS, N_FAST = 5000, 150
ALPHAS = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0}
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
GUARD, REFUSED = 64, (TypeError, ValueError)
# Tolerated errors of results and gradients: multiples of the precision of the dtype, times the
# largest score and the largest expected value. Gradients may be sums that cancel.
UNITS, GRADIENT_UNITS = 30, 1000


def guarded(value):
    """Return a copy of a tensor with NaN before and after it in memory."""
    if not isinstance(value, Tensor):
        return value
    fill = torch.nan if value.is_floating_point() else 1
    buffer = torch.full((value.numel() + 2 * GUARD,), fill, dtype=value.dtype)
    return buffer[GUARD:-GUARD].view(value.shape).copy_(value)


def laid_out(choose, values):
    """Return the values in one of several layouts of memory."""
    axes = choose([(-1, -1), (-1, -2), (-2, -3), (-1, -3)])
    if values.dim() >= -axes[1]:
        values = guarded(values.transpose(*axes)).transpose(*axes)
    return choose([values, torch.stack([values, values], -1)[..., 0]])


def broadcast(choose, shape):
    """Return a shape that broadcasts to `shape`."""
    return tuple(choose([1, n, n]) for n in shape[choose([0, *range(len(shape) + 1)]) :])


def draw_mask(choose, shape):
    return torch.rand(broadcast(choose, shape)) >= choose([0.0, 0.3, 0.9])


def draw_alpha(choose, shape):
    """Return a number or a tensor, often 1, 1.5 and 2."""
    halves = torch.randint(0, 6, shape) / 2
    values = 1 + torch.where(halves <= 1, halves, torch.rand(shape))
    numbers = [1.0, 1.0001, 1.2, 1.5, 1.9, 2.0]
    return choose([values.to(choose([torch.float64, torch.bfloat16])), values, *numbers])


def draw_attention(choose):
    """Return the arguments of a valid call."""
    n_axes, n_heads = choose([2, 3, 4, 4, 4, 5]), choose([1, 2, 6])
    batch = tuple(choose([0, 1, 2, 3, 3]) for _ in range(n_axes - 3))
    n_queries, n_keys, width, value_width = (choose([0, 1, 2, 5, 17, 40]) for _ in range(4))
    if choose(range(10)) == 0:
        n_queries, n_keys = 20, 140  # enough for kernels that form no weights
    rows = (*batch, n_heads, n_queries)[1 - n_axes :]
    is_grouped = n_axes > 2 and choose([True, False])
    n_groups = choose([1, n_heads, n_heads // 2 or 1] if is_grouped else [1, n_heads])
    outer = (*(choose([1, size, size]) for size in batch), n_groups)[: n_axes - 2]
    shapes = ((*rows, width or 1), (*outer, n_keys, width or 1), (*outer, n_keys, value_width))
    dtype, scales = choose([torch.float32, *FLOATS]), (choose([0.0, 0.3, 1.0, 10.0]), 1.0, 1.0)
    heads = [scale * torch.randn(shape) for scale, shape in zip(scales, shapes, strict=True)]
    query, key, value = (laid_out(choose, x.to(dtype)) for x in heads)
    name, mask = choose(["alpha_entmax", *ALPHAS]), draw_mask(choose, (*rows, n_keys))
    of_rows = choose([broadcast(choose, (*rows, 1)), (n_heads if n_axes > 2 else 1,)])
    bias_dtype = choose([dtype, torch.float32])
    low = choose([-math.inf, -1.0, torch.finfo(bias_dtype).min])
    bias = laid_out(choose, torch.randn(mask.shape).to(bias_dtype)).masked_fill(~mask, low)
    return {
        "query": query, "key": key, "value": value, "attention": name,
        "alpha": draw_alpha(choose, of_rows) if name == "alpha_entmax" else None,
        "attn_mask": choose([None, mask, bias]), "is_causal": choose([True, False]),
        "dropout_p": 0.0, "scale": choose([None, 0.5, -1.0, 0.0]), "enable_gqa": is_grouped,
    }  # fmt: skip


def wrong_attention(choose, call):
    """Return one argument that is wrong for the call."""
    query, key, learned = call["query"], call["key"], {"attention": "alpha_entmax"}
    more_keys = torch.ones(*query.shape[:-1], key.shape[-2] + 2, dtype=torch.bool)
    other = torch.float32 if query.dtype is torch.float64 else torch.float64
    return choose([
        {"query": query.long()}, {"query": query.flatten()}, {"query": query.to(other)},
        {"query": torch.cat([query, query], -1)}, {"key": key[None]},
        {"key": key.new_zeros(*key.shape[:-2], key.shape[-2] + 2, key.shape[-1])},
        {"value": call["value"].to("meta")}, {"scale": "large"},
        {"attention": "entmax"}, {"attention": "softmax", "alpha": 1.5},
        *(learned | {"alpha": alpha} for alpha in (None, 0.9, 2.1, math.nan, "high")),
        *(learned | {"alpha": alpha} for alpha in (torch.ones((5,) * 6), torch.tensor(1))),
        {"attn_mask": more_keys}, {"attn_mask": more_keys.long()},
        {"dropout_p": 1.0}, {"dropout_p": -0.1},
    ])  # fmt: skip


def with_clamped_alpha(alpha):
    """Return α as the maps clamp tensors, with its gradient."""
    if not isinstance(alpha, Tensor):
        return alpha
    return alpha.double() + (alpha.double().clamp_min(1 + 1e-7) - alpha.double()).detach()


def explicit_attention(call):
    """Return the context, and the number and largest of the scores."""
    query, key, value = (call[name].double() for name in ("query", "key", "value"))
    if call["enable_gqa"]:
        repeats = (query.shape[-3] // key.shape[-3], -3)
        key, value = key.repeat_interleave(*repeats), value.repeat_interleave(*repeats)
    given, alpha = call["attn_mask"], with_clamped_alpha(call["alpha"])
    allowed, bias = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool), 0.0
    allowed = allowed.tril() if call["is_causal"] else allowed
    if given is not None and given.dtype is torch.bool:
        allowed = allowed & given
    elif given is not None:
        bias = given.double()
    if isinstance(alpha, Tensor) and alpha.dim() == 1:
        alpha = alpha[:, None, None]
    alpha = ALPHAS.get(call["attention"], alpha)
    context = oracle.attention(query, key, value, alpha, allowed, call["scale"], bias)
    scale = query.shape[-1] ** -0.5 if call["scale"] is None else call["scale"]
    return context, query @ key.mT * scale + bias


def draw_map(choose):
    """Return the arguments of a valid call."""
    n_axes = choose([1, 2, 3, 4, 5, 6])
    shape = tuple(choose([0, 1, 2, 3, 4, *[40] * (n < 2)]) for n in reversed(range(n_axes)))
    dim, name = choose(range(-n_axes, n_axes)), choose(["alpha_entmax", "entmax_bisect", *ALPHAS])
    scores = torch.randn(shape) * choose([0.0, 1.0, 10.0, 1e4])
    scores = scores.masked_fill(~draw_mask(choose, shape).expand(shape), choose([0.0, -math.inf]))
    rows = tuple(1 if axis == dim % n_axes else size for axis, size in enumerate(shape))
    alpha = {"alpha": draw_alpha(choose, broadcast(choose, rows))} if name not in ALPHAS else {}
    scores, mask = (
        laid_out(choose, scores.to(choose([torch.float32, *FLOATS]))),
        draw_mask(choose, shape),
    )
    return {"name": name, "scores": scores, "dim": dim, "mask": choose([None, mask]), **alpha}


def wrong_map(choose, call):
    """Return one argument that is wrong for the call."""
    shape, learned = call["scores"].shape, {"name": "alpha_entmax"}
    more = torch.ones((*shape[:-1], shape[-1] + 2))
    return choose([
        {"scores": call["scores"].long()}, {"dim": len(shape)},
        {"mask": torch.ones(shape)}, {"mask": more.bool()}, {"mask": torch.ones(2, *shape).bool()},
        *(learned | {"alpha": alpha} for alpha in (0.5, 3.0, math.nan, "high", None, more)),
    ])  # fmt: skip


def call_map(name, scores, dim, mask, **alpha):
    return getattr(entmax, name)(scores, *alpha.values(), dim=dim, mask=mask)


def explicit_map(call):
    """Return the weights and the scores, float64."""
    scores, dim, mask = call["scores"].double(), call["dim"], call["mask"]
    alpha = ALPHAS.get(call["name"], with_clamped_alpha(call.get("alpha")))
    if isinstance(alpha, Tensor):
        alpha = alpha.expand((1,) * (scores.dim() - alpha.dim()) + alpha.shape).movedim(dim, -1)
    mask = None if mask is None else mask.expand(scores.shape).movedim(dim, -1)
    return oracle.weights(scores.movedim(dim, -1), alpha, mask).movedim(-1, dim), scores


def draw_loss(choose):
    """Return the arguments of a valid call."""
    shape = tuple(choose([0, 1, 2, 5]) for _ in range(choose([0, 1, 2])))
    n_classes = choose([1, 2, 9, 40])
    scores = torch.randn(*shape, n_classes) * choose([0.0, 1.0, 10.0])
    target = torch.randint(n_classes, shape).to(choose([torch.int64, torch.int32, torch.uint8]))
    return {
        "scores": laid_out(choose, scores.to(choose([torch.float32, *FLOATS]))),
        "target": target, "alpha": choose([1.0, 1.2, 1.5, 1.9, 2.0]),
        "label_smoothing": choose([0.0, 0.1]),
    }  # fmt: skip


def wrong_loss(choose, call):
    """Return one argument that is wrong for the call."""
    scores, target = call["scores"], call["target"]
    return choose([
        {"scores": scores.long()}, {"scores": scores[None]}, {"scores": scores[..., :0]},
        {"target": target.float()}, {"target": target[None]}, {"target": target.to("meta")},
        {"label_smoothing": 1.0}, {"label_smoothing": -0.1},
        *({"alpha": alpha} for alpha in (0.9, 2.1, math.nan)),
    ])  # fmt: skip


def explicit_loss(call):
    """Return the losses and the scores, float64."""
    scores, target = call["scores"].double(), call["target"].long()
    gold = scores.gather(-1, target[..., None])[..., 0]
    smoothing = call["label_smoothing"] * (gold - scores.mean(-1))
    return oracle.loss(scores, target, call["alpha"]) + smoothing, scores


FUNCTIONS = [
    (draw_attention, wrong_attention, attention, explicit_attention),
    (draw_map, wrong_map, call_map, explicit_map),
    (draw_loss, wrong_loss, entmax.entmax_loss, explicit_loss),
]


def largest(values):
    """Return the largest magnitude; values that exclude a key do not count."""
    values = values.detach()[values.abs() < 1e9]
    return float(values.abs().max()) if values.numel() else 0.0


def check(number):
    """Make one call, and compare result and gradients."""
    choose = random.Random(number).choice
    torch.manual_seed(number)
    draw, wrong, function, explicit = choose(FUNCTIONS)
    call = draw(choose)
    if choose(range(5)) == 0:
        with pytest.raises(REFUSED):
            function(**(call | wrong(choose, call)))
        return
    leaves = [x for x in call.values() if isinstance(x, Tensor) and x.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_()
    with torch.set_grad_enabled(choose([True, False])):
        result = function(**call)
    is_loss = function is entmax.entmax_loss  # half precision is single
    dtype = leaves[0].dtype
    assert result.dtype is (torch.promote_types(dtype, torch.float32) if is_loss else dtype)
    expected, scores = explicit(call)
    pairs = [(result, expected.view(result.shape))]
    if result.requires_grad:
        squares = [x.double().square().sum() for x in pairs[0]]
        ours, theirs = (torch.autograd.grad(x, leaves, allow_unused=True) for x in squares)
        assert all(grad is None or grad.isfinite().all() for grad in ours)
        pairs += [pair for pair in zip(ours, theirs, strict=True) if pair[1] is not None]
    mask = call.get("attn_mask")
    for index, (actual, right) in enumerate(pairs):
        units = GRADIENT_UNITS if index else UNITS
        eps = torch.finfo(result.dtype if index == 0 else dtype).eps
        if index and actual.shape == getattr(call.get("alpha"), "shape", None):
            eps = max(eps, 1e-7)  # the oracle has the limit at α = 1
        tolerance = units * eps * (1 + largest(scores)) * max(1.0, largest(right))
        if index and mask is not None and actual.shape == mask.shape and mask.numel():
            # a sum over scores, which may be 0 but for rounding
            tolerance *= max(1.0, scores.numel() / mask.numel()) ** 0.5
        torch.testing.assert_close(actual.double(), right.double(), atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    "numbers",
    [
        range(N_FAST),
        *(
            pytest.param(range(n, n + 970), marks=pytest.mark.slow)
            for n in range(N_FAST, N_CALLS, 970)
        ),
    ],
)
def test_calls_of_public_functions_equal_the_oracle(numbers):
    for number in numbers:
        try:
            check(number)
        except BaseException as error:
            error.add_note(f"call {number}")
            raise


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


ARGUMENTS = {
    "weights": (SCORES, ALPHA, MASK, 1),
    "weights_backward": (SCORES.softmax(-1), SCORES, ALPHA, 1, True),
    "attention": (*ATTENTION, *SETTINGS),
    "attention_backward": (HEADS[0], *ATTENTION, SAVED, *SETTINGS, True),
    "attention_of_few": (*ATTENTION[:6], ATTENTION[7], 1, True, 5, 0.3, 1),
    "entmax_loss": (ROWS[1], TARGET, 1.3, 0.1),
    "entmax_loss_backward": (*ROWS, 1.5, 0.1, True),
}


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
    except REFUSED as error:
        return error
    return list(results) if isinstance(results, tuple) else [results]


@needs_kernels
@pytest.mark.parametrize("name", ARGUMENTS)
def test_calls_of_operators_are_right_or_refused(name):
    draw, n_right, n_refused = random.Random(1), 0, 0
    call = getattr(torch.ops.headwise, name)
    is_float32 = name.startswith(("attention", "entmax_loss"))  # else float64 is supported
    for _ in range(60):
        arguments = changed(ARGUMENTS[name], draw)
        results = outcome(call, arguments)
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
        if name.startswith("entmax_loss") and without_kernel:
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
def test_linear_reads_no_other_memory():
    values, weight, bias = torch.randn(512, 256), torch.randn(512, 256), torch.randn(512)
    for one in (bias[0], bias[:1], bias[None]):
        expected = functional.linear(values, weight, one)
        torch.testing.assert_close(linear(values, weight, one), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="device"):
        linear(values, weight, bias.to("meta"))
