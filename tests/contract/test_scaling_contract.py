"""Contract of every scaling in `conf/scaling/`, found by glob, with a fused and another map.

Axes: B batch, H heads, Q queries, K keys, E head width, D width.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contract_checks import (
    B,
    D,
    E,
    H,
    K,
    Q,
    assert_cached_decoding_equals_uncached,
    assert_every_parameter_gets_a_finite_gradient,
    assert_state_saves_and_loads,
    inputs_of,
    model_of,
    states,
)
from headwise.attention.build import AttentionFactory, unsupported_sites
from headwise.attention.mask import Mask
from headwise.attention.parts import Scaling
from headwise.attention.place import Place
from headwise.attention.protocol import Attention
from headwise.config.folders import group_choices, group_node
from headwise.config.instantiate import instantiate
from headwise.config.schema import SITES
from headwise.model.transformer import Transformer
from weights_recorded import with_weights

OPTIONS = {
    "length": [{"learned": "query"}],
    "ssmax": [{"learned": False}],
}  # settings of a choice that give another module
NODES: dict[str, Any] = {
    " ".join([name, *(f"{key}={value}" for key, value in options.items())]): {
        **group_node("scaling", name),
        **options,
    }
    for name in group_choices("scaling")
    for options in [{}, *OPTIONS.get(name, [])]
}
MAPS = ["softmax", "alpha_entmax"]

every_choice = pytest.mark.parametrize("choice", NODES)
every_map = pytest.mark.parametrize("normaliser", MAPS)
every_site = pytest.mark.parametrize("site", SITES)


def supports(choice: str, site: str) -> bool:
    return site not in unsupported_sites(NODES[choice], "scaling")


def factory(choice: str, normaliser: str) -> AttentionFactory:
    torch.manual_seed(0)
    none = group_node("scaling", "none")
    sites = {site: NODES[choice] if supports(choice, site) else none for site in SITES}
    choices = {"attention": group_node("attention", normaliser)}
    return AttentionFactory(choices, {"scaling": sites})


def make_model(choice: str, normaliser: str) -> Transformer:
    return model_of(factory(choice, normaliser))


def build(choice: str, normaliser: str, site: str) -> Attention:
    return factory(choice, normaliser)(Place(site, 1, H, E)).eval()


@every_choice
@every_site
def test_factor_has_one_value_per_head_and_query(choice: str, site: str) -> None:
    torch.manual_seed(0)
    place = Place(site, 1, H, E)
    scaling = instantiate(NODES[choice], "scaling", place=place)
    assert isinstance(scaling, Scaling)
    if not scaling.scales:
        return
    query, key, mask = inputs_of(site)
    visible = mask.n_visible(Q, key.shape[1], query.device)
    factor = scaling(query, visible)
    assert factor.dtype is torch.float32
    assert factor.shape[0] in (1, B)
    assert factor.shape[1:] == (H, Q, 1)
    assert torch.isfinite(factor).all()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(scaling(query, visible), factor, rtol=0, atol=0)


@every_choice
@every_map
@every_site
def test_recording_changes_nothing(choice: str, normaliser: str, site: str) -> None:
    attention = build(choice, normaliser, site)
    query, key, mask = inputs_of(site)
    plain = attention(query, key, key, mask)
    recorded, weights = with_weights(attention, query, key, key, mask)
    torch.testing.assert_close(plain, recorded, rtol=1e-5, atol=1e-5)
    allowed = mask.dense(Q, key.shape[1], query.device)
    assert weights is not None
    assert allowed is not None
    assert (weights[~allowed.expand_as(weights)] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, Q))


@every_choice
@every_map
@pytest.mark.parametrize("site", ["encoder_self", "cross"])
def test_padding_changes_nothing(choice: str, normaliser: str, site: str) -> None:
    attention = build(choice, normaliser, site)
    lengths, key = torch.tensor([K, 4, 1]), states(K, 2)
    query = key if site == "encoder_self" else states(Q, 1)
    before = attention(query, key, key, Mask(key_lengths_B=lengths))
    longer = torch.cat((key, torch.full((B, 3, D), 50.0)), dim=1)
    for row, length in enumerate(lengths.tolist()):
        longer[row, length:] = 37.0
    queries = longer if site == "encoder_self" else query
    after = attention(queries, longer, longer, Mask(key_lengths_B=lengths))
    for row, length in enumerate(lengths.tolist()):
        n_real = length if site == "encoder_self" else Q
        torch.testing.assert_close(after[row, :n_real], before[row, :n_real], rtol=1e-5, atol=1e-5)


@every_choice
@every_map
def test_cached_decoding_equals_uncached(choice: str, normaliser: str) -> None:
    assert_cached_decoding_equals_uncached(make_model(choice, normaliser))


@every_choice
@every_map
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_parameter_gets_a_finite_gradient(
    choice: str, normaliser: str, dtype: torch.dtype
) -> None:
    assert_every_parameter_gets_a_finite_gradient(make_model(choice, normaliser), dtype)


@every_choice
def test_initial_projections_do_not_depend_on_scaling(choice: str) -> None:
    plain = dict(make_model("none", "softmax").named_parameters())
    scaled = dict(make_model(choice, "softmax").named_parameters())
    assert plain.keys() <= scaled.keys()
    for name, parameter in plain.items():
        assert torch.equal(parameter, scaled[name]), name


@every_choice
def test_state_statistics_and_head_axes(choice: str) -> None:
    model = make_model(choice, "softmax")
    assert_state_saves_and_loads(model, make_model(choice, "softmax"))
    for _, _, attention in model.attentions():
        for name, values in attention.stats().items():
            assert values.shape == (H,), name
            assert torch.isfinite(values).all(), name
        scaling = attention.scaling
        if scaling is not None:
            parameters = dict(scaling.named_parameters())
            for name, axis in scaling.head_axes.items():
                assert parameters[name].shape[axis] == H, name


@every_choice
def test_model_is_built_on_the_meta_device(choice: str) -> None:
    with torch.device("meta"):
        model = make_model(choice, "alpha_entmax")
    assert all(parameter.is_meta for parameter in model.parameters())
