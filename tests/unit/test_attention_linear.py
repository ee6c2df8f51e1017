"""Linear attention compared with the formulas in every mode, and the size of its sums.

Axes: B batch, H heads, Q queries, K keys, N a length, D width, E head width, F = E + 1.
"""

import math

import pytest
import torch
from benchmarks.saved_storages import n_bytes, saved_storages

from headwise.attention.linear import (
    LinearAttention,
    causal_product,
    positive_elu,
)
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from weights_recorded import with_weights

B, H, E, Q, K = 3, 2, 4, 6, 9
D = H * E
LENGTHS = torch.tensor([K, 4, 1])


def make(site, chunk_size=4):
    torch.manual_seed(0)
    return LinearAttention(Place(site, 1, H, E), chunk_size).double().eval()


def states(length, seed, batch=B):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, D, generator=generator, dtype=torch.float64)


def phi(x):
    return x + 1 if x > 0 else math.exp(x)


def reference(attention, query, key, lengths, causal):
    """Context and weights by the formulas of the paper, one number at a time."""
    q, k, v = (
        part(states).tolist()
        for part, states in ((attention.query, query), (attention.key, key), (attention.value, key))
    )
    n_queries, n_keys = query.shape[1], key.shape[1]
    context = torch.zeros(len(lengths), n_queries, D, dtype=torch.float64)
    weights = torch.zeros(len(lengths), H, n_queries, n_keys, dtype=torch.float64)
    for b, length in enumerate(lengths):
        for h in range(H):
            channels = range(h * E, (h + 1) * E)
            for i in range(n_queries):
                visible = [j for j in range(length) if not causal or j <= i]
                scores = [sum(phi(q[b][i][e]) * phi(k[b][j][e]) for e in channels) for j in visible]
                total = sum(scores) + 1e-6
                for j, score in zip(visible, scores, strict=True):
                    weights[b, h, i, j] = score / total
                    for e in channels:
                        context[b, i, e] += score * v[b][j][e] / total
    return attention.output(context), weights


@pytest.mark.parametrize("site", ["encoder_self", "decoder_self", "cross"])
def test_context_and_weights_follow_the_formula(site):
    attention, causal = make(site), site == "decoder_self"
    key = states(K, 1)
    query = states(Q, 2) if site == "cross" else key
    mask = Mask(key_lengths_B=LENGTHS, causal=causal)
    expected, weights = reference(attention, query, key, LENGTHS.tolist(), causal)
    recorded_context, recorded = with_weights(attention, query, key, key, mask)
    fast_context = attention(query, key, key, mask)
    torch.testing.assert_close(recorded, weights, rtol=0, atol=1e-10)
    torch.testing.assert_close(recorded_context, expected, rtol=0, atol=1e-10)
    assert torch.equal(fast_context, recorded_context)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("chunk_size", [3, 8])
def test_causal_product_and_its_derivatives(chunk_size, reverse):
    generator = torch.Generator().manual_seed(0)
    a, b, v = (
        torch.randn(2, 1, 5, width, generator=generator, dtype=torch.float64, requires_grad=True)
        for width in (3, 3, 2)
    )
    expected = torch.zeros(2, 1, 5, 2, dtype=torch.float64)
    for i in range(5):
        for j in range(i, 5) if reverse else range(i + 1):
            expected[:, :, i] += (a[:, :, i] * b[:, :, j]).sum(-1, keepdim=True) * v[:, :, j]

    def product(*tensors):
        return causal_product(*tensors, chunk_size, reverse)

    torch.testing.assert_close(product(a, b, v), expected, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(product, (a, b, v))
    assert torch.autograd.gradgradcheck(product, (a, b, v))


def test_feature_map_is_elu_plus_one_and_positive():
    x = torch.tensor([-3.0, -0.4, 0.0, 1e-9, 2.5], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(positive_elu(x), torch.nn.functional.elu(x) + 1)
    positive_elu(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.exp(x.detach().clamp(max=0)))
    inner = x.detach()[[0, 1, 4]].requires_grad_()  # the derivative has a kink at 0
    assert torch.autograd.gradgradcheck(positive_elu, (inner,))
    far = positive_elu(torch.tensor([-60.0, 1e30]))
    assert far[0] > 0, "elu + 1 rounds to 0 here"
    assert torch.isfinite(far).all()


def test_caches_have_constant_size():
    target = states(17, 1)
    for site, steps in (("decoder_self", (1, 6, 10)), ("cross", (3, 1))):
        attention, start = make(site), 0
        cache = attention.make_cache(static=site == "cross")
        for n_new in steps:
            new = target[:, start : start + n_new]
            key = target if site == "cross" else new
            attention(new, key, key, Mask(causal=site != "cross", query_offset=start), cache)
            assert cache.sums_BHEF.shape == (B, H, E, E + 1)
            start += n_new


@pytest.mark.parametrize("causal", [False, True])
def test_sums_are_float32_under_autocast(causal):
    torch.manual_seed(0)
    attention = LinearAttention(Place("decoder_self", 1, H, E), chunk_size=4).eval()
    n = 2048  # a bfloat16 sum of so many terms stops growing
    states = torch.randn(1, n, D)
    contexts = []
    attention.output.register_forward_pre_hook(lambda _, inputs: contexts.append(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16):
        output, recorded = with_weights(attention, states, states, states, Mask(causal=causal))
        parts = (attention.query, attention.key, attention.value)
        q, k, v = (attention.split(part(states)).double() for part in parts)
    assert output.dtype is torch.bfloat16
    scores = positive_elu(q) @ positive_elu(k).mT
    weights = scores.tril() if causal else scores
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
    expected = (weights @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(recorded, weights.float(), rtol=1e-5, atol=1e-8)
    # rounded once, at the end, to the 8 bits of bfloat16
    torch.testing.assert_close(contexts[0].double(), expected, rtol=2**-8, atol=1e-5)


def test_gradients_under_autocast_equal_float32():
    torch.manual_seed(0)
    a, b, v = (torch.rand(1, H, 600, E, requires_grad=True) for _ in range(3))
    product = causal_product(a, b, v, 4)
    expected = torch.autograd.grad(product.sum(), (a, b, v), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        grads = torch.autograd.grad(product.sum(), (a, b, v))
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


def saved_bytes(n, head_dim=32):
    """Return the bytes that autograd saves in one causal attention over n positions."""
    attention = LinearAttention(Place("decoder_self", 1, 2, head_dim))
    states = torch.randn(1, n, 2 * head_dim)
    with saved_storages(attention) as saved:
        attention(states, states, states, Mask(causal=True))
    return n_bytes(saved)


def test_saved_memory_grows_linearly():
    short, long = saved_bytes(256), saved_bytes(1024)
    assert long <= 4 * short
    tensor_bytes = 1024 * 64 * 4  # one float32 tensor (N, D)
    assert long < 7 * tensor_bytes, "scores or running sums are saved"
