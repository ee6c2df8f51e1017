"""Distances between heads against a sum over their numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from headwise.analysis.distances import projection_distances
from headwise.attention.build import AttentionFactory
from headwise.attention.protocol import Attention
from headwise.config.folders import group_node
from headwise.config.schema import SITES, ModelConfig
from headwise.model.transformer import Transformer
from headwise.train.particles import squared_distances

FACTORY = AttentionFactory({"attention": group_node("attention", "softmax")}, dropout=0.0)


def make_model(make: Any = FACTORY, heads: dict[str, list[list[int]]] | None = None) -> Transformer:
    config = ModelConfig("test", 3, 2, 8, 4, 8)
    config.heads = heads
    return Transformer(config, 9, 9, True, make, seed=1)


def by_hand(attention: Attention, projection: str) -> list[float]:
    rows = getattr(attention, projection).weight.tolist()
    n_heads, head_dim = attention.place.n_heads, attention.place.head_dim
    heads = [
        [number for row in rows[i * head_dim : (i + 1) * head_dim] for number in row]
        for i in range(n_heads)
    ]
    return [
        math.fsum(math.dist(heads[i], heads[j]) for j in range(n_heads) if j != i) / (n_heads - 1)
        for i in range(n_heads)
    ]


@pytest.mark.parametrize("projection", ["query", "key", "value"])
def test_each_head_is_measured_against_the_others_of_its_layer(projection: str) -> None:
    model = make_model()
    found = projection_distances(model)[f"{projection}_distance"]
    assert {site: len(layers) for site, layers in found.items()} == {
        "encoder_self": 3,
        "decoder_self": 2,
        "cross": 2,
    }
    for site, layer, attention in model.attentions():
        assert found[site][layer - 1] == pytest.approx(by_hand(attention, projection), rel=1e-5)
    json.dumps(found)  # what heads.jsonl takes


def test_one_head_has_no_others() -> None:
    """Nor has a place that lost all of them: what is not measured is absent."""
    heads = {"cross": [[1], [3]], "encoder_self": [[2], [1, 4], []]}
    found = projection_distances(make_model(heads=heads))
    assert found.keys() == {"query_distance", "key_distance", "value_distance"}
    for table in found.values():
        assert table.keys() == {"encoder_self", "decoder_self"}
        assert [len(layer) for layer in table["encoder_self"]] == [0, 2, 0]
        assert table["encoder_self"][1][0] == pytest.approx(table["encoder_self"][1][1])
        assert [len(layer) for layer in table["decoder_self"]] == [4, 4]


def test_an_attention_without_projections_into_heads_is_absent() -> None:
    class Nothing(Attention):
        pass

    found = projection_distances(
        make_model(lambda place: Nothing(place) if place.site == "cross" else FACTORY(place))
    )
    assert all(table.keys() == set(SITES) - {"cross"} for table in found.values())


def test_near_points_far_from_the_origin() -> None:
    points = 1000 + 0.01 * torch.randn(2, 30, 16, generator=torch.Generator().manual_seed(0))
    exact = [
        [[sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for b in rows] for a in rows]
        for rows in points.tolist()
    ]
    found = squared_distances(points)
    torch.testing.assert_close(found.double(), torch.tensor(exact).double(), rtol=1e-5, atol=0)
    assert (found.diagonal(dim1=1, dim2=2) == 0).all()
