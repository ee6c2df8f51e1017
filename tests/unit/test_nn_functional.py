"""Public functions: attention beside torch's function, α of heads, arguments that are refused."""

import copy
import importlib.util
import logging
import pickle
from functools import partial

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import oracle
from headwise import entmax
from headwise.nn import HeadAlpha
from headwise.nn.functional import Scores, attend_heads, attention
from headwise.ops.family import Power
from headwise.ops.visible import Visible


def heads(*shape, groups=2):
    generator = torch.Generator().manual_seed(1)
    batch, n_heads, n_keys, width = shape
    sizes = [shape, (batch, n_heads // groups, n_keys + 3, width)]
    sizes.append((*sizes[1][:3], width + 2))
    return [torch.randn(size, generator=generator, requires_grad=True) for size in sizes]


@pytest.mark.parametrize("n", [5, 140])
@pytest.mark.parametrize("kind", ["none", "bool", "additive", "causal", "per head"])
def test_equals_the_oracle_for_grouped_heads(n, kind):
    states = heads(2, 4, n, 8)
    alpha = torch.tensor([1.0, 1.3, 1.5, 2.0], requires_grad=True)
    generator = torch.Generator().manual_seed(2)
    mask = torch.rand(4 if kind == "per head" else 1, n, n + 3, generator=generator) > 0.4
    mask[0, 1] = False
    given = mask
    if kind in ("none", "causal"):
        given, mask = None, torch.ones_like(mask)
    if kind == "additive":
        given = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    mask = mask.tril() if kind == "causal" else mask
    options = {"attn_mask": given, "is_causal": kind == "causal", "scale": 0.3}
    result = attention(*states, alpha=alpha, enable_gqa=True, **options)

    def exact(query, key, value, alpha):
        key, value = (x.repeat_interleave(2, 1) for x in (key, value))
        return oracle.attention(query, key, value, alpha[:, None, None], mask, 0.3)

    grad = torch.randn(result.shape, generator=generator)
    expected = oracle.with_gradients(exact, [*states, alpha], grad)
    torch.testing.assert_close(result.double(), expected[0], atol=1e-5, rtol=0)
    gradients = torch.autograd.grad(result, [*states, alpha], grad)
    for name, ours, theirs in zip("qkva", gradients, expected[1:], strict=True):
        assert (ours.double() - theirs).abs().max() / theirs.abs().max() < 1e-5, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_scale_of_0_averages_values(alpha, dtype):
    states = [torch.randn(2, 3, 8, 16, dtype=dtype, requires_grad=True) for _ in range(3)]
    # memory that a matmul leaves unwritten is then likely to hold NaN
    freed = [torch.full((2, 3, 8, 8), torch.nan, dtype=dtype) for _ in range(100)]
    del freed
    result = attention(*states, alpha=alpha, scale=0.0)
    expected = states[2].double().mean(2, keepdim=True).expand_as(result)
    torch.testing.assert_close(result, expected.to(dtype))
    grad = torch.autograd.grad(result.sum(), states)
    torch.testing.assert_close(grad, (*map(torch.zeros_like, states[:2]), torch.ones_like(grad[2])))


@pytest.mark.parametrize("options", [{"attention": "softmax"}, {"alpha": 1.0}])
@pytest.mark.parametrize("n_axes", [2, 3, 4, 5])
def test_alpha_of_1_is_torchs_function(options, n_axes):
    query, key, value = (torch.randn((2, 3, 2, 6, 8)[-n_axes:]) for _ in range(3))
    ours = attention(query, key, value, is_causal=True, **options)
    theirs = scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(ours, theirs)


def test_autocast_takes_mixed_dtypes():
    query, key, value = (torch.randn(1, 2, 6, 8) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        result = attention(query, key, value.bfloat16(), attention="sparsemax")
    assert result.dtype is torch.bfloat16
    with pytest.raises(TypeError, match="share a floating-point dtype"):
        attention(query, key, value.bfloat16(), attention="sparsemax")


STATES = torch.randn(1, 2, 5, 8)
ZEROS, SCORES = torch.zeros(2, 3), torch.zeros(2, 3, 4)
TARGET = torch.tensor([0, 0])


def attend(**options):
    return attention(STATES, STATES, STATES, **options)


REFUSED = [  # call, error, words of its message
    (lambda: attend(attention="entmax"), ValueError, "softmax, entmax15, sparsemax, alpha_entmax"),
    (attend, ValueError, "needs alpha"),
    (lambda: attend(attention="softmax", alpha=1.5), ValueError, "takes no alpha"),
    (lambda: attend(alpha=2.5), ValueError, r"in \[1, 2\]"),
    (lambda: attend(alpha=torch.tensor([1.0, 1.5, 2.0])), ValueError, "broadcast"),
    (lambda: attend(alpha=1.5, attn_mask=torch.ones(5, 4).bool()), ValueError, "broadcast"),
    (lambda: attend(alpha=1.5, dropout_p=1.0), ValueError, "dropout_p"),
    (lambda: attend(alpha=1.5, scale=torch.tensor(0.3)), TypeError, "scale must be a number"),
    (
        lambda: attention(STATES.repeat(1, 2, 1, 1), STATES, STATES, alpha=1.5),
        ValueError,
        "gqa=True",
    ),
    *(
        (lambda alpha=alpha: entmax.alpha_entmax(SCORES, alpha), ValueError, r"in \[1, 2\]")
        for alpha in (0.99, 2.01, torch.nan, torch.inf, -1, torch.tensor([[1.5], [2.5], [1.0]]))
    ),
    *(
        (lambda dim=dim: entmax.entmax15(SCORES, dim), IndexError, "out of range")
        for dim in (3, 5, -4)
    ),
    (lambda: entmax.alpha_entmax(SCORES, torch.full((4,), 1.5)), ValueError, r"\(H, 1, 1\)"),
    (lambda: entmax.entmax15(SCORES, mask=SCORES), TypeError, "mask must be bool"),
    (lambda: entmax.softmax(SCORES.long()), TypeError, "floating-point"),
    (lambda: entmax.entmax_bisect(ZEROS, torch.nan), ValueError, "alpha must be finite"),
    (lambda: entmax.entmax_bisect(ZEROS, torch.ones(3)), ValueError, "size 1 along dim -1"),
    (lambda: entmax.normmax_bisect(ZEROS, 1), ValueError, "above 1 for normmax"),
    (lambda: entmax.budget_bisect(ZEROS, -1), ValueError, "budget finite and at least 0"),
    (lambda: entmax.entmax_bisect_loss(ZEROS, TARGET, 0), ValueError, "loss must be above 0"),
    (lambda: entmax.normmax_bisect_loss(ZEROS, TARGET + 3), ValueError, "no class"),
    (lambda: entmax.SparsemaxLoss(reduction="avg"), ValueError, "elementwise_mean, mean, sum"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, momentum=0.9),
    "Adam": torch.optim.Adam,
    "AdamW, fused": partial(torch.optim.AdamW, weight_decay=0.0, fused=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_alpha_moves_lr_factor_times_as_far_as_weights(kind):
    weight, alpha = torch.nn.Parameter(torch.full((2,), 1.5)), HeadAlpha(2, 1.5, lr_factor=20)
    optimizer = OPTIMIZERS[kind]([weight, alpha.bias], lr=1e-3)
    for values in (weight, alpha()):
        (values * torch.tensor([0.3, -0.2])).sum().backward()
    assert alpha.bias.grad.equal(weight.grad)  # so clipping treats both alike
    optimizer.step()
    torch.testing.assert_close(alpha() - 1.5, 20 * (weight - 1.5), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_alpha_stays_in_its_range_and_returns_from_a_bound_at_once(kind):
    first = HeadAlpha(2)
    for alpha in (first, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        optimizer = OPTIMIZERS[kind](alpha.parameters(), lr=0.03)
        for step in range(60):
            optimizer.zero_grad()
            (alpha() * (1 if step < 20 else -1)).sum().backward()
            optimizer.step()
            stored = 1 + alpha.factor * alpha.bias.detach()
            assert stored.clamp(1, 2).equal(stored)
            assert (step >= 20) == bool((stored > 1).all())
        assert alpha().tolist() == [2.0, 2.0]


def test_gradient_at_a_bound_is_summed_before_it_is_blocked():
    for grads, expected in (((2.0, -1.0), 1.0), ((1.0, -2.0), 1.1)):
        alpha = HeadAlpha(1)
        optimizer = torch.optim.SGD(alpha.parameters(), lr=0.01)
        for grad in grads:
            (grad * alpha()).sum().backward()
        optimizer.step()
        assert alpha().item() == pytest.approx(expected)


def test_weight_decay_of_alpha_warns_once(recwarn):
    fresh = importlib.util.module_from_spec(importlib.util.find_spec("headwise.nn.alpha"))
    fresh.__spec__.loader.exec_module(fresh)
    alpha = fresh.HeadAlpha(1, 1.5)
    alpha().sum().backward()
    torch.optim.AdamW([{"params": [alpha.bias], "weight_decay": 0.0}]).step()
    assert not recwarn.list
    for _ in range(2):
        torch.optim.AdamW(alpha.parameters()).step()
    assert ["weight decay pulls α" in str(warning.message) for warning in recwarn] == [True]


def test_alpha_under_func_transforms():
    alpha = HeadAlpha(2, 1.5)
    names = dict(alpha.named_parameters())
    grad = torch.func.grad(lambda p: torch.func.functional_call(alpha, p, ()).sum())(names)
    assert grad["bias"].tolist() == [1.0, 1.0]
    grad = torch.func.grad(lambda x: (x * alpha()).sum())(torch.ones(2))
    assert grad.tolist() == [1.5, 1.5]


def test_log_says_why_weights_are_formed(caplog):
    states = torch.randn(1, 2, 150, 8)
    with caplog.at_level(logging.INFO, logger="headwise"):
        for _ in range(2):
            scores = Scores(Visible(), 1.0, states[..., :1], softcap=2.0, sinks_H=torch.ones(2))
            _, weights = attend_heads(states, states, states, Power.SQUARE, None, scores)
    assert weights is not None
    reason = "attention: weights are formed (scores with a bias and a soft cap and sinks)"
    assert caplog.messages.count(reason) == 1
