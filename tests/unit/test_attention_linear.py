"""Linear attention against the formulas, in every mode, and what its sums promise.

Letters: B batch, H heads, Q queries, K keys, N a length, D width, E head width, F = E + 1.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headwise.attention.linear import (
    LinearAttention,
    causal_product,
    positive_elu,
)
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.errors import ConfigError
from saved_memory import n_bytes, saved_storages
from weights_recorded import with_weights

B, H, E, Q, K = 3, 2, 4, 6, 9
D = H * E
LENGTHS = torch.tensor([K, 4, 1])


def make(site: str, chunk_size: int = 4) -> LinearAttention:
    torch.manual_seed(0)
    return LinearAttention(Place(site, 1, H, E), chunk_size).double().eval()


def states(length: int, seed: int, batch: int = B) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, D, generator=generator, dtype=torch.float64)


def phi(x: float) -> float:
    return x + 1 if x > 0 else math.exp(x)


def reference(
    attention: LinearAttention, query: Tensor, key: Tensor, lengths: list[int], causal: bool
) -> tuple[Tensor, Tensor]:
    """Context and weights by the formulas of the paper, one number at a time."""
    q, k, v = (
        part(read).tolist()
        for part, read in ((attention.query, query), (attention.key, key), (attention.value, key))
    )
    n_queries, n_keys = query.shape[1], key.shape[1]
    found = torch.zeros(len(lengths), n_queries, D, dtype=torch.float64)
    weights = torch.zeros(len(lengths), H, n_queries, n_keys, dtype=torch.float64)
    for b, length in enumerate(lengths):
        for h in range(H):
            own = range(h * E, (h + 1) * E)
            for i in range(n_queries):
                seen = [j for j in range(length) if not causal or j <= i]
                scores = [sum(phi(q[b][i][e]) * phi(k[b][j][e]) for e in own) for j in seen]
                total = sum(scores) + 1e-6
                for j, score in zip(seen, scores, strict=True):
                    weights[b, h, i, j] = score / total
                    for e in own:
                        found[b, i, e] += score * v[b][j][e] / total
    return attention.output(found), weights


@pytest.mark.parametrize("site", ["encoder_self", "decoder_self", "cross"])
def test_context_and_weights_follow_the_formula(site: str) -> None:
    attention, causal = make(site), site == "decoder_self"
    key = states(K, 1)
    query = states(Q, 2) if site == "cross" else key
    mask = Mask(key_lengths_B=LENGTHS, causal=causal)
    context, weights = reference(attention, query, key, LENGTHS.tolist(), causal)
    found, recorded = with_weights(attention, query, key, key, mask)
    plain = attention(query, key, key, mask)
    torch.testing.assert_close(recorded, weights, rtol=0, atol=1e-10)
    torch.testing.assert_close(found, context, rtol=0, atol=1e-10)
    assert torch.equal(plain, found)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("chunk_size", [1, 3, 5, 8])
def test_causal_product_and_its_derivatives(chunk_size: int, reverse: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b, v = (
        torch.randn(2, 1, 5, width, generator=generator, dtype=torch.float64, requires_grad=True)
        for width in (3, 3, 2)
    )
    expected = torch.zeros(2, 1, 5, 2, dtype=torch.float64)
    for i in range(5):
        for j in range(i, 5) if reverse else range(i + 1):
            expected[:, :, i] += (a[:, :, i] * b[:, :, j]).sum(-1, keepdim=True) * v[:, :, j]

    def product(*of: Tensor) -> Tensor:
        return causal_product(*of, chunk_size, reverse)

    torch.testing.assert_close(product(a, b, v), expected, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(product, (a, b, v))
    assert torch.autograd.gradgradcheck(product, (a, b, v))


def test_the_feature_map_is_elu_plus_one_and_never_zero() -> None:
    x = torch.tensor([-3.0, -0.4, 0.0, 1e-9, 2.5], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(positive_elu(x), torch.nn.functional.elu(x) + 1)
    positive_elu(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.exp(x.detach().clamp(max=0)))
    inner = x.detach()[[0, 1, 4]].requires_grad_()  # elsewhere the derivative has a kink
    assert torch.autograd.gradgradcheck(positive_elu, (inner,))
    far = positive_elu(torch.tensor([-60.0, 1e30]))
    assert far[0] > 0, "elu + 1 rounds to 0 here"
    assert torch.isfinite(far).all()


def test_decoding_keeps_sums_of_constant_size_and_equals_no_cache() -> None:
    attention, target = make("decoder_self"), states(17, 1)
    whole = attention(target, target, target, Mask(causal=True))
    cache = attention.make_cache(static=False)
    sizes, parts, start = set(), [], 0
    for n_new in (1, 1, 6, 1, 5, 3):  # single steps, and several positions at once
        new = target[:, start : start + n_new]
        mask = Mask(causal=True, query_offset=start)
        parts.append(attention(new, new, new, mask, cache))
        sizes.add(cache.sums_BHEF.numel())
        start += n_new
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-11)
    assert sizes == {B * H * E * (E + 1)}
    assert not cache.is_complete


def test_the_sums_over_a_source_are_taken_once_and_are_small() -> None:
    attention, target, source = make("cross"), states(Q, 1), states(K, 2)
    mask = Mask(key_lengths_B=LENGTHS)
    whole = attention(target, source, source, mask)
    cache = attention.make_cache(static=True)
    cache.reorder(torch.arange(B))  # nothing there yet
    first = attention(target[:, :2], source, source, mask, cache)
    assert cache.is_complete
    assert cache.sums_BHEF.shape == (B, H, E, E + 1)
    unread = torch.full_like(source, torch.nan)
    rows = torch.tensor([1, 1, 0])
    cache.reorder(rows)
    rest = attention(target[rows, 2:], unread, unread, mask, cache)
    torch.testing.assert_close(first, whole[:, :2], rtol=0, atol=1e-12)
    torch.testing.assert_close(rest, whole[rows, 2:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_sums_are_taken_in_float32_under_autocast(causal: bool) -> None:
    torch.manual_seed(0)
    attention = LinearAttention(Place("decoder_self", 1, H, E), chunk_size=4).eval()
    n = 2048  # a sum of so many in bfloat16 stops growing
    read = torch.randn(1, n, D)
    found = []
    attention.output.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16):
        output, recorded = with_weights(attention, read, read, read, Mask(causal=causal))
        parts = (attention.query, attention.key, attention.value)
        q, k, v = (attention.split(part(read)).double() for part in parts)
    assert output.dtype is torch.bfloat16
    scores = positive_elu(q) @ positive_elu(k).mT
    weights = scores.tril() if causal else scores
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
    expected = (weights @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(recorded, weights.float(), rtol=1e-5, atol=1e-8)
    # rounded once, at the end, to the 8 bits of bfloat16
    torch.testing.assert_close(found[0].double(), expected, rtol=2**-8, atol=1e-5)


def test_gradients_under_autocast_are_those_of_float32_sums() -> None:
    torch.manual_seed(0)
    a, b, v = (torch.rand(1, H, 600, E, requires_grad=True) for _ in range(3))
    product = causal_product(a, b, v, 4)
    expected = torch.autograd.grad(product.sum(), (a, b, v), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(product.sum(), (a, b, v))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


def saved_bytes(n: int, head_dim: int = 32) -> int:
    """What autograd keeps of one causal attention to n positions, storages counted once."""
    attention = LinearAttention(Place("decoder_self", 1, 2, head_dim))
    read = torch.randn(1, n, 2 * head_dim)
    with saved_storages(attention) as saved:
        attention(read, read, read, Mask(causal=True))
    return n_bytes(saved)


def test_memory_grows_with_the_length_and_holds_no_state_a_position() -> None:
    short, long = saved_bytes(256), saved_bytes(1024)
    assert long <= 4 * short
    a_copy = 1024 * 64 * 4  # one float32 tensor (N, D)
    assert long < 7 * a_copy, "scores or running sums are kept"


def test_a_chunk_without_positions_is_refused() -> None:
    with pytest.raises(ConfigError, match="chunk_size must be at least 1, got 0"):
        LinearAttention(Place("decoder_self", 1, H, E), chunk_size=0)


def test_a_row_without_a_key_is_zero() -> None:
    attention = make("cross")
    query, key = states(Q, 1).requires_grad_(), states(K, 2).requires_grad_()
    mask = Mask(key_lengths_B=torch.tensor([0, 3, K]))
    found, weights = with_weights(attention, query, key, key, mask)
    torch.testing.assert_close(found[0], attention.output.bias.expand(Q, D), rtol=0, atol=0)
    assert (weights[0] == 0).all()
    found.square().sum().backward()
    assert (query.grad[0] == 0).all()
    assert (key.grad[0] == 0).all()
    assert torch.isfinite(query.grad).all()
    assert torch.isfinite(key.grad).all()
