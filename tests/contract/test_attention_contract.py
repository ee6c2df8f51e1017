"""Contract of every variant in `conf/attention/`, found by glob.

Axes: B batch, H heads, Q queries, K keys, D width.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import contract_checks
from contract_checks import (
    SHORT,
    B,
    D,
    H,
    K,
    Q,
    assert_cached_decoding_equals_uncached,
    assert_every_parameter_gets_a_finite_gradient,
    assert_state_saves_and_loads,
    ids,
    inputs_of,
    model_of,
    states,
)
from headwise.attention.build import AttentionFactory, unsupported_sites
from headwise.attention.mask import Mask
from headwise.attention.place import Place
from headwise.attention.protocol import Attention
from headwise.config.folders import group_choices, group_node
from headwise.config.instantiate import target_class
from headwise.config.schema import SITES
from headwise.errors import ConfigError
from headwise.model.places import place_of
from headwise.model.transformer import Transformer
from weights_recorded import with_weights

VARIANTS = group_choices("attention")
pytestmark = pytest.mark.usefixtures("qk_width")


def supports(variant: str, site: str) -> bool:
    return site not in unsupported_sites(group_node("attention", variant), "attention")


def place(site: str, layer: int) -> Place:
    return place_of(contract_checks.MODEL, site, layer)


def build(variant: str, site: str, dropout: float = 0.0, layer: int = 1) -> Attention:
    torch.manual_seed(0)
    factory = site_factory(variant, site, dropout)
    return factory(place(site, layer)).eval()


def site_factory(variant: str, site: str, dropout: float = 0.0) -> AttentionFactory:
    """The variant at one site, softmax at the others, which may not support it."""
    common = group_node("attention", "softmax")
    of_site = {site: group_node("attention", variant)}
    return AttentionFactory({"attention": common}, {"attention": of_site}, dropout)


def cases() -> list[tuple[str, str]]:
    return [(v, s) for v in VARIANTS for s in SITES if supports(v, s)]


def make_model(variant: str) -> Transformer:
    torch.manual_seed(0)
    sites = {s: group_node("attention", variant) for s in SITES if supports(variant, s)}
    common = {"attention": group_node("attention", "softmax")}
    return model_of(AttentionFactory(common, {"attention": sites}))


@pytest.mark.parametrize(("variant", "site"), cases())
def test_attention_gets_the_dropout_of_the_model(variant: str, site: str) -> None:
    assert build(variant, site, dropout=0.5).dropout == 0.5


@pytest.mark.parametrize(("variant", "site"), cases())
def test_shapes_and_weights(variant: str, site: str) -> None:
    attention = build(variant, site)
    query, key, mask = inputs_of(site)
    context, weights = with_weights(attention, query, key, key, mask)
    assert context.shape == (B, Q, D)
    assert torch.isfinite(context).all()
    if attention.forms_weights == "no":
        assert weights is None
        return
    assert weights is not None
    assert weights.shape == (B, H, Q, key.shape[1])
    allowed = mask.dense(Q, key.shape[1], query.device)
    assert allowed is not None
    assert (weights[~allowed.expand_as(weights)] == 0).all(), "weight on a masked key"
    for head, is_distribution in enumerate(attention.distribution_heads()):
        if is_distribution:
            assert (weights[:, head] >= 0).all()
            torch.testing.assert_close(weights[:, head].sum(-1), torch.ones(B, Q))


@pytest.mark.parametrize(
    ("variant", "site"), [c for c in cases() if c[1] in ("encoder_self", "cross")]
)
def test_padding_is_masked_and_changes_nothing(variant: str, site: str) -> None:
    attention = build(variant, site)
    query, lengths = states(Q, 1), torch.tensor([K, 4, 1])
    key = states(K, 2)
    if site == "encoder_self":
        query = key
    before = attention(query, key, key, Mask(key_lengths_B=lengths))
    poisoned = torch.cat((key, states(3, 9, scale=50.0)), dim=1)
    for row, length in enumerate(lengths.tolist()):
        poisoned[row, length:] = 37.0
    if site == "encoder_self":
        after = attention(poisoned, poisoned, poisoned, Mask(key_lengths_B=lengths))
        for row, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(
                after[row, :length], before[row, :length], rtol=1e-5, atol=1e-5
            )
    else:
        after = attention(query, poisoned, poisoned, Mask(key_lengths_B=lengths))
        torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if supports(v, "decoder_self")])
def test_the_future_changes_nothing(variant: str) -> None:
    attention = build(variant, "decoder_self")
    query = states(Q, 1)
    changed = query.clone()
    changed[:, 3:] += 10.0
    before = attention(query, query, query, Mask(causal=True))
    after = attention(changed, changed, changed, Mask(causal=True))
    torch.testing.assert_close(after[:, :3], before[:, :3], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(after[:, 3:], before[:, 3:])


@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_decoding_equals_uncached(variant: str) -> None:
    assert_cached_decoding_equals_uncached(make_model(variant))


@pytest.mark.parametrize("variant", VARIANTS)
def test_reordered_cache_continues_with_its_rows(variant: str) -> None:
    model = make_model(variant).eval()
    source, lengths, target = ids(Q, 1), SHORT, ids(4, 2)
    rows = torch.tensor([2, 0, 0, 1])
    memory = model.encode(source, lengths)
    cache = model.make_cache()
    model.decode(target[:, :3], memory, cache)
    cache.reorder(rows)
    cache.reorder_memory(rows)
    step = model.decode(target[rows, 3:], memory.index_select(rows), cache)
    whole = model.decode(target, memory)[rows, 3:]
    torch.testing.assert_close(step, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_gets_a_finite_gradient(variant: str, dtype: torch.dtype) -> None:
    assert_every_parameter_gets_a_finite_gradient(make_model(variant), dtype)


@pytest.mark.parametrize("variant", VARIANTS)
def test_state_saves_and_loads(variant: str) -> None:
    assert_state_saves_and_loads(make_model(variant), make_model(variant))


@pytest.mark.parametrize("variant", VARIANTS)
def test_places_share_nothing_unless_declared(variant: str) -> None:
    node = group_node("attention", variant)
    target = target_class(node, "attention")
    share_key = getattr(target, "share_key", lambda place, settings: None)
    owners: dict[int, str | None] = {}
    for site, layer, attention in make_model(variant).attentions():
        key = share_key(place(site, layer), node) if supports(variant, site) else None
        for parameter in attention.parameters():
            owner = owners.setdefault(id(parameter), key)
            assert owner == key
            if key is None:
                assert list(owners).count(id(parameter)) == 1
    n_places = 2 * 3
    min_parameters = 8 * n_places  # at least four weight matrices and biases per place
    if all(share_key(place(s, 1), node) is None for s in SITES):
        assert len(owners) >= min_parameters


@pytest.mark.parametrize("variant", VARIANTS)
def test_statistics_have_one_value_per_head(variant: str) -> None:
    for _, _, attention in make_model(variant).attentions():
        for name, values in attention.stats().items():
            assert values.shape == (H,), name
            # NaN: no value for that head
            assert torch.isfinite(values).any(), name
            assert not torch.isinf(values).any(), name


@pytest.mark.parametrize(
    ("variant", "site", "reason"),
    [
        (variant, site, reason)
        for variant in VARIANTS
        for site, reason in unsupported_sites(group_node("attention", variant), "attention").items()
    ],
)
def test_unsupported_sites_are_rejected_with_alternatives(
    variant: str, site: str, reason: str
) -> None:
    common, of_site = group_node("attention", "softmax"), group_node("attention", variant)
    with pytest.raises(ConfigError, match=f"attention@sites.{site}=.*softmax") as error:
        AttentionFactory({"attention": common}, {"attention": {site: of_site}})
    assert reason in str(error.value)


@pytest.mark.parametrize("segments", [None, [0, 0, 0, 1, 1]])
@pytest.mark.parametrize(("variant", "site"), cases())
def test_blocks_of_queries_equal_the_whole(
    variant: str, site: str, segments: list[int] | None
) -> None:
    """The analysis of long sequences relies on it."""
    attention = build(variant, site)
    query, key, mask = inputs_of(site)
    if segments is not None and site != "cross" and variant != "linformer":
        mask = Mask(causal=mask.causal, segments_BN=torch.tensor([segments] * B))
    whole = attention(query, key, key, mask)
    block = replace(mask, query_offset=2)
    keys = key[:, :4] if mask.causal else key
    context = attention(query[:, 2:4], keys, keys, block)
    torch.testing.assert_close(context, whole[:, 2:4], rtol=1e-5, atol=1e-5)
