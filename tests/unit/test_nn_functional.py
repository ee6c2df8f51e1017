"""`headwise.nn.functional.attention` beside torch's function and explicit float64 weights."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from headwise.entmax import alpha_entmax
from headwise.nn.functional import attention


def heads(*shape, groups=2):
    generator = torch.Generator().manual_seed(1)
    batch, n_heads, n_keys, width = shape
    sizes = [shape, (batch, n_heads // groups, n_keys + 3, width)]
    sizes.append((*sizes[1][:3], width + 2))
    return [torch.randn(size, generator=generator, requires_grad=True) for size in sizes]


def explicit(query, key, value, alpha, mask):
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * 0.3
    return alpha_entmax(scores, alpha, mask=mask) @ value


@pytest.mark.parametrize("n", [5, 140])
@pytest.mark.parametrize("kind", ["none", "bool", "additive", "causal", "per head"])
def test_equals_explicit_float64_weights(n, kind):
    states = heads(2, 4, n, 8)
    alpha = torch.tensor([1.0, 1.3, 1.5, 2.0], requires_grad=True)
    generator = torch.Generator().manual_seed(2)
    mask = torch.rand(4 if kind == "per head" else 1, n, n + 3, generator=generator) > 0.4
    mask[0, 1] = False
    if kind in ("none", "causal"):
        mask = torch.ones_like(mask)
    given = None if kind in ("none", "causal") else mask
    if kind == "additive":
        given = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    options = {"alpha": alpha, "attn_mask": given, "is_causal": kind == "causal", "scale": 0.3}
    if kind == "causal":
        mask = mask.tril()
    result = attention(*states, enable_gqa=True, **options)
    result.square().sum().backward()
    copies = [x.detach().double().requires_grad_() for x in (*states, alpha)]
    expected = explicit(*copies[:3], copies[3][:, None, None], mask)
    expected.square().sum().backward()
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=0)
    for name, ours, theirs in zip("qkva", (*states, alpha), copies, strict=True):
        error = (ours.grad.double() - theirs.grad).abs().max() / theirs.grad.abs().max()
        assert error < 1e-5, name


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "entmax"}, "one of softmax, entmax15, sparsemax, alpha_entmax"),
        ({}, "needs alpha"),
        ({"attention": "softmax", "alpha": 1.5}, "takes no alpha"),
        ({"alpha": 2.5}, r"in \[1, 2\]"),
        ({"alpha": torch.tensor([1.0, 1.5, 2.0])}, "broadcast"),
        ({"alpha": 1.5, "attn_mask": torch.ones(5, 4, dtype=torch.bool)}, "broadcast"),
        ({"alpha": 1.5, "dropout_p": 1.0}, "dropout_p"),
    ],
)
def test_wrong_arguments(options, message):
    query = torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match=message):
        attention(query, query, query, **options)


def test_scale_is_a_number():
    query = torch.randn(1, 2, 5, 8)
    with pytest.raises(TypeError, match="scale must be a number"):
        attention(query, query, query, alpha=1.5, scale=torch.tensor(0.3, requires_grad=True))


def test_grouped_keys_need_to_be_asked_for():
    with pytest.raises(ValueError, match="enable_gqa=True"):
        attention(torch.randn(1, 4, 5, 8), *[torch.randn(1, 2, 5, 8)] * 2, alpha=1.5)
