"""Contract of every pattern in `conf/pattern/`, found by glob, with any normaliser.

Axes: B batch, H heads, N positions, D width.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from contract_checks import (
    E,
    H,
    assert_cached_decoding_equals_uncached,
    assert_every_parameter_gets_a_finite_gradient,
    ids,
    model_of,
    states,
)
from headwise.attention.build import AttentionFactory, unsupported_sites
from headwise.attention.factorised import COMBINATIONS
from headwise.attention.mask import Mask
from headwise.attention.pattern import Pattern
from headwise.attention.place import Place
from headwise.attention.protocol import Attention
from headwise.attention.scores import ScoreAttention
from headwise.config.folders import group_choices, group_node
from headwise.config.schema import SITES
from headwise.model.transformer import Transformer
from weights_recorded import with_weights

PATTERNS = group_choices("pattern")
NORMALISERS = ("softmax", "alpha_entmax")
N = 70  # long enough for the block-sparse path to skip blocks
LENGTHS = torch.tensor([N, 9, 2])
BLOCKS = "block_sparse_from"


def supports(pattern: str, site: str) -> bool:
    return site not in unsupported_sites(group_node("pattern", pattern), "pattern")


def node_of(pattern: str, from_length: int | None = None) -> dict[str, Any]:
    """The yaml's node; a block-sparse path is used from `from_length` on."""
    node: dict[str, Any] = group_node("pattern", pattern)
    return {**node, BLOCKS: from_length} if from_length is not None else node


def implementations(pattern: str) -> list[int | None]:
    """Values of `from_length` for the dense and, if available, the block-sparse path."""
    return [10**9, 1] if BLOCKS in group_node("pattern", pattern) else [None]


def combinations(pattern: str) -> list[dict[str, Any]]:
    """Settings for every way to combine sets, if the pattern has several."""
    if "combine" not in group_node("pattern", pattern):
        return [{}]
    return [{"combine": combine} for combine in COMBINATIONS]


def build(
    pattern: str,
    normaliser: str,
    site: str,
    layer: int = 1,
    from_length: int | None = None,
    **settings: Any,
) -> Attention:
    torch.manual_seed(0)
    factory = AttentionFactory(
        {"attention": group_node("attention", normaliser)},
        {"pattern": {site: {**node_of(pattern, from_length), **settings}}},
    )
    return factory(Place(site, layer, H, E)).eval()


def make_model(pattern: str, normaliser: str, from_length: int | None = None) -> Transformer:
    torch.manual_seed(0)
    factory = AttentionFactory(
        {"attention": group_node("attention", normaliser)},
        {"pattern": {s: node_of(pattern, from_length) for s in SITES if supports(pattern, s)}},
    )
    return model_of(factory)


def cases() -> list[tuple[str, str]]:
    return list(product(PATTERNS, NORMALISERS))


def places() -> list[tuple[str, str, str]]:
    return [(p, n, s) for p, n in cases() for s in SITES if supports(p, s)]


def inputs_of(site: str, n: int = N) -> tuple[torch.Tensor, torch.Tensor, Mask]:
    key = states(n, 1)
    query = states(7, 2) if site == "cross" else key
    if site == "decoder_self":
        return query, key, Mask(causal=True)
    return query, key, Mask(LENGTHS.clamp(max=n))


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize(("pattern", "normaliser", "site"), places())
def test_every_real_query_has_a_key(pattern: str, normaliser: str, site: str, layer: int) -> None:
    for n, settings in product((1, 2, N), combinations(pattern)):
        query, key, mask = inputs_of(site, n)
        attention = build(pattern, normaliser, site, layer, **settings)
        _, weights = with_weights(attention, query, key, key, mask)
        assert weights is not None
        assert (weights >= 0).all()
        for row, length in enumerate(LENGTHS.tolist()):
            n_real = min(n, length) if site == "encoder_self" else query.shape[1]
            sums = weights[row, :, :n_real].sum(-1)
            torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize(
    ("pattern", "normaliser", "site"), [c for c in places() if c[2] != "decoder_self"]
)
def test_padding_is_masked_and_changes_nothing(pattern: str, normaliser: str, site: str) -> None:
    for from_length, layer in product(implementations(pattern), (1, 2)):
        attention = build(pattern, normaliser, site, layer, from_length)
        query, key, mask = inputs_of(site)
        before = attention(query, key, key, mask)
        poisoned = torch.cat((key, states(6, 9, scale=50.0)), dim=1)
        for row, length in enumerate(LENGTHS.tolist()):
            poisoned[row, length:] = 37.0
        query = query if site == "cross" else poisoned
        after = attention(query, poisoned, poisoned, mask)
        for row, length in enumerate(LENGTHS.tolist()):
            n_real = length if site == "encoder_self" else query.shape[1]
            torch.testing.assert_close(
                after[row, :n_real], before[row, :n_real], rtol=1e-5, atol=1e-5
            )
            unpadded = attention(
                query[row : row + 1, :n_real],
                key[row : row + 1, :length],
                key[row : row + 1, :length],
                Mask(),
            )
            torch.testing.assert_close(after[row, :n_real], unpadded[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("pattern", "normaliser"), [c for c in cases() if supports(c[0], "decoder_self")]
)
def test_the_future_changes_nothing(pattern: str, normaliser: str) -> None:
    for from_length, layer in product(implementations(pattern), (1, 2)):
        attention = build(pattern, normaliser, "decoder_self", layer, from_length)
        query, _, mask = inputs_of("decoder_self")
        for first in (1, 2, 7, 8, 9, 33, 62, N - 1):
            changed = query.clone()
            changed[:, first:] += 10.0
            before = attention(query, query, query, mask)
            after = attention(changed, changed, changed, mask)
            torch.testing.assert_close(after[:, :first], before[:, :first], rtol=1e-5, atol=1e-5)
            assert not torch.allclose(after[:, first:], before[:, first:])


@pytest.mark.parametrize(("pattern", "normaliser"), cases())
def test_cached_decoding_equals_uncached(pattern: str, normaliser: str) -> None:
    # a prompt, single positions, then several at once
    steps = [(0, 54), *((i, i + 1) for i in range(54, 63)), (63, 66)]
    for from_length in implementations(pattern):
        model = make_model(pattern, normaliser, from_length)
        assert_cached_decoding_equals_uncached(model, LENGTHS, steps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("pattern", "normaliser"), cases())
def test_every_parameter_gets_a_finite_gradient(
    pattern: str, normaliser: str, dtype: torch.dtype
) -> None:
    for from_length in implementations(pattern):
        model = make_model(pattern, normaliser, from_length)
        assert_every_parameter_gets_a_finite_gradient(model, dtype, LENGTHS, n_target=66)


@pytest.mark.usefixtures("qk_width")
@pytest.mark.parametrize(
    ("pattern", "normaliser"), [c for c in cases() if len(implementations(c[0])) > 1]
)
def test_block_sparse_model_equals_dense_model(pattern: str, normaliser: str) -> None:
    arguments = (ids(N, 1), torch.tensor([N, 33, 2]), ids(66, 2))
    results = []
    for from_length in implementations(pattern):
        model = make_model(pattern, normaliser, from_length).double().eval()
        logits = model(*arguments)
        logits.square().sum().backward()
        results.append([logits.detach(), *(p.grad for p in model.parameters())])
        layouts = [
            a.pattern.layout(66, a.place.site == "decoder_self", None, torch.device("cpu"))
            for _, _, a in model.attentions()
            if isinstance(a, ScoreAttention) and a.pattern is not None
        ]
        assert layouts
        assert all((layout is not None) is (from_length == 1) for layout in layouts)
    for dense, block_sparse in zip(*results, strict=True):
        torch.testing.assert_close(block_sparse, dense, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_one_pattern_can_be_set_for_all_sites(pattern: str) -> None:
    """`pattern=` applies to all sites; sites that do not support it get no pattern."""
    choices = {"attention": group_node("attention", "softmax"), "pattern": node_of(pattern)}
    factory = AttentionFactory(choices)
    for site in SITES:
        attention = factory(Place(site, 1, H, E))
        assert isinstance(attention, ScoreAttention)
        assert attention.pattern is None or isinstance(attention.pattern, Pattern)
        if not supports(pattern, site):
            assert attention.pattern is None
