"""Attention of few queries against the formulas in float64 with all weights stored."""

import pytest
import torch
from torch import Tensor

from headwise.entmax import alpha_entmax
from headwise.ops.attention import cpu_few
from headwise.ops.attention.cpu_few import attention_of_few
from headwise.ops.attention.distances import Distances
from headwise.ops.family import ALPHAS, Power
from headwise.ops.visible import Visible
from kernel_marks import needs_kernels

pytestmark = needs_kernels
SCALE = 0.3
# B, H, Q, K, E
SHAPES = [(3, 2, 1, 1, 16), (40, 2, 1, 19, 64), (3, 2, 5, 40, 20), (2, 3, 4, 150, 100)]


def inputs(shape, dtype):
    """Queries in the layout of projections, keys and values as views of larger caches."""
    n_batch, n_heads, n_queries, n_keys, width = shape
    generator = torch.Generator().manual_seed(sum(shape))
    query_BQHE = torch.randn(n_batch, n_queries, n_heads, width, generator=generator)
    caches = torch.full((2, n_batch + 1, n_heads, n_keys + 3, width), torch.nan)
    keys_and_values = caches[:, :n_batch, :, :n_keys]
    keys_and_values.copy_(torch.randn(keys_and_values.shape, generator=generator))
    return [query_BQHE.to(dtype).transpose(1, 2), *keys_and_values.to(dtype).unbind()]


def alpha_of(power, n_heads):
    return torch.linspace(1, 2, n_heads).view(1, n_heads, 1, 1) if power is Power.ANY else None


def by_weights(query, key, value, alpha, mask, bias=0.0):
    if isinstance(alpha, Tensor):
        alpha = alpha.double()
    scores = query.double() @ key.double().transpose(-1, -2) * SCALE + bias
    return alpha_entmax(scores, alpha, mask=mask) @ value.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("power", list(Power))
def test_equals_attention_by_weights(power, shape, dtype):
    tensors = inputs(shape, dtype)
    n_batch, n_heads, n_queries, n_keys, width = shape
    lengths = torch.linspace(0, n_keys, n_batch).long()
    pattern = torch.rand(1, 1, n_queries, n_keys, generator=torch.Generator().manual_seed(7)) > 0.2
    keys, offset = torch.arange(n_keys), n_keys - n_queries
    is_past = keys <= (torch.arange(n_queries) + offset)[:, None]
    padding = (keys < lengths[:, None])[:, None, None]
    alpha = alpha_of(power, n_heads)
    for visible, mask in (
        (Visible(), None),
        (Visible(lengths_B=lengths), padding),
        (Visible(is_causal=True, query_offset=offset), is_past),
        (Visible(pattern, lengths, True, offset), padding & is_past & pattern),
    ):
        context = attention_of_few(*tensors, alpha, power, visible, SCALE)
        assert context.dtype is dtype
        assert context.shape == (n_batch, n_heads, n_queries, width)
        expected = by_weights(*tensors, ALPHAS.get(power, alpha), mask)
        bound = 1e-5 if dtype is torch.float32 else 2**-7
        torch.testing.assert_close(context.double(), expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_prefix", [0, 3, 38])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("power", list(Power))
def test_bias_by_distance(power, shape, n_prefix, dtype):
    """Some queries are in a prefix of 38, others follow it."""
    tensors = inputs(shape, dtype)
    _, n_heads, n_queries, n_keys, _ = shape
    offset, slopes = n_keys - n_queries, torch.linspace(0.5, 0, n_heads)
    positions, keys = torch.arange(offset, n_keys)[:, None], torch.arange(n_keys)
    is_apart = (positions >= n_prefix) & (keys >= n_prefix)
    bias = slopes[:, None, None].double() * -(positions - keys).abs() * is_apart
    alpha, bound = alpha_of(power, n_heads), 1e-5 if dtype is torch.float32 else 2**-7
    for causal, mask in ((False, None), (True, keys <= positions)):
        visible = Visible(None, None, causal, offset)
        context = attention_of_few(
            *tensors, alpha, power, visible, SCALE, Distances(slopes, n_prefix)
        )
        expected = by_weights(*tensors, ALPHAS.get(power, alpha), mask, bias)
        torch.testing.assert_close(context.double(), expected, rtol=bound, atol=bound)


def test_alpha_per_query():
    tensors = inputs((2, 2, 5, 30, 16), torch.float32)
    alpha = torch.rand(2, 2, 5, 1, generator=torch.Generator().manual_seed(1)) + 1
    context = attention_of_few(*tensors, alpha, Power.ANY, Visible(), SCALE)
    expected = by_weights(*tensors, alpha, None)
    torch.testing.assert_close(context.double(), expected, rtol=1e-5, atol=1e-5)


def test_nan_stays_in_its_row_and_padding_is_ignored():
    query, key, value = inputs((2, 2, 3, 30, 16), torch.float32)
    lengths = torch.tensor([30, 12])
    clean = attention_of_few(query, key, value, None, Power.EXP, Visible(None, lengths), SCALE)
    query[:, :, 1], key[1, :, 12:], value[1, :, 12:] = torch.nan, torch.nan, torch.inf
    context = attention_of_few(query, key, value, None, Power.EXP, Visible(None, lengths), SCALE)
    assert context[:, :, 1].isnan().all()
    assert torch.equal(context[:, :, ::2], clean[:, :, ::2])


def test_threads_do_not_change_bits(set_threads):
    tensors = inputs((40, 2, 1, 80, 64), torch.float32)  # large enough for two threads
    alpha = alpha_of(Power.ANY, 2)
    contexts = []
    for n_threads in (1, 2):
        set_threads(n_threads)
        contexts.append(attention_of_few(*tensors, alpha, Power.ANY, Visible(), SCALE))
    assert torch.equal(*contexts)


def test_takes_only_few_queries_without_gradients():
    few, many = (torch.zeros(2, 2, n, 16) for n in (cpu_few.MAX_QUERIES, 20))
    assert not cpu_few.supports(few, many, many)
    others = [
        (many, many, many),
        (few, many, many.transpose(2, 3).contiguous().mT),
        (few.double(), many.double(), many.double()),
        (few, many, many.bfloat16()),
        (few, many[:, :, :0], many[:, :, :0]),
        (few[:, :, :0], many, many),
    ]
    misfits = [
        (few, many[:1], many[:1]),
        (few, many[:, :1], many[:, :1]),
        (few, many, many[:, :, :4]),
        (few, many[..., :8], many),
    ]
    with torch.no_grad():
        assert cpu_few.supports(few, many, many)
        assert cpu_few.supports(few, many, many[..., :8])
        assert not any(cpu_few.supports(*tensors) for tensors in (*others, *misfits))
    for tensors in misfits:
        with pytest.raises(ValueError, match="must have shape"):
            attention_of_few(*tensors, None, Power.EXP, Visible(), SCALE)


def test_any_layout_of_keys_and_values():
    query, key, value = inputs((3, 2, 2, 9, 16), torch.float32)
    by_position = value.transpose(0, 2).contiguous().transpose(0, 2)
    expanded = [tensor[:1].expand(3, -1, -1, -1) for tensor in (key, value)]
    empty = (query[:0], key[:0], value[:0])
    layouts = (query, key, by_position), (query, key.contiguous(), value), (query, *expanded), empty
    for tensors in layouts:
        context = attention_of_few(*tensors, None, Power.SQUARE, Visible(), SCALE)
        expected = by_weights(*tensors, 1.5, None)
        torch.testing.assert_close(context.double(), expected, rtol=1e-5, atol=1e-5)


def test_gradients_are_refused():
    tensors = [tensor.requires_grad_() for tensor in inputs((2, 2, 3, 30, 16), torch.float32)]
    context = attention_of_few(*tensors, None, Power.EXP, Visible(), SCALE)
    with pytest.raises(RuntimeError, match="differentiated"):
        context.sum().backward()
