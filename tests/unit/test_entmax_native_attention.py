"""Attention of few queries, against the formulas in float64 with all weights formed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headwise.entmax import alpha_entmax
from headwise.kernels import native_attention
from headwise.kernels.native_attention import attention_of_few
from headwise.kernels.problem import ALPHAS, Distances, Power, Visible
from kernel_marks import needs_kernels

pytestmark = needs_kernels
SCALE = 0.3
# B, H, Q, K, E
SHAPES = [(3, 2, 1, 1, 16), (40, 2, 1, 19, 64), (3, 2, 5, 40, 20), (2, 3, 4, 150, 100)]


def inputs(shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> list[Tensor]:
    """Queries as projections leave them, keys and values in a cache with room for more."""
    n_batch, n_heads, n_queries, n_keys, width = shape
    generator = torch.Generator().manual_seed(sum(shape))
    query_BQHE = torch.randn(n_batch, n_queries, n_heads, width, generator=generator)
    caches = torch.full((2, n_batch + 1, n_heads, n_keys + 3, width), torch.nan)
    keys_and_values = caches[:, :n_batch, :, :n_keys]
    keys_and_values.copy_(torch.randn(keys_and_values.shape, generator=generator))
    return [query_BQHE.to(dtype).transpose(1, 2), *keys_and_values.to(dtype).unbind()]


def alpha_of(power: Power, n_heads: int) -> Tensor | None:
    return torch.linspace(1, 2, n_heads).view(1, n_heads, 1, 1) if power is Power.ANY else None


def by_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: Tensor | float,
    seen: Tensor | None,
    bias: Tensor | float = 0.0,
) -> Tensor:
    if isinstance(alpha, Tensor):
        alpha = alpha.double()
    scores = query.double() @ key.double().transpose(-1, -2) * SCALE + bias
    return alpha_entmax(scores, alpha, -1, seen) @ value.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("power", list(Power))
def test_equals_attention_by_weights(
    power: Power, shape: tuple[int, int, int, int, int], dtype: torch.dtype
) -> None:
    given = inputs(shape, dtype)
    n_batch, n_heads, n_queries, n_keys, width = shape
    lengths = torch.linspace(0, n_keys, n_batch).long()
    pattern = torch.rand(1, 1, n_queries, n_keys, generator=torch.Generator().manual_seed(7)) > 0.2
    keys, offset = torch.arange(n_keys), n_keys - n_queries
    past = keys <= (torch.arange(n_queries) + offset)[:, None]
    padding = (keys < lengths[:, None])[:, None, None]
    alpha = alpha_of(power, n_heads)
    for visible, seen in (
        (Visible(), None),
        (Visible(lengths_B=lengths), padding),
        (Visible(is_causal=True, query_offset=offset), past),
        (Visible(pattern, lengths, True, offset), padding & past & pattern),
    ):
        found = attention_of_few(*given, alpha, power, visible, SCALE)
        assert found.dtype is dtype
        assert found.shape == (n_batch, n_heads, n_queries, width)
        exact = by_weights(*given, ALPHAS.get(power, alpha), seen)
        bound = 1e-5 if dtype is torch.float32 else 2**-7
        torch.testing.assert_close(found.double(), exact, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_prefix", [0, 3, 38])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("power", list(Power))
def test_bias_by_distance(
    power: Power, shape: tuple[int, int, int, int, int], n_prefix: int, dtype: torch.dtype
) -> None:
    """Some queries stand in a prefix of 38, others behind it."""
    given = inputs(shape, dtype)
    _, n_heads, n_queries, n_keys, _ = shape
    offset, slopes = n_keys - n_queries, torch.linspace(0.5, 0, n_heads)
    positions, keys = torch.arange(offset, n_keys)[:, None], torch.arange(n_keys)
    is_apart = (positions >= n_prefix) & (keys >= n_prefix)
    bias = slopes[:, None, None].double() * -(positions - keys).abs() * is_apart
    alpha, bound = alpha_of(power, n_heads), 1e-5 if dtype is torch.float32 else 2**-7
    for causal, seen in ((False, None), (True, keys <= positions)):
        visible = Visible(None, None, causal, offset)
        found = attention_of_few(*given, alpha, power, visible, SCALE, Distances(slopes, n_prefix))
        exact = by_weights(*given, ALPHAS.get(power, alpha), seen, bias)
        torch.testing.assert_close(found.double(), exact, rtol=bound, atol=bound)


def test_alpha_of_every_query() -> None:
    given = inputs((2, 2, 5, 30, 16), torch.float32)
    alpha = torch.rand(2, 2, 5, 1, generator=torch.Generator().manual_seed(1)) + 1
    found = attention_of_few(*given, alpha, Power.ANY, Visible(), SCALE)
    exact = by_weights(*given, alpha, None)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


def test_a_bad_query_spoils_its_own_row_and_padding_none() -> None:
    query, key, value = inputs((2, 2, 3, 30, 16), torch.float32)
    lengths = torch.tensor([30, 12])
    clean = attention_of_few(query, key, value, None, Power.EXP, Visible(None, lengths), SCALE)
    query[:, :, 1], key[1, :, 12:], value[1, :, 12:] = torch.nan, torch.nan, torch.inf
    found = attention_of_few(query, key, value, None, Power.EXP, Visible(None, lengths), SCALE)
    assert found[:, :, 1].isnan().all()
    assert torch.equal(found[:, :, ::2], clean[:, :, ::2])


def test_threads_do_not_change_bits(set_threads: Callable[[int], None]) -> None:
    given = inputs((40, 2, 1, 80, 64), torch.float32)  # large enough to be shared out
    alpha = alpha_of(Power.ANY, 2)
    found = []
    for n_threads in (1, 2):
        set_threads(n_threads)
        found.append(attention_of_few(*given, alpha, Power.ANY, Visible(), SCALE))
    assert torch.equal(*found)


def test_only_few_queries_without_gradients_are_taken() -> None:
    few, many = (torch.zeros(2, 2, n, 16) for n in (native_attention.FEW_QUERIES, 20))
    assert not native_attention.takes(few, many, many)
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
        (few, many, many[..., :8]),
    ]
    with torch.no_grad():
        assert native_attention.takes(few, many, many)
        assert not any(native_attention.takes(*given) for given in (*others, *misfits))
    for given in misfits:
        with pytest.raises(ValueError, match="keys and values"):
            attention_of_few(*given, None, Power.EXP, Visible(), SCALE)


def test_keys_and_values_may_lie_anyhow() -> None:
    query, key, value = inputs((3, 2, 2, 9, 16), torch.float32)
    by_position = value.transpose(0, 2).contiguous().transpose(0, 2)
    expanded = [one[:1].expand(3, -1, -1, -1) for one in (key, value)]
    nothing = (query[:0], key[:0], value[:0])
    ways = (query, key, by_position), (query, key.contiguous(), value), (query, *expanded), nothing
    for given in ways:
        found = attention_of_few(*given, None, Power.SQUARE, Visible(), SCALE)
        exact = by_weights(*given, 1.5, None)
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


def test_a_gradient_is_refused() -> None:
    given = [one.requires_grad_() for one in inputs((2, 2, 3, 30, 16), torch.float32)]
    context = attention_of_few(*given, None, Power.EXP, Visible(), SCALE)
    with pytest.raises(RuntimeError, match="differentiated"):
        context.sum().backward()
